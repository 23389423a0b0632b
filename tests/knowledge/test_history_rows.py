"""rules/histories: the mT5 config's versions as the note tells them, each value with its lines."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from catalog_sample import load_catalog, load_guide

MT5: dict[str, Any] = load_guide()["histories"]["mt5-qlora"]
STAGES = ("init", "cut-1", "cut-2")
TRAIN, EVALUATE, WORKERS = (
    "training.per_device_train_batch_size",
    "training.per_device_eval_batch_size",
    "training.dataloader_num_workers",
)
ACCUMULATION = "training.gradient_accumulation_steps"


def stage(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in MT5["stages"] if row["id"] == name)
    return found


def values(setting: str) -> list[Any]:
    return [stage(name)["settings"][setting]["value"] for name in STAGES]


def figures(data: Any) -> Iterator[dict[str, Any]]:
    if isinstance(data, dict):
        if "status" in data:
            yield data
        for value in data.values():
            yield from figures(value)
    elif isinstance(data, list):
        for value in data:
            yield from figures(value)


def test_system_s16_three_stages_with_their_times_and_commits() -> None:
    assert [row["id"] for row in MT5["stages"]] == list(STAGES)
    assert [row["event"]["time"][-5:] for row in MT5["stages"]] == ["06:00", "06:25", "06:33"]
    assert [row["event"].get("commit") for row in MT5["stages"]] == [None, "743d281", "58f3c99"]
    assert MT5["confirmed"]["time"] == "2025-08-01 06:50"


@pytest.mark.parametrize(
    ("setting", "row", "percent"),
    [
        (TRAIN, (20, 16, 12), -40),
        (EVALUATE, (48, 32, 16), -67),
        (WORKERS, (32, 16, 16), -50),
        ("batch.effective", (40, 32, 24), -40),
    ],
)
def test_system_s16_the_matrix(setting: str, row: tuple[int, ...], percent: int) -> None:
    found = next(entry for entry in MT5["matrix"] if entry["setting"] == setting)
    assert tuple(found["values"][name] for name in STAGES) == row
    assert found["percent"] == percent == round((row[-1] / row[0] - 1) * 100)


def test_the_matrix_is_what_the_stages_set() -> None:
    for row in MT5["matrix"]:
        if row["setting"] != "batch.effective":
            assert [row["values"][name] for name in STAGES] == values(row["setting"])
    effective = next(row for row in MT5["matrix"] if row["setting"] == "batch.effective")
    products = [a * b for a, b in zip(values(TRAIN), values(ACCUMULATION), strict=True)]
    assert [effective["values"][name] for name in STAGES] == products


def test_the_effective_batch_that_the_comments_claim_stays_as_claimed() -> None:
    said = [stage(name)["settings"][ACCUMULATION]["said"]["effective_batch"]["value"] for name in STAGES]
    assert said == [80, 48, 48]


def test_changes_go_from_one_stage_to_the_next() -> None:
    for before, after in pairwise(STAGES):
        for setting, change in stage(after)["changes"].items():
            was, now = (stage(name)["settings"][setting]["value"] for name in (before, after))
            assert (change["before"], change["after"]) == (was, now)
            assert change["percent"] == round((now / was - 1) * 100)


def test_system_s16_predicted_beside_measured() -> None:
    assert [stage(name)["predicted"]["memory"]["value"] for name in STAGES] == [84, 47, 39]
    measured = stage("cut-2")["measured"]
    assert measured["gpu_memory"]["value"] == 18.3 and measured["gpu_memory_share"]["value"] == 76
    assert measured["host_memory"]["value"] == 40
    assert round(measured["gpu_memory"]["value"] / MT5["limits"]["gpu_memory"]["value"] * 100) == 76


@pytest.mark.parametrize(
    ("ledger", "term", "row"),
    [
        ("gpu", "parameters", [8, 8, 8]),
        ("gpu", "optimizer", [4, 4, 4]),
        ("gpu", "gradients", [4, 4, 4]),
        ("gpu", "batch-data", [8, 6, 4]),
        ("gpu", "total", [24, 22, 18]),  # the last does not add up, and stays as the note has it
        ("gpu", "free", [0, 2, 6]),
        ("host", "base", [20, 20, 20]),
        ("host", "workers", [64, 32, 32]),
        ("host", "overhead", [5, 5, 5]),
        ("host", "total", [89, 57, 57]),
        ("host", "within-limit", [False, False, True]),
    ],
)
def test_the_ledgers_stay_as_claimed(ledger: str, term: str, row: list[Any]) -> None:
    found = next(entry for entry in MT5["ledgers"][ledger]["terms"] if entry["id"] == term)
    assert [found["values"][name] for name in STAGES] == row


def test_throughput_stays_as_claimed() -> None:
    assert [(row["value"], row.get("factors", {}).get("batch")) for row in MT5["throughput"]] == [
        (6.25, 20),
        (4.17, 12),
        (33, None),
    ]
    assert MT5["readings"]["gpu_utilisation"]["value"] == 100


def test_every_figure_has_its_place_in_the_note() -> None:
    rows = list(figures({name: part for name, part in MT5.items() if name not in ("unsaid", "code")}))  # not the note's
    assert len(rows) > 60
    assert all(row["status"] == "claimed" and row["source"] == "history-mt5-qlora" and row["lines"] for row in rows)


def test_what_it_refers_to_exists() -> None:
    catalog, guide = load_catalog(), load_guide()
    assert MT5["model"] in catalog.models
    assert MT5["runtime"] in guide["runtimes"]
    assert guide["runtimes"][MT5["runtime"]]["training"]["history"] == "mt5-qlora"
    settings = {name for row in MT5["stages"] for name in row["settings"]} | {row["setting"] for row in MT5["matrix"]}
    settings |= MT5["unsaid"]["settings"].keys() | MT5["code"]["settings"].keys()
    assert settings <= catalog.facts.keys()
    for reference in MT5["see"]:
        kind, _, name = reference.partition("/")
        assert name in guide[kind]
