"""rules/runtimes: stages and totals as the notes give them; what can be added up is."""

from typing import Any

import pytest

from catalog_sample import load_catalog, load_guide
from kb.core.expression import compile_tree

RUNTIMES: dict[str, Any] = dict(load_guide()["runtimes"])
KFOLD: dict[str, Any] = RUNTIMES["kfold-summarization"]
STAGES = {stage["id"]: stage for stage in KFOLD["stages"]}
PIPELINES = {pipeline["id"]: pipeline for pipeline in KFOLD["pipelines"]}


def time_of(stage: str, batch: int) -> tuple[float, float]:
    row = next(time for time in STAGES[stage]["times"] if time.get("batch", batch) == batch)
    assert row["unit"] == "min"
    return row["low"], row["high"]


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("batch", [8, 16, 32])
def test_the_stages_add_up_to_the_total_of_the_note(pipeline: str, batch: int) -> None:
    row = next(total for total in PIPELINES[pipeline]["rows"] if total["batch"] == batch)
    times = [time_of(stage, batch) for stage in PIPELINES[pipeline]["stages"]]
    assert (row["low"], row["high"]) == (sum(low for low, _ in times), sum(high for _, high in times))


@pytest.mark.parametrize(
    ("pipeline", "totals", "speeds"),
    [
        ("kfold-only", [(10, 12), (7, 9), (5, 7)], [1.0, 1.4, 1.8]),
        ("kfold-hf", [(16, 20), (11, 15), (8, 11)], [1.0, 1.4, 1.9]),
        ("full", [(106, 140), (101, 135), (98, 131)], [1.0, 1.04, 1.06]),
    ],
)
def test_totals_and_speeds_are_the_notes(pipeline: str, totals: list[tuple[int, int]], speeds: list[float]) -> None:
    rows = PIPELINES[pipeline]["rows"]
    assert [(row["low"], row["high"]) for row in rows] == totals
    assert [row["relative_speed"] for row in rows] == speeds


def test_the_api_stage_depends_on_its_calls_and_not_on_the_batch() -> None:
    api = STAGES["solar-api"]
    assert api["rate_limited"] and not api["depends_on_batch"]
    assert [(row["low"], row["high"]) for row in api["times"]] == [(90, 120)] and "batch" not in api["times"][0]
    figures = {"samples": KFOLD["workload"]["samples"]["value"], "n_samples": api["n_samples"]["value"]}
    assert compile_tree(api["calls"]["compute_tree"])(figures.__getitem__) == 2495


def test_the_workload_is_the_notes() -> None:
    found = {name: row["value"] for name, row in KFOLD["workload"].items()}
    assert found == {"gpu_memory": 24, "folds": 5, "samples": 499, "max_new_tokens": 120, "num_beams": 5}
    assert [(row["batch"], row["value"]) for row in KFOLD["throughput"]] == [(8, 7), (16, 9), (32, 12)]


def test_the_training_run_is_the_notes() -> None:
    training = RUNTIMES["mt5-qlora-training"]["training"]
    assert (training["steps"]["value"], training["seconds_per_step"]["value"]) == (3120, 3.24)
    assert (training["total"]["value"], training["total"]["unit"]) == (165, "min")  # 2 h 45 min, as claimed


def test_what_a_run_time_refers_to_exists() -> None:
    catalog, histories = load_catalog(), load_guide()["histories"]
    for row in RUNTIMES.values():
        assert row.get("model", "kobart") in catalog.models
        assert row.get("gpu", "rtx-4090") in catalog.gpus
        for pipeline in row.get("pipelines", ()):
            assert set(pipeline["stages"]) <= {stage["id"] for stage in row["stages"]}
        training = row.get("training", {})
        if "history" in training:
            stages = {stage["id"]: stage for stage in histories[training["history"]]["stages"]}
            settings = stages[training["stage"]]["settings"]
            batch = settings["training.per_device_train_batch_size"]["value"]
            accumulation = settings["training.gradient_accumulation_steps"]["value"]
            assert row["workload"]["batch"]["value"] == batch
            assert row["workload"]["gradient_accumulation_steps"]["value"] == accumulation
