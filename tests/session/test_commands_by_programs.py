"""A command as its program takes its flags: argparse and fire, followed to the training call."""

from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_catalog, shallow_catalog
from kb.advice.question import Question
from kb.core.catalog import Catalog
from kb.core.expression import is_unknown
from kb.core.result import UnitResult
from kb.session.around import Checking
from kb.session.prepare import file_checker
from kb.session.project import Project

CATALOG = shallow_catalog()
HEAD = """
import argparse, os, sys, torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
"""
TRAINING = """
    model = AutoModelForCausalLM.from_pretrained(args.model, torch_dtype=torch.bfloat16)
    run = TrainingArguments("out", per_device_train_batch_size=args.bs, bf16=args.half, learning_rate=args.rate)
    Trainer(model=model, args=run).train()

main()
"""
PROGRAM = (
    HEAD
    + """
def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("-b", "--bs", "--rows", type=int, default=4)
    p.add_argument("--half", action="store_true")
    p.add_argument("--rate", type=float, default=2e-4)
    p.add_argument("--gpu_bs", type=int, default=0)
    args = p.parse_args(argv)
"""
    + TRAINING
)
NAME = "per_device_train_batch_size"


def result(folder: Path, command: str, program: str, catalog: Catalog = CATALOG, **versions: str) -> UnitResult:
    (folder / "train.py").write_text(program, "utf-8")
    question = Question.of(gpu="rtx-4090", versions=versions)
    checker = file_checker(catalog, Project(), question, Checking(root=str(folder)))
    return next(iter(checker.check(command.encode(), str(folder / "run.sh")).results))


def value(told: UnitResult, name: str) -> Any:
    setting = told.unit.settings.get(f"training.{name}")
    return None if setting is None else "?" if is_unknown(setting.value) else setting.value


@pytest.mark.parametrize(
    ("flags", "batch", "half"),
    [
        ("--bs 16 --half", 16, True),
        ("-b 8", 8, False),
        ("-b8", 8, False),
        ("--rows=2", 2, False),
        ("--half", 4, True),
        ("--ro 3 --half", "?", True),  # argparse takes the beginning of a name for it
        ("--bs 3 --bs 5", 5, False),
        ("--bs 2 $EXTRA_ARGS", 2, "?"),
    ],
)
def test_flags_are_read_as_the_parser_reads_them(tmp_path: Path, flags: str, batch: Any, half: Any) -> None:
    told = result(tmp_path, f"python train.py --model Qwen/Qwen2.5-0.5B {flags}\n", PROGRAM)
    if batch == "?":  # read by names: nothing is known of it
        assert not told.unit.read_by
        return
    assert (value(told, NAME), value(told, "bf16")) == (batch, half)
    assert told.unit.read_by.endswith("train.py")
    assert told.setup.model_name == "Qwen/Qwen2.5-0.5B"


def test_a_finding_stands_at_the_flag_that_says_it_or_where_the_command_begins(tmp_path: Path) -> None:
    told = result(tmp_path, "cd .\npython train.py --model meta-llama/Llama-3.1-70B --bs 64\n", PROGRAM)
    found = next(each for each in told.findings if each.rule == "training-peak-exceeds-gpu")
    assert (found.span.line, found.span.column) == (2, 55)
    told = result(tmp_path, "cd .\npython train.py --model meta-llama/Llama-3.1-70B\n", PROGRAM)
    found = next(each for each in told.findings if each.rule == "training-peak-exceeds-gpu")
    assert (found.span.line, found.span.column) == (2, 1)


FIRED = (
    HEAD
    + """
import fire

def train(
    base_model: str = "", micro_batch_size: int = 4, batch_size: int = 128, targets: list = ["q_proj", "v_proj"], r=8
):
    steps = batch_size // micro_batch_size
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world != 1:
        steps = steps // world
    model = AutoModelForCausalLM.from_pretrained(base_model, load_in_8bit=True)
    model = get_peft_model(model, LoraConfig(r=r, target_modules=targets))
    run = TrainingArguments(
        "out", per_device_train_batch_size=micro_batch_size, gradient_accumulation_steps=steps, fp16=True
    )
    Trainer(model=model, args=run).train()

fire.Fire(train)
"""
)


