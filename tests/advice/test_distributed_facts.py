"""Facts about FSDP and DeepSpeed, from a config's text to what a rule reads."""

import json
from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.advice.check import Checker
from kb.config.reader import ConfigReader, Joiner
from kb.core.expression import is_unknown
from kb.core.hardware import Machine
from kb.core.release import parse_version

CATALOG = load_catalog()
READER = ConfigReader(CATALOG.dialects, CATALOG.facts)
MT5 = "model_name_or_path: google/mt5-base\nper_device_train_batch_size: 8\n"


def fact(name: str, config: str, *, ds: Any = None, given: dict[str, Any] | None = None, transformers: str = "") -> Any:
    (unit,) = READER.read(config, "train.yaml")
    files = {} if ds is None else {"ds.json": json.dumps(ds)}
    versions = {"transformers": parse_version(transformers)} if transformers else {}
    machine = Machine(gpus=(), gpu_source="none")
    checker = Checker(CATALOG, machine, versions=versions.get, given=given or {})
    return checker.facts(Joiner(READER, CATALOG.dialects, lambda path, named: files.get(named)).join(unit)).get(name)


@pytest.mark.parametrize(
    ("written", "enabled", "options"),
    [
        ("fsdp: true", True, ()),
        ("fsdp: false", False, ()),
        ("fsdp: ''", False, ()),
        ("fsdp: full_shard auto_wrap", True, ("full_shard", "auto_wrap")),
        ("fsdp: [full_shard, offload]", True, ("full_shard", "offload")),
        ("bf16: true", False, ()),
    ],
)
def test_fsdp_is_read_in_each_of_its_forms(written: str, enabled: bool, options: tuple[str, ...]):
    assert fact("fsdp.enabled", f"{MT5}{written}\n") is enabled
    assert fact("fsdp.options", f"{MT5}{written}\n") == options


def test_the_version_of_fsdp_follows_transformers_unless_it_is_written():
    assert fact("fsdp.version", f"{MT5}fsdp: true\n", transformers="5.9.0") == 1
    assert fact("fsdp.version", f"{MT5}fsdp: true\n", transformers="5.10.0") == 2
    assert fact("fsdp.version", f"{MT5}fsdp: true\n").needs == {"versions.transformers"}
    assert fact("fsdp.version", f"{MT5}fsdp: true\nfsdp_config: {{fsdp_version: 1}}\n", transformers="5.10.0") == 1


def test_settings_in_a_separate_fsdp_file_are_unknown():
    config = f"{MT5}fsdp: true\nfsdp_config: fsdp.json\n"
    assert is_unknown(fact("training.fsdp_config.activation_checkpointing", config))
    assert fact("training.fsdp_config.activation_checkpointing", f"{MT5}fsdp: true\n") is False


def test_settings_in_a_file_that_is_named_when_the_run_starts_are_unknown():
    config = f"{MT5}deepspeed: ${{oc.env:DS}}\nfsdp: true\nfsdp_config: ${{oc.env:FSDP}}\n"
    assert is_unknown(fact("deepspeed.zero_stage", config))
    assert is_unknown(fact("written.deepspeed.zero_stage", config))
    assert is_unknown(fact("training.fsdp_config.activation_checkpointing", config))


def test_auto_is_what_the_trainer_fills_in():
    ds = {"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "fp16": {"enabled": "auto"}}
    config = f"{MT5}gradient_accumulation_steps: 4\nfp16_full_eval: true\ndeepspeed: ds.json\n"
    assert fact("deepspeed.train_micro_batch_size_per_gpu", config, ds=ds) == 8
    assert fact("deepspeed.fp16.enabled", config, ds=ds) is True
    assert fact("deepspeed.train_batch_size", config, ds=ds).needs == {"launch.num_processes"}
    assert fact("deepspeed.train_batch_size", config, ds=ds, given={"launch.num_processes": 2}) == 64


def test_auto_in_a_file_on_its_own_stays_unknown():
    text = json.dumps({"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}})
    assert is_unknown(fact("deepspeed.train_micro_batch_size_per_gpu", text))
    assert fact("deepspeed.auto_values", text) == ("train_micro_batch_size_per_gpu",)


def test_every_number_that_differs_from_the_trainers_is_named_with_both_values():
    ds = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
    }
    config = f"{MT5}gradient_accumulation_steps: 2\nlearning_rate: 1.0e-4\ndeepspeed: ds.json\n"
    assert fact("deepspeed.disagreements", config, ds=ds) == (
        "train_micro_batch_size_per_gpu 4 ≠ 8",
        "optimizer.params.weight_decay 0.01 ≠ 0",
        "bf16.enabled true ≠ false",
    )


def test_the_batch_is_not_compared_where_the_trainer_is_to_find_it():
    ds = {"train_micro_batch_size_per_gpu": 4}
    assert fact("deepspeed.disagreements", f"{MT5}auto_find_batch_size: true\ndeepspeed: ds.json\n", ds=ds) == ()


def test_a_whole_batch_that_hangs_on_the_number_of_processes_is_unknown_not_equal():
    config = f"{MT5}deepspeed: ds.json\n"
    assert fact("deepspeed.disagreements", config, ds={"train_batch_size": 16}).needs == {"launch.num_processes"}
    assert fact("deepspeed.disagreements", config, ds={"train_batch_size": 16}, given={"launch.num_processes": 2}) == ()


@pytest.mark.parametrize(
    ("name", "stage"), [("configs/ds_zero3.json", 3), ("ds_z2_config.json", 2), ("stage-1.json", 1), ("ds.json", None)]
)
def test_the_stage_in_the_name_of_an_unread_file_is_taken_for_the_stage(name: str, stage: int | None):
    found = fact("deepspeed.zero_stage", f"{MT5}deepspeed: {name}\n")
    assert is_unknown(found) if stage is None else found == stage


@pytest.mark.parametrize(
    ("classes", "missing"),
    [
        ("[MT5Block]", ()),
        ('"MT5Block,T5Block"', ("T5Block",)),
        ("[MT5LayerFF, LlamaDecoderLayer]", ("LlamaDecoderLayer",)),
    ],
)
def test_classes_to_wrap_are_compared_with_all_classes_of_the_model(classes: str, missing: tuple[str, ...]):
    config = f"{MT5}fsdp: true\nfsdp_config: {{transformer_layer_cls_to_wrap: {classes}}}\n"
    assert fact("fsdp.missing_wrap_classes", config) == missing


def test_modules_on_the_cpu_are_seen_in_a_device_map():
    base = "general: {model_name: google/mt5-base, device_map: %s}\ntraining: {bf16: true}\n"
    assert fact("model.on_cpu", base % "{encoder: 0, decoder: cpu}") is True
    assert fact("model.on_cpu", base % "{'': cpu}") is False
    assert fact("model.on_cpu", base % "auto") is False
