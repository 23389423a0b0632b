"""Dialects are data: the shipped ones are sound, files are taken for the right one, and a new one needs no Python."""

import json

import jsonschema
import pytest
import yaml

from config_sample import DIALECT_FILES, DIALECTS, FACTS, ROOT, dialect_of, load, read, read_one
from every_row import for_every
from kb.config.dialect.dialects import CompiledDialect
from kb.config.reader import ConfigReader

SCHEMA = json.loads((ROOT / "rules" / "schema" / "dialect.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
SOURCES = {
    name: row
    for path in (ROOT / "rules" / "sources.yaml", *(ROOT / "rules" / "sources").glob("*.yaml"))
    for name, row in load(path)["sources"].items()
}

AXOLOTL_LIKE = """
id: axolotl
version: 1
since: "0.1.0"
title: {ko: axolotl 설정, en: axolotl config}
layout: flat
reader: library
priority: 5
recognise:
  least: 2
  marks: {base_model: 1, micro_batch_size: 1, sequence_len: 1}
  unless: [per_device_train_batch_size]
keys:
  base_model: model.name
  micro_batch_size: training.per_device_train_batch_size
  adapter: {to: [lora.enabled, quantization.load_in_4bit], values: {qlora: true, lora: null}}
  "*": training.*
values:
  training.bf16: {auto: null}
  training.gradient_checkpointing: {unsloth: true}
ignore: [deepspeed, wandb_project]
sources: [axolotl-1003]
"""


def aims(meant: object) -> list[str]:
    """The names that a key of a dialect aims at."""
    if isinstance(meant, str):
        return [meant]
    if isinstance(meant, dict):
        return aims(meant["to"])
    return [name for each in meant for name in aims(each)]


@pytest.mark.long
@for_every({path.stem: path for path in DIALECT_FILES})
def test_a_shipped_dialect_answers_to_the_schema(path):
    data = load(path)
    assert [error.message for error in VALIDATOR.iter_errors(data)] == []
    assert data["id"] == path.stem
    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=../schema/dialect.json\n")
    assert set(data["sources"]) <= set(SOURCES)


@for_every(DIALECTS)
def test_every_name_a_dialect_aims_at_is_a_setting(dialect):
    for meant in dialect.keys.values():
        for name in aims(meant):
            start = name.removesuffix("*")
            known = [fact for fact in FACTS if fact.startswith(start) and FACTS[fact].setting]
            assert known if name.endswith(".*") else FACTS[name].setting, name
    for name in (*dialect.values, *dialect.defaults, *dialect.fallbacks, *dialect.fallbacks.values()):
        assert name == "*" or FACTS[name].setting, name


@for_every(DIALECTS)
def test_the_rules_a_format_is_exempt_from_exist(dialect):
    rules = {path.stem for path in (ROOT / "rules" / "checks").rglob("*.yaml")}
    areas = {path.name for path in (ROOT / "rules" / "checks").iterdir()}
    assert set(dialect.exempt) <= rules | areas


@for_every(DIALECTS)
def test_no_argument_is_listed_twice(dialect):
    listed = [name for names in dialect.known.values() for name in names]
    assert len(set(listed)) == len(listed)
    assert not [name for name in listed if name in dialect.keys]


@for_every(DIALECTS)
def test_no_ignored_key_is_also_a_listed_one(dialect):
    assert not set(dialect.ignore) & set(dialect.keys)


@pytest.mark.parametrize(
    "change",
    [
        {"layout": "sections"},
        {"sections": {"groups": ["a"], "top": []}},
        {"recognise": {"marks": {}}},
        {"keys": {}},
        {"keys": {"a.*.b": "training.fp16"}},
        {"sources": []},
        {"title": {"ko": "하나"}},
        {"nickname": "x"},
        {"version": 0},
    ],
)
def test_the_schema_refuses_a_faulty_dialect(change):
    data = yaml.safe_load(AXOLOTL_LIKE)
    assert VALIDATOR.is_valid(data)
    assert not VALIDATOR.is_valid(data | change)


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("training: {fp16: true}\n", "team"),
        ("inference: {batch_size: 8}\n", "team"),
        ("qlora: {use_qlora: true}\n", "team"),
        ("tokenizer: {encoder_max_len: 512}\n", "team"),
        ("general: {model_name: t5-base}\ntraining: {}\n", "team"),
        ("one:\n  training: {fp16: true}\n", "team"),
        ("model_name_or_path: t5-base\nfp16: true\n", "hf"),
        ("per_device_train_batch_size: 8\n", "hf"),
        ("fp16: true\nbf16: true\n", "hf"),
        ("learning_rate: 5e-5\noptim: adafactor\n", "hf"),
        ("dataloader_num_workers: 4\ndataloader_prefetch_factor: 2\n", "hf"),
        ("gradient_accumulation_steps: 4\nlearning_rate: 1\n", "hf"),
        ("zero_optimization: {stage: 2}\n", "deepspeed"),
        ("train_batch_size: 8\ntrain_micro_batch_size_per_gpu: 2\n", "deepspeed"),
        ("gradient_accumulation_steps: 4\nfp16: {enabled: true}\n", "deepspeed"),
        ("a: 1\n", None),
        ("model: {name: resnet50}\n", None),
        ("model: {name: resnet50}\ntraining: {epochs: 3}\n", None),
        ("debug: true\nproject: x\nseed: 1\noutput_dir: out\n", None),
        ("learning_rate: 0.1\nbatch_size: 64\nepochs: 10\n", None),
        ("train_batch_size: 8\neval_batch_size: 8\nmax_seq_length: 128\n", None),
        ("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: train, image: x}]}\n", None),
        ("services:\n  web:\n    image: x\n    environment: {OPTIM: fast}\n", None),
        ("name: ci\non: [push]\njobs:\n  test:\n    runs-on: ubuntu\n", None),
        ("repos:\n  - repo: x\n    rev: v1\n    hooks: [{id: ruff}]\n", None),
        ("base_model: Qwen/Qwen2-7B\nmicro_batch_size: 1\nlearning_rate: 0.1\nbf16: true\ntf32: true\n", "axolotl"),
        ("compute_environment: LOCAL_MACHINE\nmixed_precision: bf16\ndebug: false\nuse_cpu: false\n", None),
        ("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 4\n", "accelerate"),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n", "accelerate"),
        ("model_name_or_path: x\nper_device_train_batch_size: 4\nnum_generations: 8\n", "trl"),
        ("model_name_or_path: x\nlearning_rate: 1.0e-4\npacking: true\nmax_seq_length: 2048\n", "trl"),
        ("model_name_or_path: x\nper_device_train_batch_size: 4\nmax_seq_length: 128\n", "hf"),
        ("base_model: x\nmicro_batch_size: 1\npacking: true\ndataset_text_field: text\n", "axolotl"),
        ("base_model: x\nsequence_len: 8\nload_in_4bit: true\nbatch_size: 4\ndataset: {name: d}\n", None),
        ("base_model: x\nsequence_len: 8\nmicro_batch_size: 4\ndatasets: [{path: d}]\ndataset: d\n", "axolotl"),
        ("model_name_or_path: x\ntemplate: llama3\n", "llamafactory"),
        ("model_name_or_path: x\nadapter_name_or_path: y\nexport_dir: z\nexport_size: 5\n", "llamafactory"),
        ("stage: sft\nfinetuning_type: lora\nper_device_train_batch_size: 1\n", "llamafactory"),
        ("model: x\ntrain_dataset: d\ncutoff_len: 2048\nmicro_batch_size: 1\n", "llamafactory-v1"),
        ("tokenizer: {_component_: t}\nmodel: {_component_: m}\n", "torchtune"),
        ("seed_everything: 1\ntrainer: {max_epochs: 1, devices: 1}\nmodel: {class_path: x}\n", "lightning"),
        ("fit: {trainer: {precision: bf16-mixed, max_epochs: 1}, model: {class_path: x}}\n", "lightning"),
        ("model: x\ntraining: {training_type: lora, max_seq_length: 2048, random_seed: 1}\n", "unsloth"),
        ("model_name_or_path: x\ndataset_name: d\nuse_peft: true\npacking: true\nmax_length: 1024\n", "trl"),
        ("model_name: pythia-14m\ntrain: {micro_batch_size: 2, global_batch_size: 8, epochs: 1}\n", "litgpt"),
        ("checkpoint_dir: a/b\nlora_r: 8\nlora_query: true\ntrain: {micro_batch_size: 2}\n", "litgpt"),
        ("step_scheduler: {local_batch_size: 2}\nmodel: {_target_: a.b.from_pretrained}\n", "nemo-automodel"),
        ('{"peft_type": "LORA", "base_model_name_or_path": "x", "r": 8, "lora_alpha": 16}', "peft-adapter"),
        ("wandb_version: 1\nfp16: {desc: null, value: true}\nlr: {desc: null, value: 0.1}\n", "wandb-run"),
        ("_wandb: {value: {cli_version: 0.17.0}}\nfp16: {value: true}\n", "wandb-run"),
    ],
)
def test_a_file_is_taken_for_the_right_dialect(text, dialect):
    assert [unit.dialect for unit in read(text)] == [dialect]


