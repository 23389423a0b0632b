"""W&B sweep files: every combination is checked, within a bound, and the worst is named."""

import math
from pathlib import Path

import pytest

from catalog_sample import shallow_catalog
from kb.advice.question import Question
from kb.config.sweep import Sweep, combinations, read_sweep
from kb.config.text.parsing import parse
from kb.core.result import UnitResult
from kb.session.file import FileChecker
from kb.session.fixing import fix_files
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import Input, run

pytestmark = pytest.mark.long

SWEEP = """\
program: train.py
method: bayes
metric: {name: eval/rougeL, goal: maximize}
command:
  - ${env}
  - python
  - ${program}
  - --fp16
  - --optim=adafactor
  - --dataloader_num_workers
  - 4
  - ${args}
parameters:
  model_name_or_path:
    value: google-t5/t5-base
  per_device_train_batch_size:
    values: [4, 8, 512]
  max_source_length: {values: [256, 1024]}
  learning_rate:
    distribution: log_uniform_values
    min: 1.0e-5
    max: 1.0e-3
  note: {values: [a, b, c]}
"""


@pytest.fixture(scope="module")
def checker() -> FileChecker:
    wanted = Question.of(gpu="rtx-3090", host_memory="60GB", cpus="16", versions={"transformers": "5.0"})
    return file_checker(shallow_catalog(), Project(), wanted)


def checked(text: str, checker: FileChecker, path: str = "sweep.yaml") -> list[UnitResult]:
    (file,) = run([Input(path, raw=text.encode())], checker).files
    return list(file.results)


def sweep_of(text: str) -> Sweep:
    found = read_sweep(parse(text, "sweep.yaml"))
    assert found is not None
    return found


def summary(units: list[UnitResult]) -> dict[str, object]:
    (finding,) = [finding for unit in units for finding in unit.findings if finding.rule == "sweep-corners"]
    return dict(finding.facts)


@pytest.mark.exhaustive
def test_the_worst_combination_comes_first_with_its_prediction(checker: FileChecker) -> None:
    units = checked(SWEEP, checker)
    worst = units[0]
    assert worst.unit.section is not None and "per_device_train_batch_size=512" in worst.unit.section
    assert "max_source_length=1024" in worst.unit.section
    assert worst.prediction is not None and worst.prediction.verdict.status == "oom"
    said = summary(units)
    assert (said["corners"], said["checked"], said["runs"]) == (36, 36, 12)
    assert said["rule"] == "training-peak-exceeds-gpu"


def test_a_finding_stands_at_the_value_of_the_list_that_it_is_about(checker: FileChecker) -> None:
    found = [f for unit in checked(SWEEP, checker) for f in unit.findings if f.rule == "training-peak-exceeds-gpu"]
    line = SWEEP.splitlines()[found[0].span.line - 1]
    assert line[found[0].span.column - 1 :].startswith("512]")


def test_a_sweep_of_the_trainers_keys_is_predicted_though_its_program_is_not_there(checker: FileChecker) -> None:
    rows = "{model_name_or_path: {value: google-t5/t5-base}, per_device_train_batch_size: {values: [4, 512]}}"
    worst = checked(f"program: run_summarization.py\nmethod: grid\nparameters: {rows}\n", checker)[0]
    assert worst.unit.section == "per_device_train_batch_size=512" and worst.prediction is not None


def test_flags_of_the_command_hold_for_every_run(checker: FileChecker) -> None:
    setup = checked(SWEEP, checker)[0].setup
    assert setup is not None
    assert (setup.fp16, setup.optim, setup.dataloader_num_workers) == (True, "adafactor", 4)


def test_nested_parameters_and_every_distribution_have_their_ends() -> None:
    sweep = sweep_of("""\
method: random
parameters:
  optimizer:
    parameters:
      lr: {distribution: log_uniform, min: -10, max: -5}
      steps: {distribution: int_uniform, min: 1, max: 8}
  q: {distribution: q_uniform, min: 0, max: 10, q: 2}
  fixed: {distribution: constant, value: 3}
  cat: {distribution: categorical, values: [x, y], probabilities: [0.1, 0.9]}
  bell: {distribution: normal, mu: 0, sigma: 1}
""")
    ends = {parameter.name: [choice.scalar() for choice in parameter.choices] for parameter in sweep.parameters}
    assert ends["optimizer.lr"] == pytest.approx([math.exp(-5), math.exp(-10)], rel=1e-5)
    assert ends["optimizer.steps"] == [8, 1]
    assert (ends["q"], ends["fixed"], ends["cat"], ends["bell"]) == ([10, 0], [3], ["x", "y"], [])
    assert sweep.corners == 2 * 2 * 2 * 2
    assert sweep.document([0] * 6).plain()["optimizer"]["steps"] == 8


