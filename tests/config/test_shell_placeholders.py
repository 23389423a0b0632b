"""What a script of a tutorial leaves to be filled in, ``<OUTPUT_DIR>``, is a value that is not known."""

import pytest

from kb.config.shell.lexer import split_commands


@pytest.mark.parametrize("after", [" \\\n    --bf16 true", "\n", "", " --bf16 true", " \\  # where it goes\n"])
def test_a_placeholder_is_a_word_whose_value_is_not_known(after: str) -> None:
    (command, *_) = split_commands(f"python train.py --output_dir <OUTPUT-DIR>{after}")
    assert [piece.kind for piece in command.words[3].pieces] == ["unknown"]


def test_a_redirection_is_none() -> None:
    (command,) = split_commands("python train.py <in.txt> out.txt")
    assert len(command.words) == 2
