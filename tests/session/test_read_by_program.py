"""A config with names of its own, read as the program of its project reads it."""

from pathlib import Path

import pytest

from catalog_sample import shallow_catalog
from kb.advice.question import Question
from kb.core.document import Unit
from kb.core.result import UnitResult, Unusable
from kb.knowledge import load_words
from kb.report.check.text import about
from kb.report.words import Words
from kb.session.lookups import LOOKUPS, still
from kb.session.prepare import file_checker
from kb.session.project import find_project
from kb.session.run import Input, check_input

CATALOG = shallow_catalog()
MODEL = """
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from peft import LoraConfig, get_peft_model

def load(section, four_bit):
    quantized = None
    if four_bit:
        quantized = BitsAndBytesConfig(load_in_4bit=True)
    return AutoModelForCausalLM.from_pretrained(section["base"], quantization_config=quantized, device_map={"": 0})

class Adapter:
    def __init__(self, section):
        self.section = section
    def put_on(self, model):
        return get_peft_model(model, LoraConfig(r=self.section["rank"], target_modules=["q_proj", "v_proj"]))
"""
TRAIN = """
import argparse, yaml
from transformers import Trainer, TrainingArguments
from src.model import Adapter, load

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    config = read(parser.parse_args().config)
    model = Adapter(config["lora"]).put_on(load(config["model"], config["model"]["four_bit"]))
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=config["run"]["rows"], gradient_checkpointing=True, bf16=True,
        learning_rate=float(config["run"]["speed"]), eval_strategy="no", **config["more"],
    )
    Trainer(model=model, args=arguments).train()

def read(path):
    with open(path) as file:
        return yaml.safe_load(file)

main()
"""
CONFIG = """
model: {base: facebook/opt-125m, four_bit: true}
lora:
  rank: 8
run:
  rows: 4096
  speed: 1e-4
more: {gradient_accumulation_steps: 3, optim: adamw_torch}
training: {learning_rate: 0.1}
"""


def project(folder: Path, train: str = TRAIN, config: str = CONFIG, **more: str) -> Path:
    files = {"train.py": train, "src/model.py": MODEL, "configs/a.yaml": config, **more}
    (folder / ".git").mkdir(exist_ok=True)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    return folder / "configs" / "a.yaml"


def checked(path: Path) -> UnitResult:
    checker = file_checker(CATALOG, find_project(str(path.parent)), Question.of(gpu="rtx-3090"))
    outcome = check_input(Input(str(path)), checker)
    assert not isinstance(outcome, Unusable), outcome
    return outcome.results[0]


def read(path: Path) -> Unit:
    return checked(path).unit


def test_a_config_says_what_its_program_makes_of_it(tmp_path: Path) -> None:
    result = checked(project(tmp_path))
    setup = result.setup
    assert setup is not None
    assert (setup.model_name, setup.method, setup.lora_r) == ("facebook/opt-125m", "qlora", 8)
    assert (setup.per_device_train_batch_size, setup.gradient_accumulation_steps) == (4096, 3)
    assert setup.gradient_checkpointing and setup.bf16 and setup.optim == "adamw_torch"
    assert Path(result.unit.read_by).name == "train.py"
    assert not any(each.name == "run.own_defaults" for each in setup.assumed)


def test_a_finding_stands_where_the_config_says_it_and_no_fix_is_written_there(tmp_path: Path) -> None:
    result = checked(project(tmp_path))
    (found,) = [each for each in result.findings if each.rule == "training-peak-exceeds-gpu"]
    assert (found.span.line, found.span.column) == (6, 9)
    assert found.fixes and all(fix.barred for fix in found.fixes)


def test_the_report_names_the_program(tmp_path: Path) -> None:
    shown = about(checked(project(tmp_path)), Words("en", load_words("en"), CATALOG.facts))
    assert "train.py reads it" in shown[0]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CONFIG.replace("true", "false"), "lora"),
        (CONFIG.replace("rows: 4096", "batch: 4096"), None),  # the program asks for rows in vain
        ("training: {per_device_train_batch_size: 4}\n", None),
    ],
)
def test_what_the_config_does_not_say_is_not_taken_from_the_program(tmp_path: Path, config: str, expected: str) -> None:
    result = checked(project(tmp_path, config=config))
    assert bool(result.unit.read_by) is (expected is not None)
    if expected is not None:
        assert result.setup is not None and result.setup.method == expected


