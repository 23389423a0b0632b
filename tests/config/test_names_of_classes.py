"""Arguments that no release of a class of transformers or TRL has: told of the library's own class alone."""

import json
from pathlib import Path

import pytest

from catalog_sample import load_catalog
from kb.advice.question import Question
from kb.config.python.reader import PythonReader
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import Input, check_input
from warm_runs import run_text

CATALOG = load_catalog()
READER = PythonReader(CATALOG.dialects, CATALOG.facts)
CALL = 'args = TrainingArguments(output_dir="out", batch_size=4)\n'
FROM = "from transformers import TrainingArguments\n"


def odd(text: str) -> list[tuple[str, str]]:
    events = [event for unit in READER.read(text, "train.py") for event in unit.events]
    return [(each.values["class"], each.values["key"]) for each in events if each.kind == "name-in-no-release"]


@pytest.mark.parametrize(
    "text",
    [
        FROM + CALL,
        "import transformers\nargs = transformers.TrainingArguments(output_dir='out', batch_size=4)\n",
        "from transformers.training_args import TrainingArguments\n" + CALL,
        FROM + "def train():\n    " + CALL,
    ],
)
def test_an_argument_that_the_class_never_had_is_told(text: str):
    assert odd(text) == [("TrainingArguments", "batch_size")]


@pytest.mark.parametrize(
    "text",
    [
        "from project.arguments import TrainingArguments\n" + CALL,
        "from .arguments import TrainingArguments\n" + CALL,
        "from transformers import *\n" + CALL,
        "from transformers import Seq2SeqTrainingArguments as TrainingArguments\n" + CALL,
        FROM + "class TrainingArguments(TrainingArguments):\n    batch_size: int = 1\n" + CALL,
        FROM + "TrainingArguments.__init__ = patched\n" + CALL,
        FROM + "import unsloth\n" + CALL,
        FROM + f"try:\n    {CALL}except TypeError:\n    args = TrainingArguments(output_dir='out')\n",
        FROM + "args = TrainingArguments(output_dir='out', evaluate_during_training=True, no_cuda=True)\n",
        FROM + "args = TrainingArguments(output_dir='out', **{'batch_size': 4})\n",
    ],
)
def test_it_is_silent_where_the_class_may_be_another_or_the_name_is_of_some_release(text: str):
    assert odd(text) == []


def test_names_of_the_base_and_of_the_class_itself_are_known():
    text = "from trl import SFTConfig\nargs = SFTConfig(output_dir='out', packing=True, fp16=True, batch_size=4)\n"
    assert odd(text) == [("SFTConfig", "batch_size")]


def test_a_slip_is_told_once_and_with_the_name_that_is_meant():
    assert odd(FROM + 'args = TrainingArguments("out", per_device_train_batchsize=4)\n') == []


def test_what_the_class_refuses_is_no_setting_of_the_run_under_a_name_that_programs_of_their_own_use():
    text = FROM + "args = TrainingArguments('out', num_epochs=10, max_steps=100, learning_rate=2e-4)\n"
    (unit,) = READER.read(text, "train.py")
    assert "training.num_train_epochs" not in unit.settings and unit.settings["training.max_steps"].value == 100


def test_a_release_newer_than_those_looked_at_may_have_the_name(tmp_path):
    (tmp_path / "train.py").write_text(FROM + CALL, "utf-8")
    fork = "transformers @ git+https://github.com/me/transformers@own"
    for release, told in (("transformers==4.57.6", True), ("transformers==99.0.0", False), (fork, False)):
        (tmp_path / "requirements.txt").write_text(f"{release}\n", "utf-8")
        run = run_text("kb", "check", str(tmp_path), "--gpu", "rtx-3090", "--lang", "en", "--no-cache")
        assert ("name-in-no-release" in run.stdout) is told


