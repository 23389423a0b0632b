"""[facts] of kb.toml: what a project says of itself, and what the rules make of it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.advice.check import Checker
from kb.advice.question import Question
from kb.core.expression import is_unknown
from kb.core.facts import FactType
from kb.core.hardware import Machine
from kb.core.result import UnitResult
from kb.core.text import Text, UserError
from kb.report.check.panel import need_of
from kb.session.file import FileChecker
from kb.session.prepare import _installed, file_checker
from kb.session.project import Project, find_project, given_facts

CATALOG = load_catalog()
MT5 = "general: {model_name: google/mt5-base}\ntokenizer: {encoder_max_len: 512, decoder_max_len: 128}\n"
SMOOTHED = MT5 + "training: {label_smoothing_factor: 0.1}\n"


def checker(project: Project) -> FileChecker:
    return file_checker(CATALOG, project, Question.of(gpu="a100-80gb"))


def result_of(text: str, facts: Mapping[str, Any]) -> UnitResult:
    return checker(Project(facts=facts)).check(text.encode(), "train.yaml").results[0]


def outcome(rule: str, text: str, facts: Mapping[str, Any]) -> str:
    result = result_of(text, facts)
    if any(finding.rule == rule for finding in result.findings):
        return "fires"
    return "not evaluated" if any(row.rule == rule for row in result.not_evaluated) else "silent"


def fault_of(table: Mapping[str, Any]) -> UserError:
    with pytest.raises(UserError) as caught:
        given_facts(table, CATALOG.facts, "kb.toml")
    return caught.value


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("kb.toml", "[facts]\nscript.collator_builds_decoder_inputs = false\ndata.train_samples = 9000\n"),
        ("kb.toml", '[facts]\n"script.collator_builds_decoder_inputs" = false\n"data.train_samples" = 9000\n'),
        ("kb.toml", "[facts.script]\ncollator_builds_decoder_inputs = false\n[facts.data]\ntrain_samples = 9000\n"),
        (
            "pyproject.toml",
            "[tool.kb.facts]\nscript.collator_builds_decoder_inputs = false\ndata.train_samples = 9000\n",
        ),
    ],
)
def test_every_way_that_toml_has_of_writing_a_dotted_name_is_read(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    project = find_project(str(tmp_path))
    assert dict(project.facts) == {"script.collator_builds_decoder_inputs": False, "data.train_samples": 9000}
    unit = checker(project).check(b"training: {}\n", "train.yaml").results[0].unit
    assert checker(project).prepare(unit).given == project.facts


def test_a_rule_waits_for_a_fact_that_no_config_gives_and_decides_when_the_project_says_it() -> None:
    rule, name = "label-smoothing-without-decoder-inputs", "script.collator_builds_decoder_inputs"
    assert outcome(rule, SMOOTHED, {}) == "not evaluated"
    assert outcome(rule, SMOOTHED, {name: False}) == "fires"
    assert outcome(rule, SMOOTHED, {name: True}) == "silent"


def test_what_is_missing_is_named() -> None:
    rows = {row.rule: row.needs for row in result_of(SMOOTHED, {}).not_evaluated}
    assert rows["label-smoothing-without-decoder-inputs"] == ("script.collator_builds_decoder_inputs",)


def test_a_configs_own_setting_wins_over_the_projects_word() -> None:
    text = "data: {streaming: false}\ntraining: {num_train_epochs: 3, per_device_train_batch_size: 8}\n"
    assert outcome("iterable-dataset-without-max-steps", text, {"data.streaming": True}) == "silent"
    bare = "training: {num_train_epochs: 3, per_device_train_batch_size: 8}\n"
    assert outcome("iterable-dataset-without-max-steps", bare, {"data.streaming": True}) == "fires"


def test_the_number_of_samples_enters_the_prediction() -> None:
    text = MT5 + "training: {eval_strategy: epoch, per_device_eval_batch_size: 8, bf16: true}\n"
    result = result_of(text, {"data.eval_samples": 24})
    assert result.setup.eval_samples == 24


@pytest.mark.parametrize(
    ("settings", "samples", "steps"),
    [
        ("per_device_train_batch_size: 8, num_train_epochs: 1", 2000, 250),
        ("per_device_train_batch_size: 8, num_train_epochs: 1", 2001, 251),
        ("per_device_train_batch_size: 8, num_train_epochs: 2, gradient_accumulation_steps: 4", 2000, 126),
        ("per_device_train_batch_size: 8, num_train_epochs: 0.5", 2000, 125),
        ("max_steps: 70, num_train_epochs: 3", 2000, 70),
    ],
)
def test_updates_of_a_run_are_those_of_the_trainer(settings: str, samples: int, steps: int) -> None:
    given = {"data.train_samples": samples}
    prepared = Checker(CATALOG, checker(Project()).machine, given=given)
    unit = checker(Project()).check(f"training: {{{settings}}}\n".encode(), "train.yaml").results[0].unit
    assert prepared.facts(unit).get("run.steps") == steps


def test_without_samples_the_updates_are_unknown_and_say_why() -> None:
    unit = checker(Project()).check(b"training: {num_train_epochs: 3}\n", "train.yaml").results[0].unit
    value = Checker(CATALOG, Machine()).facts(unit).get("run.steps")
    assert is_unknown(value) and value.needs == {"data.train_samples"}


@pytest.mark.parametrize(
    ("table", "key", "said"),
    [
        ({"script.has_compute_metric": True}, "project.unknown_fact", "script.has_compute_metrics"),
        ({"zzz": 1}, "project.no_such_fact", "data.streaming"),
        ({"training.fp16": True}, "project.fact_is_setting", "training.fp16"),
        ({"memory.train.peak": 1}, "project.fact_is_computed", "memory.train.peak"),
        ({"versions.trl": "1.0"}, "project.fact_is_version", "versions.trl"),
        ({"data.train_samples": -5}, "project.wrong_fact_type", "data.train_samples"),
        ({"data.streaming": "yes"}, "project.wrong_fact_type", "bool"),
        ({"data.train_samples": 1.5}, "project.wrong_fact_type", "integer"),
        ({"data.train_samples": True}, "project.wrong_fact_type", "integer"),
    ],
)
def test_a_fact_that_cannot_be_taken_is_said_with_the_file_and_what_would_do(
    table: Mapping[str, Any], key: str, said: str
) -> None:
    fault = fault_of(table)
    assert fault.key == key and fault.values["path"] == "kb.toml"
    assert said in str(fault.values)


def test_a_size_and_a_version_are_written_as_text() -> None:
    kinds = {
        name: FactType(name=name, type=kind, meaning=Text("", ""), given=True)
        for name, kind in (("a.size", "bytes"), ("a.version", "version"))
    }
    assert given_facts({"a.size": "60GB", "a.version": "5.2"}, kinds, "kb.toml") == {
        "a.size": 60 * 10**9,
        "a.version": (5, 2),
    }
    for table in ({"a.size": "many"}, {"a.version": "latest"}):
        with pytest.raises(UserError, match=r"wrong_fact_type|not_a_size"):
            given_facts(table, kinds, "kb.toml")


def test_only_where_the_runs_happen_a_missing_library_is_known_to_be_missing() -> None:
    from kb.machine.software import installed_versions

    def installed(project: Project, library: str) -> Any:
        unit = checker(Project()).check(b"training: {bf16: true}\n", "train.yaml").results[0].unit
        prepared = file_checker(CATALOG, project, Question.of(gpu="a100-80gb")).prepare(unit)
        return prepared.known.installed(library)

    assert installed(Project(versions={"peft": "0.17.0"}), "peft") is True
    assert installed(Project(), "no_such_library") is None, "the GPU was named: the run is on another machine"
    beside = "transformers" in installed_versions()
    assert _installed({}, here=True)("no_such_library") is (False if beside else None)
    assert _installed({"transformers": "5.0"}, here=True)("no_such_library") is None


def test_a_setting_without_a_value_is_seen_where_it_stands() -> None:
    result = result_of("training:\n  learning_rate: 0.0001\n  report_to: null\n", {})
    assert list(result.unit.nulls) == ["training.report_to"]
    assert result.unit.nulls["training.report_to"].line == 3
    assert "training.report_to" not in result.unit.settings


NAME = re.compile(r"(?<![\w./-])[a-z]+(?:\.[a-z_]+)+(?![\w(])")


def sentences() -> list[str]:
    """Every sentence of the program, its rules and its pages that speaks of ``[facts]``."""
    root = Path(__file__).parents[2]
    files = [*root.glob("i18n/*.yaml"), *root.glob("rules/**/*.yaml"), *root.glob("docs/*/**/*.md")]
    lines = [line for path in files for line in path.read_text("utf-8").splitlines() if "[facts]" in line]
    return [line.split(": ", 1)[-1] for line in lines]  # without its key, which is a name of the program's own


def test_whatever_is_said_to_be_written_under_facts_is_taken_there() -> None:
    named = {name for line in sentences() for name in NAME.findall(line) if name in CATALOG.facts}
    assert {"quantization.prepared", "script.passes_training_arguments", "model.checkpoint_dtype"} <= named
    values = {"bool": True, "integer": 1, "number": 1.0, "text": "float16"}
    for name in sorted(named):
        assert given_facts({name: values[CATALOG.facts[name].type]}, CATALOG.facts, "kb.toml")


def test_a_fact_that_is_missing_is_asked_of_kb_toml_only_where_it_can_be_said_there() -> None:
    refused = [name for name, fact in CATALOG.facts.items() if need_of(name) == "facts" and not fact.given]
    assert refused == []


@pytest.mark.parametrize(
    ("written", "settings", "model"),
    [
        ("/models/bio-7b", '[models]\n"/models/bio-7b" = "mistralai/Mistral-7B-v0.1"', "mistral-7b"),
        ("./models/bio-7b/", '[models]\n"models/bio-7b" = "Mistral-7B-v0.1"', "mistral-7b"),
        ("/other/bio-7b", '[models]\n"/models/bio-7b" = "mistralai/Mistral-7B-v0.1"', None),
        ("/models/Bio-7b", '[models]\n"/models/bio-7b" = "mistralai/Mistral-7B-v0.1"', None),
        ("/models/bio-7b", '[facts]\nmodel.name = "mistralai/Mistral-7B-v0.1"', None),  # the file names one
        ('"$MODEL"', '[facts]\nmodel.name = "mistralai/Mistral-7B-v0.1"', "mistral-7b"),
        ("--port 3", '[facts]\nmodel.name = "mistralai/Mistral-7B-v0.1"', None),
        ('"$MODEL"', '[models]\n"/models/bio-7b" = "mistralai/Mistral-7B-v0.1"', None),
        ("google/mt5-small", '[models]\n"google/mt5-small" = "google/mt5-base"', "mt5-base"),
        ("/models/bio-7b", '[models]\n"/models/bio-7b" = "acme/nothing"', None),
    ],
)
def test_a_project_says_which_model_a_name_of_its_own_is(
    tmp_path: Path, written: str, settings: str, model: str | None
) -> None:
    (tmp_path / "kb.toml").write_text(settings, "utf-8")
    checked = checker(find_project(str(tmp_path))).check(f"vllm serve {written}\n".encode(), "serve.sh").results[0]
    assert (checked.model.id if checked.model else None) == model
    if model is None:
        assert checked.note in ("model_not_known", "model_open", "no_model_named")
        assert checked.setup.model_name != "mistralai/Mistral-7B-v0.1"
