"""What calls of trainers are given: judged where the class is the library's own, and the program not prepared."""

from collections.abc import Callable
from pathlib import Path

import pytest

from catalog_sample import load_catalog
from kb.config.files import ConfigError
from kb.config.marks import bears_marks
from kb.config.python.held import NoSources
from kb.config.python.places import Imported
from kb.config.python.reader import PythonReader
from kb.core.document import Unit
from warm_runs import run_text

READER = PythonReader(load_catalog().dialects, load_catalog().facts)
FROM = "from trl import DPOConfig, DPOTrainer\n"
CALL = "trainer = DPOTrainer(model, args=args, beta=own.beta, tokenizer=tokenizer)\n"
ARGS = "args = DPOConfig(output_dir='out', per_device_train_batch_size=2)\n"


def read(text: str) -> list[Unit]:
    return READER.read(text, "train.py")


def given(text: str) -> set[str]:
    return {key for unit in read(text) for key in unit.keys if key.startswith("DPOTrainer.")}


@pytest.mark.parametrize(
    "text",
    [
        FROM + CALL,
        FROM + ARGS + CALL,
        FROM + "load(**options)\n" + CALL,
        "import trl\n" + CALL.replace("DPOTrainer", "trl.DPOTrainer"),
        "from trl.trainer.dpo_trainer import DPOTrainer\ndef main():\n    " + CALL,
        FROM + "class OwnTrainer(DPOTrainer):\n    def log(self): ...\n" + CALL.replace("DPOTrainer", "OwnTrainer"),
    ],
)
def test_what_the_librarys_trainer_is_given_is_a_key(text: str) -> None:
    assert given(text) == {"DPOTrainer.beta", "DPOTrainer.tokenizer"}


@pytest.mark.parametrize(
    "text",
    [
        "from project.trainers import DPOTrainer\n" + CALL,
        "from .trainers import DPOTrainer\n" + CALL,
        FROM + "import unsloth\n" + CALL,
        FROM + "class DPOTrainer(DPOTrainer):\n    def __init__(self, *args, **more): ...\n" + CALL,
        FROM + f"try:\n    {CALL}except TypeError:\n    pass\n",
        FROM + f"if version.parse(trl.__version__) < version.parse('0.16'):\n    {CALL}",
        FROM + f"if 'tokenizer' in inspect.signature(DPOTrainer).parameters:\n    {CALL}",
        FROM + f"NEW = version.parse(trl.__version__) >= version.parse('0.16')\nif NEW:\n    {CALL}",
        FROM + f"if version.parse(trl.__version__) < version.parse('0.16'):\n    raise SystemExit\n{CALL}",
        FROM + f"names = inspect.signature(DPOTrainer).parameters\nif 'beta' in names:\n    {CALL}",
        FROM + f"with contextlib.suppress(TypeError):\n    {CALL}",
        FROM + f"with pytest.raises(TypeError):\n    {CALL}",
        FROM + f"match release:\n    case 1:\n        {CALL}",
        FROM + f"if legacy:\n    {CALL}else:\n    trainer = DPOTrainer(model, args=args)\n",
        FROM + "DPOTrainer = Compat\n" + CALL,
        FROM + "DPOTrainer = taking_tokenizer(DPOTrainer)\n" + CALL,
        FROM + "@wrapped\nclass DPOTrainer(DPOTrainer):\n    def __init__(self, **more): ...\n" + CALL,
        FROM + "def DPOTrainer(**more): ...\n" + CALL,
        FROM + f"def run(DPOTrainer):\n    {CALL}",
        FROM + f"for DPOTrainer in classes:\n    {CALL}",
        "import trl\ntrl.DPOTrainer = Own\n" + CALL.replace("DPOTrainer", "trl.DPOTrainer"),
        FROM + f"with patch('trl.DPOTrainer', Own):\n    {CALL}",
        FROM + "trainer = DPOTrainer(model, **given)\n",
        FROM + "trainer = DPOTrainer(model, None, args)\n",
    ],
)
def test_another_class_or_a_program_that_is_prepared_is_left_alone(text: str) -> None:
    assert given(text) == set()


