"""Where a Python program's values come from: its classes, its functions, its flags, its modules and its files."""

from pathlib import Path

import pytest

from catalog_sample import shallow_catalog
from kb.advice.question import Question
from kb.config.discovery import discover
from kb.config.python.reader import PythonReader
from kb.core.document import Setting
from kb.core.expression import is_unknown
from kb.core.result import UnitResult
from kb.session.lookups import still
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import FileResult, Input, check_input

CATALOG = shallow_catalog()
READER = PythonReader(CATALOG.dialects, CATALOG.facts)
BATCH = "training.per_device_train_batch_size"
CALL = 'TrainingArguments("out", per_device_train_batch_size={}, seed=1)\n'
DICT = 'config = {"batch": 4}\n'
CLASS = "@dataclass\nclass Config:\n    batch: int = 4\n"


def batch_of(text: str) -> Setting:
    (unit,) = READER.read(text, "train.py")
    return unit.settings[BATCH]


LOADS = 'model = AutoModelForCausalLM.from_pretrained("facebook/opt-125m")\n'
FLAG = 'parser.add_argument("--batch", default=4)\nargs = parser.parse_args()\n'
OF_MAIN = "def main():\n    SIZE = 4\n    " + FLAG.replace("=4", "=SIZE").replace("\n", "\n    ")
INIT = "class Config:\n    def __init__(self, batch=4):\n        self.batch = batch\n"
RUN = "def run(batch=4):\n    "
OF_CONFIG = "def run(config: Config):\n    "
MAKING = "def run(config: Config | None = None):\n    config = config or Config()\n    "
BRANCH = 'def config():\n    if x:\n        return {}\n    return {"batch": 4}\n'
FIELDS = """class Own:
    batch: int = field(default=4)
parser = HfArgumentParser(Own)
(own,) = parser.parse_args_into_dataclasses()
"""


@pytest.mark.parametrize(
    ("before", "given", "value", "by_default"),
    [
        # dictionaries
        (DICT, 'config.get("batch", 8)', 4, False),
        (DICT, 'config.get("size", 8)', 8, False),
        ('config = {"train": {"batch": 4}}\n', 'config["train"]["batch"]', 4, False),
        (DICT + 'config["batch"] = 8\n', 'config.get("batch", 8)', None, False),
        (DICT + "config.update(more)\n", 'config["batch"]', None, False),
        # classes
        (CLASS + "config = Config()\n", "config.batch", 4, False),
        (CLASS + "config = Config(batch=8)\n", "config.batch", 8, False),
        (CLASS + "config = Config(**more)\n", "config.batch", None, False),
        (CLASS + "config = Config()\nconfig.batch = 8\n", "config.batch", None, False),
        (CLASS + "config = Config()\nfor k, v in x:\n    setattr(config, k, v)\n", "config.batch", None, False),
        (CLASS + "class Own(Config):\n    lr = 1\n", "Own.batch", 4, False),
        (INIT + "c = Config(8)\n", "c.batch", 8, False),
        (INIT + "c = Config(batch=8)\n", "c.batch", 8, False),
        (CLASS + OF_CONFIG, "config.batch", 4, True),
        (CLASS + MAKING, "config.batch", 4, True),
        (CLASS + "    def from_yaml(path): ...\n" + OF_CONFIG, "config.batch", None, False),
        # flags of a parser that a function makes
        (OF_MAIN, "args.batch", 4, True),
        # functions
        (RUN, "batch", 4, True),
        (RUN + "batch = 8\n    ", "batch", 8, False),
        ("run(16)\n" + RUN, "batch", 16, False),
        ("run(16)\nrun()\n" + RUN, "batch", None, False),
        ("run(**more)\n" + RUN, "batch", None, False),
        ('def config():\n    return {"batch": 4}\n', 'config()["batch"]', 4, False),
        (BRANCH, 'config()["batch"]', None, False),
        # what changes a value elsewhere, or makes another of it
        (DICT + 'other = config\nother["batch"] = 6\n', 'config["batch"]', None, False),
        (DICT + 'def change(x):\n    x["batch"] = 6\nchange(config)\n', 'config["batch"]', None, False),
        ('config = {"t": {"batch": 4}}\nconfig["t"].update(more)\n', 'config["t"]["batch"]', None, False),
        (
            CLASS + "    def __post_init__(self):\n        self.batch += 1\nc = Config(batch=6)\n",
            "c.batch",
            None,
            False,
        ),
        (INIT.replace("= batch", "= batch * 2") + "c = Config(batch=6)\n", "c.batch", 12, False),
        (CLASS + "type(Config()).batch = 6\n", "Config.batch", None, False),
        (CLASS + "def f():\n    class Config:\n        batch = 6\n", "Config.batch", None, False),
        ("later(run)\n" + RUN, "batch", None, False),
        ("@twice\n" + RUN, "batch", None, False),
        ("def size(x=0):\n    if x:\n        return 4\n", "size()", None, False),
        (DICT + CLASS + "c = config or Config()\n", "c.batch", None, False),
        ("from more import *\n" + CLASS + "config = Config()\n", "config.batch", None, False),
        (FLAG.replace("args =", "parser.set_defaults(batch=6)\nargs ="), "args.batch", None, False),
        (FLAG.replace("parse_args()", 'parse_args(["--batch", "6"])'), "args.batch", None, False),
        ('import os\nos.environ["BATCH"] = "6"\n', 'int(os.environ.get("BATCH", "4"))', None, False),
        # what is said outside
        ("import os\n", 'int(os.environ.get("BATCH", "4"))', 4, True),
        (FLAG, "args.batch", 4, True),
        (FLAG + "args.batch = 9\n", "args.batch", None, False),
        (FIELDS, "own.batch", 4, True),
    ],
)
def test_a_value_is_followed_to_where_it_comes_from(before, given, value, by_default):
    setting = batch_of("import argparse\n" + before + CALL.format(given))
    assert (None if is_unknown(setting.value) else setting.value) == value
    assert setting.by_default == by_default


