"""Models that a project writes itself: what its class computes nobody here knows, whatever its name."""

from pathlib import Path

import pytest

from command_runs import checked_file

TRAINING = """
from transformers import Trainer, TrainingArguments
{imports}

model = {loader}.from_pretrained("klue/bert-base", num_labels=4)
args = TrainingArguments("out", per_device_train_batch_size=8, bf16=True)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
BELOW = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = {loads}
args = TrainingArguments("out", bf16=True)
Trainer(model=model, args=args, train_dataset=rows).train()
judge = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1")
"""
ASKED = "Trainer(model=model, args=args, train_dataset=rows).train()"
OWN = """
from torch import nn
from transformers import BertForSequenceClassification, BertModel, BertPreTrainedModel


class PairForSequenceClassification(BertPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.first, self.second = BertModel(config), BertModel(config)


class DeepPairForSequenceClassification(PairForSequenceClassification):
    pass


class RenamedForSequenceClassification(BertForSequenceClassification):
    base_model_prefix = "bert"
"""


def unmodelled(folder: Path, imports: str, loader: str) -> list[str]:
    (folder / "train.py").write_text(TRAINING.format(imports=imports, loader=loader), "utf-8")
    (folder / "pair.py").write_text(OWN, "utf-8")
    (folder / "models").mkdir()
    (folder / "models" / "__init__.py").write_text(
        "from pair import *\nfrom pair import PairForSequenceClassification\n"
    )
    found: list[str] = checked_file(folder / "train.py", "--gpu", "rtx-4090")["setup"]["unmodelled"]
    return found


@pytest.mark.parametrize(
    ("imports", "loader"),
    [
        ("from pair import PairForSequenceClassification", "PairForSequenceClassification"),
        ("from pair import DeepPairForSequenceClassification", "DeepPairForSequenceClassification"),
        ("from models import PairForSequenceClassification", "PairForSequenceClassification"),
        ("from pair import PairForSequenceClassification as ForPair", "ForPair"),
        (OWN, "PairForSequenceClassification"),
    ],
)
def test_a_class_of_the_project_is_no_model_of_the_library(tmp_path: Path, imports: str, loader: str) -> None:
    assert unmodelled(tmp_path, imports, loader) == [loader]


@pytest.mark.parametrize(
    ("imports", "loader"),
    [
        ("from transformers import BertForSequenceClassification", "BertForSequenceClassification"),
        ("from pair import RenamedForSequenceClassification", "RenamedForSequenceClassification"),
        (
            "from transformers import AutoModelForSequenceClassification\nimport pair",
            "AutoModelForSequenceClassification",
        ),
    ],
)
def test_a_class_that_only_renames_the_library_s_is_the_library_s(tmp_path: Path, imports: str, loader: str) -> None:
    assert unmodelled(tmp_path, imports, loader) == []


@pytest.mark.parametrize(
    "loader", ["AutoModelForMultipleChoice", "BertForMultipleChoice", "WhisperForAudioClassification"]
)
def test_heads_that_make_more_or_less_of_a_row_than_the_model_does_are_named(tmp_path: Path, loader: str) -> None:
    assert unmodelled(tmp_path, f"from transformers import {loader}", loader) == [loader.partition("For")[2]]


@pytest.mark.parametrize(
    ("loads", "name"),
    [
        ("build()", None),
        ("AutoModelForCausalLM.from_pretrained('facebook/opt-125m')\nmodel = build(4)", None),
        ("AutoModelForCausalLM.from_pretrained('facebook/opt-125m')\nmodel = wrap(model)", "facebook/opt-125m"),
        ("AutoModelForCausalLM.from_pretrained('facebook/opt-125m')", "facebook/opt-125m"),
    ],
)
def test_a_model_that_is_loaded_below_the_training_is_another(tmp_path: Path, loads: str, name: str | None) -> None:
    text = BELOW.format(loads=loads)
    (tmp_path / "train.py").write_text(text, "utf-8")
    assert checked_file(tmp_path / "train.py", "--gpu", "rtx-4090")["setup"]["model_name"] == name