def test_a_later_name_is_no_help_to_a_release_that_is_too_old_for_either(tmp_path):
    call = "from trl import GRPOConfig\nargs = GRPOConfig(output_dir='out', wandb_log_unique_prompts=True)\n"
    (tmp_path / "train.py").write_text(call, "utf-8")
    for release, helped in (("0.16.1", False), ("0.28.0", True)):
        (tmp_path / "requirements.txt").write_text(f"trl=={release}\n", "utf-8")
        run = run_text("kb", "check", str(tmp_path), "--gpu", "rtx-3090", "--lang", "en", "--no-cache")
        assert "name-not-in-release" in run.stdout
        assert ("Use the name log_unique_prompts" in run.stdout) is helped


def test_a_class_of_the_projects_own_copy_of_the_library_is_its_own(tmp_path):
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("", "utf-8")
    (tmp_path / "train.py").write_text(FROM + CALL, "utf-8")
    run = run_text("kb", "check", str(tmp_path / "train.py"), "--gpu", "rtx-3090", "--lang", "en", "--no-cache")
    assert "name-in-no-release" not in run.stdout


OWN = "@dataclass\nclass SFTConfig{bases}:\n    max_seq_length: int = 512\n    learning_rate: float = 0.0\n"
CALLED = "config = SFTConfig(output_dir='out', learning_rate=0.0, max_seq_length=64)\n"


@pytest.mark.parametrize(
    ("bases", "imported", "taken"),
    [
        ("", "from src.own import SFTConfig\n", False),
        ("(object)", "from .own import SFTConfig\n", False),
        ("(TrainingArguments)", "from src.own import SFTConfig\n", True),
        ("", "from trl import SFTConfig\n", True),
        ("", "from src.missing import SFTConfig\n", True),
        ("", OWN.format(bases=""), False),
    ],
    ids=["a dataclass", "beside it", "a library's", "TRL", "not found", "in the file itself"],
)
def test_a_class_of_the_projects_own_is_not_the_librarys(tmp_path: Path, bases: str, imported: str, taken: bool):
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "own.py").write_text(OWN.format(bases=bases), "utf-8")
    train = tmp_path / "src" / "train.py"
    train.write_text(f"{imported}from transformers import Trainer\n{CALLED}Trainer(args=config)\n", "utf-8")
    outcome = check_input(Input(str(train)), file_checker(CATALOG, Project(), Question.of(gpu="t4")))
    told = {finding.rule for unit in getattr(outcome, "results", ()) for finding in unit.findings}
    assert ("learning-rate-zero" in told) == taken


@pytest.mark.parametrize(
    ("package", "own", "taken"),
    [
        ("from .own import SFTConfig\n", "", False),
        ("from .own import *\n", "", False),
        ("from .own import OwnConfig as SFTConfig\n", "", False),
        ("from .own import SFTConfig\n", "(TrainingArguments)", True),
        ("from trl import SFTConfig\n", "", True),
        ("from .gone import SFTConfig\n", "", True),
    ],
    ids=["by name", "all", "renamed", "a library's", "TRL's", "not found"],
)
def test_a_class_that_the_projects_package_hands_on_is_where_it_is_defined(
    tmp_path: Path, package: str, own: str, taken: bool
):
    defined = FROM + OWN.format(bases=own)
    files = {
        "src/__init__.py": package,
        "src/own.py": defined + defined.replace("SFTConfig", "OwnConfig"),
        "train.py": f"from src import SFTConfig\nfrom transformers import Trainer\n{CALLED}Trainer(args=config)\n",
    }
    assert ("learning-rate-zero" in told_of(tmp_path / "project", files, "train.py")) == taken


def told_of(folder: Path, files: dict[str, str], name: str) -> set[str]:
    """The rules whose findings a project's file has."""
    (folder / ".git").mkdir(parents=True)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    run = run_text("kb", "check", name, "--gpu", "rtx-3090", "--no-cache", "--format", "json", cwd=folder)
    found = json.loads(run.stdout)
    return {each["rule"] for unit in found["files"] for each in unit["findings"]}