PROGRAM = """
import argparse, yaml
from transformers import AutoModelForCausalLM, TrainingArguments
from src import settings
from src.settings import LORA, Sizes

parser = argparse.ArgumentParser()
parser.add_argument("--config", default="configs/run.yaml")
args = parser.parse_args()
with open(args.config) as file:
    config = yaml.safe_load(file)
model = AutoModelForCausalLM.from_pretrained(settings.MODEL)
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=config["training"]["batch"],
    gradient_accumulation_steps=Sizes.steps,
    num_train_epochs=LORA["epochs"],
    bf16=config["training"].get("bf16", True),
)
"""


def project(folder: Path) -> Path:
    for name in (".git", "src", "configs"):
        (folder / name).mkdir()
    (folder / "src" / "settings.py").write_text(
        'MODEL = "facebook/opt-125m"\nLORA = {"epochs": 2}\nclass Sizes:\n    steps = 3\n', "utf-8"
    )
    (folder / "configs" / "run.yaml").write_text("training: {batch: 5}\n", "utf-8")
    (folder / "train.py").write_text(PROGRAM, "utf-8")
    return folder / "train.py"


def given_as(path: Path) -> Input:
    return Input(str(path), "python", path.read_bytes(), named=True)


def checked(path: Path, gpu: str = "rtx-3090") -> UnitResult:
    checker = file_checker(CATALOG, Project(), Question.of(gpu=gpu))
    result = check_input(given_as(path), checker)
    return result.results[0]  # type: ignore[union-attr]


def test_a_program_is_read_with_its_modules_and_the_file_that_it_loads(tmp_path):
    result = checked(project(tmp_path))
    setup = result.setup
    assert setup.model_name == "facebook/opt-125m" and setup.bf16
    assert (setup.per_device_train_batch_size, setup.gradient_accumulation_steps) == (5, 3)
    assert [(each.value, each.reason) for each in setup.assumed if each.name == "run.own_defaults"] == [
        ("bf16, per_device_train_batch_size", "program_default")
    ]


def test_what_rests_on_a_programs_own_default_warns_and_says_so(tmp_path):
    path = project(tmp_path)
    (tmp_path / "configs" / "run.yaml").write_text("training: {batch: 5000}\n", "utf-8")
    (found,) = [each for each in checked(path).findings if each.rule == "training-peak-exceeds-gpu"]
    assert found.severity == "warning" and "run.own_defaults" in [each.name for each in found.if_so]
    path.write_text(PROGRAM.replace("args.config", '"configs/run.yaml"'), "utf-8")
    (found,) = [each for each in checked(path).findings if each.rule == "training-peak-exceeds-gpu"]
    assert "run.own_defaults" not in [each.name for each in found.if_so]


