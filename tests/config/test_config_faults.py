"""Texts that are no config: what is said, and where; in both languages."""

import re
import string
from pathlib import Path

import pytest

from config_sample import ROOT, read
from kb.config.files import ConfigError
from kb.core.text import UserError, placeholders_in
from warm_runs import run_text
from yaml_file import read_yaml


def words(language: str) -> dict[str, str]:
    files = (ROOT / "i18n" / "parts" / f"config.{language}.yaml", ROOT / "i18n" / f"{language}.yaml")
    rows: dict[str, str] = {}
    for path in files:
        if path.exists():
            rows |= read_yaml(path)
    return rows


FAULTS = [
    ("", "config.empty", None),
    ("\n  \n", "config.empty", None),
    ("# 주석뿐\n#\n", "config.only-comments", None),
    ("---\n# 주석\n", "config.only-comments", None),
    ("- a\n- b\n", "config.list-at-top", (1, 1)),
    ("\n\njust text\n", "config.scalar-at-top", (3, 1)),
    ("42", "config.scalar-at-top", (1, 1)),
    ("a: 'x\nb: 1\n", "config.unclosed-quote", (1, 4)),
    ("a: [1, 2\nb: 3\n", "config.unclosed-bracket", (2, 2)),
    ("a: b: c\n", "config.colon", (1, 5)),
    ("a: 1\n b: 2\n", "config.colon", (2, 3)),
    ("a: 1\nb\nc: 2\n", "config.no-colon", (2, 1)),
    ("a: %x\n", "config.reserved-character", (1, 4)),
    ("a: @x\n", "config.reserved-character", (1, 4)),
    ("a:\n    b: 1\n  c: 2\n", "config.indentation", (3, 3)),
    ("a: 'it's'\n", "config.indentation", (1, 8)),
    ("- a\nb: 1\n", "config.indentation", (2, 1)),
    ("a: \tb\n\tc: 1\n", "config.tab", (2, 1)),
]
JSON_FAULTS = [
    ("", "config.empty", None),
    ("{", "config.json-ends-early", (1, 2)),
    ('{"a": 1', "config.unclosed-bracket", (1, 8)),
    ('{"a": 1,}', "config.json-trailing-comma", (1, 8)),
    ('{"a": [1, 2,\n]}', "config.json-trailing-comma", (1, 12)),
    ('{"a": True}', "config.json-value", (1, 7)),
    ('{"a": 01}', "config.json-value", (1, 7)),
    ('{"a": .5}', "config.json-value", (1, 7)),
    ("{a: 1}", "config.json-key", (1, 2)),
    ('{"a" 1}', "config.json-colon", (1, 6)),
    ('{\n  "a": 1\n  "b": 2\n}', "config.json-comma", (3, 3)),
    ('{"a": "x\ny"}', "config.json-string", (1, 7)),
    ('{"a": 1} // end', "config.json-comment", (1, 10)),
    ('{"a": 1} {"b": 2}', "config.json-after-end", (1, 10)),
    ("[1, 2]", "config.list-at-top", (1, 1)),
    ('"text"', "config.scalar-at-top", (1, 1)),
]


@pytest.mark.parametrize(("text", "key", "place"), FAULTS)
def test_yaml_that_is_no_config_is_explained(text, key, place):
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert caught.value.key == key
    assert (caught.value.line, caught.value.column) == (place or (None, None))


@pytest.mark.parametrize(("text", "key", "place"), JSON_FAULTS)
def test_json_that_is_no_config_is_explained(text, key, place):
    with pytest.raises(ConfigError) as caught:
        read(text, "config.json")
    assert caught.value.key == key
    assert (caught.value.line, caught.value.column) == (place or (None, None))


def test_a_fault_is_a_users_error_that_names_its_place():
    with pytest.raises(UserError) as caught:
        read("a: 1\n- b\n")
    assert str(caught.value).startswith("2:1: config.")


def test_an_unknown_dialect_id_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError) as caught:
        read("a: 1\n", dialect="zzzzzzzz")
    assert caught.value.key == "config.unknown-dialect-id"
    assert "team" in caught.value.values["known"]


def test_a_slip_in_a_dialect_id_is_told_with_the_one_that_was_meant():
    with pytest.raises(ConfigError) as caught:
        read("a: 1\n", dialect="axolotle")
    assert (caught.value.key, caught.value.values["meant"]) == ("config.unknown-dialect-meant", "axolotl")


def keys_raised() -> set[str]:
    folder = ROOT / "src" / "kb" / "config"
    mine = (
        "text/guard",
        "text/nodes",
        "text/json_nodes",
        "text/parsing",
        "reader",
        "files",
        "discovery",
    )
    sources = (Path(folder / f"{name}.py").read_text(encoding="utf-8") for name in mine)
    return {key for source in sources for key in re.findall(r'"(config\.[a-z-]+)"', source)}


@pytest.mark.long
def test_every_fault_is_worded_in_both_languages_alike():
    korean, english = words("ko"), words("en")
    for key in keys_raised():
        named = [sorted(name for name, _, _ in placeholders_in(text[key])) for text in (korean, english)]
        assert named[0] == named[1], key
        assert any("가" <= letter <= "힣" for letter in korean[key])
        assert not set(english[key]) - set(string.printable), key


CONFLICT = "<<<<<<< HEAD\n{one}\n=======\n{other}\n>>>>>>> c2c4580d\n"


@pytest.mark.parametrize(
    ("name", "head", "one", "other"),
    [
        ("run.yaml", "model_name_or_path: google-t5/t5-base\n", "bf16: true", "bf16: false"),
        ("train.py", "from transformers import *\n", "a = TrainingArguments('o')", "a = TrainingArguments('p')"),
        ("run.sh", "python train.py --model_name_or_path google-t5/t5-base \\\n", "  --bf16", "  --fp16"),
    ],
)
def test_marks_of_a_merge_conflict_are_named_for_what_they_are(
    tmp_path: Path, name: str, head: str, one: str, other: str
) -> None:
    """A shell stops there, and a reader that went on would tell of a command that never runs."""
    (tmp_path / name).write_text(head + CONFLICT.format(one=one, other=other), "utf-8")
    done = run_text("kb.check", str(tmp_path / name), "--lang", "en")
    assert done.returncode == 2
    assert f"{name}:2:1: Marks of a merge conflict" in done.stderr


def test_conflict_marks_inside_a_text_are_no_fault(tmp_path: Path) -> None:
    text = f'"""\n{CONFLICT.format(one="a", other="b")}"""\nfrom transformers import TrainingArguments\n'
    (tmp_path / "train.py").write_text(f"{text}a = TrainingArguments('o', bf16=True)\n", "utf-8")
    assert run_text("kb.check", str(tmp_path / "train.py")).returncode == 0
