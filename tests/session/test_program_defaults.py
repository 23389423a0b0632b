"""What a command's program says of a run: the defaults of its own flags, how it places the model."""

from pathlib import Path
from typing import Any

import pytest

import kb
from catalog_sample import load_catalog, shallow_catalog
from kb.advice.question import Question
from kb.config.python.declared import declared
from kb.config.python.source_says import device_map_of, keeps_no_logits, loaded
from kb.core.catalog import Catalog
from kb.core.result import UnitResult, Unusable
from kb.session.prepare import file_checker
from kb.session.project import find_project
from kb.session.run import Input, check_input

CATALOG = shallow_catalog()
RUN = "python train.py --model_name_or_path facebook/opt-125m --output_dir out --num_train_epochs 3 --do_train {}\n"
CLASSES = """
from __future__ import annotations
from dataclasses import dataclass, field
import transformers

@dataclass
class DataArguments:
    max_seq_length: int = field(default=333, metadata={"help": "tokens"})

@dataclass
class AdapterArguments:
    use_peft: bool = False
    lora_r: int = 64

class Unused:
    block_size: int = 9

@dataclass
class TrainingArguments(transformers.TrainingArguments):
    optim: str = field(default="adafactor")
    per_device_train_batch_size: int = 3
    cache_dir: str | None = field(default=None)

parser = transformers.HfArgumentParser((DataArguments, AdapterArguments, TrainingArguments))
rows = tokenizer(texts, max_length=data.max_seq_length)
trainer = transformers.Trainer(model=model)
"""
ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("-l", "--max-seq-length", type=int, default=2 ** 8)
parser.add_argument("--max_source_length", type=int, default=222)
parser.add_argument("--per_device_train_batch_size", type=int, default=3)
parser.add_argument("--gradient_accumulation_steps", type=int, required=True)
parser.add_argument("--gradient_checkpointing", action="store_true")
parser.add_argument("--learning_rate", default=1e-4)
args = parser.parse_args()
args.learning_rate = 3e-4
"""
FIRE = """
import fire
def train(base_model: str = "", cutoff_len: int = 256, *, micro_batch_size: int = 4, prompter=None): ...
fire.Fire(train)
"""


SET_LATER = """
import argparse
parser = argparse.ArgumentParser()
for flag in (1,): pass
parser.add_argument("--a", default=1), parser.add_argument("--b", default=2), parser.add_argument("--c", default=3)
parser.add_argument("--d", default=4), parser.add_argument("--e", default=5), parser.add_argument("--f", default=6)
parser.set_defaults(a=9)
args = parser.parse_args()
args.b, args.c = 1, 2
setattr(args, "d", 0)
vars(args)["e"] = 0
tokenizer.f = 7
"""
POST_INIT = """
@dataclass
class Flags(TrainingArguments):
    optim: str = "adamw_8bit"
    bf16: bool = field(default_factory=lambda: torch.cuda.is_bf16_supported())
    fp16: bool = True
    def __post_init__(self):
        self.optim = "adamw_torch"