def test_the_dialect_of_command_lines_is_never_taken_for_a_files():
    assert all(dialect.layout == "command" for dialect in DIALECTS.values() if dialect.id == "command")
    assert read_one("num_beams: 4\nbatch_size: 8\n").dialect != "command"


def test_a_new_dialect_needs_no_python():
    reader = ConfigReader(DIALECTS | {"axolotl": dialect_of(yaml.safe_load(AXOLOTL_LIKE))}, FACTS)
    text = (
        "base_model: Qwen/Qwen2-7B\nadapter: qlora\nmicro_batch_size: 2\nbf16: auto\ntf32: true\n"
        "gradient_checkpointing: unsloth\ndeepspeed: zero3.json\nlearning_rat: 0.1\n"
    )
    (unit,) = reader.read(text, "a.yml")
    assert unit.dialect == "axolotl"
    assert {name: setting.value for name, setting in unit.settings.items()} == {
        "model.name": "Qwen/Qwen2-7B",
        "lora.enabled": True,
        "quantization.load_in_4bit": True,
        "training.per_device_train_batch_size": 2,
        "training.tf32": True,
        "training.gradient_checkpointing": True,
    }
    assert [event.kind for event in unit.events] == ["unknown-key"]


def test_of_several_keys_for_one_setting_the_first_listed_counts():
    text = "model: {name: shown, checkpoint: loaded}\ntraining: {fp16: true}\n"
    assert read_one(text).settings["model.name"].value == "loaded"
    assert read_one("general: {model_name: said}\n" + text).settings["model.name"].value == "said"
    assert read_one("general: {model_name: null}\n" + text).settings["model.name"].value == "loaded"


