"""rules/measurements: rows that agree with themselves, whose they are, and what the guide holds of them."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

import memory_sample as sample
from catalog_sample import load_catalog, load_guide
from kb.core.units import MIB
from kb.memory import architecture_from_config, parameter_count

CAMPAIGNS: dict[str, dict[str, Any]] = dict(load_guide()["measurements"])
GPU = {name: campaign for name, campaign in CAMPAIGNS.items() if campaign["kind"] == "gpu"}
HOST = {name: campaign for name, campaign in CAMPAIGNS.items() if campaign["kind"] == "host"}
T4 = ("fitcheck-t4-sweep", "fitcheck-t4-ladder")


def rows(campaigns: dict[str, dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for campaign in campaigns.values():
        for row in campaign["rows"]:
            yield campaign, {**campaign.get("settings", {}), **row}


def test_the_t4_campaigns_are_whole_and_say_whose_they_are() -> None:
    assert [len(CAMPAIGNS[name]["rows"]) for name in T4] == [40, 17]
    for name in T4:
        licence = CAMPAIGNS[name]["licence"]
        assert licence["name"] == "MIT"
        assert licence["holder"] in licence["text"]
        assert "WITHOUT WARRANTY OF ANY KIND" in licence["text"]
        assert "fitcheck-llm/0.3.1" in licence["origin"]


def test_a_t4_row_is_as_it_was_published() -> None:
    campaign = CAMPAIGNS["fitcheck-t4-ladder"]
    (row,) = [r for r in campaign["rows"] if r["model"] == "tinyllama-1.1b" and r["batch"] == 12]
    train = row["phases"]["train"]
    assert train == {
        "allocated_bytes": round(9371.7021484375 * MIB),
        "reserved_bytes": 11258 * MIB,
        "process_bytes": round(11398.875 * MIB),
    }
    assert campaign["context_bytes"] == round(140.875 * MIB)
    assert campaign["stack"]["torch"] == "2.10.0+cu128"


def test_gpu_rows_name_a_model_of_their_file_and_a_gpu_of_the_rules() -> None:
    gpus = load_catalog().gpus
    for campaign, row in rows(GPU):
        assert row["model"] in campaign["models"]
        assert campaign["machine"].get("gpu", "t4") in gpus


def test_what_a_process_holds_covers_what_torch_reserves_and_that_what_it_allocates() -> None:
    for _, row in rows(GPU):
        for sizes in row.get("phases", {}).values():
            ladder = [sizes[n] for n in ("allocated_bytes", "reserved_bytes", "process_bytes") if n in sizes]
            assert ladder == sorted(ladder)
        phases = row.get("phases", {})
        parts = [phases[n]["allocated_bytes"] for n in ("forward", "backward", "step") if n in phases]
        if "train" in phases and parts:
            assert max(parts) <= phases["train"]["allocated_bytes"]


def test_repeats_are_of_the_same_settings_and_differ_little() -> None:
    for campaign in GPU.values():
        if campaign["id"] not in T4:
            continue
        first: dict[tuple[Any, ...], int] = {}
        for row in campaign["rows"]:
            key = tuple(row.get(n) for n in ("model", "method", "attention", "batch", "source_length"))
            allocated = row.get("phases", {}).get("train", {}).get("allocated_bytes", 0)
            if "repeat" in row:
                assert first[key] == allocated  # these runs were identical to the byte
            elif campaign["id"] in T4:
                assert key not in first
                first[key] = allocated


@pytest.mark.parametrize("name", T4)
def test_the_models_have_the_parameters_that_their_dimensions_give(name: str) -> None:
    for model in CAMPAIGNS[name]["models"].values():
        architecture = architecture_from_config({"max_position_embeddings": 2048, **model["architecture"]})
        assert math.isclose(parameter_count(architecture), model["parameters"], rel_tol=1e-3)


def test_measurements_are_not_on_the_way_of_a_check() -> None:
    """They are in the guide's part of the bundle, which a check never reads."""
    assert "measurements" not in load_catalog()._fields
    assert set(T4) <= CAMPAIGNS.keys()


# --- the host --------------------------------------------------------------------------------------------------------


def host_row(**wanted: Any) -> dict[str, Any]:
    (found,) = [row for _, row in rows(HOST) if all(row.get(name) == value for name, value in wanted.items())]
    return found


def test_host_rows_name_no_path_of_the_machine() -> None:
    for campaign in HOST.values():
        assert "/" not in str(campaign["machine"]) + campaign["command"].replace("bench/host.py", "")


def test_unique_proportional_and_resident_sets_are_in_order() -> None:
    for _, row in rows(HOST):
        if row["what"] in ("import", "main", "worker"):
            assert row["uss_bytes"] <= row["pss_bytes"] <= row["rss_bytes"]


def test_a_forked_worker_alone_holds_little_where_its_resident_set_holds_all() -> None:
    worker = host_row(what="worker", case="arrow", workers=4, start_method="fork", after="epochs")
    assert worker["uss_bytes"] < 50 * MIB < 1000 * MIB < worker["rss_bytes"]


def test_reading_python_lists_copies_their_pages_into_each_worker() -> None:
    dataset = host_row(what="dataset", case="list")["uss_bytes"]
    start, epochs = (
        host_row(what="worker", case="list", workers=4, start_method="fork", after=after)["uss_bytes"]
        for after in ("start", "epochs")
    )
    assert start < 0.1 * dataset < 0.4 * dataset < epochs


def test_a_spawned_worker_imports_everything_anew() -> None:
    for method in ("spawn", "forkserver"):
        worker = host_row(what="worker", case="arrow", start_method=method, after="epochs")
        assert 150 * MIB < worker["uss_bytes"] < 300 * MIB


@pytest.mark.parametrize("prefetch", [2, 8])
def test_batches_in_shared_memory_are_workers_times_prefetch_factor(prefetch: int) -> None:
    flight = host_row(what="batches", case="array", workers=2, prefetch_factor=prefetch)
    assert flight["shared_bytes"] == pytest.approx(2 * prefetch * flight["payload_bytes"], rel=0.02)


def test_reading_safetensors_holds_none_of_the_file_until_its_type_changes() -> None:
    mapped, read, half = (
        host_row(what="model-load", case=case) for case in ("safetensors", "safetensors-read", "safetensors-bf16")
    )
    assert mapped["anonymous_bytes"] < 0.01 * mapped["payload_bytes"]
    assert read["anonymous_bytes"] == pytest.approx(read["payload_bytes"], rel=0.02)
    assert half["anonymous_bytes"] == pytest.approx(half["payload_bytes"] / 2, rel=0.02)


def test_saving_from_the_host_copies_nothing_and_adamw_adds_three_times_the_weights() -> None:
    for case in ("safetensors", "optimizer"):
        row = host_row(what="save", case=case)
        assert row["peak_uss_bytes"] < 0.01 * row["payload_bytes"]
    row = host_row(what="optimizer", case="adamw")
    assert row["anonymous_bytes"] == pytest.approx(3 * row["payload_bytes"], rel=0.01)  # gradients and two moments


def test_constants_that_cite_the_host_rows_are_what_the_rows_say() -> None:
    trainer = host_row(what="import", case="trainer")
    assert sample.CONSTANTS["host_process_bytes"] == pytest.approx(trainer["uss_bytes"], rel=0.01)
    worker = host_row(what="worker", case="arrow", workers=8, after="epochs")
    assert sample.CONSTANTS["worker_private_bytes"] == pytest.approx(worker["uss_bytes"], rel=0.01)
