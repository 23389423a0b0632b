"""`kb rules` and `kb` itself, as their users run them."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from command_runs import ENVIRON, run_kb
from effort import few
from rules_copy import copy_of_rules, few_rules

kb = partial(run_kb, module="kb.rules")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return few_rules(tmp_path)


@pytest.fixture
def whole_folder(tmp_path: Path) -> Path:
    return copy_of_rules(tmp_path)


def test_the_shipped_rules_validate() -> None:
    run = kb("validate", "--lang", "en")
    assert run.returncode == 0, run.stderr
    assert "valid" in run.stdout


def test_a_broken_rule_fails_validation_at_its_place(folder: Path) -> None:
    rule = folder / "checks" / "precision" / "t5-fp16-overflow.yaml"
    rule.write_text(rule.read_text("utf-8").replace("severity: error", "severity: fatal"), "utf-8")
    run = kb("validate", "--rules", folder, "--lang", "en")
    assert run.returncode == 2
    assert "t5-fp16-overflow.yaml:5:11:" in run.stderr


@pytest.mark.exhaustive
def test_a_failing_example_is_shown(whole_folder: Path) -> None:
    rule = whole_folder / "checks" / "precision" / "t5-fp16-overflow.yaml"
    rule.write_text(rule.read_text("utf-8").replace("- expect: fires", "- expect: silent", 1) + "", "utf-8")
    run = kb("test", "t5-fp16-overflow", "--rules", whole_folder, "--lang", "en")
    assert run.returncode in (1, 2)
    assert "t5-fp16-overflow" in run.stdout + run.stderr


def test_a_new_rule_validates_once_it_is_worded_and_its_examples_run(folder: Path) -> None:
    assert kb("new", "batch-past-reason", "--area", "batch", "--rules", folder).returncode == 0
    path = folder / "checks" / "batch" / "batch-past-reason.yaml"
    text = (
        path.read_text("utf-8")
        .replace("결함의 이름", "너무 큰 배치")
        .replace("the fault's name", "A batch past reason")
    )
    text = text.replace("개는 …", "개는 너무 많습니다.").replace("size} …", "size} is too much.")
    text = text.replace("왜 문제인지 한 문단으로 씁니다.", "메모리가 모자랍니다.").replace(
        "One paragraph on why it matters.", "It does not fit."
    )
    path.write_text(text, "utf-8")
    run = kb("validate", "--rules", folder, "--lang", "en")
    assert run.returncode == 0, run.stderr
    run = kb("test", "batch-past-reason", "--rules", folder, "--lang", "en")
    assert run.returncode == 0, run.stdout
    assert "2 examples run, 0 failed" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("new", "Batch", "--area", "batch"), "lower-case"),
        (("new", "batch-past-reason", "--area", "batches"), "batch"),
        (("new", "zero-epochs", "--area", "batch"), "exists already"),
    ],
)
def test_a_new_rule_with_a_bad_name_is_refused(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    run = kb(*arguments, "--rules", folder, "--lang", "en")
    assert run.returncode == 2
    assert said in run.stderr


def test_rules_are_listed_and_shown() -> None:
    assert "t5-fp16-overflow" in kb("show", "--lang", "ko").stdout
    assert kb("show", "t5-fp16-overflow").stdout.startswith("# yaml-language-server")
    run = kb("show", "t5-fp16-overflo", "--lang", "en")
    assert run.returncode == 2 and "t5-fp16-overflow" in run.stderr


@pytest.mark.parametrize("language", ["ko", "en"])
def test_a_rule_is_explained_offline(language: str) -> None:
    run = kb("explain", "t5-fp16-overflow", "--lang", language)
    assert run.returncode == 0
    assert len(run.stdout) > 200
    assert "65504" in run.stdout


@pytest.mark.parametrize("language", ["ko", "en"])
def test_kb_lists_its_commands(language: str) -> None:
    environ = {**ENVIRON, "LC_ALL": "ko_KR.UTF-8" if language == "ko" else "en_US.UTF-8"}
    run = subprocess.run(
        [sys.executable, "-m", "kb", "--help"], capture_output=True, text=True, env=environ, check=True
    )
    assert "kb check" in run.stdout and "kb rules" in run.stdout


def test_kb_says_its_version_and_passes_arguments_on() -> None:
    assert kb("--version", module="kb").stdout.startswith("kb 0.")
    assert kb("rules", "show", "zero-epochs", module="kb").returncode == 0


def test_what_is_no_command_is_answered_with_what_to_type(tmp_path: Path) -> None:
    config = tmp_path / "train.yaml"
    config.write_text("bf16: true\n", "utf-8")
    for first, told in (
        ("chekc", "did you mean kb check?"),
        ("--lang", "options follow it: kb check train.yaml --lang"),
        (str(config), f"to check it: kb check {config}"),
        ("zzz", "there is no command zzz."),
        ("", 'there is no command "".'),
    ):
        run = kb(first, "--lang", "en", module="kb")
        assert run.returncode == 2 and told in run.stderr.splitlines()[0]


def test_counts_are_words_of_their_number(folder: Path) -> None:
    rule = folder / "checks" / "precision" / "t5-fp16-overflow.yaml"
    rule.write_text(rule.read_text("utf-8").replace("severity: error", "severity: fatal"), "utf-8")
    assert "1 fault." in kb("validate", "--rules", folder, "--lang", "en").stderr


def test_a_rules_folder_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    for action in ("validate", "show", "lock"):
        run = kb(action, "--rules", tmp_path / "absent", "--lang", "en")
        assert run.returncode == 2
        assert "there is no rules folder" in run.stderr and "schema" not in run.stderr


def test_missing_arguments_are_named_in_the_users_language() -> None:
    run = kb("new", "--lang", "ko")
    assert run.returncode == 2
    assert "빠진 인자: ID, --area" in run.stderr
    assert "사용법: kb rules new [-h]" in run.stderr


@pytest.mark.parametrize(
    ("language", "words"),
    few(
        [
            ("en", ("expected fires, got silent", "the condition is false", "true  training.fp16", "false ")),
            ("ko", ("기대: fires, 실제: silent", "조건 전체: 거짓", "참  training.fp16", "거짓 ")),
        ]
    ),
)
def test_a_failed_example_says_which_part_was_false_and_each_facts_value(
    whole_folder: Path, language: str, words: tuple[str, ...]
) -> None:
    rule = whole_folder / "checks" / "precision" / "t5-fp16-overflow.yaml"
    rule.write_text(rule.read_text("utf-8").replace("  when: ", "when: ").replace("mt5-base}", "bert-base-uncased}", 1))
    run = kb("test", "t5-fp16-overflow", "--rules", whole_folder, "--lang", language)
    assert run.returncode == 1, run.stderr
    assert "t5-fp16-overflow" in run.stdout and "model.overflows_fp16" in run.stdout
    for each in words:
        assert each in run.stdout, run.stdout


@pytest.mark.exhaustive
def test_a_failed_row_of_a_table_says_its_condition(whole_folder: Path) -> None:
    table = whole_folder / "tables" / "transformers.yaml"
    table.write_text(table.read_text("utf-8").replace("training.seed < 0 or", "training.seed < -10 or"), "utf-8")
    run = kb("test", "transformers", "--rules", whole_folder, "--lang", "en")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "training.seed < -10 (-1 < -10)" in run.stdout


def test_every_unknown_name_of_an_entry_is_told_at_once_with_the_one_that_was_meant(folder: Path) -> None:
    rule = folder / "checks" / "precision" / "t5-fp16-overflow.yaml"
    text = rule.read_text("utf-8").replace("severity: error", "severty: error\nconfidense: high")
    rule.write_text(text, "utf-8")
    run = kb("validate", rule, "--lang", "en")
    assert run.returncode == 2
    assert "did you mean 'severity'" in run.stderr and "did you mean 'confidence'" in run.stderr
    dialect = folder / "dialects" / "trl.yaml"
    said = dialect.read_text("utf-8").replace("training.max_grad_norm", "training.max_grad_nrom")
    dialect.write_text(
        said if said != dialect.read_text("utf-8") else said.replace("training.", "trainign.", 1), "utf-8"
    )
    for language, words in (("en", "is not in vocabulary.yaml; did you mean 'training."), ("ko", "아닙니까?")):
        run = kb("validate", dialect, "--lang", language)
        assert run.returncode == 2 and words in run.stderr, run.stderr


@pytest.mark.exhaustive
def test_a_remedys_examples_are_run_too(whole_folder: Path) -> None:
    path = whole_folder / "remedies" / "broken-pipe.yaml"
    path.write_text(path.read_text("utf-8").replace("expect: silent", "expect: found"), "utf-8")
    run = kb("test", "broken-pipe", "--rules", whole_folder, "--lang", "en")
    assert run.returncode == 1 and "broken-pipe, example 2: expected found, got gpu-" in run.stdout, run.stdout
    assert kb("test", "gpu-oom", "--rules", whole_folder).returncode == 0
    copy = whole_folder / "remedies" / "a-new-one.yaml"  # copied, its patterns not yet its own
    copy.write_text(
        (whole_folder / "remedies" / "disk-full.yaml").read_text("utf-8").replace("id: disk-full", "id: a-new-one"),
        "utf-8",
    )
    run = kb("test", "a-new-one", "disk-full", "--rules", whole_folder, "--lang", "en")
    assert run.returncode == 1 and "a log leads to" not in run.stdout
    assert " before " in run.stdout and "patterns of its own" in run.stdout, run.stdout


def test_an_option_as_libraries_call_it_is_answered_with_kbs_own() -> None:
    for option, meant in (
        ("--max_seq_length", "--seq-in"),
        ("--load-in-4bit", "--method qlora"),
        ("--per_device_train_batch_size=4", "--batch"),
        ("--bf16", "--precision bf16"),
    ):
        run = kb("estimate", "--model", "t5-base", option, "--lang", "en", module="kb")
        assert run.returncode == 2 and run.stderr.rstrip().endswith(f"did you mean {meant}?")
    run = kb("check", "--bf16", "--lang", "en", module="kb")  # which has no such option of its own
    assert run.returncode == 2 and "--precision" not in run.stderr