def test_a_name_that_the_program_has_the_newer_one_of_too_is_its_own_matter() -> None:
    newer = CALL.replace("tokenizer=", "processing_class=")
    assert given(FROM + CALL + newer) == {"DPOTrainer.beta", "DPOTrainer.beta@2"}


def test_a_module_of_the_project_may_change_the_class(tmp_path: Path, check: Callable[..., tuple[int, str]]) -> None:
    write(tmp_path, "0.20.0", "import patches\n" + FROM + CALL)
    (tmp_path / "patches.py").write_text("import trl\ntrl.DPOTrainer.__init__ = taking_any\n")
    assert "argument-not-in-release" not in check()[1]


@pytest.mark.parametrize("brings", ["from unsloth import FastLanguageModel\n", "import torch\n"])
def test_another_module_of_the_program_may_have_brought_unsloth_in(
    tmp_path: Path, check: Callable[..., tuple[int, str]], brings: str
) -> None:
    """A module that is given its model cannot tell which classes stand under TRL's names by then."""
    sft = "from trl import SFTConfig\nsft = SFTConfig(output_dir='out', max_seq_length=64, packing=True, seed=1)\n"
    write(tmp_path, "0.24.0", FROM + CALL + sft)
    (tmp_path / "main.py").write_text(brings + "import train\n")
    told = check()[1]
    for rule in ("argument-not-in-release", "trl-max-seq-length-renamed"):
        assert (rule in told) is ("torch" in brings), rule


def test_a_file_of_many_conditions_or_of_one_long_word_is_read_at_once() -> None:
    assert given(FROM + "x = 1" + " + 1" * 1200 + "\n" + CALL)
    assert not bears_marks(b"import transformers\nblob = '" + b"a" * 1_000_000 + b"'\n")


def test_a_program_that_sets_up_no_run_is_read_for_its_call_alone() -> None:
    (unit,) = read(FROM + CALL)
    assert unit.sets_up_nothing and not unit.settings
    assert not read(FROM + ARGS + CALL)[0].sets_up_nothing


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        (FROM + CALL, True),
        (FROM + CALL.replace("(", "(\n    ").replace(", ", ",\n    "), True),
        (FROM + "trainer = DPOTrainer(model, args=args, processing_class=tokenizer)\n", False),
        ("from own import Trainer\ntrainer = Trainer(tokenizer=tokenizer)\n", False),
    ],
)
def test_a_folders_program_is_read_where_its_call_gives_what_some_release_lacks(text: str, marked: bool) -> None:
    assert bears_marks(text.encode()) is marked


def write(folder: Path, release: str, text: str) -> None:
    (folder / "requirements.txt").write_text(f"trl=={release}\n")
    (folder / "train.py").write_text(text)


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    def run(*more: str) -> tuple[int, str]:
        found = run_text("kb.check", ".", "--gpu", "none", *more, "--lang", "en", cwd=tmp_path)
        return found.returncode, found.stdout + found.stderr

    return run


def test_a_folder_tells_of_it_and_says_nothing_of_a_release_that_takes_it(
    tmp_path: Path, check: Callable[..., tuple[int, str]]
) -> None:
    write(tmp_path, "0.20.0", FROM + CALL)
    code, said = check()
    assert code == 1 and "takes tokenizer only in trl < 0.16.0" in " ".join(said.split())
    assert "Use DPOConfig for that" in said
    write(tmp_path, "0.12.2", FROM + CALL)
    assert "train.py" not in check()[1]


def test_the_new_name_is_written_in_every_call(tmp_path: Path, check: Callable[..., tuple[int, str]]) -> None:
    write(tmp_path, "0.20.0", FROM + ARGS + CALL.replace("beta=own.beta, ", "") * 2)
    assert check()[1].count("argument-not-in-release") == 2  # the finding, and where more is said of the rule
    check("--fix", "--unsafe-fixes")
    text = (tmp_path / "train.py").read_text()
    assert text.count("processing_class=tokenizer") == 2 and "tokenizer=tokenizer" not in text