def test_of_two_programs_that_read_it_alike_none_is_chosen(tmp_path: Path) -> None:
    assert read(project(tmp_path, **{"other.py": TRAIN.replace("bf16=True", "fp16=True")})).read_by == ""


def test_a_program_whose_reading_is_not_understood_leaves_it_open(tmp_path: Path) -> None:
    strange = TRAIN.replace("yaml.safe_load(file)", "resolve(yaml.safe_load(file))")
    assert read(project(tmp_path, **{"other.py": strange})).read_by == ""


def test_a_path_that_the_program_has_itself_is_read_too(tmp_path: Path) -> None:
    fixed = TRAIN.replace("read(parser.parse_args().config)", 'read("configs/a.yaml")')
    path = project(tmp_path, fixed)
    assert read(path).read_by
    (tmp_path / "configs" / "b.yaml").write_text(CONFIG, "utf-8")
    assert read(tmp_path / "configs" / "b.yaml").read_by == ""


def test_a_stored_result_is_out_of_date_when_the_program_changes(tmp_path: Path) -> None:
    path = project(tmp_path)
    checker = file_checker(CATALOG, find_project(str(tmp_path)), Question.of(gpu="rtx-3090"))
    check_input(Input(str(path)), checker)
    rows = checker.seen.take()
    assert {"programs", "module"} <= {row[0] for row in rows}
    lookups = LOOKUPS | checker.lookups
    checker.forget()
    assert still(rows, lookups)
    (tmp_path / "src" / "model.py").write_text(MODEL + "# other\n", "utf-8")
    checker.forget()
    assert not still(rows, lookups)


OWN_READING = """
import sys, torch, yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
config = yaml.safe_load(open(sys.argv[1]))
packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float16)
model = AutoModelForCausalLM.from_pretrained(config["model"]["model_name_or_path"], quantization_config=packed)
model = get_peft_model(model, LoraConfig(r=config["lora"]["lora_r"]))
run = config["training"]
args = TrainingArguments(
    "out", per_device_train_batch_size=run["per_device_train_batch_size"], learning_rate=run["learning_rate"]
)
Trainer(model, args, train_dataset=rows).train()
"""
ASKED = (
    "model: {model_name_or_path: facebook/opt-125m}\nlora: {lora_r: 8}\nquantization: {compute_dtype: float16}\n"
    "training: {per_device_train_batch_size: 2, learning_rate: 0.0002, gradient_checkpointing: true, bf16: false}\n"
)


def test_a_type_that_a_program_loads_a_model_in_is_no_argument_of_trls(tmp_path: Path) -> None:
    program = OWN_READING.replace("TrainingArguments", "SFTConfig").replace("Trainer", "SFTTrainer")
    program = program.replace("from transformers", "from trl import SFTConfig, SFTTrainer\nfrom transformers")
    program = program.replace(", SFTTrainer, SFTConfig\nconfig", "\nconfig")
    program = program.replace("quantization_config=packed)", "quantization_config=packed, torch_dtype=torch.bfloat16)")
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text(program, "utf-8")
    (tmp_path / "train.yaml").write_text(ASKED, "utf-8")
    (tmp_path / "requirements.txt").write_text("trl==1.0.0\n", "utf-8")
    checker = file_checker(CATALOG, find_project(str(tmp_path)), Question.of(gpu="rtx-4090"))
    outcome = check_input(Input(str(tmp_path / "train.yaml")), checker)
    assert not isinstance(outcome, Unusable)
    (result,) = outcome.results
    assert result.unit.dialect == "trl" and result.unit.read_by.endswith("train.py")
    assert "trl-torch-dtype-removed" not in {each.rule for each in result.findings}
