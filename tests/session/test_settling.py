"""Fixes carried to where they rest: through the command line, and what happens where rules disagree."""

from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.advice.question import Question
from kb.core.finding import Edit, Finding, Fix
from kb.core.text import Text
from kb.session.file import FileChecker
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import FileResult
from kb.session.settling import Settling
from warm_runs import run_text

TWO_RUNS = """\
general: {model_name: google/mt5-base}
tokenizer: {encoder_max_len: 512, decoder_max_len: 64}
training: {predict_with_generate: true, generation_max_length: 200, per_device_train_batch_size: 12}
"""


def unsafe_fixes(*paths: Path) -> str:
    machine = ("--gpu", "t4", "--host-memory", "60GB", "--cpus", "8", "--transformers", "4.57", "--lang", "en")
    return run_text("kb.check", "--unsafe-fixes", *machine, *paths).stderr


@pytest.mark.exhaustive
def test_a_second_run_of_unsafe_fixes_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(TWO_RUNS)
    assert "fixes applied" in unsafe_fixes(path)
    once = path.read_text()
    assert once != TWO_RUNS
    assert "applied" not in unsafe_fixes(path)
    assert path.read_text() == once


def test_a_file_that_another_names_is_fixed_in_the_same_run(tmp_path: Path) -> None:
    config, deepspeed = tmp_path / "a.yaml", tmp_path / "ds.json"
    config.write_text("model_name_or_path: google/mt5-base\noutput_dir: x\ndeepspeed: ds.json\nfp16: true\n")
    deepspeed.write_text(
        '{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}, "fp16": {"enabled": true}}\n'
    )
    unsafe_fixes(config, deepspeed)
    once = config.read_text(), deepspeed.read_text()
    assert '"stage": 3' in once[1]
    assert "applied" not in unsafe_fixes(config, deepspeed)
    assert (config.read_text(), deepspeed.read_text()) == once


# --- rules that undo one another ----------------------------------------------------------------------------------


class Disagreeing:
    """A checker whose rules are made up: each says what it sets a setting to, and when."""

    def __init__(self, checker: FileChecker, *rules: tuple[str, str, Any, Any]) -> None:
        self.catalog, self._checker, self._rules = checker.catalog, checker, rules

    def check(self, text: str) -> FileResult:
        file = self._checker.check(text.encode(), "a.yaml")
        (result,) = file.results
        found = []
        for rule, name, wrong, right in self._rules:
            setting = result.unit.settings.get(name)
            if setting is not None and setting.value in wrong:
                fix = Fix(safety="safe", title=Text("", ""), edits=(Edit("set", name, right),))
                found.append(Finding(rule, "error", "high", Text("", ""), setting.span, fixes=(fix,)))
        return file._replace(results=(result._replace(findings=tuple(found)),))

    def again(self, file: FileResult, raw: bytes, kind: str) -> FileResult:
        return self.check(raw.decode())


@pytest.fixture(scope="module")
def checker() -> FileChecker:
    return file_checker(load_catalog(), Project(), Question.of(gpu="rtx-3090"))


STEPS, BF16, SEED = "training.eval_steps", "training.bf16", "training.seed"
TEXT = "training:\n  eval_steps: 10\n  bf16: false\n  seed: 1\n  learning_rate: 1.0e-4\n"


def test_fixes_that_undo_one_another_are_left_and_the_rest_is_made(checker: FileChecker) -> None:
    rules = Disagreeing(checker, ("up", STEPS, {10}, 20), ("down", STEPS, {20}, 10), ("bf16", BF16, {False}, True))
    done = Settling(rules, unsafe=False).settle(rules.check(TEXT), "config")  # type: ignore[arg-type]
    assert done.after.text == TEXT.replace("bf16: false", "bf16: true")
    assert done.circle == ("down", "up")
    assert done.applied == 1


def test_a_circle_of_three_that_begins_outside_of_it_ends_too(checker: FileChecker) -> None:
    rules = Disagreeing(checker, ("in", SEED, {1}, 2), ("a", SEED, {2}, 3), ("b", SEED, {3}, 4), ("c", SEED, {4}, 2))
    settling = Settling(rules, unsafe=False)  # type: ignore[arg-type]
    done = settling.settle(rules.check(TEXT), "config")
    assert done.after.text == TEXT.replace("seed: 1", "seed: 2")
    assert settling.settle(done.after, "config").after.text == done.after.text


def test_a_value_that_only_climbs_does_not_go_on_for_ever(checker: FileChecker) -> None:
    class Climbing(Disagreeing):
        def check(self, text: str) -> FileResult:
            value = int(text.partition("seed: ")[2].partition("\n")[0])
            self._rules = (("climb", SEED, {value}, value + 1),)
            return super().check(text)

    rules = Climbing(checker)
    done = Settling(rules, unsafe=False).settle(rules.check(TEXT), "config")  # type: ignore[arg-type]
    assert (done.after.text, done.circle) == (TEXT, ("climb",))


def test_a_detour_that_comes_back_to_where_it_began_is_not_written(checker: FileChecker) -> None:
    # bf16 makes the smaller batch needless, and the batch goes back up: what stays is bf16
    text = "general: {model_name: google/mt5-base}\ntokenizer: {encoder_max_len: 512, decoder_max_len: 128}\n"
    text += "training: {per_device_train_batch_size: 8, gradient_accumulation_steps: 4}\n"
    settling = Settling(checker, unsafe=True)
    done = settling.settle(checker.check(text.encode(), "a.yaml"), "config")
    assert "gradient_accumulation_steps: 4" in done.after.text
    assert settling.settle(done.after, "config").after.text == done.after.text