@pytest.mark.exhaustive
def test_a_sweep_of_millions_is_bounded_and_says_so(checker: FileChecker) -> None:
    rows = "".join(
        f"  {name}: {{values: {list(range(1, 101))}}}\n"
        for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "max_source_length", "warmup_steps")
    )
    others = "  optim: {values: [adamw_torch, adafactor, sgd]}\n  fp16: {values: [true, false]}\n" + "".join(
        f"  {name}: {{values: [1, 2, 3, 4]}}\n" for name in ("num_train_epochs", "eval_steps", "save_steps")
    )
    text = f"method: grid\nparameters:\n  model_name_or_path: {{value: google-t5/t5-small}}\n{rows}{others}"
    units = checked(text, checker)
    said = summary(units)
    assert said["corners"] == 100**4 * 6 * 4**3
    assert said["runs"] == 256
    assert isinstance(said["checked"], int) and 256 <= said["checked"] < said["corners"]
    assert units[0].setup is not None and units[0].setup.per_device_train_batch_size == 100


@pytest.mark.parametrize("sizes", [[2, 3], [2] * 30, [100, 100, 100], [1], []])
def test_combinations_are_different_and_meet_each_choice_of_few(sizes: list[int]) -> None:
    found = list(combinations(sizes, 64))
    assert len(found) == len(set(found)) == min(64, math.prod(sizes))
    assert all(0 <= digit < size for each in found for digit, size in zip(each, sizes, strict=True))
    if sum(sizes) - len(sizes) < 64:
        assert all({each[at] for each in found} == set(range(size)) for at, size in enumerate(sizes))


@pytest.mark.exhaustive
def test_a_fix_replaces_a_single_value_and_nothing_else(checker: FileChecker, tmp_path: Path) -> None:
    text = SWEEP.replace("values: [4, 8, 512]", "value: 512").replace("--fp16", "--tf32")
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    fix_files(run([Input(str(path))], checker), checker, unsafe=True, write=True, notice=lambda key, **values: None)
    after = path.read_text().splitlines()
    assert len(after) == len(text.splitlines())
    assert [line for line in after if line not in text.splitlines()] == [] or all(
        ": " in line for line in set(after) - set(text.splitlines())
    )
    path.write_text(SWEEP)
    fix_files(run([Input(str(path))], checker), checker, unsafe=True, write=True, notice=lambda key, **values: None)
    assert path.read_text() == SWEEP


@pytest.mark.parametrize(
    "text",
    [
        "method: grid\nparameters: []\n",
        "method: grid\nparameters: {a: 1}\n",
        "method: walk\nparameters: {a: {value: 1}}\n",
        "- method\n- parameters\n",
    ],
)
def test_what_is_no_sweep_is_read_as_before(text: str) -> None:
    assert read_sweep(parse(text, "x.yaml")) is None


def test_a_sweep_that_names_no_known_setting_is_recognised_and_says_what_it_lacks(checker: FileChecker) -> None:
    (unit,) = checked("program: t.py\nmethod: grid\nparameters:\n  alpha: {values: [1, 2]}\n", checker)
    assert unit.unit.dialect == "sweep"
    assert unit.prediction is None and unit.note == "no_model_named"
    assert not unit.findings  # none of its combinations was checked for anything
    (open_ended,) = checked("program: t.py\nmethod: grid\nparameters:\n  lora_r: {values: [4, 8]}\n", checker)
    assert not open_ended.findings


def test_a_parameter_without_values_and_json_sweeps_are_read(checker: FileChecker) -> None:
    text = (
        '{"method": "grid", "parameters": {"per_device_train_batch_size": {"values": []}, "fp16": {"values": [true]}}}'
    )
    (unit,) = checked(text, checker, "sweep.json")
    assert unit.unit.settings["training.fp16"].value is True


@pytest.mark.parametrize("command", ["", "[]", "train.py", "[[a]]", "['--', '=', '--=', '--a']"])
def test_a_command_of_another_form_gives_what_flags_it_has(command: str) -> None:
    sweep = sweep_of(f"method: grid\nparameters: {{fp16: {{value: true}}}}\ncommand: {command}\n")
    assert [key.value for key, _ in sweep.fixed] in ([], ["a"])


def test_a_value_that_an_agent_writes_after_a_flag_is_no_text_for_a_number(checker: FileChecker) -> None:
    parameters = "{learning_rate: {value: 3e-4}, per_device_train_batch_size: {values: [4, 8]}}"
    rules = [
        {
            each.rule
            for unit in checked(f"method: grid\nparameters: {parameters}\n{last}", checker)
            for each in unit.findings
        }
        for last in ("", "program: train.py\n")
    ]
    assert "yaml-number-is-text" in rules[0], "without a program a function reads wandb.config, where it is text"
    assert "yaml-number-is-text" not in rules[1]
