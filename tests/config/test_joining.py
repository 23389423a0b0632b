"""A config and the DeepSpeed file that it names, read together."""

import json
from pathlib import Path

import pytest

from catalog_sample import load_catalog
from kb.config.reader import ConfigReader, Joiner
from kb.config.shell.command import CommandReader, read_shell
from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.core.finding import Edit, Fix
from kb.core.text import Text
from kb.session.lookups import read_named

CATALOG = load_catalog()
READER = ConfigReader(CATALOG.dialects, CATALOG.facts)
CONFIG = "per_device_train_batch_size: 8\ngradient_accumulation_steps: 2\nbf16: true\ndeepspeed: ds.json\n"
FILE = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_clipping": 0.5,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
}


def joined(config: str = CONFIG, files: dict[str, str] | None = None) -> Unit:
    files = {"ds.json": json.dumps(FILE)} if files is None else files
    (unit,) = READER.read(config, "train.yaml")
    return Joiner(READER, CATALOG.dialects, lambda path, named: files.get(named)).join(unit)


def test_what_the_named_file_says_is_a_setting_of_the_config_placed_where_it_is_named():
    unit = joined()
    stage = unit.settings["deepspeed.zero_stage"]
    assert (stage.value, stage.joined, stage.span.line) == (3, "ds.json", 4)
    assert unit.settings["deepspeed.offload_optimizer.device"].value == "cpu"
    assert unit.joined == ("training.deepspeed",)
    assert unit.unread == ()


def test_auto_in_the_named_file_is_left_open():
    assert "deepspeed.train_micro_batch_size_per_gpu" in joined().left_open


def test_what_the_config_says_itself_wins_over_the_named_file():
    text = (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n"
        "deepspeed_config:\n  deepspeed_config_file: ds.json\n  zero_stage: 2\n"
    )
    unit = joined(text)
    assert unit.dialect == "accelerate"
    assert unit.settings["deepspeed.zero_stage"].value == 2
    assert unit.settings["deepspeed.gradient_clipping"].joined == "ds.json"


@pytest.mark.parametrize("files", [{}, {"ds.json": "{"}, {"ds.json": "[1, 2]"}, {"ds.json": ""}])
def test_a_file_that_is_missing_or_unreadable_is_said(files: dict[str, str]):
    unit = joined(files=files)
    assert unit.unread == ("training.deepspeed",)
    assert unit.joined == ()
    assert not any(name.startswith("deepspeed.") for name in unit.settings)


def test_a_config_that_names_no_file_is_as_it_was():
    text = "per_device_train_batch_size: 8\ndeepspeed: ''\n"
    (unit,) = READER.read(text, "train.yaml")
    assert joined(text) == unit


def test_a_fix_never_writes_into_the_named_file():
    fix = Fix(safety="safe", title=Text("", ""), edits=(Edit("set", "deepspeed.zero_stage", 2),))
    assert joined().bars(fix)


def test_the_file_is_found_beside_the_config_and_in_the_folders_above_it(tmp_path: Path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ds.json").write_text("{}")
    config = str(tmp_path / "configs" / "train.yaml")
    assert read_named(config, "ds.json") == "{}"
    assert read_named(config, "configs/ds.json") == "{}"
    assert read_named(config, str(tmp_path / "configs" / "ds.json")) == "{}"
    assert read_named(config, "other.json") is None


def test_only_configs_are_read(tmp_path: Path):
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "large.json").write_text(" " * (2 << 20))
    assert read_named(str(tmp_path / "train.yaml"), "secret") is None
    assert read_named(str(tmp_path / "train.yaml"), "large.json") is None
    assert read_named(str(tmp_path / "train.yaml"), str(tmp_path)) is None


def test_settings_behind_a_file_that_was_not_read_are_unknown_not_default():
    from kb.advice.check import Checker
    from kb.core.hardware import Machine

    checker = Checker(CATALOG, Machine(gpus=(), gpu_source="none"))
    facts = checker.facts(joined(files={}))
    assert is_unknown(facts.get("deepspeed.bf16.enabled"))
    assert is_unknown(facts.get("written.deepspeed.bf16.enabled"))
    assert facts.get("deepspeed.zero_stage").needs == {"training.deepspeed"}


ACCELERATE = "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"