HfArgumentParser(Flags)
"""


def told(text: str, imported: str = "") -> dict[str, str | None]:
    """Each default; ``?`` for what cannot be told."""
    return {name: each.text if each.can_be_told else "?" for name, each in declared(text, imported).items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CLASSES, {"max_seq_length": "333", "use_peft": "False", "lora_r": "64", "optim": "adafactor",
                   "per_device_train_batch_size": "3", "cache_dir": None}),
        (ARGPARSE, {"max_seq_length": "?", "max_source_length": "222", "per_device_train_batch_size": "3",
                    "gradient_accumulation_steps": "?", "gradient_checkpointing": "False", "learning_rate": "?"}),
        (FIRE, {"base_model": None, "cutoff_len": "256", "micro_batch_size": "4", "prompter": None}),
        (SET_LATER, {"a": "?", "b": "?", "c": "?", "d": "?", "e": "?", "f": "6"}),
        (POST_INIT, {"optim": "?", "bf16": "?", "fp16": "True"}),
        (ARGPARSE + "\nparser.add_argument('--max_source_length', default=8)", {"max_source_length": "?"}),
    ],
)  # fmt: skip
def test_flags_and_their_defaults_are_read_off_the_source(text: str, expected: dict[str, str | None]) -> None:
    found = told(text)
    assert {name: found[name] for name in expected} == expected
    assert "block_size" not in found


def test_the_programs_own_classes_and_parser_come_before_those_that_it_imports() -> None:
    other = CLASSES.replace("333", "32768")
    assert told(CLASSES, other)["max_seq_length"] == "333"
    assert told(CLASSES, ARGPARSE).get("max_source_length") is None
    assert told("from arguments import parse\nargs = parse()", ARGPARSE)["max_source_length"] == "222"
    assert told(ARGPARSE + "\ncommands = parser.add_subparsers()\n") == {}
    assert told("add_argument(") == told("print('ArgumentParser')") == {}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('model = AutoModel.from_pretrained(name, device_map="auto")', "auto"),
        ('device_map = "balanced"', "balanced"),
        ('# model = AutoModel.from_pretrained(name, device_map="auto")', None),
        ('"""AutoModel.from_pretrained(name, device_map="auto")"""', None),
        ('def merge():\n    AutoModel.from_pretrained(name, device_map="auto")', None),
        ('model = AutoPeftModelForCausalLM.from_pretrained(out, device_map="auto")', None),
        ("model = AutoModel.from_pretrained(name, device_map={'': 0})", None),
    ],
)
def test_a_program_spreads_its_model_over_gpus_where_it_loads_it_so(line: str, expected: str | None) -> None:
    assert device_map_of(line) == expected


def checked(
    folder: Path, program: str, flags: str = "", command: str = RUN, *, catalog: Catalog = CATALOG, **machine: Any
) -> UnitResult:
    (folder / ".git").mkdir(exist_ok=True)
    (folder / "train.py").write_text(program, "utf-8")
    (folder / "run.sh").write_text(command.format(flags), "utf-8")
    question = Question.of(**{"gpu": "t4", "versions": {"transformers": "4.40.0"}, **machine})
    outcome = check_input(Input(str(folder / "run.sh")), file_checker(catalog, find_project(str(folder)), question))
    assert outcome is not None and not isinstance(outcome, Unusable), outcome
    return outcome.results[0]


def test_what_the_command_leaves_out_is_as_its_program_has_it(tmp_path: Path) -> None:
    setup = checked(tmp_path, CLASSES).setup
    assert setup is not None
    assert (setup.max_source_length, setup.optim, setup.method) == (333, "adafactor", "full")
    assert setup.per_device_train_batch_size == 3
    given = checked(tmp_path, CLASSES, "--max_seq_length 64 --optim adamw_torch --use_peft True").setup
    assert given is not None
    assert (given.max_source_length, given.optim, given.method) == (64, "adamw_torch", "lora")
    assert given.lora_r == 64  # the adapter's own default counts where there is one


def test_without_the_program_nothing_of_it_is_known(tmp_path: Path) -> None:
    setup = checked(tmp_path, "", command=RUN.replace("train.py", "other.py")).setup
    assert setup is not None
    assert (setup.optim, setup.per_device_train_batch_size) != ("adafactor", 3)


def test_a_model_that_the_program_spreads_over_gpus_is_judged_for_one_of_them_with_a_condition(tmp_path: Path) -> None:
    program = CLASSES + '\nmodel = AutoModel.from_pretrained(name, device_map="auto")\n'
    large = RUN.replace("facebook/opt-125m", "facebook/opt-6.7b")

    def verdict(command: str, text: str = program, **machine: Any) -> tuple[str, bool]:
        result = checked(tmp_path, text, command=command, catalog=load_catalog(), **machine)
        found = [each for each in result.findings if each.rule == "training-peak-exceeds-gpu"]
        return found[0].severity if found else "", result.prediction is not None

    assert verdict(large) == ("warning", True)
    assert verdict(large, gpus=1) == ("error", True)
    assert verdict(large, gpus=4) == ("", False)
    assert verdict(large, CLASSES) == ("error", True)
    assert verdict(large, program.replace("model =", "# model =")) == ("error", True)
    (tmp_path / "z3.json").write_text('{"zero_optimization": {"stage": 3}}')  # which refuses a device map
    assert verdict(f"{large.rstrip()} --deepspeed z3.json\n") == ("", False)
    split = "import tensor_parallel as tp\n" + program
    assert verdict(large, split) == ("", False)


def test_evaluation_keeps_no_logits_where_the_program_has_no_metric_function(tmp_path: Path) -> None:
    rule, flags = "eval-logits-grow-with-samples", "--evaluation_strategy steps --per_device_eval_batch_size 64"
    said = [each.rule for each in checked(tmp_path, CLASSES, flags).findings]
    measured = CLASSES.replace("Trainer(model=model)", "Trainer(model=model, compute_metrics=metrics)")
    also = [each.rule for each in checked(tmp_path, measured, flags).findings]
    assert rule not in said
    assert rule in also


def test_a_finding_on_a_default_of_the_program_names_the_program(tmp_path: Path) -> None:
    program = CLASSES.replace("optim: str =", "fp16: bool = True\n    optim: str =")
    result = checked(tmp_path, program, "--bf16 True")
    found = next(each for each in result.findings if each.rule == "fp16-and-bf16-both")
    assert [name for name, _ in found.related] == ["training.fp16"]
    assert [(edit.op, edit.value) for edit in found.fixes[0].edits] == [("set", False)]  # there is no flag to remove
    setting = result.unit.settings["training.fp16"]
    assert (setting.joined, setting.path) == ("train.py", ("--fp16",))


def test_a_default_that_cannot_be_told_is_no_default_of_the_librarys(tmp_path: Path) -> None:
    program = CLASSES.replace("per_device_train_batch_size: int = 3", "per_device_train_batch_size: int = ROWS")
    for more in (
        "",
        'ROWS = int(os.environ.get("ROWS", 4))\n',
        "ROWS = 4\nROWS = rows_that_fit()\n",
        "ROWS = 4\nROWS = 64\n",
    ):
        result = checked(tmp_path, f"import os\n{more}{program}")
        assert result.prediction is None
        assert "training.per_device_train_batch_size" in result.unit.settings
    setup = checked(tmp_path, f"ROWS = 2 * 3\n{program}").setup
    assert setup is not None and setup.per_device_train_batch_size == 6


def test_a_switch_without_a_memory_model_that_is_on_by_default_is_heeded(tmp_path: Path) -> None:
    for field in ("bits: int = 4", "use_galore: bool = True"):
        result = checked(tmp_path, CLASSES.replace("lora_r: int = 64", field))
        assert result.prediction is None, field
    for field in ("bits: int = 16", "use_galore: bool = False"):
        assert checked(tmp_path, CLASSES.replace("lora_r: int = 64", field)).prediction is not None, field


def test_of_a_pair_the_commands_word_wins_where_the_library_is_not_given_both(tmp_path: Path) -> None:
    program = ARGPARSE.replace("args = parser", 'parser.add_argument("--fp16", default=True)\nargs = parser')
    assert "training.fp16" not in checked(tmp_path, program, "--bf16 True").unit.settings
    assert checked(tmp_path, program).unit.settings["training.fp16"].value is True


LOADS = """
import torch, transformers
from transformers import AutoModelForCausalLM, HfArgumentParser, TrainingArguments

