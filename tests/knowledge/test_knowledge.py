"""Reading rules/: faults at file:line:column, the bundle and its staleness, the version lock."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from effort import EXHAUSTIVE, few
from kb.core.text import fill, placeholders_in
from kb.knowledge import KnowledgeError, load_catalog, load_words, load_words_alone
from kb.knowledge.bundle import build, load_part, read_data, write_data
from kb.knowledge.locations import named
from kb.knowledge.readings import FILE, Readings
from kb.knowledge.schema import _RIGHT, SchemaSet
from kb.session.rule_examples import ExampleRunner
from rules_copy import copy_of_rules, few_rules

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Some of the shipped rules, which a test may break."""
    return few_rules(tmp_path)


@pytest.fixture
def whole_folder(tmp_path: Path) -> Path:
    return copy_of_rules(tmp_path)


def problems(folder: Path) -> list[str]:
    with pytest.raises(KnowledgeError) as caught:
        load_catalog(str(folder))
    return [str(problem).removeprefix(str(folder) + os.sep) for problem in caught.value.problems]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


T5 = "checks/precision/t5-fp16-overflow.yaml"


def test_the_shipped_rules_are_valid_and_many() -> None:
    catalog = load_catalog(whole=True)
    assert len(catalog.rules) >= 40
    assert {
        "fit",
        "precision",
        "batch",
        "loader",
        "evaluation",
        "memory-options",
        "renames",
        "distributed",
        "text",
    } <= {rule.area for rule in catalog.rules.values()}
    for rule in catalog.rules.values():
        assert rule.why.ko and rule.why.en
        assert {example["expect"] for example in rule.examples} >= {"fires", "silent"}


@pytest.fixture(scope="module")
def runner() -> ExampleRunner:
    return ExampleRunner(load_catalog(whole=True))


@pytest.mark.parametrize("area", few(sorted({rule.area for rule in load_catalog().rules.values()})))
def test_every_example_does_as_it_says(area: str, runner: ExampleRunner) -> None:
    """Of one area, each rule's first example that fires; all in ``make rules``, which CI runs, and --exhaustive."""
    faults = {
        (rule.id, number): fault
        for rule in runner.catalog.rules.values()
        if rule.area == area
        for number, example in enumerate(rule.examples, 1)
        if EXHAUSTIVE or example is next(each for each in rule.examples if each["expect"] == "fires")
        if (fault := runner.run(rule, example)) is not None
    }
    assert faults == {}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("severity: error", "severity: fatal", "'fatal' is not one of error, warning, info"),
        ("severity: error", "severty: error", "did you mean 'severity'"),
        ("\nversion: ", "\nversion: v", "version"),
        ("area: precision", "area: text", "the file lies in precision/"),
        ("id: t5-fp16-overflow", "id: t5-fp16-overflows", "differs from the file's name"),
        ("training.fp16 and", "training.fp61 and", "did you mean 'training.fp16'"),
        ("  ko:", "  kr:", "kr"),
        ("sources: [", "sources: [hf-99999999, ", "not in sources.yaml"),
    ],
)
def test_a_broken_rule_is_named_at_its_place(folder: Path, old: str, new: str, said: str) -> None:
    edit(folder / T5, old, new)
    found = problems(folder)
    assert any(said in problem for problem in found), found
    place = next(problem for problem in found if said in problem).split(":")
    assert place[0].endswith("t5-fp16-overflow.yaml")
    assert int(place[1]) >= 1 and int(place[2]) >= 1


def test_the_line_and_column_are_those_of_the_fault(folder: Path) -> None:
    edit(folder / T5, "severity: error", "severity: fatal")
    line = (folder / T5).read_text("utf-8").splitlines().index("severity: fatal") + 1
    assert any(problem.startswith(f"{T5}:{line}:11:") for problem in problems(folder))


def test_every_fault_is_told_at_once(folder: Path) -> None:
    edit(folder / T5, "confidence: high", "confidence: sure")
    edit(folder / "hardware" / "t4.yaml", "version: 1", "version: -1")
    found = "\n".join(problems(folder))
    assert "t5-fp16-overflow.yaml" in found
    assert "t4.yaml" in found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id: [\n", "not YAML"),
        ("id: a\n\tversion: 1\n", "indent with spaces, not with a tab"),
        ("id: a\nid: b\n", "written twice"),
        ("a: &x 1\nb: *x\n", "aliases"),
        ("[" * 200 + "]" * 200, "too deeply nested"),
        ("no: 1\n", "is not text"),
        ("x: !!python/object/apply:os.system [id]\n", "is not used in rules"),
    ],
)
def test_a_file_that_is_no_rule_is_said(folder: Path, text: str, said: str) -> None:
    (folder / T5).write_text(text, "utf-8")
    assert any(said in problem for problem in problems(folder))