def test_the_new_name_is_written_in_place_of_the_old_though_its_value_is_code(
    tmp_path: Path, check: Callable[..., tuple[int, str]]
) -> None:
    write(tmp_path, "0.20.0", FROM + ARGS + CALL)
    check("--fix", "--unsafe-fixes")
    assert (tmp_path / "train.py").read_text() == FROM + ARGS + CALL.replace("tokenizer=", "processing_class=")


def test_a_rename_of_the_class_of_arguments_is_none_of_the_trainers(
    tmp_path: Path, check: Callable[..., tuple[int, str]]
) -> None:
    write(tmp_path, "0.20.0", "from trl import SFTConfig, SFTTrainer\nargs = SFTConfig(output_dir='out')\n"
          "trainer = SFTTrainer(model='gpt2', args=args, max_seq_length=512)\n")  # fmt: skip
    said = check()[1]
    assert "argument-not-in-release" in said and "trl-max-seq-length-renamed" not in said


HOLDS_ONE = """
from transformers import AutoModelForCausalLM, TrainingArguments
from trl import SFTTrainer

class NewsTrainer{base}:
    def arguments(self):
        return TrainingArguments("out", eval_strategy="epoch", save_strategy="epoch", metric_for_best_model="rouge-l")

    def train(self):
        model = AutoModelForCausalLM.from_pretrained("gpt2")
        args = self.arguments()
        trainer = SFTTrainer(model, args=args, train_dataset=rows, eval_dataset=others{more})
        trainer.train()

NewsTrainer("config.yaml").train()
"""


@pytest.mark.parametrize(
    ("base", "more", "trainer", "told"),
    [
        ("", "", "sft", True),
        ("(object)", "", "sft", True),
        ("", ", compute_metrics=score", "sft", False),
        ("(Trainer)", "", None, False),  # which of the two trains is not known
    ],
)
def test_a_class_that_holds_a_trainer_is_none_though_it_is_called_so(
    base: str, more: str, trainer: str | None, told: bool
) -> None:
    (unit,) = read(HOLDS_ONE.replace("{base}", base).replace("{more}", more))
    said = unit.settings.get("script.trainer")
    assert (said.value if said is not None else None) == trainer
    assert any(event.kind == "metric-of-nobody" for event in unit.events) == told


BY_A_METRIC = """
from transformers import AutoModelForCausalLM, EarlyStoppingCallback
from {package} import {trainer}, {arguments}
{imports}
model = AutoModelForCausalLM.from_pretrained("gpt2")
args = {arguments}("out", eval_strategy="epoch", save_strategy="{saves}", metric_for_best_model="{metric}")
trainer = {trainer}(model=model, args=args, train_dataset=rows, eval_dataset=others{more})
{then}
"""
OF_TRL = {"package": "trl", "trainer": "SFTTrainer", "arguments": "SFTConfig"}
ADDS_F1 = """
from transformers import TrainerCallback
class Scores(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics, **more):
        metrics["eval_f1"] = score()
"""
PATCHES = """
import transformers
def scored(self, *given, **named):
    return {"eval_f1": score()}
transformers.Trainer.evaluate = scored
"""


