"""Fixes over whole files: which one is chosen, and how a report is told of them."""

import pytest

from kb.core.finding import Edit, Finding, Fix, Span
from kb.core.result import CheckResult
from kb.core.text import Text
from kb.knowledge import load_catalog
from kb.linting.choosing import chosen_fix
from kb.linting.file import FileChecker
from kb.linting.fixing import replacements_of
from kb.linting.prepare import Wanted, file_checker
from kb.linting.project import Project
from kb.linting.run import Input, run

TEXT = Text("", "")


def fix(safety: str, *, certain: bool = True) -> Fix:
    return Fix(safety=safety, title=TEXT, edits=(Edit("set", "training.fp16", False),), certain=certain)  # type: ignore[arg-type]


def finding(*fixes: Fix) -> Finding:
    return Finding(rule="r", severity="error", confidence="high", message=TEXT, span=Span(1, 1, 1, 1), fixes=fixes)


def test_a_safe_fix_is_preferred_and_an_unsafe_one_needs_leave() -> None:
    safe, unsafe = fix("safe"), fix("unsafe")
    assert chosen_fix(finding(unsafe, safe), unsafe=True) is safe
    assert chosen_fix(finding(unsafe), unsafe=False) is None
    assert chosen_fix(finding(unsafe), unsafe=True) is unsafe


def test_a_fix_whose_condition_is_not_known_is_only_offered() -> None:
    assert chosen_fix(finding(fix("safe", certain=False)), unsafe=True) is None


CONFIG = """\
general: {model_name: google/mt5-base}  # 값 🔥
training:
  fp16: true
  # between the two
  per_device_train_batch_size: 16
  learning_rate: 5e-5
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[FileChecker, CheckResult]:
    path = tmp_path_factory.mktemp("fixing") / "a.yaml"
    path.write_text(CONFIG, "utf-8")
    checker = file_checker(load_catalog(), Project(), Wanted(gpu="rtx-3090", host_memory="60GB", cpus="8"))
    return checker, run([Input(path=str(path))], checker).result(checker)


def test_each_edit_of_a_fix_is_a_replacement_of_its_own(checked: tuple[FileChecker, CheckResult]) -> None:
    checker, result = checked
    (unit,) = result.units
    replacements = replacements_of(result, checker)
    several = 0
    for found in unit.findings:
        for each in found.fixes:
            pieces = replacements(unit.unit, found, each)
            assert pieces, found.rule
            several += len(pieces) > 1
            assert all("between the two" not in CONFIG[span.start : span.end] for span, _ in pieces)
            lines = CONFIG.split("\n")
            for span, _ in pieces:
                assert sum(len(line) + 1 for line in lines[: span.line - 1]) + span.column - 1 == span.start
                assert sum(len(line) + 1 for line in lines[: span.end_line - 1]) + span.end_column - 1 == span.end
    assert several, "a fix of this config changes two settings"


def test_the_replacements_make_the_text_that_the_fixer_makes(checked: tuple[FileChecker, CheckResult]) -> None:
    checker, result = checked
    (unit,) = result.units
    found = next(one for one in unit.findings if one.rule == "t5-fp16-overflow")
    safe = found.ready("safe")
    assert safe is not None
    pieces = replacements_of(result, checker)(unit.unit, found, safe)
    assert pieces is not None
    text = CONFIG
    for span, new in reversed(pieces):
        text = text[: span.start] + new + text[span.end :]
    assert text == CONFIG.replace("  fp16: true\n", "  fp16: false\n  bf16: true\n")
