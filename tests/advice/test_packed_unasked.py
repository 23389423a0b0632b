"""A BitsAndBytesConfig that a model is handed packs in 4 bits unless it asks for 8, since transformers 4.38."""

from pathlib import Path
from typing import Any

import pytest

from command_runs import checked_file, run_kb

PROGRAM = """\
import sys
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TrainingArguments
wanted = "--whole" not in sys.argv
packed = BitsAndBytesConfig({asked})
NAME, WIDTH = "mistralai/Mistral-7B-v0.1", torch.bfloat16
model = AutoModelForCausalLM.from_pretrained(NAME, quantization_config={handed}, torch_dtype=WIDTH)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
args = TrainingArguments("out", per_device_train_batch_size=1, bf16=True, learning_rate=2e-4)
"""
OF_WIDTH = {"bitsandbytes-config-packs-unasked", "quantization-options-without-4bit"}


def checked(folder: Path, asked: str, handed: str = "packed", pins: str = "") -> dict[str, Any]:
    (folder / "train.py").write_text(PROGRAM.format(asked=asked, handed=handed), "utf-8")
    if pins:
        (folder / "requirements.txt").write_text(pins, "utf-8")
    return checked_file(folder / "train.py", "--gpu", "l4")


@pytest.mark.parametrize(
    ("asked", "pins", "method", "told"),
    [
        ('load_in_4bit=False, bnb_4bit_quant_type="nf4"', "", "qlora", {"bitsandbytes-config-packs-unasked"}),
        ('bnb_4bit_quant_type="nf4"', "transformers==4.38.0\n", "qlora", {"bitsandbytes-config-packs-unasked"}),
        ('bnb_4bit_quant_type="nf4"', "transformers==4.37.2\n", "lora", {"quantization-options-without-4bit"}),
        ('load_in_4bit=wanted, bnb_4bit_quant_type="nf4"', "", "qlora", set()),
        ('load_in_4bit=True, bnb_4bit_quant_type="nf4"', "", "qlora", set()),
    ],
)
def test_a_config_packs_unless_it_asks_for_eight_bits(
    tmp_path: Path, asked: str, pins: str, method: str, told: set[str]
) -> None:
    file = checked(tmp_path, asked, pins=pins)
    assert file["setup"]["method"] == method
    assert {each["rule"] for each in file["findings"]} & OF_WIDTH == told


def test_a_config_that_may_not_be_handed_says_nothing_of_the_width(tmp_path: Path) -> None:
    file = checked(tmp_path, 'load_in_4bit=wanted, bnb_4bit_quant_type="nf4"', "packed if wanted else None")
    assert {each["rule"] for each in file["findings"]} & OF_WIDTH == set()
    assert file["prediction"] is None


HANDED_BY_TABLE = 'more = {"quantization_config": BitsAndBytesConfig(load_in_4bit=False)}'


@pytest.mark.parametrize(
    ("made", "handed", "name", "method"),
    [
        ("packed = BitsAndBytesConfig()\npacked.load_in_8bit = True", "quantization_config=packed", "a/b-7b", None),
        ("packed = BitsAndBytesConfig()\nsetattr(packed, WIDTH, True)", "quantization_config=packed", "a/b-7b", None),
        ("packed = BitsAndBytesConfig()", "quantization_config=packed if wanted else None", "a/b-7b", None),
        ("packed = BitsAndBytesConfig()", "quantization_config=packed", "TheBloke/Mistral-7B-v0.1-GPTQ", None),
        ("packed = BitsAndBytesConfig()", "quantization_config=packed", "./mine", None),
        ("packed = BitsAndBytesConfig()", "quantization_config=packed", "unsloth/mistral-7b-v0.1-bnb-4bit", "qlora"),
        ("more = made()\npacked = BitsAndBytesConfig(load_in_4bit=False)", "**more", "a/b-7b", None),
        ("packed = BitsAndBytesConfig()\npacked.other = 1", "quantization_config=packed", "a/b-7b", "told"),
        (HANDED_BY_TABLE, "**more", "a/b-7b", "told"),
    ],
)
def test_a_width_is_told_only_of_a_config_that_is_seen_to_count(
    tmp_path: Path, made: str, handed: str, name: str, method: str | None
) -> None:
    name = name.replace("a/b-7b", "mistralai/Mistral-7B-v0.1")
    program = PROGRAM.replace("packed = BitsAndBytesConfig({asked})", made)
    program = program.replace("quantization_config={handed}", handed).replace("mistralai/Mistral-7B-v0.1", name)
    (tmp_path / "train.py").write_text(program, "utf-8")
    file = checked_file(tmp_path / "train.py", "--gpu", "l4")
    told = {each["rule"] for each in file["findings"]} & OF_WIDTH
    assert told == ({"bitsandbytes-config-packs-unasked"} if method == "told" else set())
    if method is None:
        assert file["prediction"] is None
    else:
        assert file["setup"]["method"] == "qlora"


def test_the_place_of_the_config_is_named_by_its_class(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.format(asked="load_in_4bit=False", handed="packed"), "utf-8")
    done = run_kb(tmp_path / "train.py", "--gpu", "l4", "--lang", "en", "--no-cache", module="kb.check")
    assert "see also: 6:10 BitsAndBytesConfig" in done.stdout