@pytest.mark.parametrize(
    ("launcher", "flags", "micro", "steps", "targets"),
    [
        ("python", "--micro_batch_size 2", 2, 64, ["q_proj", "v_proj"]),
        ("python", "--micro_batch_size 4 --targets '[q_proj,k_proj]'", 4, 32, ["q_proj", "k_proj"]),
        ("torchrun --nproc_per_node=4", "--batch_size=64", 4, 4, ["q_proj", "v_proj"]),
        ("torchrun --nproc_per_node=$N", "--batch_size=64", 4, "?", ["q_proj", "v_proj"]),
    ],
)
def test_fire_and_the_number_of_processes(
    tmp_path: Path, launcher: str, flags: str, micro: int, steps: Any, targets: list[str]
) -> None:
    told = result(tmp_path, f"{launcher} train.py --base_model huggyllama/llama-7b {flags}\n", FIRED)
    assert told.unit.read_by
    assert (value(told, NAME), value(told, "gradient_accumulation_steps")) == (micro, steps)
    assert list(told.unit.settings["lora.target_modules"].value) == targets


@pytest.mark.parametrize(
    "program",
    [
        PROGRAM.replace("args = p.parse_args(argv)", "args = p.parse_args(argv); args.bs = 2 * args.bs"),
        PROGRAM.replace("default=4)\n", "default=4)\n    p.set_defaults(bs=2)\n"),
        PROGRAM.replace("type=int, default=4", "type=lambda text: 2 * int(text), default=4"),
        PROGRAM + 'other = argparse.ArgumentParser()\nother.add_argument("--bs", default="8")\n',
        HEAD + "from transformers import HfArgumentParser\nrun, = HfArgumentParser(TrainingArguments).parse_args()\n",
    ],
)
def test_what_the_program_makes_otherwise_is_not_told(tmp_path: Path, program: str) -> None:
    told = result(tmp_path, "python train.py --model Qwen/Qwen2.5-0.5B --bs 16\n", program)
    assert not told.unit.read_by


def test_a_table_of_the_program_is_looked_up_by_a_flag(tmp_path: Path) -> None:
    table = 'SIZES = {"small": {"bs": 2, "name": "Qwen/Qwen2.5-0.5B"}, "large": {"bs": 1, "name": "Qwen/Qwen2.5-7B"}}\n'
    program = PROGRAM.replace("def main", table + "def main").replace("args.model,", 'SIZES[args.model]["name"],')
    program = program.replace("size=args.bs", 'size=args.gpu_bs or SIZES[args.model]["bs"]')
    assert value(result(tmp_path, "python train.py --model large\n", program), NAME) == 1
    told = result(tmp_path, "python train.py --model small --gpu_bs 32\n", program)
    assert (value(told, NAME), told.setup.model_name) == (32, "Qwen/Qwen2.5-0.5B")


def test_a_length_by_its_name_stays_where_the_program_does_not_show_what_it_is_for(tmp_path: Path) -> None:
    program = PROGRAM.replace('"--bs"', '"--train_batch_size"').replace("args.bs", "args.train_batch_size")
    program = program.replace("    args =", '    p.add_argument("--max_seq_length", type=int)\n    args =')
    command = "python train.py --model Qwen/Qwen2.5-0.5B --train_batch_size 2 --max_seq_length 256\n"
    told = result(tmp_path, command, program)
    assert told.unit.read_by
    assert told.setup.max_source_length == 256


def test_adafactor_of_a_command_that_only_predicts_is_left_alone(tmp_path: Path) -> None:
    program = HEAD + "from transformers import HfArgumentParser\nHfArgumentParser(TrainingArguments)\n"
    flags = "--model_name_or_path t5-small --optim adafactor --output_dir out --per_device_eval_batch_size 1"
    for does, found in (("--do_predict", False), ("--do_train", True)):
        told = result(tmp_path, f"python train.py {does} {flags} --learning_rate 1e-5\n", program)
        rules = [each.rule for each in told.findings]
        assert ("adafactor-with-default-learning-rate" in rules) is found


ARGUMENTS = """
from dataclasses import dataclass, field
from typing import Optional
from transformers import HfArgumentParser

@dataclass
class TrainingArguments:
    rows: int = field(default=1)
    mixed: Optional[str] = field(default="bf16")

@dataclass
class LoraArguments:
    use_lora: bool = field(default=True)

def parse_args():
    return HfArgumentParser((TrainingArguments, LoraArguments)).parse_args_into_dataclasses()
"""


