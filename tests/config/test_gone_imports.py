"""Imports of names that a library no longer has."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from catalog_sample import load_catalog
from kb.advice.question import Question
from kb.config.marks import bears_marks
from kb.config.python.reader import PythonReader
from kb.config.python.refused import EVERYTHING, GROUP, LIBRARIES
from kb.core.document import Unit
from kb.session.around import Checking
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import FileResult, Input, check_input
from yaml_file import read_yaml

RULES = Path(__file__).parents[2] / "rules"
LOOP = "from transformers import AdamW, AutoModel\nfor batch in loader:\n    loss.backward()\n"


def read(text: str) -> list[Unit]:
    catalog = load_catalog()
    return PythonReader(catalog.dialects, catalog.facts).read(text, "train.py")


def gone(text: str) -> list[str]:
    return [name for unit in read(text) for name in unit.settings if name.startswith(GROUP)]


def test_a_program_of_its_own_loop_says_its_imports_alone() -> None:
    unit = read(LOOP)[0]
    assert set(unit.settings) == {"imports.transformers.adamw"}
    assert unit.hidden == EVERYTHING
    assert unit.settings["imports.transformers.adamw"].span.line == 1


@pytest.mark.parametrize(
    "text",
    [
        "from transformers import (\n    AutoModel,\n    AdamW,\n)\n",
        "from transformers.optimization import AdamW\n",
        "from datasets import load_dataset, load_metric\n",
        "from transformers.deepspeed import HfDeepSpeedConfig\n",
        "from trl import SFTTrainer, DataCollatorForCompletionOnlyLM\n",
        "from peft import LoraConfig, prepare_model_for_int8_training\n",
    ],
)
def test_an_import_at_the_top_is_found(text: str) -> None:
    assert len(gone(text)) == 1
    assert bears_marks(text.encode())
    assert bears_marks(json.dumps({"source": text.splitlines(keepends=True)}, indent=1).encode())


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    from transformers import AdamW\nexcept ImportError:\n    from torch.optim import AdamW\n",
        "if OLD:\n    from transformers import AdamW\n",
        "def make():\n    from transformers import AdamW\n",
        "from torch.optim import AdamW\nfrom transformers import AutoModel\n",
        "from .transformers import AdamW\n",
        "from trl.experimental.ppo import PPOConfig, PPOTrainer\n",
        "from transformers import AutoModel  # not AdamW\n",
        "import torch, transformers\ntransformers.AdamW = torch.optim.AdamW\nfrom transformers import AdamW\n",
        "import transformers as hf\nsetattr(hf, 'AdamW', Own)\nfrom transformers import AdamW\n",
        "import sys\nsys.modules['transformers'] = own\nfrom transformers import AdamW\n",
        "import sys\nsys.path.insert(0, '../lib')\nfrom datasets import load_metric\n",
        "from sys import path\npath.insert(0, '../lib')\nfrom datasets import load_metric\n",
        "import sys\ndef use(): sys.path.insert(0, 'lib')\nuse()\nfrom datasets import load_metric\n",
        "import transformers\nif transformers.__version__ >= '4.50':\n    exit()\nfrom transformers import AdamW\n",
        "if version.parse(found) >= version.parse('4.50'):\n    exit()\nfrom transformers import AdamW\n",
        "if is_transformers_version('>=', '4.50'):\n    exit()\nfrom transformers import AdamW\n",
    ],
)
def test_what_is_no_such_import_says_nothing(text: str) -> None:
    assert gone(text) == []


@pytest.mark.parametrize(
    "before",
    [
        "import os, sys, torch\nos.environ['A'] = '1'\ntorch.backends.cudnn.benchmark = True\nprint(sys.argv)\n",
        "if DEBUG:\n    print('on')\n",
        "from transformers import AutoModel\nmodel = AutoModel.from_config(own)\nmodel.config.use_cache = False\n",
    ],
)
def test_what_stands_before_an_import_and_changes_nothing_of_it_leaves_it_told(before: str) -> None:
    assert gone(before + "from transformers import AdamW\n") == ["imports.transformers.adamw"]


def test_an_import_is_told_where_what_may_change_it_comes_after() -> None:
    assert gone("import sys\nfrom transformers import AdamW\nsys.path.append('lib')\n") == [
        "imports.transformers.adamw"
    ]


SERVER = 'from vllm import LLM\nllm = LLM(model="gpt2", dtype="float16", tensor_parallel_size=3)\n'
LOADS = 'model = AutoModelForCausalLM.from_pretrained("gpt2", load_in_4bit=True, load_in_8bit=True)\n'


def test_what_a_server_is_given_counts_beside_its_imports() -> None:
    (alone,), (beside,) = read(SERVER), read("from datasets import load_metric\n" + SERVER)
    assert set(beside.settings) == {*alone.settings, "imports.datasets.load_metric"}
    assert (beside.hidden, beside.dialect) == (alone.hidden, alone.dialect)


def test_what_a_program_of_its_own_loop_says_counts_and_what_it_leaves_out_does_not() -> None:
    head = "from transformers import AutoModelForCausalLM{}\n"
    (alone,), (beside,) = read(head.format("") + LOADS), read(head.format(", AdamW") + LOADS)
    assert set(beside.settings) == {*alone.settings, "imports.transformers.adamw"}
    assert set(EVERYTHING) <= set(beside.hidden)


def test_a_note_alone_is_counted_and_the_file_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "mask.py"
    file.write_text("from transformers.modeling_attn_mask_utils import AttentionMaskConverter\n", "utf-8")
    checker = file_checker(load_catalog(), Project(), Question.of(gpu="none"), Checking(notes=False))
    outcome = check_input(Input(str(file)), checker)
    assert isinstance(outcome, FileResult)
    assert [(unit.findings, unit.hidden_notes) for unit in outcome.results] == [((), 1)]


def test_the_libraries_of_the_table_are_those_that_are_looked_for() -> None:
    table = read_yaml(RULES / "tables" / "imports.yaml")
    assert {row["when"].split(".")[1] for row in table["rows"]} == LIBRARIES


@pytest.mark.parametrize(
    "text",
    [
        lambda: b"from transformers import" + b" " * 20_000_000,
        lambda: (b"from transformers import" + b" " * 1000 + b"\n") * 20_000,
        lambda: b"from transformers import (\n" * 200_000,
        lambda: b"AdamW\n" + b"from transformers import (\n" * 200_000 + b")" * 5000 + b"AdamW\n",
        lambda: b"from transformers import (\n" * 200_000 + b")" + b"AdamW " * 200_000,
        lambda: b"from transformers." + b"a" * 20_000_000,
    ],
    ids=["blanks", "lines of blanks", "brackets", "names too far", "names behind brackets", "a long name"],
)
def test_bytes_that_import_nothing_are_gone_through_once(text: Callable[[], bytes]) -> None:
    """A pattern that begins again at each place would take hours."""
    assert not bears_marks(text())


def test_every_name_of_the_table_is_looked_for_in_a_folder() -> None:
    table = read_yaml(RULES / "tables" / "imports.yaml")
    facts = {row["when"] for row in table["rows"]}
    assert facts == {name for name in load_catalog().facts if name.startswith(GROUP)}
    assert all(bears_marks(row["fires"][0]["config"].encode()) for row in table["rows"])