class Beside(NoSources):
    """Modules beside a program, by their names."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    def module(self, path: str, imported: Imported) -> tuple[str, str] | None:
        name = imported.module
        return (f"{name}.py", self.texts[name]) if name in self.texts else None


@pytest.mark.parametrize(
    ("changed", "modules", "told"),
    [
        ({}, {}, True),
        ({"more": ", callbacks=[EarlyStoppingCallback(3)]"}, {}, True),  # the library's adds nothing
        ({"imports": "def compute_metrics(given): return {}"}, {}, True),  # defined, and handed to nothing
        ({"metric": "eval_mean_token_accuracy", **OF_TRL}, {}, False),
        ({"metric": "entropy", **OF_TRL}, {}, False),
        ({"metric": "num_tokens", **OF_TRL}, {}, False),
        ({"metric": "aux_loss", **OF_TRL}, {}, False),
        ({"metric": "rouge", **OF_TRL}, {}, True),
        ({"imports": "from scores import Scores", "more": ", callbacks=[Scores()]"}, {"scores": ADDS_F1}, False),
        ({"imports": "from elsewhere import Scores", "more": ", callbacks=[Scores()]"}, {}, False),
        ({"more": ", callbacks=made()"}, {}, False),
        ({"then": "trainer.add_callback(found())\ntrainer.train()"}, {}, False),
        ({"imports": "import patches"}, {"patches": PATCHES}, False),
        ({"imports": "import first"}, {"first": "import patches", "patches": PATCHES}, False),
        ({"then": "setattr(trainer, 'compute_metrics', score)\ntrainer.train()"}, {}, False),
        ({"then": "trainer.compute_metrics = score\ntrainer.train()"}, {}, False),
        ({"then": "trainer.evaluate()"}, {}, False),
        ({"then": "model.train()\ntrainer.evaluate()"}, {}, False),
        ({"saves": "no"}, {}, False),  # releases before 4.47 look for the metric where they save
    ],
)
def test_a_metric_is_of_nobody_only_where_all_that_may_compute_it_is_seen(
    changed: dict[str, str], modules: dict[str, str], told: bool
) -> None:
    usual = {"package": "transformers", "trainer": "Trainer", "arguments": "TrainingArguments", "metric": "f1"}
    usual |= {"imports": "", "more": "", "then": "trainer.train()", "saves": "epoch"}
    (unit,) = READER.read(BY_A_METRIC.format(**(usual | changed)), "train.py", Beside(modules))
    assert any(event.kind == "metric-of-nobody" for event in unit.events) == told


TWO_TRAINERS = """
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
adapters = LoraConfig(r=16)
first = SFTTrainer(model=model, args=SFTConfig("a"), train_dataset=rows, peft_config=adapters)
first.train()
{between}
second = GRPOTrainer(model={model}, reward_funcs=score, args=GRPOConfig("b"), train_dataset=rows{more})
"""
ANEW = 'merged = AutoModelForCausalLM.from_pretrained("a/merged")'


@pytest.mark.parametrize(
    ("between", "model", "more", "adapts"),
    [
        (ANEW, "merged", "", False),
        (ANEW, "merged", ", peft_config=adapters", True),
        (ANEW, "merged", ", **more", True),
        (f"{ANEW}\nmerged = get_peft_model(merged, adapters)", "merged", "", True),
        ("", "model", "", True),  # the first trainer has put its adapters into it
        ("", "first.model", "", True),
    ],
)
def test_adapters_of_one_trainer_are_not_another_s(between: str, model: str, more: str, adapts: bool) -> None:
    units = read(TWO_TRAINERS.format(between=between, model=model, more=more))
    found = {unit.settings["script.trainer"].value: "lora.enabled" in unit.settings for unit in units}
    assert found == {"sft": True, "grpo": adapts}


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("from trl import SFTConfig as Own", "Own"),
        ("from trl.trainer.sft_config import SFTConfig as HFSFTArgs", "HFSFTArgs"),
        ("from project.config import SFTConfig as Own", None),
        ("from trl import SFTConfig as Own\nOwn = patched(Own)", None),
    ],
)
def test_a_class_that_is_imported_under_another_name_is_the_library_s(imports: str, name: str | None) -> None:
    text = f"{imports}\nmodel = load()\nargs = {name or 'Own'}('out', per_device_train_batch_size=2)\n"
    found = [unit.settings.get("training.per_device_train_batch_size") for unit in read(text)]
    assert [each.value for each in found if each is not None] == ([2] if name else [])


def test_an_argument_that_is_given_twice_is_no_python_under_another_name_too() -> None:
    text = "from trl import GRPOConfig as Own\nargs = Own('out', logging_steps=1, logging_steps=2)\n"
    with pytest.raises(ConfigError) as raised:
        read(text)
    assert (raised.value.key, raised.value.line) == ("config.python-syntax", 2)
