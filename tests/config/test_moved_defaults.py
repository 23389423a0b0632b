"""Defaults that moved between releases: the project's release decides, and of an unknown one the newest is taken."""

from collections.abc import Mapping

import pytest

from catalog_sample import load_catalog, read_units
from kb.advice.check import Checker
from kb.core.facts import default_is_open, default_of
from kb.core.hardware import Machine
from kb.core.setup import TrainingSetup

CATALOG = load_catalog()
HF = "model_name_or_path: google/mt5-base\nper_device_train_batch_size: 4\nlearning_rate: 0.001\n"
TRL = HF + "dataset_text_field: text\n"


def setup_of(text: str, versions: Mapping[str, tuple[int, ...]]) -> TrainingSetup:
    (unit,) = read_units(text, "train.yaml", CATALOG.dialects, CATALOG.facts)
    return Checker(CATALOG, Machine(), versions=versions.get).prepare(unit).setup


@pytest.mark.parametrize(
    ("versions", "optim"),
    [
        ({}, "adamw_torch_fused"),
        ({"transformers": (4, 53, 3)}, "adamw_torch"),
        ({"transformers": (4, 54)}, "adamw_torch_fused"),
        ({"transformers": (4, 54, 0), "torch": (2, 7, 1)}, "adamw_torch"),
        ({"transformers": (5, 23), "torch": (2, 8)}, "adamw_torch_fused"),
    ],
)
def test_optimizer_is_fused_from_transformers_4_54_on_torch_2_8(versions, optim: str) -> None:
    assert setup_of(HF, versions).optim == optim


def test_checkpointing_is_reentrant_before_transformers_5() -> None:
    assert setup_of(HF, {"transformers": (4, 57, 6)}).use_reentrant
    assert not setup_of(HF, {"transformers": (5, 0)}).use_reentrant
    assert not setup_of(HF, {}).use_reentrant


def test_trl_checkpoints_by_itself_from_0_22() -> None:
    assert not setup_of(TRL, {"trl": (0, 21, 0)}).gradient_checkpointing
    assert setup_of(TRL, {"trl": (0, 22, 0)}).gradient_checkpointing
    assert not setup_of(TRL + "gradient_checkpointing: false\n", {"trl": (1, 0)}).gradient_checkpointing


def test_a_default_that_an_unknown_release_decides_is_listed_as_assumed() -> None:
    def assumed(versions: Mapping[str, tuple[int, ...]]) -> set[str]:
        return {each.name for each in setup_of(TRL, versions).assumed}

    assert "training.gradient_checkpointing" in assumed({})
    assert "training.gradient_checkpointing" not in assumed({"trl": (0, 20)})
    assert "training.gradient_checkpointing" not in assumed({"trl": (1, 2)})


def test_one_known_release_can_settle_a_default_that_two_libraries_move() -> None:
    optim = CATALOG.facts["training.optim"]
    assert default_is_open(optim, lambda library, *_: {"transformers": (5, 0)}.get(library))
    assert not default_is_open(optim, lambda library, *_: {"torch": (2, 6)}.get(library))
    assert default_of(optim, lambda library, *_: {"torch": (2, 6)}.get(library)) == "adamw_torch"


def test_defaults_that_moved_are_of_their_facts_type() -> None:
    kinds = {"bool": bool, "text": str, "integer": int, "number": int | float}
    tables = [CATALOG.facts, *(dialect.moved for dialect in CATALOG.dialects.values())]
    for table in tables:
        for name, entry in table.items():
            for moved in getattr(entry, "moved", entry):
                assert moved.value is None or isinstance(moved.value, kinds[CATALOG.facts[name].type]), name