(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
HALF = torch.bfloat16
kwargs = dict(dtype=HALF, use_cache=False)
tokenizer = transformers.AutoTokenizer.from_pretrained(name, dtype=torch.float64)
model = AutoModelForCausalLM.from_pretrained(name, {given})
{more}
trainer = transformers.Trainer(model=model, args=args)
"""


@pytest.mark.parametrize(
    ("given", "more", "expected"),
    [
        ("torch_dtype=torch.bfloat16", "", {"model.torch_dtype": "bfloat16"}),
        ("dtype='auto'", "", {"model.torch_dtype": "auto"}),
        ("attn_implementation='eager'", "", {"model.attn_implementation": "eager"}),
        ("torch_dtype=args.dtype", "", {}),
        ("torch_dtype=HALF", "", {"model.torch_dtype": "bfloat16"}),
        ("**kwargs", "", {"model.torch_dtype": "bfloat16"}),
        ("dtype=torch.bfloat16 if args.bf16 else torch.float32", "", {"model.torch_dtype": None}),
        ("dtype=getattr(torch, args.dtype)", "", {}),  # what a flag of that name says
        ("dtype=dtype", "", {}),
        ("dtype=torch.float16", "AutoModel.from_pretrained(name, dtype=torch.float32)", {"model.torch_dtype": None}),
        ("dtype=torch.float16", "PeftModel.from_pretrained(m, n, dtype='auto')", {"model.torch_dtype": "float16"}),
        ("use_cache=False", "model.gradient_checkpointing_enable()", {"training.gradient_checkpointing": True}),
        ("", "if args.gradient_checkpointing:\n    model.gradient_checkpointing_enable()", {}),
        ("", "if big:\n    model.gradient_checkpointing_enable()", {"training.gradient_checkpointing": None}),
        ("", "if plain:\n    AutoModel.from_pretrained(n)\nelse:\n    AutoModel.from_pretrained(n, dtype='auto')",
         {"model.torch_dtype": None}),
        ("", "if plain:\n    m = AutoModel.from_pretrained(n, dtype='auto')", {"model.torch_dtype": "auto"}),
    ],
)  # fmt: skip
def test_how_a_program_loads_its_model_by_itself(given: str, more: str, expected: dict[str, Any]) -> None:
    assert loaded(LOADS.format(given=given, more=more)) == expected


def test_a_program_that_loads_its_model_by_itself_says_so_for_the_command(tmp_path: Path) -> None:
    program = LOADS.format(given="torch_dtype=torch.bfloat16", more="model.gradient_checkpointing_enable()")
    setup = checked(tmp_path, program).setup
    assert setup is not None
    assert (setup.weights, setup.gradient_checkpointing) == ("bf16", True)
    assert "trl-torch-dtype-removed" not in [
        each.rule for each in checked(tmp_path, program, "--max_seq_length 64 --packing True").findings
    ], "an argument of from_pretrained is none of TRL's"
    without = checked(tmp_path, LOADS.format(given="", more="if big:\n    model.gradient_checkpointing_enable()"))
    assert without.prediction is None, "nobody knows whether checkpointing is on"


def test_a_function_of_another_module_may_load_the_model(tmp_path: Path) -> None:
    begins = "from model import judge, load\nfrom transformers import Trainer, TrainingArguments\n"
    module = "def {}(name):\n    return AutoModel.from_pretrained(name, torch_dtype=torch.bfloat16)\n"
    (tmp_path / "model.py").write_text(module.format("load") + module.format("judge"))
    for made in ("model = load(flags.m)\nTrainer(model, args)\n", "Trainer(model=wrap(load(flags.m)), args=args)\n"):
        told = checked(tmp_path, begins + made)
        assert (told.prediction, told.note_values) == (None, {"settings": "torch_dtype"}), made
    other = checked(tmp_path, begins + "trainer = Trainer(model=flags.m, args=args)\njudge(trainer)\n")
    assert other.setup.weights == checked(tmp_path, begins.replace("judge, load", "x")).setup.weights


def test_evaluation_keeps_no_logits_where_a_function_makes_less_of_them() -> None:
    trainer = "Trainer(model, args, compute_metrics=f{})\n"
    assert not keeps_no_logits(trainer.format(""))
    assert keeps_no_logits(trainer.format(", preprocess_logits_for_metrics=argmax"))
    assert keeps_no_logits("# def compute_metrics(p): ...\nTrainer(\n    model,\n    # compute_metrics=f,\n)\n")


OWN_LOOP = """
'''A training without a Trainer.'''
import argparse
from accelerate import Accelerator
parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path")
parser.add_argument("--learning_rate", type=float, default=5e-5)
parser.add_argument("--num_train_epochs", type=int)
parser.add_argument("--per_device_train_batch_size", type=int, default=8)
args = parser.parse_args()
for batch in DataLoader(rows, num_workers=4):
    {step}
"""
T5 = "python train.py --model_name_or_path google-t5/t5-base --per_device_train_batch_size 4 --num_train_epochs 3\n"


def test_of_a_loop_of_its_own_a_trainers_defaults_say_nothing(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"command": T5, "gpu": "rtx-3090", "cpus": "16"}
    about = {"no-dataloader-workers", "no-mixed-precision-on-ampere"}
    own = checked(tmp_path, OWN_LOOP.replace("{step}", "accelerator.backward(loss)"), **asked)
    assert about.isdisjoint(each.rule for each in own.findings)
    trainer = checked(tmp_path, OWN_LOOP.replace("{step}", "Trainer(model=model)"), **asked)
    assert about <= {each.rule for each in trainer.findings}


def test_no_fix_gives_a_command_a_flag_that_its_program_lacks(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"command": T5, "gpu": "rtx-3090", "cpus": "16"}
    program = OWN_LOOP.replace("{step}", "Trainer(model=model)")
    slow = "no-mixed-precision-on-ampere"
    (without,) = [each for each in checked(tmp_path, program, **asked).findings if each.rule == slow]
    assert not without.fixes
    program = program.replace("args = ", 'parser.add_argument("--bf16", action="store_true")\nargs = ')
    (known,) = [each for each in checked(tmp_path, program, **asked).findings if each.rule == slow]
    assert known.fixes


def test_a_program_that_gives_its_model_more_positions_is_not_held_against_the_checkpoints(tmp_path: Path) -> None:
    step = "rows = tokenizer(texts, max_length=args.max_source_length)\nTrainer(model=model)"
    program = OWN_LOOP.replace("{step}", step).replace(
        "args = ", 'parser.add_argument("--max_source_length", type=int)\nargs = '
    )
    command = T5.replace("google-t5/t5-base", "facebook/bart-base").rstrip() + " --max_source_length 4096\n"
    long = "source-longer-than-positions"
    assert long in [each.rule for each in checked(tmp_path, program, command=command).findings]
    program += "\nconfig.max_position_embeddings = args.max_source_length\n"
    assert long not in [each.rule for each in checked(tmp_path, program, command=command).findings]


@pytest.mark.parametrize(
    ("model", "length", "loud"),
    [
        ("vinai/phobert-base", 512, True),  # takes 256
        ("vinai/phobert-base", 256, False),
        ("vinai/bertweet-base", 256, True),  # takes 128
        ("camembert-base", 512, False),
        ("camembert-base", 513, True),
        ("klue/bert-base", 1024, True),
        ("microsoft/deberta-v3-base", 1024, False),  # by distances
    ],
)
def test_an_encoder_takes_no_more_tokens_than_it_has_positions(
    tmp_path: Path, model: str, length: int, loud: bool
) -> None:
    program = f"""from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments
tokenizer = AutoTokenizer.from_pretrained("{model}")
model = AutoModelForSequenceClassification.from_pretrained("{model}", num_labels=3)
data = data.map(lambda rows: tokenizer(rows["text"], truncation=True, max_length={length}), batched=True)
Trainer(model=model, args=TrainingArguments(output_dir="out"), train_dataset=data).train()
"""
    path = tmp_path / "train.py"
    path.write_text(program)
    rules = {finding.rule for _, finding in kb.findings(kb.lint(path, "rtx-3090"))}
    assert ("source-longer-than-positions" in rules) is loud


def test_a_flag_that_the_command_gives_has_no_default_whatever_its_value_says(tmp_path: Path) -> None:
    program = OWN_LOOP.replace("{step}", "Trainer(model=model)").replace("--model_name_or_path", "--model_name")
    program = program.replace('("--model_name")', '("--model_name", default="base")')
    command = T5.replace("_or_path google-t5/t5-base", " BertForQuestionAnswering")
    setup = checked(tmp_path, program, command=command).setup
    assert setup is not None and setup.model_name is None


def test_a_trainers_class_under_a_name_is_a_trainer_too() -> None:
    made = "from transformers import Seq2SeqTrainer, Trainer\nkind = Trainer if plain else Seq2SeqTrainer\n"
    made += "kind(model, args)\n"
    assert keeps_no_logits(made)
    assert not keeps_no_logits(made + "kind(model, args, compute_metrics=f)\n")


BY_ANY_NAME = """
from dataclasses import dataclass, field
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, HfArgumentParser, Trainer
from transformers import TrainingArguments

@dataclass
class ModelArguments:
    PLM: str = field(default="klue/roberta-base")
    tok: str = field(default="klue/bert-base")

model_args, training_args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
if training_args.do_eval:
    print("rows")
factor = training_args.label_smoothing_factor
label_smoothing_factor = training_args.label_smoothing_factor
name = model_args.PLM
tokenizer = AutoTokenizer.from_pretrained(model_args.tok)
model = AutoModelForSequenceClassification.from_pretrained({named})
Trainer(model=model, args=training_args).train()
"""


@pytest.mark.parametrize(
    ("named", "flags", "model"),
    [
        ("model_args.PLM", "--PLM klue/roberta-large", "klue/roberta-large"),
        ("name", "--PLM klue/roberta-large", "klue/roberta-large"),
        ("model_args.PLM", "", "klue/roberta-base"),
        ("find(model_args.PLM)", "--PLM klue/roberta-large", None),
        ("model_args.PLM, config=AutoConfig.from_pretrained(model_args.tok)", "--PLM klue/roberta-large", None),
    ],
)
def test_a_model_is_named_by_the_flag_that_the_program_loads_it_from(
    tmp_path: Path, named: str, flags: str, model: str | None
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text(BY_ANY_NAME.replace("{named}", named), "utf-8")
    (tmp_path / "run.sh").write_text(
        f"python train.py --do_train --output_dir out --num_train_epochs 3 --per_device_train_batch_size 8 {flags}\n"
    )
    checker = file_checker(load_catalog(), find_project(str(tmp_path)), Question.of(gpu="rtx-4090"))
    outcome = check_input(Input(str(tmp_path / "run.sh")), checker)
    assert not isinstance(outcome, Unusable)
    (result,) = outcome.results
    said = result.unit.settings.get("model.name")
    assert (said.value if said is not None else None) == model
    assert (result.prediction is not None) == (model is not None)  # what is read in an `if` is given no value


KEPT_ELSEWHERE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--rows", dest="per_device_train_batch_size", type=int, default=64)
args = parser.parse_args()
trainer = Trainer(model=model, train_batch=args.per_device_train_batch_size)
"""


@pytest.mark.parametrize(("more", "batch"), [("", 64), ("--rows 2", None)])
def test_the_default_of_a_flag_that_is_kept_under_another_name_is_not_that_of_the_one_given(
    tmp_path: Path, more: str, batch: int | None
) -> None:
    assert declared(KEPT_ELSEWHERE)["per_device_train_batch_size"].spelt == ("rows",)
    found = checked(tmp_path, KEPT_ELSEWHERE, more).unit.settings.get("training.per_device_train_batch_size")
    assert (None if found is None else found.value) == batch


CUTS = """
from dataclasses import dataclass, field
from transformers import AutoModelForCausalLM, HfArgumentParser
from trl import SFTConfig, SFTTrainer

@dataclass
class ScriptArguments:
    model_id: str = field(default="facebook/opt-125m")
    max_seq_length: int = field(default=300)

own, args = HfArgumentParser((ScriptArguments, SFTConfig)).parse_args_into_dataclasses()
{cut}
model = AutoModelForCausalLM.from_pretrained(own.model_id)
SFTTrainer(model=model, args=args, train_dataset=rows).train()
"""


@pytest.mark.parametrize(
    ("cut", "counts"), [("", False), ("args.max_length = own.max_seq_length", True), ("log(vars(own))", True)]
)
def test_a_length_that_its_program_never_reads_cuts_nothing(tmp_path: Path, cut: str, counts: bool) -> None:
    command = "python train.py --max_seq_length 200 --per_device_train_batch_size 2 --output_dir o --packing False\n"
    told = checked(tmp_path, CUTS.format(cut=cut), command=command)
    assert (told.prediction is not None) is counts  # without it TRL cuts at its own length, if at any


FITS = """
import argparse
from sentence_transformers import SentenceTransformer
parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path")
parser.add_argument("--nli_batch_size", type=int, default=64)
args = parser.parse_args()
{last}
"""


@pytest.mark.parametrize(
    ("last", "note"),
    [
        (
            "SentenceTransformer(args.model_name_or_path).fit(train_objectives=made(args.nli_batch_size))",
            "set_by_program",
        ),
        ("print(SentenceTransformer(args.model_name_or_path).encode('text'))", "runs_nothing"),
    ],
)
def test_a_command_that_says_nothing_of_the_training_that_it_starts_has_a_reason(
    tmp_path: Path, last: str, note: str
) -> None:
    told = checked(tmp_path, FITS.format(last=last), command="python train.py --model_name_or_path facebook/opt-125m\n")
    assert (told.prediction, told.note) == (None, note)


def test_a_decoder_with_a_head_that_classifies_is_not_predicted_with_logits(tmp_path: Path) -> None:
    command = RUN.replace("facebook/opt-125m", "facebook/opt-6.7b")
    for loads, predicted in (("ForCausalLM", True), ("ForSequenceClassification", False)):
        program = f"{CLASSES}\nmodel = AutoModel{loads}.from_pretrained(name)\n"
        assert (checked(tmp_path, program, command=command).prediction is not None) == predicted