# Names of OnlineDPOConfig in TRL 0.15, of which GRPOConfig has two only since 0.17; use_vllm hints at GRPO.
ONLINE = {"use_vllm": "false", "loss_type": "sigmoid", "disable_dropout": "true", "beta": "0.1", "max_new_tokens": "64"}
STARTS = """\
from trl import ModelConfig, {0}Config, {0}Trainer, ScriptArguments, TrlParser
script, training, model = TrlParser((ScriptArguments, {0}Config, ModelConfig)).parse_args_and_config()
{0}Trainer(model=model.model_name_or_path, args=training).train()
"""


@pytest.mark.parametrize("trainer", ["OnlineDPO", "GRPO"])
def test_names_are_judged_by_the_class_that_the_program_makes(tmp_path: Path, trainer: str):
    config = "model_name_or_path: gpt2\noutput_dir: out\nnum_generations: 4\n"
    config += "".join(f"{key}: {value}\n" for key, value in ONLINE.items())
    flags = " ".join(f"--{key} {value}" for key, value in ONLINE.items())
    files = {
        "requirements.txt": "trl==0.15.0\n",
        "train.py": STARTS.format(trainer),
        "train.yaml": config,
        "run.sh": f"python train.py --model_name_or_path gpt2 --output_dir out --num_generations 4 {flags}\n",
    }
    for name in ("train.yaml", "run.sh"):
        told = told_of(tmp_path / name, files, name)
        assert ("name-not-in-release" in told) == (trainer == "GRPO"), (name, told)


def test_a_number_that_yaml_reads_as_text_is_one_where_argparse_converts_it(tmp_path: Path):
    """TrlParser hands what it reads to argparse as defaults, whatever else the file looks like."""
    config = "output_dir: out\nlearning_rate: 5e-7\nper_device_train_batch_size: 2\nnum_train_epochs: 1\nseed: 1\n"
    reads = "\n".join(("from transformers import HfArgumentParser", "HfArgumentParser(TrainingArguments)", ""))
    by = {"trl": STARTS.format("XPO"), "transformers": reads + "training = parser.parse_yaml_file('train.yaml')\n"}
    for library, told in (("trl", False), ("transformers", True)):
        files = {"train.yaml": config, "train.py": by[library]}
        assert ("yaml-number-is-text" in told_of(tmp_path / library, files, "train.yaml")) is told


BUILT = "@dataclass\nclass {name}({base}):\n    max_seq_length: int = 512\n    max_prompt_length: int = 64\n"


@pytest.mark.parametrize(
    ("name", "head", "base", "renamed"),
    [
        ("SFTConfig", "from transformers import TrainingArguments\n", "TrainingArguments", False),
        ("SFTConfig", "import trl\n", "trl.SFTConfig", False),
        ("GRPOConfig", "from trl import GRPOConfig as Base\n", "Base", False),
        ("SFTConfig", "from trl import SFTConfig as Other\n", "", True),
    ],
    ids=["the Trainer's", "of that name", "by another name", "imported itself"],
)
def test_a_name_that_a_class_of_the_project_declares_is_not_the_librarys(
    tmp_path: Path, name: str, head: str, base: str, renamed: bool
):
    """A class that is built on the library's has the names of that and its own."""
    brought = f"from src.own import {name}\n" if base else f"from trl import {name}\n"
    call = f"args = {name}(output_dir='out', max_seq_length=64, max_prompt_length=8, per_device_train_batch_size=1)\n"
    files = {
        "requirements.txt": "trl==1.0.0\ntransformers==4.57.0\n",
        "src/own.py": "from dataclasses import dataclass\n"
        + head
        + (BUILT.format(name=name, base=base) if base else ""),
        "train.py": f"from trl import SFTTrainer\n{brought}{call}SFTTrainer(model='gpt2', args=args).train()\n",
    }
    names = {"name-not-in-release", "name-in-no-release", "trl-max-seq-length-renamed"}
    assert bool(told_of(tmp_path / "project", files, "train.py") & names) is renamed


