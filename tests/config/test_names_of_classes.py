"""Arguments that no release of a class of transformers or TRL has: told of the library's own class alone."""

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


def test_a_release_newer_than_those_looked_at_may_have_the_name(tmp_path):
    (tmp_path / "train.py").write_text(FROM + CALL, "utf-8")
    for release, told in (("4.57.6", True), ("99.0.0", False)):
        (tmp_path / "requirements.txt").write_text(f"transformers=={release}\n", "utf-8")
        run = run_text("kb", "check", str(tmp_path), "--gpu", "rtx-3090", "--lang", "en", "--no-cache")
        assert ("name-in-no-release" in run.stdout) is told


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
