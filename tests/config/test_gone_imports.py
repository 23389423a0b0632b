"""Imports of names that a library no longer has."""

import json
from pathlib import Path

import pytest
import yaml

from catalog_sample import load_catalog
from kb.config.discovery import bears_marks
from kb.config.python.gone import EVERYTHING, GROUP
from kb.config.python.reader import PythonReader
from kb.core.document import Unit

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
    ],
)
def test_what_is_no_such_import_says_nothing(text: str) -> None:
    assert gone(text) == []


def test_every_name_of_the_table_is_looked_for_in_a_folder() -> None:
    table = yaml.safe_load((RULES / "tables" / "imports.yaml").read_text())
    facts = {row["when"] for row in table["rows"]}
    assert facts == {name for name in load_catalog().facts if name.startswith(GROUP)}
    assert all(bears_marks(row["fires"][0]["config"].encode()) for row in table["rows"])