@pytest.mark.parametrize(
    ("flags", "batch", "bf16", "method"),
    [("--rows 3", 3, True, "lora"), ("--mixed fp16 --use_lora False", 1, None, "full")],
)
def test_classes_of_its_own_that_have_a_librarys_name(
    tmp_path: Path, flags: str, batch: int, bf16: bool | None, method: str
) -> None:
    (tmp_path / "arguments.py").write_text(ARGUMENTS)
    program = (
        HEAD.replace(", TrainingArguments", "").replace(
            "import argparse", "from arguments import parse_args\nimport argparse"
        )
        + """
from transformers import TrainingArguments as Library
from trl import SFTConfig, SFTTrainer

args = parse_args()
run = args[0]
lora = args[1]
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
run = SFTConfig("out", per_device_train_batch_size=run.rows, bf16=True if run.mixed == "bf16" else None)
if lora.use_lora:
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))
SFTTrainer(model=model, args=run).train()
"""
    )
    told = result(tmp_path, f"python train.py --output_dir out --fp16 False {flags}\n", program)
    assert told.unit.read_by
    assert (value(told, NAME), value(told, "bf16")) == (batch, bf16)
    assert told.setup.method == method


HANDED_ON = (
    HEAD
    + """
from transformers import HfArgumentParser
from trl import ModelConfig, SFTConfig

run, model_config = HfArgumentParser((SFTConfig, ModelConfig)).parse_args_into_dataclasses()
{more}
"""
)


@pytest.mark.parametrize(
    ("more", "known"),
    [
        ("", True),
        ("if model_config.lora_target_modules == 'all':\n    model_config.lora_target_modules = ['q_proj']\n", False),
        ("if model_config.lora_target_modules is None:\n    model_config.lora_target_modules = ['q_proj']\n", True),
    ],
)
def test_a_flag_that_its_program_gives_another_value_is_not_known(tmp_path: Path, more: str, known: bool) -> None:
    flags = "--model_name_or_path Qwen/Qwen2.5-0.5B --output_dir out --use_peft --lora_target_modules all"
    told = result(tmp_path, f"python train.py {flags}\n", HANDED_ON.replace("{more}", more))
    assert any(each.rule == "lora-targets-match-nothing" for each in told.findings) is known


def test_adapters_of_a_layer_of_its_own_are_no_full_fine_tuning(tmp_path: Path) -> None:
    program = HEAD + (
        "class LoRALinear(torch.nn.Module):\n    pass\n\n"
        "quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')\n"
        "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-7B', quantization_config=quantized)\n"
        "run = TrainingArguments('out', learning_rate=1e-4, per_device_train_batch_size=4)\n"
        "Trainer(model=model, args=run).train()\n"
    )
    for text, found in ((program, False), (program.replace("class LoRALinear", "class Other"), True)):
        (tmp_path / "train.py").write_text(text)
        checker = file_checker(CATALOG, Project(), Question.of(gpu="rtx-4090"), Checking(root=str(tmp_path)))
        told = checker.check(text.encode(), str(tmp_path / "train.py")).results[0]
        assert any(each.rule == "quantized-without-adapter" for each in told.findings) is found


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("scripts/code/train.py", True),
        ("/workspace/project/code/train.py", True),
        ("$ROOT/code/train.py", True),
        ('"${ROOT}/code/train.py"', True),
        ("scripts/other/train.py", False),
        ("/workspace/train.py", False),  # of so short an end many programs have the like
    ],
)
def test_a_program_is_found_by_the_end_of_a_path_of_elsewhere(tmp_path: Path, named: str, found: bool) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(PROGRAM, "utf-8")
    checker = file_checker(CATALOG, Project(), Question.of(gpu="rtx-4090"), Checking(root=str(tmp_path)))
    text = f"python {named} --model t5-base --bs 16"
    (told,) = checker.check(text.encode(), str(tmp_path / "run.sh")).results
    assert (value(told, NAME) == 16) is found


@pytest.mark.parametrize(
    ("loop", "fires"),
    [
        ("for batch in data:\n    model(**batch).loss.backward()\n", False),
        ("from transformers import Trainer\nTrainer(model, args).train()\n", True),
        ("", True),
    ],
)
def test_what_a_trainer_does_with_a_setting_is_not_said_of_a_loop_of_its_own(
    tmp_path: Path, loop: str, fires: bool
) -> None:
    flags = "".join(f'p.add_argument("--{name}", type=int)\n' for name in ("max_steps", "num_train_epochs"))
    program = f"import argparse\np = argparse.ArgumentParser()\n{flags}args = p.parse_args()\n{loop}"
    (tmp_path / "train.py").write_text(program, "utf-8")
    checker = file_checker(CATALOG, Project(), Question.of(gpu="rtx-4090"), Checking(root=str(tmp_path)))
    text = "python train.py --max_steps 20 --num_train_epochs 3 --learning_rate 1e-4"
    (told,) = checker.check(text.encode(), str(tmp_path / "run.sh")).results
    assert ("max-steps-overrides-epochs" in [each.rule for each in told.findings]) is fires


