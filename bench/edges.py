"""The edge of a run: the least that PyTorch must be able to reserve for it to end, by the memory engine.

Rows of rules/measurements that were held to a limit (bench/gpu/limits.py) say on which side of it a run really ends.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kb.config.text.parsing import LOADER
from kb.core.setup import TrainingSetup
from kb.core.setup_json import setup_from
from kb.knowledge import load_catalog
from kb.memory import architecture_from_config
from kb.memory.engine.allocator import CachingAllocator, OutOfMemory
from kb.memory.engine.predict import record_runs
from kb.memory.engine.world import Recording
from kb.memory.releases import earlier_release

ROOT = Path(__file__).resolve().parents[1]
GRAIN = 2**21  # segments are multiples of it
NEAR = 0.01  # of the edge: nearer than that a few segments decide
HEAD = "## Runs held to a limit"
PHASES = {"train": "training", "generate": "generation"}


def as_released(given: Mapping[str, Any], config: Mapping[str, Any], transformers: str) -> TrainingSetup:
    """The setup of these fields, as a run under this release of transformers is."""
    release = tuple(map(int, transformers.split(".")[:2]))
    return setup_from(given)._replace(earlier=earlier_release(str(config["model_type"]), release))


def recorded(setup: TrainingSetup, config: Mapping[str, Any], capability: tuple[int, int]) -> list[Recording]:
    """What the processes of a run ask for.

    Raises:
        NotFollowedError: something that the engine does not follow.
    """
    return record_runs(setup, architecture_from_config(config), capability)


def ends_inside(recordings: Sequence[Recording], limit: int) -> bool:
    """Whether every process of the run ends where PyTorch may reserve ``limit`` bytes."""
    try:
        for recording in recordings:
            recording.peaks(CachingAllocator(limit))
    except OutOfMemory:
        return False
    return True


def edge_of(recordings: Sequence[Recording]) -> int:
    """The smallest limit in bytes inside of which the run ends, to :data:`GRAIN`: between what is alive at most and
    what is reserved without a limit."""
    peaks = [peak for recording in recordings for peak in recording.phases.values()]
    low, high = max(peak.allocated for peak in peaks) // GRAIN * GRAIN, max(peak.reserved for peak in peaks)
    while high - low > GRAIN:
        middle = (low + high) // 2 // GRAIN * GRAIN
        low, high = (low, middle) if ends_inside(recordings, middle) else (middle, high)
    return high


def limited() -> tuple[dict[str, Any], str]:
    """How many runs ended, and how many ran out, as the engine says; as data by phase and distance, and as a section
    of the page."""
    found = [each for campaign in _campaigns() for each in _judged(campaign)]
    data = {
        phase: {
            name: _counted([(said, ended) for what, distance, said, ended in found
                            if what == phase and (abs(distance) < NEAR) == (name == "near")])
            for name in ("near", "away")
        }
        for phase in PHASES
    }  # fmt: skip
    places = {"near": f"nearer than {NEAR:.0%}", "away": f"{NEAR:.0%} to 12 %"}
    lines = [
        f"| {PHASES[phase]} | {places[name]} | {each['rows']} | {each['right']} | {each['ran_out']} "
        f"| {each['ran_out_said_ends']} |"
        for phase, by_distance in data.items()
        for name, each in by_distance.items()
    ]
    text = [
        HEAD,
        "PyTorch could reserve so much and no more, as on a smaller card; the edge is the least that the engine finds "
        "a run to need. Limits were drawn beside it, where kb is least sure of what it says.",
        "\n".join(
            [
                "| what runs | from the edge | runs | as predicted | ran out | of these predicted to end |",
                "|---|---|--:|--:|--:|--:|",
                *lines,
            ]
        ),
    ]
    return data, "\n\n".join(text) + "\n"


def _counted(rows: Sequence[tuple[bool, bool]]) -> dict[str, int]:
    """Of whether each was said to end and did."""
    return {"rows": len(rows), "right": sum(said == ended for said, ended in rows),
            "ran_out": sum(not ended for _, ended in rows), "ran_out_said_ends": rows.count((True, False))}  # fmt: skip


def _campaigns() -> list[dict[str, Any]]:
    paths = sorted((ROOT / "rules" / "measurements").glob("limits-*"))
    documents = [yaml.load(path.read_text("utf-8"), LOADER) for path in paths]
    return [each for each in documents if each["kind"] == "gpu"]


def _judged(campaign: Mapping[str, Any]) -> list[tuple[str, float, bool, bool]]:
    """Of each row what ran, how far its limit is from the edge, whether the engine lets it end, and whether it did."""
    gpu = load_catalog().gpus[campaign["machine"]["gpu"]]
    assert gpu.compute_capability is not None
    found = []
    for row in campaign["rows"]:
        architecture = campaign["models"][row["model"]]["architecture"]
        setup = as_released(row["setup"], architecture, campaign["stack"]["transformers"])
        recordings = recorded(setup, architecture, gpu.compute_capability)
        limit = row["limit_bytes"]
        phase = "train" if row["setup"].get("do_train", True) else "generate"
        found.append((phase, limit / edge_of(recordings) - 1, ends_inside(recordings, limit), "outcome" not in row))
    return found
