"""Runs that were held to a limit on a GPU, and where the engine puts the edge of each (bench/edges.py)."""

import importlib
import sys
from typing import Any

import pytest

from catalog_sample import load_guide
from packages import ROOT

BENCH = ROOT / "bench"
CAMPAIGN = load_guide()["measurements"]["limits-h100-2026-11-26"]
HOPPER = (9, 0)
EVERY = 12  # rows by default; all of them with --exhaustive
RIGHT = 0.75  # of all rows 83 %: every limit lies near the edge


@pytest.fixture(scope="module")
def edges() -> Any:
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module("edges")
    finally:
        sys.path.remove(str(BENCH))


def recorded(edges: Any, row: dict[str, Any]) -> list[Any]:
    config = CAMPAIGN["models"][row["model"]]["architecture"]
    return edges.recorded(edges.as_released(row["setup"], config, CAMPAIGN["stack"]["transformers"]), config, HOPPER)


def test_runs_end_or_run_out_as_they_did_on_an_h100(edges: Any, pytestconfig: pytest.Config) -> None:
    rows = CAMPAIGN["rows"] if pytestconfig.getoption("--exhaustive") else CAMPAIGN["rows"][::EVERY]
    right = sum(edges.ends_inside(recorded(edges, row), row["limit_bytes"]) == ("outcome" not in row) for row in rows)
    assert {"outcome" in row for row in rows} == {True, False}
    assert right / len(rows) >= RIGHT


def test_the_edge_is_the_least_that_a_run_ends_in(edges: Any) -> None:
    recordings = recorded(edges, CAMPAIGN["rows"][0])
    edge = edges.edge_of(recordings)
    assert edges.ends_inside(recordings, edge)
    assert not edges.ends_inside(recordings, edge - 2 * edges.GRAIN)
