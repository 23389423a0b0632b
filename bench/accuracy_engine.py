"""The memory engine beside level 1: every stored trace of the real code that it follows, phase by phase.

Rows of tests/data/engine_traces.json that are held out decided nothing about the engine; the others, and the older
campaigns of tests/data/traces, did.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

from accuracy_rows import PHASES, ROOT, TRACED_ON, TRACES

from kb.core.setup import TrainingSetup
from kb.core.setup_json import setup_from
from kb.memory import UnsupportedArchitectureError, architecture_from_config
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.predict import record_runs, record_training
from kb.memory.releases import earlier_release

ENGINE_TRACES = ROOT / "tests" / "data" / "engine_traces.json"
DERIVED, HELD_OUT = "derived", "held out"
FAR = {"allocated": 0.002, "reserved": 0.06}  # an error that has a cause to be found


class Traced(NamedTuple):
    """One run of the real code: peaks of allocated and reserved bytes by phase.

    ``lengths`` are those of its batches, where they vary; ``part`` whether it is held out.
    """

    id: str
    model: str
    config: Mapping[str, Any]
    setup: TrainingSetup
    phases: Mapping[str, Sequence[int]]
    part: str = DERIVED
    lengths: Sequence[int] | None = None
    release: tuple[int, ...] = ()  # of transformers, whose code was run


class Compared(NamedTuple):
    """A phase of a run: bytes as traced and as the engine says."""

    run: Traced
    family: str
    phase: str
    allocated: tuple[int, int]
    reserved: tuple[int, int]

    def error(self, quantity: str) -> float:
        """What the engine says over what was traced, less one."""
        traced, said = self.allocated if quantity == "allocated" else self.reserved
        return said / traced - 1

    @property
    def equal(self) -> bool:
        """Both are the same to the byte."""
        return self.allocated[0] == self.allocated[1] and self.reserved[0] == self.reserved[1]

    @property
    def far(self) -> bool:
        return any(abs(self.error(quantity)) > most for quantity, most in FAR.items())


def engine_traces() -> Iterator[Traced]:
    """The rows of bench/engine_grid.py, without what it leaves out as known."""
    document = json.loads(ENGINE_TRACES.read_text("utf-8"))
    for number, row in enumerate(document["rows"]):
        name = row["model"]
        adapted = row["setup"].get("method", "full") != "full"
        given = ({"lora_target_modules": document["targets"][name]} if adapted else {}) | row["setup"]
        yield Traced(f"engine-{number}", name, document["models"][name], setup_from(given), row["phases"],
                     row.get("part", DERIVED), row.get("lengths"), _release(document))  # fmt: skip


def older_traces() -> Iterator[Traced]:
    """The campaigns of tests/data/traces. Their rows of evaluation with generation hold the label forward alone."""
    for path in sorted(TRACES.glob("*.json")):
        document = json.loads(path.read_text("utf-8"))
        for number, row in enumerate(document["rows"]):
            setup = setup_from(row["setup"])
            phase = PHASES.get(path.stem.rpartition("_")[2], "")
            if phase == "evaluate" and setup.predict_with_generate:
                setup = setup._replace(predict_with_generate=False, prediction_loss_only=True)
            phases = row.get("phases") or {phase: (row["allocated"], row["reserved"])}
            config = document["models"][row["model"]]
            yield Traced(f"{path.stem}-{number}", row["model"], config, setup, phases, release=_release(document))


def _release(document: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(map(int, document["software"]["transformers"].split(".")))


def compared(run: Traced) -> list[Compared]:
    """The run's phases, but for saving, which takes nothing of its own.

    Raises:
        NotFollowedError, UnsupportedArchitectureError: the engine does not follow the run.
    """
    architecture = architecture_from_config(run.config)
    setup = run.setup._replace(earlier=earlier_release(architecture.model_type, run.release))
    if run.lengths is None:
        recordings = record_runs(setup, architecture, TRACED_ON)
    else:
        recordings = [record_training(setup, architecture, TRACED_ON, run.lengths)]
    peaks = {phase: peak for recording in recordings for phase, peak in recording.phases.items()}
    return [
        Compared(
            run, architecture.family, phase, (allocated, peaks[phase].allocated), (reserved, peaks[phase].reserved)
        )
        for phase, (allocated, reserved) in run.phases.items()
        if phase in peaks and phase != "save"
    ]


def all_compared(runs: Iterable[Traced]) -> tuple[list[Compared], int]:
    """Every phase of the runs that the engine follows, and of how many runs it follows none."""
    found: list[Compared] = []
    left = 0
    for run in runs:
        try:
            found += compared(run)
        except (NotFollowedError, UnsupportedArchitectureError):
            left += 1
    return found, left


def lines_of(rows: Iterable[Compared]) -> list[dict[str, Any]]:
    """By phase over all, and by family, method and phase: mean and worst errors, and how many phases are equal."""
    groups: dict[tuple[str, str], list[Compared]] = {}
    for row in rows:
        for group in (f"all, {row.phase}", f"{row.family}, {_method(row.run)}, {row.phase}"):
            groups.setdefault((group, row.run.part), []).append(row)
    order = sorted(groups, key=lambda key: (not key[0].startswith("all"), *key))
    return [_line(group, part, groups[group, part]) for group, part in order]


def _method(run: Traced) -> str:
    setup = run.setup
    name = "dora" if setup.use_dora else setup.method
    name += " 8 bits" if setup.load_in_8bit and not setup.load_in_4bit else ""
    return name if run.lengths is None else f"{name}, varied lengths"


def _line(group: str, part: str, rows: Sequence[Compared]) -> dict[str, Any]:
    scores = {}
    for quantity in FAR:
        errors = [row.error(quantity) for row in rows]
        scores[quantity] = {"mean": round(mean(map(abs, errors)), 5), "worst": round(max(errors, key=abs), 5)}
    return {"group": group, "part": part, "rows": len(rows), "equal": sum(row.equal for row in rows), **scores}


def as_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; errors in percent, mean and worst."""
    text = ["| family, method, phase | part | phases | equal to the byte | allocated | reserved |",
            "|---|---|---:|---:|---:|---:|"]  # fmt: skip
    for line in lines:
        cells = [f"{100 * line[name]['mean']:.3f} / {100 * line[name]['worst']:+.2f} %" for name in FAR]
        share = f"{100 * line['equal'] / line['rows']:.1f} %"
        text.append(f"| {line['group']} | {line['part']} | {line['rows']} | {share} | {' | '.join(cells)} |")
    return "\n".join(text)


def far_off(rows: Iterable[Compared]) -> str:
    """Derived phases that are further off than can be left alone, a line each; of those held out nothing is told."""
    lines = [
        f"- {row.run.id} {row.run.model}, {row.phase}: allocated {100 * row.error('allocated'):+.2f} %, reserved "
        f"{100 * row.error('reserved'):+.2f} %"
        for row in rows
        if row.far and row.run.part == DERIVED
    ]
    return "\n".join(lines)
