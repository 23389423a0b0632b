"""Whatever the document, applied fixes change their targets and nothing else, and refused ones change nothing."""

import json
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from config_sample import DIALECTS, FACTS, read
from effort import examples
from kb.config.files import ConfigError
from kb.config.fixing.fixes import Fixer, Request
from kb.config.text.parsing import LOADER
from kb.core.finding import Edit, Fix
from kb.core.text import Text

FIXER = Fixer(DIALECTS, FACTS)
# Setting → its group and key in the team's format, and values that it may have.
PLACES: dict[str, tuple[str, str, list[Any]]] = {
    "training.fp16": ("training", "fp16", [True, False]),
    "training.bf16": ("training", "bf16", [True, False]),
    "training.per_device_train_batch_size": ("training", "per_device_train_batch_size", [1, 8, 32]),
    "training.learning_rate": ("training", "learning_rate", [5e-5, 0.1, 3.0]),
    "training.optim": ("training", "optim", ["adafactor", "no", "a b"]),
    "inference.batch_size": ("inference", "batch_size", [2, 16]),
    "lora.r": ("qlora", "r", [8, 16]),
    "lora.target_modules": ("qlora", "target_modules", [["q", "v"], ["q", "wi_0", "wi_1", "o"], ["k"]]),
}
NAMES = st.sampled_from(sorted(PLACES))
BLANKS = st.sampled_from(["", " ", "   "])
COMMENTS = st.sampled_from(["", "", "  # 메모 😀", "   # fp16: true", "\t# a: 'b'"])
LOOSE_LINES = st.lists(st.sampled_from(["", "  ", "# 주석", "      # deep: {x", "#"]), max_size=2)
OTHERS = st.sampled_from(
    [
        ("note", "|\n{pad}  # no comment\n{pad}  text"),
        ("tags", "[a, 'b', {c: d}]"),
        ("prefix", '"summarize: "'),
        ("nested", "\n{pad}  deep: 1  # 깊이\n{pad}  list:\n{pad}  - x\n{pad}  - y"),
        ("empty", ""),
        ("folded", ">-\n{pad}   a\n\n{pad}   b"),
    ]
)


@st.composite
def scalars(draw: st.DrawFn, value: Any) -> str:
    if isinstance(value, bool):
        return draw(st.sampled_from([str(value), str(value).lower()]))
    if isinstance(value, str):
        return draw(st.sampled_from([f"'{value}'", f'"{value}"']))
    if isinstance(value, list):
        quote = draw(st.sampled_from(["", "'"]))
        return "[" + ", ".join(quote + item + quote for item in value) + "]"
    return yaml.safe_dump(value).split("\n")[0]


@st.composite
def groups(draw: st.DrawFn, group: str, names: list[str]) -> str:
    pad = " " * draw(st.sampled_from([1, 2, 4]))
    lines = [f"{group}:{draw(COMMENTS)}"]
    for name in names:
        lines += draw(LOOSE_LINES)
        _, key, values = PLACES[name]
        value = draw(st.sampled_from(values))
        if isinstance(value, list) and draw(st.booleans()):
            lines.append(f"{pad}{key}:{draw(COMMENTS)}")
            lines += [f"{pad}{draw(st.sampled_from(['', '  ']))}- '{item}'{draw(COMMENTS)}" for item in value[:1]]
            lines += [lines[-1].split("-")[0] + f"- {item}{draw(COMMENTS)}" for item in value[1:]]
        else:
            lines.append(f"{pad}{key}{draw(BLANKS)}: {draw(BLANKS)}{draw(scalars(value))}{draw(COMMENTS)}")
    for key, text in draw(st.lists(OTHERS, max_size=2, unique=True)):
        lines.append(f"{pad}{key}: " + text.replace("{pad}", pad))
    return "\n".join(lines)


@st.composite
def documents(draw: st.DrawFn) -> str:
    names = draw(st.lists(NAMES, unique=True, min_size=1))
    by_group: dict[str, list[str]] = {}
    for name in names:
        by_group.setdefault(PLACES[name][0], []).append(name)
    parts = ["general: {model_name: t5-small, name: x}"]
    parts += [draw(groups(group, members)) for group, members in by_group.items()]
    text = "\n".join(parts) + draw(st.sampled_from(["", "\n", "\n\n# end", "\n# end\n"]))
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    name = draw(NAMES)
    kind = draw(st.sampled_from(["set", "set", "set", "remove", "rename"]))
    if kind == "set":
        return Edit("set", name, draw(st.sampled_from(PLACES[name][2])))
    return Edit("remove", name) if kind == "remove" else Edit("rename", name, "another_name")


def load(text: str) -> Any:
    return yaml.load(text, Loader=LOADER)