@pytest.mark.parametrize("flag", ["--sft_adapter_path saved", "--init_lora_rank 32"])
def test_a_flag_of_adapters_of_a_program_that_is_not_here_is_no_full_fine_tuning(tmp_path: Path, flag: str) -> None:
    checker = file_checker(CATALOG, Project(), Question.of(gpu="rtx-4090"), Checking(root=str(tmp_path)))
    command = "python grpo.py --model_name_or_path Qwen/Qwen2.5-7B --output_dir o --num_generations 4 --bf16 "
    plain, own = (
        next(iter(checker.check(text.encode(), str(tmp_path / "run.sh")).results))
        for text in (command + "--max_completion_length 96", command + "--max_completion_length 96 " + flag)
    )
    assert plain.prediction is not None
    assert own.prediction is None


def test_a_byte_order_mark_is_no_harm_to_python(tmp_path: Path) -> None:
    checker = file_checker(CATALOG, Project(), Question.of(gpu="rtx-4090"), Checking(root=str(tmp_path)))
    found = checker.check(b"\xef\xbb\xbf" + PROGRAM.encode(), str(tmp_path / "train.py"))
    assert "byte-order-mark" not in {finding.rule for each in found.results for finding in each.findings}


def test_an_unquoted_no_of_accelerates_file_starts_one_process(tmp_path: Path) -> None:
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: NO\nmixed_precision: {}\nnum_processes: 1\n"
    checker = file_checker(CATALOG, Project(), Question.of(gpu="rtx-4090"), Checking(root=str(tmp_path)))
    said = {
        word: {each.rule for result in checker.check(text.format(word).encode(), "a.yaml").results
               for each in result.findings}
        for word in ("bf16", "no")
    }  # fmt: skip
    assert said["bf16"] == set()
    assert "yaml-no-became-false" in said["no"]  # accelerate stops there


def test_what_a_program_writes_into_the_table_of_its_arguments_is_not_left_out_of_its_config(tmp_path: Path) -> None:
    table = """
def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--config")
    p.add_argument("--model", default="t5-base")
    read = json.load(open(p.parse_args(argv).config))["training"]
    told = {"output_dir": "o", "evaluation_strategy": "steps", "eval_steps": int(read["eval_steps"]), **extra(read)}
    if "eval_strategy" in inspect.signature(TrainingArguments.__init__).parameters:
        told["eval_strategy"] = told.pop("evaluation_strategy")
    Trainer(model=AutoModelForCausalLM.from_pretrained("t5-base"), args=TrainingArguments(**told)).train()
"""
    config = '{"model": {"name_or_path": "t5-base"}, "training": {"output_dir": "o", "eval_steps": 20, "bf16": true}}'
    (tmp_path / "sft.json").write_text(config, "utf-8")
    told = result(tmp_path, "python train.py --config sft.json", HEAD + "import inspect, json\n" + table)
    assert "eval-steps-without-eval-strategy" not in {finding.rule for finding in told.findings}


QUANTIZED_ELSEWHERE = (
    HEAD
    + """
def ask():
    packed = BitsAndBytesConfig(load_in_4bit=True)
    return AutoModelForCausalLM.from_pretrained("a/b", quantization_config=packed)

def train(name):
    model = {model}
    args = TrainingArguments("o", per_device_train_batch_size=1, learning_rate=1e-4)
    Trainer(model=model, args=args).train()
"""
)


@pytest.mark.parametrize(("model", "fires"), [("AutoModelForCausalLM.from_pretrained(name)", False), ("ask()", True)])
def test_the_quantization_of_another_functions_model_is_not_the_runs(tmp_path: Path, model: str, fires: bool) -> None:
    checker = file_checker(CATALOG, Project(), Question.of(gpu="rtx-4090"), Checking(root=str(tmp_path)))
    found = checker.check(QUANTIZED_ELSEWHERE.format(model=model).encode(), str(tmp_path / "train.py"))
    rules = {finding.rule for each in found.results for finding in each.findings}
    assert ("quantized-without-adapter" in rules) is fires


