"""A followed run over time: every request with the module and operator that made it, for drawings and lists.

Predictions do without. Who asks is read off Python's frames: an operator is the function of ``ops`` that is running, a
module the one that was entered last of the innermost class (``world.inside``).
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.engine.allocator import CachingAllocator, ElasticAllocator
from kb.memory.engine.predict import record_runs
from kb.memory.engine.world import Label, Recording, world
from kb.memory.timeline import (
    ROLES,
    Moment,
    Point,
    Timeline,
    TopTensor,
    moments_of,
    role_of,
    spans_of,
    thinned,
    top_tensors,
)

WORKSPACE = role_of("workspace")
OPERATORS = "kb.memory.engine.ops"


class Traced(NamedTuple):
    """A run's timeline, and the largest kinds of tensor alive at the peak of each of its phases, and all along."""

    timeline: Timeline
    tops: Mapping[str, tuple[TopTensor, ...]]
    moments: tuple[Moment, ...] = ()


class Trace(Recording):
    """A recording that remembers who asked."""

    repeats = False
    watches = True

    def __init__(self) -> None:
        super().__init__()
        self.makers: dict[int, tuple[str, str]] = {}  # entry of the log → module, operator
        self._modules: dict[int, str] = {}  # node of the tape → module whose forward made it

    def watch(self, number: int) -> None:
        self.makers[number] = self._maker()

    def _maker(self) -> tuple[str, str]:
        """By code alone: a look at a frame's variables would keep them alive, and what is alive is the question."""
        operator = ""
        frame: Any = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if not operator and frame.f_globals.get("__name__", "").startswith(OPERATORS):
                operator = code.co_name.lstrip("_")
                if operator.endswith("_back"):
                    operator += "ward"
            path = world.inside.get(code.co_qualname.partition(".")[0])
            if path is not None:
                self._modules.setdefault(world.sequence, path)
                return path, operator
            if code.co_name == "run_back":
                return self._modules.get(world.back, ""), operator
            frame = frame.f_back
        return "", operator


def trace(
    setup: TrainingSetup,
    architecture: Architecture,
    capability: tuple[int, int],
    limit: int | None = None,
    moments: int = 0,
) -> Traced:
    """The first process of a run (training and its evaluation, else inference) over time.

    PyTorch may reserve ``limit`` bytes, past which it gives cached blocks back; what does not fit there goes on.
    What is alive is told at about ``moments`` of its events.

    Raises:
        NotFollowedError: something that the engine does not follow.
    """
    recording = record_runs(setup, architecture, capability, kind=Trace, limit=limit)[0]
    assert isinstance(recording, Trace)
    peaks = recording.peaks(_pool(limit))
    phases = list(_phases(recording))
    points = list(_points(recording, limit))
    tops = {name: _alive(recording, peak.at, phases) for name, peak in peaks.items()}
    line = Timeline(thinned(points, len(points)), tuple(spans_of(phases)), len(points))
    return Traced(line, tops, tuple(_moments(recording, points, moments_of(points, moments), phases)))


def _pool(limit: int | None) -> CachingAllocator:
    return CachingAllocator() if limit is None else ElasticAllocator(limit)


def _points(recording: Trace, limit: int | None) -> Iterator[Point]:
    """After each entry of the log. What a block is larger than its tensor counts as workspace."""
    roles = [0] * len(ROLES)
    labels, pool, allocated = recording.labels(), _pool(limit), 0
    parts: dict[int, tuple[int, int, int]] = {}  # entry → role, bytes asked for, bytes beyond them
    for number, entry in recording.served(pool):
        if entry >= 0:
            beyond = pool.allocated - allocated - entry
            role = role_of(recording.terms.get(number) or labels[number][1])
            parts[number] = role, entry, beyond
            roles[role] += entry
            roles[WORKSPACE] += beyond
        else:
            role, size, beyond = parts.pop(~entry)
            roles[role] -= size
            roles[WORKSPACE] -= beyond
        allocated = pool.allocated
        yield Point(number, allocated, pool.reserved, tuple(roles))


def _phases(recording: Trace) -> Iterator[str]:
    """The phase of every entry; in training with its part: ``train:backward``."""
    starts, labels = [*recording.starts, (len(recording.log), "")], recording.labels()
    for (start, phase), (end, _) in pairwise(starts):
        part = ""
        for entry, (moment, _) in zip(recording.log[start:end], labels[start:end], strict=True):
            if phase == "train" and entry >= 0:
                part = ":" + moment.partition("_")[0]
            yield phase + part


def _moments(recording: Trace, points: Sequence[Point], events: Sequence[int], phases: list[str]) -> Iterator[Moment]:
    """What is alive after each of ``events``, in one walk over the log."""
    alive: dict[int, TopTensor] = {}
    wanted, labels = set(events), recording.labels()
    for number, entry in enumerate(recording.log):
        if entry >= 0:
            alive[number] = _tensor(recording, number, labels, phases)
        else:
            del alive[~entry]
        if number in wanted:
            yield Moment(number, points[number].allocated_bytes, top_tensors(alive.values()))


def _alive(recording: Trace, at: int, phases: list[str]) -> tuple[TopTensor, ...]:
    """The largest kinds of tensor after entry ``at`` of the log."""
    labels = recording.labels()
    return top_tensors(_tensor(recording, number, labels, phases) for number in recording.alive([at])[at])


def _tensor(recording: Trace, number: int, labels: Sequence[Label], phases: list[str]) -> TopTensor:
    """What entry ``number`` of the log asked for."""
    path, operator = recording.makers[number]
    term = recording.terms.get(number) or labels[number][1]
    return TopTensor(recording.log[number], 1, term, recording.paths.get(number) or path, operator, phases[number])
