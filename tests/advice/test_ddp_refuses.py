"""Runs that end in an error whatever the memory: DDP's, and the Trainer's for quantized weights without an adapter."""

from pathlib import Path

import pytest

import kb
from command_runs import checked_file, run_kb
from effort import few
from kb.core.setup import TrainingSetup
from kb.core.text import UserError

LLAVA = (
    "model_name_or_path: llava-hf/llava-1.5-7b-hf\nstage: sft\ndo_train: true\nfinetuning_type: full\n"
    "freeze_vision_tower: false\nfreeze_multi_modal_projector: false\ngradient_checkpointing: true\ndataset: a\n"
    "template: llava\ncutoff_len: 1024\nbf16: true\nper_device_train_batch_size: 1\noutput_dir: out\n"
)
PACKED = """from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.2-1B", quantization_config=BitsAndBytesConfig(load_in_4bit=True))
args = TrainingArguments("out", bf16=True, gradient_checkpointing=True)
Trainer(model=model, args=args, train_dataset=data).train()
"""


def said(path: Path, *options: str) -> dict[str, object]:
    return checked_file(path, "--gpu", "h100-80gb", *options)


@pytest.mark.parametrize(
    ("lang", "named"), few([("en", "such as model.vision_tower."), ("ko", "예: model.vision_tower.")])
)
def test_of_a_run_that_ddp_stops_the_note_says_so_and_which_parameters(tmp_path: Path, lang: str, named: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(LLAVA, "utf-8")
    file = said(path, "--gpus", "2", "--lang", lang)
    assert file["prediction"] is None
    note = str(file["note"])
    assert "DistributedDataParallel" in note and "ddp_find_unused_parameters: true" in note and named in note


@pytest.mark.parametrize(
    ("more", "gpus"),
    few([("ddp_find_unused_parameters: true\n", "2"), ("", "1"), ("freeze_vision_tower: true\n", "2")]),
)
def test_a_run_that_ddp_lets_through_is_predicted(tmp_path: Path, more: str, gpus: str) -> None:
    path = tmp_path / "train.yaml"
    changed = more.partition(":")[0]
    lines = [line for line in LLAVA.splitlines(keepends=True) if not changed or not line.startswith(changed)]
    path.write_text("".join(lines) + more, "utf-8")
    file = said(path, "--gpus", gpus)
    assert file["prediction"] is not None and "note" not in file


@pytest.mark.parametrize("command", ["estimate", "plan"])
def test_whoever_asks_for_a_prediction_reads_the_same(tmp_path: Path, command: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(LLAVA, "utf-8")
    done = run_kb(path, "--gpu", "h100-80gb", "--gpus", "2", "--lang", "en", module=f"kb.{command}")
    assert done.returncode == 2 and "DistributedDataParallel stops this run" in done.stderr


@pytest.mark.parametrize("gpus", ["1", "2"])
@pytest.mark.parametrize("command", ["estimate", "plan"])
def test_weights_that_are_packed_and_have_no_adapter_are_no_run(tmp_path: Path, command: str, gpus: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(PACKED, "utf-8")
    done = run_kb(path, "--gpu", "h100-80gb", "--gpus", gpus, "--lang", "en", module=f"kb.{command}")
    assert done.returncode == 2 and "the weights are quantized and no adapter is seen" in done.stderr


@pytest.mark.parametrize("world_size", [1, 2])
def test_nor_does_the_python_api_predict_them(world_size: int) -> None:
    setup = TrainingSetup(model_name="llama-3.2-1b", load_in_4bit=True, world_size=world_size)
    with pytest.raises(UserError, match="no adapter is seen"):
        kb.predict(setup, "h100-80gb")
    assert kb.predict(setup._replace(do_train=False, do_eval=True), "h100-80gb").phase("evaluate") is not None