def test_a_listed_path_is_left_out_of_every_wildcard():
    compiled = CompiledDialect(DIALECTS["team"], FACTS)
    assert [target.fact.name for target in compiled.targets["model.name"]] == ["model.name"]
    assert [target.fact.name for target in compiled.targets["qlora.load_in_4bit"]] == ["quantization.load_in_4bit"]
    assert "training.batch_size" not in compiled.targets


def test_a_key_with_a_dot_in_it_is_no_path():
    assert "training.bf16" not in read_one("training: {fp16: true}\ntraining.bf16: true\n").settings
    sections = [unit.section for unit in read("a.b:\n  training: {fp16: true}\n")]
    assert sections == ["a.b"]


def test_in_trl_a_default_that_moved_between_versions_is_not_known():
    from kb.advice.check import Checker
    from kb.core.expression import is_unknown
    from kb.core.hardware import Machine
    from kb.knowledge.catalog import load_catalog

    checker = Checker(load_catalog(), Machine(gpus=(), gpu_source="none"))
    facts = checker.facts(read_one("model_name_or_path: x\nlearning_rate: 1.0e-4\nnum_generations: 8\n"))
    assert is_unknown(facts.get("training.bf16"))
    assert facts.get("training.fp16") is False
    assert facts.get("script.trainer") == "grpo"


def test_keys_that_no_setting_has_are_kept_with_their_group():
    unit = read_one(
        "training:\n  learning_rate: 0.1\n  my_own: 1\n  accelerator_config: {even_batch: true}\nwandb: {x: 1}\n"
    )
    assert unit.unknown_keys == ("training.my_own", "training.accelerator_config.even_batch")


def test_documents_of_equal_names_and_other_structure_are_told_apart() -> None:
    reader = ConfigReader(DIALECTS, FACTS)
    grouped = "train: {micro_batch_size: 2, global_batch_size: 8}\nmodel_name: pythia-14m\n"
    for text, dialect in ((grouped, "litgpt"), ("train: 1\nmodel_name: pythia-14m\n", None), (grouped, "litgpt")):
        assert reader.read(text, "x.yaml")[0].dialect == dialect


@pytest.mark.parametrize("key", ["hf_model_id", "model_name_or_path", "pretrained_model_name_or_path"])
def test_a_models_id_counts_before_what_the_project_calls_it(key: str):
    text = (
        f"experiment_name: a\nmodel: {{name: ours, {key}: facebook/bart-base}}\ntraining: {{learning_rate: 1.0e-4}}\n"
    )
    assert read_one(text).settings["model.name"].value == "facebook/bart-base"


@pytest.mark.parametrize(
    ("more", "dialect"),
    [
        ({}, "team"),
        ({"metrics": {"eval_loss": 0.72}}, None),
        ({"training_time_seconds": 1893}, None),
        ({"metrics": {"eval_loss": "min"}, "early_stop": {"monitor": "eval_loss"}}, "team"),
    ],
)
def test_what_a_program_wrote_of_a_run_that_is_over_is_no_config_of_its_own(more: dict, dialect: str | None) -> None:
    run = {
        "model": {"model_id": "google/gemma-3-12b-it", "load_in_4bit": True},
        "training": {"batch_size": 4, "gradient_accumulation_steps": 4, "learning_rate": 5e-5, "lora_rank": 16},
    }
    assert read_one(json.dumps({**run, **more})).dialect == dialect
