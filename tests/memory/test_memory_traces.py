"""The closed forms against recorded traces of the real code: mean and worst error by phase, and the stated bands."""

import json
from statistics import mean
from typing import Any

import pytest

import memory_sample as sample
from memory_sample import roughly

GPU_CAPABILITY = (8, 6)
PHASES = {"training": "train", "evaluation": "evaluate", "generation": "generate"}
TARGETS = {"training": (0.01, 0.03), "evaluation": (0.005, 0.02), "generation": (0.003, 0.02)}  # mean, worst


def errors(kind: str, **where: Any) -> dict[str, float]:
    found = {}
    for architecture, setup, row in sample.traces(kind):
        if all(row.get(name) == value for name, value in where.items()):
            report = roughly(setup, architecture, constants=sample.CONSTANTS, compute_capability=GPU_CAPABILITY)
            phase = report.phase(PHASES[kind])
            assert phase is not None
            found[f"{row['model']} {json.dumps(row['setup'])}"] = phase.peak_allocated_bytes / row["allocated"] - 1
    return found


@pytest.mark.parametrize("kind", PHASES)
def test_peak_allocated_agrees_with_the_traces(kind: str) -> None:
    found = errors(kind)
    worst = max(found, key=lambda name: abs(found[name]))
    mean_target, worst_target = TARGETS[kind]
    assert abs(found[worst]) <= worst_target, f"{worst}: {found[worst]:+.2%}"
    assert mean(map(abs, found.values())) <= mean_target


def test_rows_that_the_forms_were_not_derived_from_agree_as_well() -> None:
    found = errors("training", part="held out")
    assert len(found) >= 25
    assert mean(map(abs, found.values())) <= 0.01
    assert max(map(abs, found.values())) <= 0.02


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_every_method_agrees_on_its_own(method: str, checkpointing: bool) -> None:
    found = []
    for architecture, setup, row in sample.traces("training"):
        if setup.method == method and setup.gradient_checkpointing == checkpointing:
            report = roughly(setup, architecture, constants=sample.CONSTANTS, compute_capability=GPU_CAPABILITY)
            found.append(abs(report.phases[1].peak_allocated_bytes / row["allocated"] - 1))
    assert len(found) >= 7
    assert mean(found) <= 0.012


@pytest.mark.parametrize("kind", PHASES)
def test_the_stated_band_holds_every_trace(kind: str) -> None:
    band = sample.CONSTANTS[f"band_{PHASES[kind]}"]
    assert max(map(abs, errors(kind).values())) <= band


@pytest.mark.parametrize("kind", PHASES)
def test_reserved_memory_of_the_traces_lies_below_the_high_end(kind: str) -> None:
    rows = sample.traces(kind)
    below = 0
    for architecture, setup, row in rows:
        report = roughly(setup, architecture, constants=sample.CONSTANTS, compute_capability=GPU_CAPABILITY)
        phase = report.phase(PHASES[kind])
        assert phase is not None
        below += row["reserved"] <= phase.high_bytes
    assert below >= 0.97 * len(rows)


def test_weights_agree_with_the_traces() -> None:
    for architecture, setup, row in sample.traces("training"):
        report = roughly(setup, architecture, constants=sample.CONSTANTS)
        load = report.phase("load")
        assert load is not None
        there = sum(term.bytes for term in load.terms if term.name != "temporaries")
        assert there == pytest.approx(row["weights"], rel=sample.CONSTANTS["band_load"]), row["setup"]
