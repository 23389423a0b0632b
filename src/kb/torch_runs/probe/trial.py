"""What is tried and what came of it, as JSON: a trial is one process's work, an outcome what was seen of it.

Sizes in bytes, times in seconds, utilisation as a ratio. What is not known is None, or left out of a mapping.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

from kb.core.hardware import Gpu
from kb.core.record import NamedTuple
from kb.core.setup import Spread, TrainingSetup

Kind = Literal["smoke", "ramp", "max-batch", "host"]
Backend = Literal["cuda", "cpu", "fake"]
Status = Literal["ok", "oom", "hang", "crash", "lost"]
Sizes = Mapping[str, int]
STEPS = 10
# A setup's fields that say nothing of what is run.
UNTOLD = ("assumed", "unmodelled", "unresolved", "spread")


class Limits(NamedTuple):
    """What a trial may take: seconds by the clock, and bytes of host memory, resident, of all its processes."""

    seconds: float = 600
    host_bytes: int | None = None


class Trial(NamedTuple):
    """One process's work.

    ``setup`` holds the fields of a TrainingSetup that differ from its defaults, ``config`` is the model's
    ``config.json``; a ``command`` of the user's own has none. ``predicted`` is kb's own, by phase.
    ``fake`` scripts a GPU that is not there. ``gpu`` is the id of the GPU that is wanted, ``device`` the value of
    CUDA_VISIBLE_DEVICES.
    """

    kind: Kind
    backend: Backend
    setup: Mapping[str, Any]
    config: Mapping[str, Any] | None = None
    model: str | None = None
    phases: tuple[str, ...] = ("train",)
    steps: int = STEPS
    command: tuple[str, ...] = ()
    predicted: Mapping[str, Sizes] = {}
    gpu: str | None = None
    device: str | None = None
    fake: Mapping[str, Any] | None = None
    limits: Limits = Limits()

    @property
    def batch(self) -> int:
        """Samples per device of a training step."""
        return int(self.setup.get("per_device_train_batch_size", TrainingSetup().per_device_train_batch_size))

    @property
    def workers(self) -> int:
        return int(self.setup.get("dataloader_num_workers", 0))


class Outcome(NamedTuple):
    """What came of a trial. ``oom`` is memory that ran out, of the ``resource`` gpu or host; ``hang`` the time limit;
    ``lost`` the machine it ran on.

    ``phases`` holds the peaks of the phases that were passed, also of a run that then failed; ``host`` those of all
    its processes together.
    """

    status: Status
    seconds: float
    resource: Literal["gpu", "host"] | None = None
    phase: str | None = None  # where it ended, unless it is ok
    reason: str | None = None  # the line that tells most
    exit_code: int | None = None
    signal: str | None = None
    phases: Mapping[str, Sizes] = {}
    host: Mapping[str, Any] = {}
    step_seconds: float | None = None
    samples_per_second: float | None = None
    utilisation: float | None = None
    trainable: int | None = None
    machine: Mapping[str, Any] = {}
    stack: Mapping[str, str] = {}
    node: str | None = None
    output: str | None = None  # the end of what a run that failed printed

    @property
    def fits(self) -> bool:
        return self.status == "ok"

    @property
    def peak_bytes(self) -> int | None:
        """The most that the process held of the GPU, as the driver reports it; of torch's allocator without that."""
        for name in ("process_bytes", "reserved_bytes"):
            sizes = [row[name] for row in self.phases.values() if row.get(name)]
            if sizes:
                return max(sizes)
        return None


def as_json(record: Trial | Outcome) -> dict[str, Any]:
    """The record as JSON has it, without what it leaves at its default."""
    own = {name: value for name, value in record._asdict().items() if value != record._field_defaults.get(name, ...)}
    if "limits" in own:
        own["limits"] = own["limits"]._asdict()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}


def trial_from(data: Mapping[str, Any]) -> Trial:
    """The trial that :func:`as_json` wrote."""
    given: dict[str, Any] = {
        name: tuple(value) if name in ("phases", "command") else value for name, value in data.items()
    }
    if "limits" in given:
        given["limits"] = Limits(**given["limits"])
    return Trial(**given)


_NUMBER = (int, float)
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("status", "resource", "phase", "reason", "signal", "node", "output"), str),
    **dict.fromkeys(("seconds", "step_seconds", "samples_per_second", "utilisation"), _NUMBER),
    **dict.fromkeys(("exit_code", "trainable"), int),
    **dict.fromkeys(("phases", "host", "machine", "stack"), dict),
}


def outcome_from(data: Mapping[str, Any]) -> Outcome:
    """The outcome that :func:`as_json` wrote.

    Raises:
        KeyError: of another version.
        TypeError: what it holds is no outcome.
    """
    outcome = Outcome(**data)
    rows = outcome.phases.values() if isinstance(outcome.phases, dict) else ()
    fits = all(isinstance(value, _KINDS[name]) for name, value in data.items() if value is not None)
    if not fits or outcome.status not in get_args(Status) or outcome.seconds is None:
        raise TypeError("no outcome")
    if not all(isinstance(row, dict) and all(isinstance(size, _NUMBER) for size in row.values()) for row in rows):
        raise TypeError("no sizes")
    return outcome


def trial_key(trial: Trial) -> str:
    """Equal for trials that ask the same of a machine: their limits, and what was predicted of them, do not count."""
    asked = {name: value for name, value in as_json(trial).items() if name not in ("limits", "predicted", "kind")}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def setup_json(setup: TrainingSetup) -> dict[str, Any]:
    """The settings that differ from the defaults."""
    plain = TrainingSetup()._asdict()
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in setup._asdict().items()
        if name not in UNTOLD and value != plain[name]
    }


def setup_of(trial: Trial) -> TrainingSetup:
    """The whole setup of a trial."""
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in trial.setup.items()
    }
    setup: TrainingSetup = TrainingSetup(spread=Spread())._replace(**given)
    return setup


class Cell(NamedTuple):
    """One trial of the matrix. ``found`` is the GPU that ran it, where that is another than was asked for."""

    gpu: Gpu
    trial: Trial
    outcome: Outcome
    found: str | None = None


class Matrix(NamedTuple):
    """All cells in the order of the axes."""

    backend: str
    address: str
    cells: tuple[Cell, ...]