def test_a_file_that_is_not_utf8_is_said(folder: Path) -> None:
    (folder / T5).write_bytes("id: 규칙".encode("cp949"))
    assert any("not UTF-8" in problem for problem in problems(folder))


def test_a_text_missing_in_one_language_is_said(folder: Path) -> None:
    path = folder.parent / "i18n" / "en.yaml"
    path.write_text(path.read_text("utf-8") + "only.here: text\n", "utf-8")
    assert any("'only.here' has no text in ko.yaml" in problem for problem in problems(folder))


def test_a_folder_that_holds_no_rules_is_said(tmp_path: Path) -> None:
    with pytest.raises(KnowledgeError, match="is this a rules directory"):
        load_catalog(str(tmp_path))


def test_an_alias_may_mean_one_gpu_only(folder: Path) -> None:
    edit(folder / "hardware" / "t4.yaml", "aliases: [", "aliases: [rtx3090, ")
    assert any("already means" in problem for problem in problems(folder))


def test_the_bundle_is_read_back_as_it_was_built(folder: Path) -> None:
    location = named(str(folder))
    built = build(location)
    for part in ("hot", "cold", "ko", "en"):
        assert load_part(location, part) == json.loads(json.dumps(built[part]))


@pytest.mark.exhaustive
def test_what_was_read_before_gives_the_same_bundle_as_what_is_read_now(whole_folder: Path) -> None:
    location = named(str(whole_folder))
    assert (whole_folder / ".bundle" / FILE).is_file()
    by_readings = build(location)
    shutil.rmtree(whole_folder / ".bundle")
    _RIGHT.clear()
    assert build(location) == by_readings
    assert (whole_folder / ".bundle" / FILE).is_file()


def test_a_fault_between_files_that_were_right_before_is_told_at_its_place(folder: Path) -> None:
    """Two files that hold what they held: where a value stands is found out when it is to be told."""
    gpu = folder / "hardware" / "t4.yaml"
    load_catalog(str(folder))
    gpu.rename(gpu.with_name("t5.yaml"))
    line = gpu.with_name("t5.yaml").read_text("utf-8").splitlines().index("id: t4") + 1
    assert any(problem.startswith(f"hardware/t5.yaml:{line}:5:") for problem in problems(folder))


def test_readings_of_other_code_or_that_are_damaged_are_left_alone(folder: Path) -> None:
    location, path, text = named(str(folder)), folder / ".bundle" / FILE, (folder / T5).read_text("utf-8")
    schema = SchemaSet(str(folder / "schema")).text("check")

    def known(text: str = text, schema: bytes = schema) -> bool:
        return Readings(location).known(T5, text, schema) is not None

    load_catalog(str(folder))
    assert known()
    assert not known(text + "# more") and not known(schema=schema + b" ")
    whole = read_data(str(path))
    for kept in ({**whole, "code": "of another time"}, {**whole, "files": 3}, ["no readings"]):
        write_data(str(path), kept)
        assert not known()
    path.write_bytes(b"damaged")
    assert not known()


def test_a_changed_rule_makes_the_bundle_stale(folder: Path) -> None:
    assert load_catalog(str(folder)).rules["t5-fp16-overflow"].severity == "error"
    edit(folder / T5, "severity: error", "severity: info")
    assert load_catalog(str(folder)).rules["t5-fp16-overflow"].severity == "info"


def test_a_touched_file_does_not_rebuild(folder: Path) -> None:
    load_catalog(str(folder))
    bundle = folder / ".bundle" / "hot.json"
    before = bundle.stat().st_mtime_ns
    os.utime(folder / T5)
    load_catalog(str(folder))
    assert bundle.stat().st_mtime_ns == before