def test_a_stored_result_is_out_of_date_when_a_module_or_a_loaded_file_changes(tmp_path):
    path = project(tmp_path)
    checker = file_checker(CATALOG, Project(), Question.of(gpu="rtx-3090"))
    check_input(given_as(path), checker)
    rows = [row for row in checker.seen.take() if row[0] in ("module", "loaded")]
    assert {row[0] for row in rows} == {"module", "loaded"} and still(rows, checker.lookups)
    (tmp_path / "configs" / "run.yaml").write_text("training: {batch: 6}\n", "utf-8")
    assert not still(rows, checker.lookups)


@pytest.mark.parametrize("text", ["def (", "MODEL = " + "(" * 500, "x = 1\0"])
def test_a_module_that_is_no_python_is_none(tmp_path, text):
    path = project(tmp_path)
    (tmp_path / "src" / "settings.py").write_text(text, "utf-8")
    assert checked(path).setup.model_name is None


def test_programs_that_go_round_in_circles_end(tmp_path):
    path = project(tmp_path)
    (tmp_path / "src" / "settings.py").write_text("from src.other import MODEL, LORA, Sizes\n", "utf-8")
    (tmp_path / "src" / "other.py").write_text("from src.settings import MODEL, LORA, Sizes\n", "utf-8")
    assert checked(path).setup.model_name is None
    text = "def a():\n    return b()\ndef b():\n    return a()\n" + CALL.format("a()")
    assert is_unknown(batch_of(text).value)


@pytest.mark.parametrize("how", ["absolute", "above", "link"])
def test_no_file_outside_the_project_is_read(tmp_path, how):
    outside = tmp_path / "other.yaml"
    outside.write_text("training: {batch: 7}\n", "utf-8")
    (tmp_path / "here").mkdir()
    path = project(tmp_path / "here")
    named = {"absolute": str(outside), "above": "../other.yaml", "link": "configs/link.yaml"}[how]
    (tmp_path / "here" / "configs" / "link.yaml").symlink_to(outside)
    path.write_text(PROGRAM.replace("configs/run.yaml", named), "utf-8")
    assert BATCH in checked(path).setup.unresolved


UNSLOTH = """
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Llama-3.2-1B", load_in_4bit=True)
trainer = SFTTrainer(model=model, args=SFTConfig("out", eval_strategy="steps", per_device_train_batch_size=8))
"""


@pytest.mark.parametrize(
    ("before", "fused", "fused_evaluation", "loss_only"),
    [
        ("", True, True, True),
        ("import os\nos.environ['UNSLOTH_RETURN_LOGITS'] = '1'\n", False, False, True),
        ("compute_metrics = None\n", True, False, False),
    ],
)
def test_unsloth_makes_no_logits_unless_it_is_told_to(tmp_path, before, fused, fused_evaluation, loss_only):
    path = tmp_path / "train.py"
    path.write_text(before + UNSLOTH, "utf-8")
    setup = checked(path).setup
    found = (setup.fused_loss, setup.fused_evaluation, setup.prediction_loss_only)
    assert found == (fused, fused_evaluation, loss_only)


ADAPTED = """
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Llama-3.2-1B", max_seq_length=2048)
model = FastLanguageModel.get_peft_model(model{given})
trainer = SFTTrainer(model=model, args={args})
"""
ALONE = """
lora = LoraConfig(task_type="CAUSAL_LM")
trainer = SFTTrainer(model="meta-llama/Llama-3.2-1B", peft_config=lora, args=SFTConfig("out"))
"""


@pytest.mark.parametrize(
    ("given", "args", "checkpoints", "offloads"),
    [
        ("", 'TrainingArguments("out")', True, True),  # Unsloth's own default
        (', use_gradient_checkpointing="unsloth"', 'SFTConfig("out")', True, True),
        (", use_gradient_checkpointing=True", 'SFTConfig("out")', True, False),
        (", use_gradient_checkpointing=False", 'TrainingArguments("out")', False, False),
        ("", 'SFTConfig("out", max_length=256)', True, True),  # the loader's length decides, not what rows are cut to
    ],
)
def test_unsloth_keeps_what_it_is_told_to_on_the_host(tmp_path, given, args, checkpoints, offloads):
    path = tmp_path / "train.py"
    path.write_text(ADAPTED.format(given=given, args=args), "utf-8")
    setup = checked(path).setup
    assert (setup.gradient_checkpointing, setup.gradient_checkpointing and setup.offloads_checkpoints) == (
        checkpoints,
        offloads,
    )
    assert (setup.lora_r, setup.lora_dropout, setup.unsloth) == (16, 0.0, True)