def test_a_default_that_a_class_of_the_project_declares_is_not_the_librarys():
    own = (
        "from dataclasses import field\nfrom transformers import TrainingArguments\n\n"
        'class SFTConfig(TrainingArguments):\n    "Of this project: all of them."\n\n'
        "    per_device_train_batch_size: int = field(default=64)\n"
    )
    call = "args = {}(output_dir='out', learning_rate=1e-5)\n"
    (declared,) = READER.read(own + call.format("SFTConfig"), "own.py")
    (librarys,) = READER.read(FROM + call.format("TrainingArguments"), "library.py")
    hides = ["training.per_device_train_batch_size" in unit.hidden for unit in (declared, librarys)]
    assert (declared.dialect, librarys.dialect, hides) == ("hf", "hf", [True, False])


@pytest.mark.parametrize(
    ("defined", "trainer"),
    [
        ("from trl import DPOTrainer\nclass Own(Mixin, DPOTrainer):\n    pass\n", "dpo"),
        ("import trl\nclass Base(trl.KTOTrainer):\n    pass\nclass Own(Base):\n    pass\n", "kto"),
        ("from transformers import Trainer\nclass Own(Trainer):\n    pass\n", None),
        ("from elsewhere import Own\n", None),
    ],
)
def test_a_trainer_of_the_project_trains_as_the_one_that_it_is_built_on(defined: str, trainer: str | None):
    own = defined.replace("Own", "OwnTrainer")
    text = f"{FROM}{own}args = TrainingArguments('out', learning_rate=1e-5)\nOwnTrainer(model, args=args).train()\n"
    (unit,) = READER.read(text, "train.py")
    said = unit.settings.get("script.trainer")
    assert (said.value if said is not None else None) == trainer


def test_a_copy_of_the_library_is_read_as_the_library(tmp_path: Path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "axolotl").mkdir()
    (tmp_path / "axolotl" / "dict.py").write_text("class DictDefault(Dict):\n    pass\n", "utf-8")
    run = tmp_path / "run.py"
    written = "DictDefault(base_model='gpt2', micro_batch_size=2, sequence_len=512)"
    run.write_text(f"from axolotl.dict import DictDefault\ncfg = {written}\n", "utf-8")
    outcome = check_input(Input(str(run)), file_checker(CATALOG, Project(), Question.of(gpu="t4")))
    assert [unit.unit.dialect for unit in getattr(outcome, "results", ())] == ["axolotl"]


PLAIN = "@dataclass\nclass TrainingArguments:\n    evaluation_strategy: str\n    fp16: bool\n    bf16: bool\n"
CALLS = "args = SFTConfig(fp16=True, bf16=True, evaluation_strategy='no')\n"
WRONG = {"fp16-and-bf16-both", "evaluation-strategy-removed"}


@pytest.mark.parametrize(
    ("args", "brought", "base", "told"),
    [
        (PLAIN, "from args import TrainingArguments", "", False),
        (PLAIN, "from args import TrainingArguments as Base", "Base", False),
        (PLAIN, "import args", "args.TrainingArguments", False),
        (PLAIN, "from args import *", "", False),
        ("from more import TrainingArguments\n", "from args import TrainingArguments", "", False),
        ("from more import *\n", "from args import TrainingArguments", "", False),
        ("TrainingArguments = dict\n", "from args import TrainingArguments", "", False),
        ("def (\n", "from args import TrainingArguments", "", False),
        (FROM, "from args import TrainingArguments", "", True),
        ("from transformers import *\n", "from args import *", "", True),
        ("import trl\nclass Base(trl.DPOConfig):\n    pass\n", "import args as own", "own.Base", True),
        (PLAIN, "from transformers import TrainingArguments", "", True),
    ],
)
def test_a_base_is_what_it_is_imported_from(tmp_path: Path, args: str, brought: str, base: str, told: bool):
    files = {
        "requirements.txt": "transformers==4.57.0\n",
        "args.py": args,
        "more.py": PLAIN,
        "x.py": f"{brought}\n\nclass SFTConfig({base or 'TrainingArguments'}):\n    pass\n\n{CALLS}",
    }
    assert told_of(tmp_path / "project", files, "x.py") & WRONG == (WRONG if told else set())


