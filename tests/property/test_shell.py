"""Any text is read as shell without an error, and plain commands as the standard library reads them."""

import re
import shlex

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from config_sample import DIALECTS, FACTS
from effort import examples
from kb.config.shell.command import CommandReader, read_shell
from kb.config.shell.lexer import split_commands

READER = CommandReader(DIALECTS, FACTS)
WORDS = ["python x.py ", "--fp16 ", "--batch_size ", "16", "$A", "${A:-8}", "A=3\n", "A=(--fp16)\n", '"', "'", "\\\n"]
PIECES = st.sampled_from(WORDS) | st.text("a \\\n\r#$(){}[]<>|&;`'\"=-", max_size=6)


@settings(max_examples=examples(68, 170), deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join))
def test_any_text_is_read_and_every_place_lies_in_it(text: str) -> None:
    for unit in read_shell(text, "run.sh", READER):
        for setting in unit.settings.values():
            assert 0 <= setting.span.start <= setting.span.end <= len(text)
            assert 0 <= setting.key_span.start <= setting.key_span.end <= len(text)
    READER.read(text)


@settings(max_examples=examples(68, 170), deadline=None)
@given(st.text("ab-= '\"\\", max_size=30))
def test_quotes_and_escapes_are_read_as_a_shell_reads_them(text: str) -> None:
    assume(not re.search(r"\\\s*\Z", text))
    try:
        words = shlex.split(text)
    except ValueError:
        return
    commands = split_commands(text)
    assert [word.literal for command in commands for word in command.words] == words
