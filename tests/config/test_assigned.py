"""Python files that are configs: XTuner's, read without running them."""

from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.config.discovery import discover
from kb.config.marks import is_assigned
from kb.config.python.assigned import parse_assigned
from kb.config.reader import ConfigReader
from kb.config.shell.command import CommandReader, read_shell
from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.session.code_files import code_units

CATALOG = load_catalog()
OLD = """\
import torch
from xtuner.model import SupervisedFinetune

pretrained_model_name_or_path = 'internlm/internlm2-chat-7b'
WORK_DIR = 'out'
max_length = 2048
sequence_parallel_size = 2
accumulative_counts = 16
accumulative_counts *= sequence_parallel_size
lr = 2e-4
model = dict(
    type=SupervisedFinetune,
    llm=dict(
        type=AutoModelForCausalLM.from_pretrained,
        pretrained_model_name_or_path=pretrained_model_name_or_path,
        torch_dtype=torch.float16,
        quantization_config=dict(type=BitsAndBytesConfig, load_in_4bit=True, bnb_4bit_compute_dtype=torch.float16)),
    lora=dict(type=LoraConfig, r=64, lora_alpha=16, **more))
train_dataset = dict(type=process_hf_dataset, max_length=max_length, tokenizer=dict(type='a'))
sampler = Other if sequence_parallel_size > 1 else DefaultSampler
train_dataloader = dict(batch_size=1, num_workers=0, dataset=train_dataset, sampler=dict(type=sampler))
optim_wrapper = dict(
    type=AmpOptimWrapper, optimizer=dict(type=AdamW, lr=lr), accumulative_counts=accumulative_counts, dtype='float16')
train_cfg = dict(type=TrainLoop, max_epochs=3)
if sequence_parallel_size:
    visualizer = None
"""
NEW = """\
import os
from xtuner.v1.config import AdamWConfig, LRConfig
from xtuner.v1.train import TrainerConfig

path = os.environ["MODEL"]
optim_cfg = AdamWConfig(lr=6e-05)
sets = [{"dataset": DatasetConfig(name="a"), "tokenize_fn": FTDPTokenizeFnConfig(max_length=16386)}]
trainer = TrainerConfig(
    load_from=path, optim_cfg=optim_cfg, lr_cfg=LRConfig(lr_min=1e-6), dataset_cfg=sets,
    dataloader_cfg=DataloaderConfig(pack_max_length=4096 * 4), global_batch_size=16, total_epoch=1, seed=0)
"""


def read(text: str) -> Unit:
    (unit,) = code_units(text, "a.py", "python", CATALOG, CommandReader(CATALOG.dialects, CATALOG.facts))
    return unit


def value(unit: Unit, name: str) -> Any:
    setting = unit.settings.get(name)
    return "unsaid" if setting is None else None if is_unknown(setting.value) else setting.value


def test_dictionaries_of_mmengine() -> None:
    unit = read(OLD)
    said = {name: value(unit, name) for name in unit.settings}
    assert (unit.dialect, unit.events, said["run.not_modelled"]) == ("xtuner", (), "xtuner")
    assert said["model.name"] == "internlm/internlm2-chat-7b" and said["model.torch_dtype"] == "float16"
    assert said["lora.enabled"] is True and said["lora.r"] == 64 and said["quantization.load_in_4bit"] is True
    assert said["training.gradient_accumulation_steps"] == 32 and said["training.learning_rate"] == 2e-4
    assert said["data.max_source_length"] == 2048 and said["training.per_device_train_batch_size"] == 1
    assert said["training.fp16"] is True and said["script.trainer"] == "sft"
    length = unit.settings["data.max_source_length"]
    assert OLD[length.span.start : length.span.end] == "2048" and length.alias  # written once, used elsewhere
    rank = unit.settings["lora.r"]
    assert OLD[rank.span.start : rank.span.end] == "64" and OLD[rank.key_span.start : rank.key_span.end] == "r"


def test_classes_that_hold_settings() -> None:
    unit = read(NEW)
    assert (unit.dialect, value(unit, "data.max_source_length")) == ("xtuner", 16384)
    assert value(unit, "model.name") is None  # the environment says it
    assert value(unit, "training.learning_rate") == 6e-05 and value(unit, "script.trainer") == "sft"


def test_what_is_assigned_twice_or_in_a_branch_is_not_known() -> None:
    (document,) = parse_assigned("a = 1\na = 2\nif x:\n    b = 1\nc = 3\nd: int = 4\ne = f(c)\n", {}).documents
    assert document is not None
    found = document.plain()
    assert list(found) == ["c", "d", "e"] and (found["c"], found["d"]) == (3, 4) and is_unknown(found["e"])


@pytest.mark.parametrize("text", ["", "a = 1\n" * 3, "a = b\nb = a\nc = dict(d=dict(**c))\n"])
def test_little_is_read_from_little(text: str) -> None:
    (document,) = parse_assigned(text, {}).documents
    assert document is None or document.plain() is not None


def test_names_that_double_end() -> None:
    text = "a0 = dict(x=1)\n" + "".join(f"a{n} = dict(x=a{n - 1}, y=a{n - 1})\n" for n in range(1, 40))
    (document,) = parse_assigned(text, {}).documents
    assert document is not None


def test_a_program_that_has_such_names_is_no_config(tmp_path: Path) -> None:
    other = "optim_wrapper = dict(type='OptimWrapper')\nmodel = dict(type='FasterRCNN')\n"  # of mmdetection
    assert not is_assigned(other) and is_assigned(OLD) and is_assigned(NEW)
    reader = ConfigReader(CATALOG.dialects, CATALOG.facts)
    assert reader.read("# not xtuner\n" + other, "a.py") == []
    for name, text in (("a.py", other), ("b.py", NEW), ("c.py", "import xtuner\n")):
        (tmp_path / name).write_text(text)
    assert [Path(found.path).name for found in discover([str(tmp_path)]).files] == ["b.py"]


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        ("NPROC_PER_NODE=8 xtuner train ./a.py --deepspeed deepspeed_zero2", 8),
        ("torchrun --nproc-per-node=4 xtuner/v1/train/cli/sft.py --config ./a.py", 4),
    ],
)
def test_a_command_names_its_config(command: str, gpus: int) -> None:
    (unit,) = read_shell(command + "\n", "run.sh", CommandReader(CATALOG.dialects, CATALOG.facts))
    assert (unit.dialect, value(unit, "launch.run_config")) == ("xtuner", "./a.py")
    assert value(unit, "launch.num_processes") == gpus and value(unit, "run.not_modelled") == "xtuner"