def test_adapters_of_a_program_have_pefts_defaults_not_those_of_trls_command(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(ALONE, "utf-8")
    setup = checked(path).setup
    assert (setup.lora_r, setup.lora_dropout) == (8, 0.0)


@pytest.mark.parametrize(("gpu", "types"), [("t4", ("fp16", True, False)), ("l4", ("bf16", False, True))])
def test_unsloth_takes_the_types_that_the_gpu_has(tmp_path, gpu, types):
    path = tmp_path / "train.py"
    path.write_text(ADAPTED.format(given="", args='SFTConfig("out")'), "utf-8")
    result = checked(path, gpu=gpu)
    setup = result.setup
    assert (setup.weights, setup.fp16, setup.bf16) == types
    # its checkpoints have their constants packed too, and perhaps layers in 16 bits; its attention is its own
    assumed = {each.reason if each.reason == "dynamic_4bit" else each.name for each in result.prediction.assumed}
    assert setup.bnb_4bit_use_double_quant and "dynamic_4bit" in assumed
    assert "model.attn_implementation" not in assumed
    assert "qlora-compute-dtype-left-at-fp32" not in {each.rule for each in result.findings}
    assert setup.unsloth_layers
    eager = ADAPTED.replace('1B"', '1B", attn_implementation="eager"')
    for old, new in (("Fast", "Fast"), ("FastLanguageModel", "FastModel"), ('B"', 'B", load_in_8bit=True')):
        path.write_text(eager.replace(old, new).format(given="", args='SFTConfig("out")'), "utf-8")
        others = checked(path, gpu=gpu).setup
        assert (others.unsloth, others.unsloth_layers) == (True, old == new)
        assert others.attn_implementation == ("sdpa" if others.unsloth_layers else "eager")


@pytest.mark.parametrize(
    ("modules", "known"),
    [
        ({"more": "import os\n\ndef show(x):\n    print(x.batch)\n"}, True),
        ({"more": "from torch import *\nfrom typing import *\n"}, True),
        ({"more": "args = None\n"}, True),
        ({"more": "from other import *\n", "other": "from more import *\n"}, False),  # in a ring
        ({"more": "from other import *\n", "other": "SIZE = 4\n"}, True),
        ({"more": "from other import *\n", "other": "def change(x):\n    x.batch = 6\n"}, False),
        ({"more": "from gone import *\n"}, False),
        ({"more": "".join(f"from m{n} import *\n" for n in range(250)), **{f"m{n}": "" for n in range(250)}}, False),
        ({"more": "def change(x):\n    x.batch = 6\n"}, False),
        ({"more": "def (\n"}, False),
        ({}, False),
    ],
)
def test_what_a_program_takes_by_a_star_is_read(tmp_path: Path, modules: dict[str, str], known: bool):
    (tmp_path / ".git").mkdir()
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    path = tmp_path / "train.py"
    parser = "import argparse\nfrom transformers import TrainingArguments\nparser = argparse.ArgumentParser()\n"
    path.write_text(parser + "from more import *\n" + FLAG + LOADS + CALL.format("args.batch"), "utf-8")
    setup = checked(path).setup
    assert setup is not None
    assert setup.per_device_train_batch_size == (4 if known else 8)  # the library's


@pytest.mark.parametrize(
    ("before", "more", "known"),
    [
        (DICT, "config = {}\n", False),
        (DICT, "size = {}\n", True),
        (DICT + "import os\n", "import os\n", True),
    ],
)
def test_what_comes_by_a_star_takes_the_place_of_what_was_there(tmp_path: Path, before: str, more: str, known: bool):
    (tmp_path / ".git").mkdir()
    (tmp_path / "more.py").write_text(more, "utf-8")
    path = tmp_path / "train.py"
    head = "from transformers import TrainingArguments\n"
    path.write_text(head + before + "from more import *\n" + LOADS + CALL.format('config["batch"]'), "utf-8")
    setup = checked(path).setup
    assert setup is not None
    assert setup.per_device_train_batch_size == (4 if known else 8)


COLLATES = """class Collate:
    def __call__(self, rows):
        pad = self.processor.pad_token_id
        labels = self.processor(rows)
        {}
        return labels
"""


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("labels[labels == pad] = -100", True),  # what stands in the brackets stays as it is
        ("self.seen.append(pad)", True),  # what else the object has, stays
        ("self.sizes[pad] = 1", True),
        ('args[pad, "batch"] = 1', False),
    ],
)
def test_what_is_changed_in_place_is_what_holds_it(line: str, known: bool):
    setting = batch_of(COLLATES.format(line) + FLAG + CALL.format("args.batch"))
    assert is_unknown(setting.value) is not known


