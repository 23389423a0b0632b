"""What a run is by the time it trains: arguments that were changed, adapters that were merged, the model that the
trainer was given."""

from pathlib import Path

import pytest

from catalog_sample import shallow_catalog
from kb.advice.question import Question
from kb.core.result import UnitResult
from kb.session.around import Checking
from kb.session.prepare import file_checker
from kb.session.project import Project

CATALOG = shallow_catalog()
HEAD = """
import dataclasses
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
"""


def runs(folder: Path, text: str) -> list[UnitResult]:
    (folder / "train.py").write_text(text, "utf-8")
    checker = file_checker(CATALOG, Project(), Question.of(gpu="rtx-4090"), Checking(root=str(folder)))
    return list(checker.check(text.encode(), str(folder / "train.py")).results)


@pytest.mark.parametrize(
    ("changes", "batches"),
    [
        ("trainer.args.gradient_accumulation_steps = 4", (2, 4)),
        ("setattr(args, 'per_device_train_batch_size', 8)", (8, 1)),
        ("args.per_device_train_batch_size *= 2", None),
        ("for name, value in table.items():\n    setattr(args, name, value)", None),
        ("vars(args).update(table)", None),
        ("args.set_dataloader(train_batch_size=8)", None),
        ("args.per_device_train_batch_size, args.seed = 8, 2", (8, 1)),
        ("args.__dict__['per_device_train_batch_size'] = 32", None),
        ("object.__setattr__(args, 'gradient_accumulation_steps', 4)", (2, 4)),
        ("args = trainer.args\nargs.gradient_accumulation_steps = 4", (2, 4)),
        ("same = trainer\nsame.args.per_device_train_batch_size = 4", None),
        ("def bump(run):\n    run.per_device_train_batch_size = 16\nbump(args)", None),
        ("def bump(it):\n    it.args.per_device_train_batch_size = 16\nbump(trainer)", None),
        ("def bump(run):\n    run.per_device_train_batch_size = 16\nbump(other)", (2, 1)),
        ("other.per_device_train_batch_size *= 2", (2, 1)),
    ],
)
def test_arguments_are_as_they_are_once_the_trainer_trains(
    tmp_path: Path, changes: str, batches: tuple[int, int] | None
) -> None:
    text = (
        HEAD + "args = TrainingArguments('out', per_device_train_batch_size=2, gradient_accumulation_steps=1)\n"
        f"trainer = Trainer(model=model, args=args, train_dataset=rows)\n{changes}\ntrainer.train()\n"
    )
    setups = [each.setup for each in runs(tmp_path, text)]
    known = [
        (each.per_device_train_batch_size, each.gradient_accumulation_steps) for each in setups if each.batch_known
    ]
    assert known == ([batches] if batches else [])


SFT = """
lora = LoraConfig(r=16, target_modules=["q_proj"])
sft = SFTTrainer(model=model, args=SFTConfig("sft", per_device_train_batch_size=4), peft_config=lora, train_dataset=a)
sft.train()
{merge}
trainer = DPOTrainer({given}, args=DPOConfig("dpo", per_device_train_batch_size=2), train_dataset=b)
trainer.train()
"""


@pytest.mark.parametrize(
    ("merge", "given", "method"),
    [
        ("model = sft.model.merge_and_unload()", "model=model", None),  # PEFT leaves it frozen
        ("model = sft.model.merge_and_unload()", "model=model, peft_config=lora", "lora"),
        ("if merged:\n    model = sft.model.merge_and_unload()", "model=model", None),
        ("model = PeftModel.from_pretrained(model, 'a').merge_and_unload()", "model=model, peft_config=lora", "lora"),
        ("model = sft.model.merge_and_unload()", "model=model, peft_config=LoraConfig(r=4)", "lora"),
        ("kept = sft.model.merge_and_unload()", "model=sft.model", "lora"),
    ],
)
def test_merged_adapters_train_no_longer(tmp_path: Path, merge: str, given: str, method: str | None) -> None:
    first, second = (each.setup for each in runs(tmp_path, HEAD + SFT.format(merge=merge, given=given)))
    assert first.method == "lora"
    assert (second.method if second.method_known else None) == method


AFTERWARDS = """
def load():
    packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    return AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", quantization_config=packed), None

model, tokenizer = load()
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj"]))
args = TrainingArguments(output_dir="out", per_device_train_batch_size=4)
trainer = Trainer(model=model, args=args, train_dataset=rows)
trainer.train()
model = AutoModelForCausalLM.from_pretrained("me/tuned", torch_dtype=torch.float32)
"""
INFERENCE = """
trainer = Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=4), train_dataset=rows)
trainer.train()
packed = BitsAndBytesConfig(load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained("me/tuned", quantization_config=packed)
model = PeftModel.from_pretrained(model, "adapters").merge_and_unload()
"""