def test_a_flag_called_torch_dtype_of_the_programs_own_is_no_argument_of_trls(tmp_path: Path) -> None:
    program = """
import torch
from dataclasses import dataclass
from transformers import AutoModelForCausalLM, HfArgumentParser
from trl import DPOConfig, DPOTrainer

@dataclass
class ScriptArguments:
    model_name_or_path: str = None
    torch_dtype: str = None
    max_length: int = 512
    beta: float = 0.1

args = HfArgumentParser(ScriptArguments).parse_args_into_dataclasses()[0]
torch_dtype = args.torch_dtype if args.torch_dtype in ["auto", None] else getattr(torch, args.torch_dtype)
model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path, torch_dtype=torch_dtype)
DPOTrainer(model=model, args=DPOConfig(output_dir="o", beta=args.beta, max_length=args.max_length)).train()
"""
    flags = "--model_name_or_path Qwen/Qwen2.5-0.5B --torch_dtype bfloat16 --max_length 256 --beta 0.2"
    told = result(tmp_path, f"python train.py {flags}\n", program, trl="1.0.0")
    dtype = told.unit.settings["model.torch_dtype"]
    assert (told.unit.dialect, dtype.value, dtype.joined) == ("trl", "bfloat16", "train.py")
    assert "trl-torch-dtype-removed" not in [each.rule for each in told.findings]


OF_FLAGS = """import argparse
from transformers import Trainer, TrainingArguments
p = argparse.ArgumentParser()
p.add_argument("--num_train_epochs", type=int, default=3)
p.add_argument("--max_steps", type=int, default={steps})
a = p.parse_args()
args = TrainingArguments("out", num_train_epochs={epochs}, max_steps=a.max_steps, learning_rate=1e-4)
Trainer(model=model, args=args).train()
"""


@pytest.mark.parametrize(
    ("command", "epochs", "fires"),
    [
        ("python train.py --max_steps 500", "a.num_train_epochs", False),
        ("python train.py --max_steps 500", "3", False),
        ("python train.py --max_steps 500 --num_train_epochs 2", "a.num_train_epochs", True),
        ("accelerate launch --num_processes 2 train.py --max_steps 500", "a.num_train_epochs", False),
        ("python train.py --num_train_epochs 2", "a.num_train_epochs", False),
        ("", "a.num_train_epochs", False),
        ("", "3", True),
    ],
)
def test_epochs_that_are_only_a_programs_default_are_no_contradiction_to_the_steps(
    tmp_path: Path, command: str, epochs: str, fires: bool
) -> None:
    """Where no command is there the program itself is read, and its own code may say both."""
    program = OF_FLAGS.format(steps=-1 if command else 200, epochs=epochs)
    (tmp_path / "train.py").write_text(program, "utf-8")
    checker = file_checker(CATALOG, Project(), Question.of(gpu="rtx-4090"), Checking(root=str(tmp_path)))
    text, name = (command, "run.sh") if command else (program, "train.py")
    (told,) = checker.check(text.encode(), str(tmp_path / name)).results
    assert ("max-steps-overrides-epochs" in [each.rule for each in told.findings]) is fires


@pytest.mark.parametrize(("flags", "told"), [("", False), ("--steps 500", True)])
def test_a_librarys_default_that_a_program_hands_on_is_said_by_nobody(tmp_path: Path, flags: str, told: bool) -> None:
    program = (
        PROGRAM.replace("--gpu_bs", "--steps")
        .replace("default=0", "default=500")
        .replace("bf16=args.half", "save_steps=args.steps, save_strategy='epoch', dataloader_num_workers=0")
    )
    found = result(tmp_path, f"python train.py --model facebook/opt-125m {flags}\n", program)
    assert ("save-steps-not-used" in [each.rule for each in found.findings]) is told
    assert value(found, "dataloader_num_workers") == 0
    program = program.replace("save_strategy='epoch'", "eval_strategy='no', eval_steps=100")
    found = result(tmp_path, f"python train.py --model facebook/opt-125m {flags}\n", program)
    assert "eval-steps-without-eval-strategy" not in [each.rule for each in found.findings]  # it says one