HELD = """class Job:
    def __init__(self, config):
        self.config = config
    def change(self):
        {}
    def run(self):
        TrainingArguments("out", per_device_train_batch_size=self.config["batch"])
Job({{"batch": 4}}).run()
"""


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("pass", True),
        ("self.other[name] = 8", True),
        ("self.config.update(more)", False),
        ("config = self.config; config[name] = 8", False),
        ("grow(self.config)", False),
    ],
)
def test_what_an_attribute_holds_may_be_changed_in_place(line: str, known: bool):
    grow = "def grow(given):\n    given.update(more)\n"
    assert is_unknown(batch_of(grow + HELD.format(line)).value) is not known


def test_a_flag_s_default_may_be_a_constant_of_another_module(tmp_path: Path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "own.py").write_text("BATCH = 4\n", "utf-8")
    path = tmp_path / "train.py"
    head = "import argparse\nfrom transformers import TrainingArguments\nfrom own import BATCH\n"
    parser = "parser = argparse.ArgumentParser()\n" + FLAG.replace("default=4", "default=BATCH")
    path.write_text(head + parser + LOADS + CALL.format("args.batch"), "utf-8")
    setup = checked(path).setup
    assert setup is not None and setup.per_device_train_batch_size == 4


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ('config = {}\nconfig.update({"batch": args.batch})\n', True),  # a key of something else
        ('wandb.config.update({"batch": args.batch})\n', True),
        ('run["batch"] = args.batch\n', True),
        ("args.batch = 8\n", False),
        ('setattr(args, "batch", 8)\n', False),
        ('vars(args).update({"batch": 8})\n', False),
        ('vars(args)["batch"] = 8\n', False),
        ('args.__dict__["batch"] = 8\n', False),
    ],
)
def test_a_flag_is_set_anew_as_an_attribute(line: str, known: bool):
    assert is_unknown(batch_of(FLAG + line + CALL.format("args.batch")).value) is not known


def test_a_model_s_folder_is_what_it_was_downloaded_by():
    text = 'MODEL = "Qwen/Qwen2-0.5B"\nfolder = snapshot_download(MODEL, cache_dir="x")\n'
    loads = "model = AutoModelForCausalLM.from_pretrained(folder)\n"
    (unit,) = READER.read(text + loads + CALL.format(4), "train.py")
    assert unit.settings["model.name"].value == "Qwen/Qwen2-0.5B"


MAIN = """import argparse
from parts.loading import load
from parts.training import make
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
if __name__ == "__main__":
    args = parser.parse_args()
    trainer = make(load("facebook/opt-125m"), args)
    trainer.{asked}()
"""
MAKES = """from transformers import Trainer, TrainingArguments
def make(model, args):
    given = TrainingArguments("out", per_device_train_batch_size=args.batch, gradient_accumulation_steps=2)
    {later}
    return Trainer(model=model, args=given, train_dataset=rows)
"""


@pytest.mark.parametrize(
    ("asked", "later", "batch"),
    [
        ("train", "pass", 8),
        ("train", "given.per_device_train_batch_size = size_for(model)", None),
        ("args.per_device_train_batch_size = 16\n    trainer.train", "pass", None),
        ("evaluate", "pass", None),
    ],
)
def test_a_program_whose_modules_make_its_run_is_that_run(tmp_path: Path, asked: str, later: str, batch: int | None):
    (tmp_path / "parts").mkdir()
    load = "from transformers import AutoModelForCausalLM\ndef load(name):\n    return AutoModelForCausalLM."
    (tmp_path / "parts" / "loading.py").write_text(load + "from_pretrained(name)\n", "utf-8")
    (tmp_path / "parts" / "training.py").write_text(MAKES.format(later=later), "utf-8")
    (tmp_path / "main.py").write_text(MAIN.format(asked=asked), "utf-8")
    assert str(tmp_path / "main.py") in [each.path for each in discover([str(tmp_path)]).files]
    found = check_input(Input(str(tmp_path / "main.py")), file_checker(CATALOG, Project(), Question.of(gpu="rtx-4090")))
    results = found.results if isinstance(found, FileResult) else ()
    setups = [each.setup for each in results if each.setup is not None and each.setup.batch_known]
    assert [(each.model_name, each.effective_batch_size) for each in setups] == (
        [] if batch is None else [("facebook/opt-125m", batch)]
    )