def test_adapters_that_are_loaded_after_training_did_not_train(tmp_path: Path) -> None:
    setup = runs(tmp_path, HEAD + INFERENCE)[0].setup
    assert (setup.model_name, setup.method, setup.method_known) == ("Qwen/Qwen2.5-0.5B", "full", True)


def test_a_model_that_is_loaded_after_training_is_not_the_one_that_trained(tmp_path: Path) -> None:
    head = HEAD.rpartition("model =")[0]
    setup = runs(tmp_path, head + AFTERWARDS)[0].setup
    assert (setup.model_name, setup.method) == ("Qwen/Qwen2.5-1.5B", "qlora")


@pytest.mark.parametrize(
    ("call", "full"),
    [
        ("inject(model)", False),
        ("resized(model)", True),
        ("add_adapters(model)", False),
        ("model\nfor name, each in model.named_parameters():\n    each.requires_grad = 'head' in name", False),
        ("model\nfor each in model.parameters():\n    each.requires_grad = True", True),
    ],
)
def test_a_function_of_another_module_may_choose_what_trains(tmp_path: Path, call: str, full: bool) -> None:
    freezing = "def inject(model):\n for each in model.parameters():\n  each.requires_grad = False\n return model\n"
    (tmp_path / "parts.py").write_text(freezing + "\n\ndef resized(model):\n    return model\n", "utf-8")
    text = HEAD + (
        f"from parts import inject, resized\nfrom elsewhere import add_adapters\n\nmodel = {call}\n"
        "Trainer(model=model, args=TrainingArguments('out', per_device_train_batch_size=2)).train()\n"
    )
    assert runs(tmp_path, text)[0].setup.method_known is full


@pytest.mark.parametrize(
    ("before", "after", "checkpointing"),
    [
        ("model.gradient_checkpointing_enable()", "", True),
        ("model.config.use_cache = False", "", False),
        ("base = model\nbase.gradient_checkpointing_enable()\nmodel = get_peft_model(base, LoraConfig(r=8))", "", True),
        ("model.gradient_checkpointing_enable()\nmodel.gradient_checkpointing_disable()", "", None),
        ("", "model.gradient_checkpointing_enable()", False),
        ("big = AutoModelForCausalLM.from_pretrained('gpt2')\nbig.gradient_checkpointing_enable()", "", False),
    ],
)
def test_the_trainers_argument_turns_checkpointing_on_and_never_off(
    tmp_path: Path, before: str, after: str, checkpointing: bool | None
) -> None:
    args = "TrainingArguments('out', per_device_train_batch_size=2, gradient_checkpointing=False)"
    text = (
        HEAD + f"{before}\ntrainer = Trainer(model=model, args={args}, train_dataset=rows)\ntrainer.train()\n{after}\n"
    )
    setup = runs(tmp_path, text)[0].setup
    known = "training.gradient_checkpointing" not in setup.unresolved
    assert (setup.gradient_checkpointing if known else None) is checkpointing


FLAGS = """
import argparse
from dataclasses import dataclass


@dataclass
class Settings:
    batch: int
    half: bool


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--half", action="store_true", default={default})
    parser.add_argument("--no_half", dest="half", action="store_false")
    {given}


def train(settings):
    args = TrainingArguments("out", per_device_train_batch_size=settings.batch, bf16=settings.half)
    Trainer(model=model, args=args, train_dataset=rows).train()


settings = parse_args()
train(settings)
"""


@pytest.mark.parametrize(
    ("given", "default", "told"),
    [
        ("return Settings(**vars(parser.parse_args()))", True, (4, True)),
        ("flags = parser.parse_args()\n    return Settings(batch=flags.batch, half=flags.half)", True, (4, True)),
        ("return parser.parse_args()", True, (4, True)),
        ("return parser.parse_args()", False, (4, None)),  # two flags of one name, each with another default
    ],
)
def test_an_object_that_is_made_of_flags_has_their_values(
    tmp_path: Path, given: str, default: bool, told: tuple[int, bool | None]
) -> None:
    setup = runs(tmp_path, HEAD + FLAGS.format(given=given, default=default))[0].setup
    half = None if "training.bf16" in setup.unresolved else setup.bf16
    assert (setup.per_device_train_batch_size if setup.batch_known else None, half) == told


def test_a_flag_that_turns_another_off_is_read_from_a_command(tmp_path: Path) -> None:
    text = HEAD + FLAGS.format(given="return parser.parse_args()", default=True)
    (tmp_path / "train.py").write_text(text, "utf-8")
    script = "python train.py --no_half --batch 2\npython train.py --batch 2\n"
    (tmp_path / "run.sh").write_text(script, "utf-8")
    checker = file_checker(CATALOG, Project(), Question.of(gpu="rtx-4090"), Checking(root=str(tmp_path)))
    results = checker.check(script.encode(), str(tmp_path / "run.sh")).results
    assert [each.setup.bf16 for each in results] == [False, True]