def expected(data: dict[str, Any], edit: Edit) -> dict[str, Any]:
    group, key, _ = PLACES[edit.name]
    entries = dict(data.get(group) or {})
    if edit.op == "set":
        if key == "target_modules" and key not in entries:
            key = "lora_target_modules"  # the dialect's first name for it
        entries[key] = edit.value
    else:
        value = entries.pop(key)
        if edit.op == "rename":
            entries[edit.value] = value
    return {**data, group: entries}


def requests_for(text: str, path: str, chosen: list[Edit]) -> list[Request]:
    (unit,) = read(text, path, "team")
    made = []
    for edit in chosen:
        setting = unit.settings.get(edit.name) or next(iter(unit.settings.values()))
        fix = Fix(safety="safe", title=Text("", ""), edits=(edit,))
        made.append(Request(fix=fix, unit=unit, at=setting.span, rule="r"))
    return made


def is_subsequence(lines: list[str], of: list[str]) -> bool:
    rest = iter(of)
    return all(line in rest for line in lines)


def untouched(text: str, applied: list[Edit]) -> list[str]:
    """The lines that none of the edits has any business with."""
    keys = [PLACES[edit.name][1] for edit in applied]
    listed = any(edit.name == "lora.target_modules" for edit in applied)
    kept = []
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if any(bare.startswith(key) for key in keys) or (listed and bare.startswith("- ")):
            continue
        kept.append(line.rstrip("\r\n"))
    return kept


@settings(max_examples=examples(40, 100), deadline=None)
@given(documents(), st.lists(edits(), min_size=1, max_size=4))
def test_applied_fixes_change_their_targets_and_leave_every_other_line(text: str, chosen: list[Edit]) -> None:
    result = FIXER.apply(text, "c.yaml", requests_for(text, "c.yaml", chosen))
    applied = [request.fix.edits[0] for request in result.applied]
    data = load(text)
    for edit in dict.fromkeys(repr(edit) for edit in applied):
        data = expected(data, next(one for one in applied if repr(one) == edit))
    assert load(result.text) == data
    assert is_subsequence(untouched(text, applied), [line.rstrip("\r\n") for line in result.text.splitlines(True)])
    assert text.endswith("\n") == result.text.endswith("\n")
    if "\r\n" in text:
        assert result.text.count("\n") == result.text.count("\r\n")
    if not applied:
        assert result.text == text


@settings(max_examples=examples(30, 70), deadline=None)
@given(documents(), NAMES, st.data())
def test_one_plain_change_is_never_refused(text: str, name: str, data: st.DataObject) -> None:
    value = data.draw(st.sampled_from(PLACES[name][2]))
    text += "\r\n" if "\r\n" in text else "\n"  # a line below a block of text that has no line end would change that
    result = FIXER.apply(text, "c.yaml", requests_for(text, "c.yaml", [Edit("set", name, value)]))
    assert [refused.key for refused in result.refused] == []


@settings(max_examples=examples(30, 70), deadline=None)
@given(
    st.dictionaries(NAMES, st.none(), min_size=1),
    st.sampled_from([None, 0, 2, "\t"]),
    st.lists(edits(), min_size=1, max_size=3),
    st.data(),
)
def test_json_stays_json(names: dict[str, None], indent: Any, chosen: list[Edit], data: st.DataObject) -> None:
    before: dict[str, Any] = {"general": {"model_name": "t5-small"}}
    for name in names:
        group, key, values = PLACES[name]
        before.setdefault(group, {"tags": [1, {"x": None}]})[key] = data.draw(st.sampled_from(values))
    text = json.dumps(before, indent=indent)
    result = FIXER.apply(text, "c.json", requests_for(text, "c.json", chosen))
    applied = [request.fix.edits[0] for request in result.applied]
    after = before
    for edit in dict.fromkeys(repr(edit) for edit in applied):
        after = expected(after, next(one for one in applied if repr(one) == edit))
    assert json.loads(result.text) == after


@settings(max_examples=examples(30, 70), deadline=None)
@given(documents(), st.integers(0, 400), st.integers(0, 40), st.text("ab: \n-#{}[]'\"", max_size=8))
def test_a_replacement_never_changes_what_lies_elsewhere(text: str, start: int, length: int, new: str) -> None:
    (request,) = requests_for(text, "c.yaml", [Edit("remove", "training.fp16")])
    start = min(start, len(text))
    end = min(start + length, len(text))
    places = read(text, "c.yaml", "team")[0].span
    span = type(places)(1, 1, 1, 1, start, end)
    fix = Fix(safety="safe", title=Text("", ""), edits=(Edit("replace", "", new, span),))
    result = FIXER.apply(text, "c.yaml", [Request(fix=fix, unit=request.unit, at=span, rule="r")])
    if result.refused:
        assert result.text == text
        return
    assert result.text == text[:start] + new + text[end:]
    try:
        read(result.text, "c.yaml", "team")
    except ConfigError as error:
        raise AssertionError("a text that cannot be read was accepted") from error