HAS = "@dataclass\nclass SFTConfig:\n    fp16: bool\n    bf16: bool\n"
TRLS = "from trl import SFTConfig\n"


@pytest.mark.parametrize(
    ("package", "head", "told"),
    [
        ("from .own import *\nfrom .lib import SFTConfig as MySFT\n", "from pkg import MySFT as SFTConfig", True),
        ("from trl import *\n" + HAS.replace("SFTConfig", "Args"), "from pkg import Args as SFTConfig", False),
        (HAS, "import pkg", False),
        ("", "import pkg.own as pkg", False),
        ("from . import own as args\n", "from pkg import own as pkg", False),
        (TRLS, "import pkg", True),
        (TRLS + "from .own import *\n", "from pkg import SFTConfig", False),
        ("from .own import *\n" + TRLS, "from pkg import SFTConfig", True),
        (TRLS + "from .closed import *\n", "from pkg import SFTConfig", True),
        ("from .closed import *\nfrom .lib import *\n", "from pkg import SFTConfig", True),
        ("from .listed import *\nfrom .own import *\n", "from pkg import SFTConfig", False),
        ("from .counted import *\n", "from pkg import SFTConfig", False),
        ("def __getattr__(name):\n    return load(name)\n", "from pkg import SFTConfig", False),
        ("def SFTConfig(**values):\n    return values\n", "from pkg import SFTConfig", False),
        (TRLS + "def SFTConfig(**values):\n    return values\n", "from pkg import SFTConfig", False),
        ("import trl\nSFTConfig = trl.SFTConfig\n", "from pkg import SFTConfig", True),
        ("try:\n    from trl import SFTConfig\nexcept ImportError:\n    SFTConfig = dict\n", "from pkg import *", True),
        ("", "from trl import SFTConfig\nfrom pkg.own import *", False),
        ("", "def SFTConfig(**values):\n    return values", False),
        ("", "from trl import *", True),
    ],
)
def test_a_name_is_what_the_project_binds_last(tmp_path: Path, package: str, head: str, told: bool):
    files = {
        "pkg/__init__.py": package,
        "pkg/own.py": HAS,
        "pkg/lib.py": TRLS,
        "pkg/closed.py": '__all__ = ["other"]\n' + HAS,
        "pkg/listed.py": '__all__ = ["other"]\n' + TRLS,
        "pkg/counted.py": "__all__ = [name for name in NAMES]\n" + TRLS,
        "x.py": f"{head}\n\nargs = {'pkg.' if head.endswith('pkg') else ''}SFTConfig(fp16=True, bf16=True)\n",
    }
    assert ("fp16-and-bf16-both" in told_of(tmp_path / "project", files, "x.py")) is told


def test_a_line_of_a_docstring_declares_no_field():
    own = 'class SFTConfig(TrainingArguments):\n    """Own.\n    learning_rate: it\n    """\n    max_steps: int = 1\n'
    (unit,) = READER.read(FROM + own + "args = SFTConfig('out', learning_rate=0.0, max_steps=2)\n", "train.py")
    declared = {name for name in ("learning_rate", "max_steps") if unit.settings[f"training.{name}"].declared}
    assert declared == {"max_steps"}


@pytest.mark.parametrize(
    "text",
    [
        "class SFTConfig(Base):\n" + "    pass\n" + " " * 900_000,
        '"""\n' + "class SFTConfig\n" * 60_000 + '"""\nclass SFTConfig(Base):\n    pass\n',
        "".join(
            f"class {name}({', '.join(f'C{other}' for other in range(60))}):\n    pass\n"
            for name in ("SFTConfig", *(f"C{number}" for number in range(60)))
        ),
    ],
    ids=["blanks", "heads without a colon", "classes that name each other"],
)
def test_a_class_of_the_project_is_gone_through_once(tmp_path: Path, text: str):
    """Ways that begin again at each place or each base would take hours."""
    assert (
        told_of(tmp_path / "project", {"own.py": text, "x.py": "from own import SFTConfig\n" + CALLS}, "x.py") == set()
    )