def test_changed_code_makes_the_bundle_stale_and_touched_code_does_not(folder: Path, tmp_path: Path) -> None:
    """Of a copy of the package, started as a user would start it."""
    shutil.copytree(ROOT / "src" / "kb", tmp_path / "src" / "kb", ignore=shutil.ignore_patterns("__pycache__"))
    program = f"from kb.knowledge import load_catalog; load_catalog({str(folder)!r})"
    bundle = folder / ".bundle" / "hot.json"

    def built() -> int:
        environ = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, "-c", program], check=True, env=environ, timeout=120)
        return bundle.stat().st_mtime_ns

    last = built()
    for module in ("memory/parameters/decoder.py", "knowledge/rows.py", "core/text.py")[: None if EXHAUSTIVE else 1]:
        path = tmp_path / "src" / "kb" / module
        os.utime(path)
        assert built() == last, module
        path.write_text(path.read_text("utf-8") + "# another line\n", "utf-8")
        before, last = last, built()
        assert last != before, module
    (tmp_path / "src" / "kb" / "core" / "new.py").write_text("", "utf-8")
    assert built() != last


def test_a_bundle_is_compiled_by_no_other_folder_than_those_that_are_looked_at(folder: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from kb.knowledge.bundle import COMPILING
from kb.knowledge.compile import compile_knowledge
from kb.knowledge.locations import named
compile_knowledge(named({str(folder)!r}))
files = [Path(each.__file__) for name, each in sys.modules.items() if name.startswith("kb.")]
print({{file.parent.as_posix().rpartition("/kb/")[2] for file in files}} - {{*COMPILING}})
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
    assert run.stdout.strip() == "set()"


def test_an_entry_that_is_damaged_is_made_again_when_it_is_asked_for(folder: Path) -> None:
    location = named(str(folder))
    whole = build(location)
    bundle = folder / ".bundle" / "hot.json"
    head, *lines = bundle.read_bytes().splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if b'"t5-fp16-overflow"' in line)
    lines[at] = lines[at].replace(b"fp16", b"fp17", 1)
    bundle.write_bytes(b"".join((head, *lines)))
    part = load_part(location, "hot")
    assert list(part["rules"]) == list(whole["hot"]["rules"])
    assert dict(part["rules"]) == whole["hot"]["rules"]
    bundle.write_bytes(b"".join((head, *lines[: len(lines) // 2])))  # cut off
    assert {name: dict(part[name]) for name in ("rules", "names", "called")} == {
        name: whole["hot"][name] for name in ("rules", "names", "called")
    }
    with pytest.raises(ValueError, match="damaged"):
        dict(read_data(str(bundle), "hot")["called"])


@pytest.mark.parametrize("damage", few([b"00000000\n{}", b"", b"\xff\xfe"]))
def test_a_damaged_bundle_is_built_again(folder: Path, damage: bytes) -> None:
    load_catalog(str(folder))
    (folder / ".bundle" / "hot.json").write_bytes(damage)
    assert "t5-fp16-overflow" in load_catalog(str(folder)).rules


def test_a_folder_that_cannot_be_written_still_answers(folder: Path) -> None:
    shutil.rmtree(folder / ".bundle")
    (folder / ".bundle").write_text("a file where the folder would be")
    assert "t5-fp16-overflow" in load_catalog(str(folder)).rules


def test_an_unchanged_start_imports_no_schema_library() -> None:
    load_catalog()
    code = "import sys; from kb.knowledge import load_catalog; load_catalog(); print('jsonschema' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert run.stdout.strip() == "False"


def test_both_languages_have_the_same_placeholders() -> None:
    korean, english = load_words("ko"), load_words("en")
    assert korean.keys() == english.keys()
    for key in korean:
        named_in = [sorted(whole for _, _, whole in placeholders_in(words[key])) for words in (korean, english)]
        assert named_in[0] == named_in[1], key


def figures(text: str) -> set[str]:
    """Numbers that state a fact: three digits or more, or a decimal. A third, 8-bit and the like are worded freely."""
    plain = fill(text, lambda name, form: "")
    found = {number.replace(",", "").rstrip(".") for number in re.findall(r"\d[\d.,]*", plain)}
    return {number for number in found if len(number) > 2}


def test_rules_say_the_same_numbers_in_both_languages() -> None:
    for rule in load_catalog(whole=True).rules.values():
        for text in (rule.title, rule.message, rule.why, *(fix.title for fix in rule.fixes)):
            assert figures(text.ko) == figures(text.en), (rule.id, text)


def test_the_texts_can_be_had_where_the_rules_are_at_fault() -> None:
    for language in ("ko", "en"):
        assert dict(load_words_alone(language)) == dict(load_words(language))