def test_an_accelerate_config_that_the_project_names_counts_for_its_runs_and_so_does_the_file_that_it_names():
    (unit,) = READER.read("per_device_train_batch_size: 8\nlearning_rate: 1.0e-4\n", "train.yaml")
    files = {"accelerate.yaml": ACCELERATE, "ds.json": json.dumps(FILE)}
    given = {"launch.config_file": "accelerate.yaml"}
    joined_unit = Joiner(READER, CATALOG.dialects, lambda path, named: files.get(named), given).join(unit)
    assert joined_unit.settings["launch.num_processes"].value == 4
    assert joined_unit.settings["deepspeed.zero_stage"].value == 3
    assert joined_unit.joined == ("launch.config_file", "deepspeed.config_file")


def test_an_accelerate_config_that_the_project_names_and_that_is_missing_is_said():
    (unit,) = READER.read("per_device_train_batch_size: 8\n", "train.yaml")
    given = {"launch.config_file": "nowhere.yaml"}
    joiner = Joiner(READER, CATALOG.dialects, lambda path, named: None, given)
    assert joiner.join(unit).unread == ("launch.config_file",)


def test_the_visible_gpus_count_only_where_the_accelerate_config_which_may_tell_of_more_machines_was_read():
    script = f"CUDA_VISIBLE_DEVICES=0 accelerate launch --config_file a.yaml --num_processes 2 {RUN}\n"
    (unit,) = read_shell(script, "run.sh", CommandReader(CATALOG.dialects, CATALOG.facts))
    for files, counted in (({"a.yaml": "distributed_type: MULTI_GPU\nnum_machines: 1\n"}, True), ({}, False)):
        whole = Joiner(READER, CATALOG.dialects, lambda path, named, files=files: files.get(named)).join(unit)
        assert ("launch.visible_gpus" in whole.settings) == counted


def test_a_file_that_is_no_run_is_not_joined_to_what_the_project_names():
    (unit,) = READER.read(json.dumps(FILE), "ds.json")
    given = {"launch.config_file": "accelerate.yaml"}
    assert Joiner(READER, CATALOG.dialects, lambda path, named: ACCELERATE, given).join(unit) == unit


def test_a_deepspeed_file_in_yaml_is_said_to_be_no_json():
    unit = joined(files={"ds.json": "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\n"})
    assert unit.settings["deepspeed.file_not_json"].value is True
    assert (unit.unread, unit.joined) == (("training.deepspeed",), ())


LAUNCHED = """\
compute_environment: LOCAL_MACHINE
distributed_type: 'NO'
mixed_precision: bf16
num_processes: 1
"""
RUN = "train.py --model_name_or_path gpt2 --output_dir o --per_device_train_batch_size 4"


@pytest.mark.parametrize(
    ("command", "half"),
    [
        (f"accelerate launch --config_file a.yaml {RUN}", "bf16"),
        (f"accelerate launch --mixed_precision bf16 {RUN}", "bf16"),
        (f"accelerate launch --mixed_precision=fp16 {RUN}", "fp16"),
        (f"accelerate launch --mixed_precision fp16 --config_file a.yaml {RUN}", "fp16"),
        (f"accelerate launch --mixed_precision bf16 {RUN} --bf16 false", "bf16"),
        (f"accelerate launch --mixed_precision bf16 {RUN} --fp16", "fp16"),
        (f"accelerate launch --mixed_precision bf16 {RUN} --deepspeed d.json", None),
        (f"accelerate launch --mixed_precision no {RUN}", None),
        (f"accelerate launch {RUN}", None),
        (f"torchrun {RUN}", None),
    ],
)
def test_a_run_is_in_the_half_precision_that_accelerate_starts_it_in(command: str, half: str | None):
    """The Trainer takes ACCELERATE_MIXED_PRECISION where its arguments ask for neither fp16 nor bf16."""
    (unit,) = read_shell(command + "\n", "run.sh", CommandReader(CATALOG.dialects, CATALOG.facts))
    unit = Joiner(READER, CATALOG.dialects, lambda path, named: LAUNCHED if named == "a.yaml" else None).join(unit)
    said = {name: unit.settings.get(f"training.{name}") for name in ("bf16", "fp16")}
    on = [name for name, each in said.items() if each is not None and each.value is True]
    assert on == ([half] if half else [])