DPO = """
import argparse
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

p = argparse.ArgumentParser()
p.add_argument("--model")
p.add_argument("--per_device_train_batch_size", type=int, default=2)
args = p.parse_args()
model = AutoModelForCausalLM.from_pretrained(args.model)
run = DPOConfig("out", per_device_train_batch_size=args.per_device_train_batch_size, max_length=1024)
DPOTrainer(model=model, args=run, train_dataset=None).train()
"""
CALLED = (
    "python train.py --model Qwen/Qwen2.5-0.5B --per_device_train_batch_size 4 --output_dir o --learning_rate 5e-6\n"
)
ELSEWHERE = """
from trl import DPOTrainer
from mine import options, made

args = options().parse_args()
DPOTrainer(model=made(args), args=made(args), train_dataset=None).train()
"""


def test_a_program_that_trains_by_dpo_is_seen_as_that_whatever_it_is_called(tmp_path: Path) -> None:
    told = result(tmp_path, CALLED, DPO)
    assert told.unit.settings["script.trainer"].value == "dpo"
    assert told.setup.post is not None


def test_a_trainer_whose_arguments_cannot_be_told_is_named_and_not_predicted(tmp_path: Path) -> None:
    told = result(tmp_path, CALLED, ELSEWHERE)
    assert (told.prediction, told.note) == (None, "trainer_not_followed")
    both = (
        ELSEWHERE.replace("import DPOTrainer", "import DPOTrainer, SFTTrainer")
        + "SFTTrainer(model=made(args)).train()\n"
    )
    assert result(tmp_path, CALLED, both).prediction is None


GENERATES = """
import argparse
from transformers import AutoModelForSeq2SeqLM
p = argparse.ArgumentParser()
p.add_argument("--model_name_or_path")
p.add_argument("--temperature", type=float, default=1.0)
p.add_argument("--do_sample", action="store_true")
a = p.parse_args()
model = AutoModelForSeq2SeqLM.from_pretrained(a.model_name_or_path)
model.generate(max_length=64, do_sample=a.do_sample, temperature=a.temperature{guard})
"""


@pytest.mark.parametrize(("guard", "told"), [("", True), (" if a.do_sample else None", False)])
def test_sampling_options_that_a_program_guards_are_no_fault(guard: str, told: bool, tmp_path: Path) -> None:
    command = "python train.py --model_name_or_path google/mt5-base --temperature 0.7\n"
    found = result(tmp_path, command, GENERATES.replace("{guard}", guard), load_catalog()).findings
    assert ("sampling-flags-without-do-sample" in [each.rule for each in found]) is told


SHARDED = '{"zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}'


@pytest.mark.parametrize("named", ["ds_file", "ds_file if ds_file else None", '"ds.json"'])
def test_a_program_names_the_deepspeed_file_that_its_runs_are_sharded_by(tmp_path: Path, named: str) -> None:
    program = HEAD + (
        "import fire\n\n"
        'def train(model: str, ds_file: str = "ds.json", bs: int = 4):\n'
        "    loaded = AutoModelForCausalLM.from_pretrained(model)\n"
        f'    run = TrainingArguments("out", per_device_train_batch_size=bs, bf16=True, deepspeed={named})\n'
        "    Trainer(model=loaded, args=run).train()\n\n"
        'if __name__ == "__main__":\n    fire.Fire(train)\n'
    )
    (tmp_path / "ds.json").write_text(SHARDED, "utf-8")
    command = "torchrun --nproc_per_node=4 train.py --model Qwen/Qwen2.5-7B --bs 2\n"
    told = result(tmp_path, command, program, load_catalog())
    assert told.setup is not None and told.setup.zero_stage == 3
    # the optimizer of DeepSpeed's file is the one that trains: another name for ``optim`` saves nothing
    assert not {"optimizer-8bit-would-save", "adafactor-would-save"} & {each.rule for each in told.findings}


@pytest.mark.parametrize(
    ("flags", "rate", "half"),
    [("--lr 1e-3", 1e-3, True), ("--rate 1e-3 --fp32", 1e-3, False), ("", 2e-4, True)],
)
def test_a_flag_is_read_by_the_name_that_its_parser_keeps_it_under(
    tmp_path: Path, flags: str, rate: float, half: bool
) -> None:
    program = PROGRAM.replace('"--rate", type', '"--lr", "--rate", dest="rate", type').replace(
        '"--half", action="store_true"', '"--fp32", dest="half", action="store_false"'
    )
    told = result(tmp_path, f"python train.py --model Qwen/Qwen2.5-0.5B --bs 2 {flags}\n", program)
    assert told.unit.read_by
    assert (value(told, "learning_rate"), value(told, "bf16")) == (rate, half)