@pytest.mark.parametrize(
    ("loads", "unmodelled"),
    [
        ("AutoModel.from_pretrained('skt/kogpt2-base-v2')", ["AutoModel"]),  # had a head of 51,200 words
        ("AutoModel.from_pretrained('skt/kogpt2-base-v2', trust_remote_code=True)", ["AutoModel"]),
        ("AutoModel.from_pretrained('klue/bert-base')", []),
    ],
)
def test_a_model_that_is_loaded_without_its_head_is_not_counted_with_it(
    tmp_path: Path, loads: str, unmodelled: list[str]
) -> None:
    (tmp_path / "train.py").write_text(BELOW.format(loads=loads), "utf-8")
    assert checked_file(tmp_path / "train.py", "--gpu", "rtx-4090")["setup"]["unmodelled"] == unmodelled


def test_what_a_program_makes_and_does_not_use_is_no_part_of_its_run(tmp_path: Path) -> None:
    text = BELOW.format(loads="AutoModelForCausalLM.from_pretrained('gpt2', quantization_config=packed)")
    text = "packed = BitsAndBytesConfig(load_in_4bit=True)\nadapter = LoraConfig(r=16)\n" + text
    (tmp_path / "train.py").write_text(text.replace(").train()", ")"), "utf-8")
    (tmp_path / "given.py").write_text(text.replace("train_dataset", "peft_config=adapter, train_dataset"), "utf-8")
    alone, given = (checked_file(tmp_path / name, "--gpu", "rtx-4090") for name in ("train.py", "given.py"))
    assert "no adapter is seen" in alone["note"]  # it had been QLoRA that fits
    assert given["setup"]["method"] == "qlora"


@pytest.mark.parametrize(
    ("made", "evaluates"),
    [
        ("def main():\n    of = Trainer(model=model, args=args, eval_dataset=rows)\n    of.evaluate()", True),
        ("of = Trainer(model=model, args=args, eval_dataset=rows)\nof.evaluate()", True),
        ("of = Trainer(model=model, args=args)\ndef show():\n    of.evaluate()", False),  # another file may train it
        (
            "def main():\n    of = Own(model=model, args=args, eval_dataset=rows)\n    of.fit()\n    of.evaluate()",
            False,
        ),
        ("def main():\n    of = Trainer(model=model, args=args)\n    of.evaluate()\n    exec('of.train()')", False),
    ],
)
def test_a_trainer_that_is_only_asked_to_evaluate_trains_nothing(tmp_path: Path, made: str, evaluates: bool) -> None:
    own = "\n\nclass Own(Trainer):\n    def fit(self):\n        self.train()\n\n"
    text = BELOW.format(loads="AutoModelForCausalLM.from_pretrained('gpt2')").replace("\n\n", own, 1)
    (tmp_path / "judge.py").write_text(text.replace(ASKED, made), "utf-8")
    assert checked_file(tmp_path / "judge.py", "--gpu", "rtx-4090")["setup"]["do_train"] is not evaluates


HOLDS = """
from torch import nn
from transformers import AutoModel, Trainer, TrainingArguments

class Pairs(nn.Module):
    def __init__(self, encoder, temperature=0.05):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(8, 8)

    def encode(self, texts):
        return self.head(self.encoder(**texts).last_hidden_state[:, 0])

    def forward(self, one, other):
        return {passes}

encoder = AutoModel.from_pretrained("klue/bert-base")
model = Pairs(encoder)
args = TrainingArguments("out", per_device_train_batch_size=8, bf16=True)
Trainer(model=model, args=args, train_dataset=rows).train()
"""


@pytest.mark.parametrize(
    ("passes", "named"),
    [
        ("score(self.encode(one), self.encode(other))", ["Pairs"]),
        ("self.head(self.head(self.encode(one)))", []),
        ("self.encode(one) if other is None else self.encode(other)", []),
    ],
)
def test_a_model_that_a_class_of_the_project_asks_twice_has_twice_the_batch(
    tmp_path: Path, passes: str, named: list[str]
) -> None:
    (tmp_path / "train.py").write_text(HOLDS.format(passes=passes), "utf-8")
    assert checked_file(tmp_path / "train.py", "--gpu", "rtx-4090")["setup"]["unmodelled"] == named