def test_a_name_that_two_flags_are_kept_under_is_told_by_the_one_that_is_given(tmp_path: Path) -> None:
    flags = 'p.add_argument("--full", dest="half", action="store_false")\n    p.add_argument("--half", action'
    program = PROGRAM.replace('p.add_argument("--half", action', flags)
    told = result(tmp_path, "python train.py --model Qwen/Qwen2.5-0.5B --bs 2 --full\n", program)
    assert value(told, "bf16") is not True


@pytest.mark.parametrize(("flags", "on"), [("--gradient_checkpointing", True), ("", False)])
@pytest.mark.parametrize("before", ["", "    run = args\n"])
def test_what_is_set_on_the_arguments_of_a_run_sets_no_flag(tmp_path: Path, flags: str, on: bool, before: str) -> None:
    switch = '    p.add_argument("--gradient_checkpointing", action="store_true")\n    args = p.parse'
    after = "    if args.gradient_checkpointing:\n        run.gradient_checkpointing = True\n    Trainer(model"
    program = PROGRAM.replace("    args = p.parse", switch).replace("    Trainer(model", after)
    program = program.replace("    run = TrainingArguments", f"{before}    run = TrainingArguments")
    told = result(tmp_path, f"python train.py --model Qwen/Qwen2.5-0.5B --bs 2 {flags}\n", program)
    assert told.setup is not None and told.unit.read_by
    assert (told.setup.gradient_checkpointing, told.setup.unresolved) == (on, ())


def test_what_is_set_on_the_flags_themselves_is_no_longer_what_the_command_says(tmp_path: Path) -> None:
    program = PROGRAM.replace("    run = TrainingArguments", "    args.bs = measured()\n    run = TrainingArguments")
    told = result(tmp_path, "python train.py --model Qwen/Qwen2.5-0.5B --bs 2\n", program)
    assert value(told, NAME) != 2


@pytest.mark.parametrize(("flags", "dtype"), [("--half", "bfloat16"), ("", "float16"), ("--packed --half", None)])
def test_a_name_of_an_arm_has_its_value_where_the_arm_is_taken(tmp_path: Path, flags: str, dtype: str | None) -> None:
    loads = "model = AutoModelForCausalLM.from_pretrained(args.model"
    arms = (
        f"    if args.packed:\n        {loads})\n    else:\n"
        f"        kind = torch.bfloat16 if args.half else torch.float16\n        {loads}, torch_dtype=kind)\n"
    )
    switch = '    p.add_argument("--packed", action="store_true")\n    args = p.parse'
    program = PROGRAM.replace(f"    {loads}, torch_dtype=torch.bfloat16)\n", arms).replace("    args = p.parse", switch)
    told = result(tmp_path, f"python train.py --model Qwen/Qwen2.5-0.5B --bs 2 {flags}\n", program)
    setting = told.unit.settings.get("model.torch_dtype")
    assert (None if setting is None else setting.value) == dtype


@pytest.mark.parametrize(("flag", "length"), [("", 1024), ("--max-len=512", 512), ("--max-len $LENGTH", "?")])
def test_rows_of_a_loop_are_as_long_as_its_command_says(tmp_path: Path, flag: str, length: int | str) -> None:
    (tmp_path / "rows.py").write_text(
        "class Rows:\n    def __init__(self, rows, tokenizer, max_len=64): ...\n"
        "class Pairs:\n    def __init__(self, rows, max_len=2048): ...\n"
    )
    program = (
        "import argparse\nfrom rows import Rows\nfrom torch.utils.data import DataLoader\n"
        "from transformers import AutoModelForCausalLM\np = argparse.ArgumentParser()\n"
        "p.add_argument('--batch_size', type=int, default=1)\np.add_argument('--max-len', type=int, default=1024)\n"
        "args = p.parse_args()\nmodel = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
        "loader = DataLoader(Rows(rows, tok, args.max_len), batch_size=args.batch_size)\n"
        "for batch in loader:\n    loss = model(**batch).loss\n    loss.backward()\n    optimizer.step()\n"
    )
    told = result(tmp_path, f"python train.py --batch_size 2 {flag}\n", program)
    said = told.unit.settings["data.max_source_length"].value
    assert ("?" if is_unknown(said) else said) == length
