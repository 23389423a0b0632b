"""A quick answer for a model of any depth: the engine on two layers of each kind and on three, and what each further
layer adds at every moment.

A deeper run asks for what the shallower one does, and for one layer more wherever it passes its layers. Pairing the two
logs gives each moment twice, and between layers alike memory grows evenly: forward keeps as much in each, backward
frees as much and makes as many gradients, a step passes as many parameters. So each moment's bytes are a line in the
number of layers, and the peak is the highest line: exact where layers are alike, but for what blocks keep of their
segments, too little to be cut off, which is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product

from kb.core.memory_report import PhaseName, Use
from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.engine.allocator import CachingAllocator, summed
from kb.memory.engine.follow import PHASES, REMAINDERS, Followed, Found, Run, moment_of
from kb.memory.engine.placed import OF_LAYERS, STACKS, Place, PlacedRecording, Stack, inserted, paired
from kb.memory.engine.predict import record_runs
from kb.memory.engine.world import Recording

Kind = tuple[Stack, tuple[object, ...]]  # a stack, and what tells its layers apart
LEAST = 2  # a first layer and a last: nothing before the first one trains with adapters, and T5's has the biases of all
MOST_PLACED = 256  # layers whose weights are placed one by one, for what blocks keep of their segments
# Batches that lines are drawn through. One alone leaves out copies that larger ones make; few rows are multiplied with
# packed weights by other kernels than many. Of pairs tried on drawn settings these were least off from 1 to 200.
BATCHES = 3, 12


class Moment(NamedTuple):
    """An entry of the shallow log, and for each kind of layer the entry that is its like with one layer more."""

    at: int
    deeper: tuple[int, ...]


class Line(NamedTuple):
    """Bytes of a moment by the batch: ``bytes`` and ``each`` more for every sample. ``moment`` is its name."""

    bytes: float
    each: float
    moment: str

    @staticmethod
    def through(one: tuple[int, int], other: tuple[int, int], moment: str) -> "Line":
        """The line through two pairs of a batch and its bytes."""
        each = (other[1] - one[1]) / (other[0] - one[0])
        return Line(one[1] - each * one[0], each, moment)


class Unsummed(Recording):
    """Without what sums hold: logs of two batches are paired, and what blocks share depends on how many tokens there
    are."""

    books_sums = False


class PlacedUnsummed(PlacedRecording, Unsummed):
    """One that is paired with that of a deeper run, layer by layer."""

    looks_around = True


class Process:
    """One process of a run, recorded shallow and with one layer more of each kind.

    Args:
        more: by how many layers the model is deeper than ``base``, for each of ``deeper``.
    """

    def __init__(self, base: Recording, deeper: Sequence[Recording], more: Sequence[int]) -> None:
        self.base, self.deeper, self.more = base, deeper, more
        self._runs = (base, *deeper)
        self._labels = base.labels()
        self._all = [summed(each.log) for each in self._runs]
        self._lost = kept_of_segments([_loaded(each) for each in self._runs], more)
        self._resting = {name: self._at_rest(name) for name in ("load", "save")}

    def lost(self, phase: str) -> int:
        """Bytes that blocks keep of their segments: those of the weights, and as much of the optimizer's states, whose
        tensors have the same shapes."""
        weights, all_states = self._resting["load"], self._resting["save"]
        if phase == "load" or not weights or not all_states:
            return self._lost
        return round(self._lost * max(all_states / weights, 1))

    def _at_rest(self, phase: str) -> int:
        """Bytes of the whole depth at the end of a phase that only places tensors, or makes none."""
        if not _begins(self.base, phase):
            return 0
        least, *deeper = (_asked_behind(each, phase) for each in self._runs)
        return least + sum(number * (each - least) for each, number in zip(deeper, self.more, strict=True))

    def value(self, moment: Moment) -> int:
        """Bytes that are allocated at a moment of the whole depth."""
        least = found = self._all[0][moment.at]
        for each, at, number in zip(self._all[1:], moment.deeper, self.more, strict=True):
            found += number * (each[at] - least)
        return found

    def values(self, moments: Sequence[Moment]) -> list[int]:
        """:meth:`value` of each of many."""
        least = self._all[0]
        found = [least[moment.at] for moment in moments]
        for at, (each, number) in enumerate(zip(self._all[1:], self.more, strict=True)):
            found = [
                value + number * (each[moment.deeper[at]] - least[moment.at])
                for value, moment in zip(found, moments, strict=True)
            ]
        return found

    def moments(self, added: Sequence[Mapping[Stack, int]]) -> dict[str, list[Moment]]:
        """What each phase passes, without what is surely no peak: an entry that another one follows at once.

        Args:
            added: the layer that each of ``deeper`` has more, in each stack.
        """
        pairs = [
            paired(self.base, each, partial(_like, added=layers))  # type: ignore[arg-type]
            for each, layers in zip(self.deeper, added, strict=True)
        ]
        log, found = self.base.log, dict[str, list[Moment]]()
        ends = [*(start for start, _ in self.base.starts[1:]), len(log)]
        for (start, phase), end in zip(self.base.starts, ends, strict=True):
            here = found.setdefault(phase, []) if phase else []
            for at in range(start, end):
                if log[at] >= 0 and (at + 1 == end or log[at + 1] < 0):
                    if len(pairs) == 1:
                        here += [Moment(at, (like,)) for like in pairs[0].get(at, ())]
                    else:
                        here += [Moment(at, likes) for likes in product(*(each.get(at, ()) for each in pairs))]
        return found

    def peaks(self, moments: Sequence[Moment]) -> dict[str, int]:
        """The most bytes of the moments of each name."""
        found: dict[str, int] = {}
        for moment, value in zip(moments, self.values(moments), strict=True):
            name = self.name(moment)
            found[name] = max(found.get(name, 0), value)
        return found

    def name(self, moment: Moment) -> str:
        """``forward``, ``backward``, …"""
        return self._labels[moment.at][0]

    def entries(self) -> list[int]:
        """How many entries each log has."""
        return [len(recording.log) for recording in self._runs]

    def resting(self, phase: str) -> int:
        """Bytes with which a phase begins, where none of the runs makes more in it; else 0."""
        if any(_passes(each, allocated, phase) for each, allocated in zip(self._runs, self._all, strict=True)):
            return 0
        least, *deeper = (
            allocated[at] if at >= 0 else 0 for at, allocated in zip(self._rests(phase), self._all, strict=True)
        )
        return least + sum(number * (each - least) for each, number in zip(deeper, self.more, strict=True))

    def _rests(self, phase: str) -> list[int]:
        """Of each run the entry behind which a phase begins, with most bytes where it is begun twice."""
        return [
            max((at - 1 for at in _begins(each, phase)), key=lambda at: allocated[at] if at >= 0 else 0)
            for each, allocated in zip(self._runs, self._all, strict=True)
        ]

    def found(self, best: Mapping[str, Moment | None]) -> dict[str, Found]:
        """Each phase's peak, which lies at a moment of ``best``, with its ledger, by terms, of the whole depth; without
        a moment as it begins."""
        ats = {
            phase: self._rests(phase) if moment is None else [moment.at, *moment.deeper]
            for phase, moment in best.items()
        }
        of_runs = [recording.sums({each[at] for each in ats.values()}) for at, recording in enumerate(self._runs)]
        found = {}
        for phase, moment in best.items():
            base, *deeper = (sums[at] for sums, at in zip(of_runs, ats[phase], strict=True))
            sums = {
                term: base.get(term, 0)
                + sum(
                    number * (each.get(term, 0) - base.get(term, 0))
                    for each, number in zip(deeper, self.more, strict=True)
                )
                for term in dict.fromkeys(name for each in (base, *deeper) for name in each)
            }
            allocated = self.resting(phase) if moment is None else self.value(moment)
            name = moment_of(self.base, phase, ats[phase][0])
            found[phase] = Found(allocated, allocated, _balanced(sums, allocated), name)
        return found


def roughly(run: Run) -> Followed:
    """The run's phases by extrapolation in depth; as much is reserved as is allocated.

    Raises:
        NotFollowedError: something that the engine does not follow.
    """
    found: dict[str, Found] = {}
    lost: dict[str, int] = {}
    processes, added = _processes(run)
    for process in processes:
        best: dict[str, Moment | None] = {}
        for phase, moments in process.moments(added).items():
            values = process.values(moments)
            highest = max(values, default=0)
            rests = not moments or highest < process.resting(phase)
            best[phase] = None if rests else moments[values.index(highest)]
        for phase, here in process.found(best).items():
            if phase not in found or here.allocated > found[phase].allocated:
                if phase == "generate":
                    here = here._replace(use=_use(run.setup, process.base))
                found[phase] = here
                lost[phase] = process.lost(phase)
    found = {name: _with_lost(each, lost[name]) for name, each in found.items()}
    return Followed({name: found[name] for name in PHASES if name in found})


def lines(run: Run) -> Mapping[PhaseName, tuple[Line, ...]]:
    """For each phase the lines of which the highest says what is allocated, by the batch of the phase.

    They go through two batches. Where more samples ask for more blocks, moments have no likes: then through the peaks
    of each part of a phase.

    Raises:
        NotFollowedError: something that the engine does not follow.
    """
    (fewer, added), (more, _) = (_processes(run_of(run, batch)) for batch in BATCHES)
    found: dict[str, list[Line]] = {}
    for one, other in zip(fewer, more, strict=True):
        alike = one.entries() == other.entries()
        passed = one.moments(added)
        likes = passed if alike else other.moments(added)  # entry by entry the logs are alike
        for phase, moments in passed.items():
            ends: dict[str, list[tuple[int, int]]] = {phase: [(one.resting(phase), other.resting(phase))]}
            if alike:
                for moment, *values in zip(moments, one.values(moments), other.values(moments), strict=True):
                    ends.setdefault(one.name(moment), []).append((values[0], values[1]))
            else:
                few, many = one.peaks(moments), other.peaks(likes[phase])
                for name in few.keys() & many.keys():
                    ends[name] = [(few[name], many[name])]
            lost = one.lost(phase)
            found.setdefault(phase, []).extend(
                Line.through((BATCHES[0], small + lost), (BATCHES[1], large + lost), name)
                for name in ends
                for small, large in _front(ends[name])
            )
    return {name: _highest_of_each(found[name]) for name in PHASES if name in found}


def _balanced(sums: Mapping[str, int], allocated: int) -> tuple[tuple[str, int], ...]:
    """Terms of so many bytes in all, largest first: what is left is of blocks' ends, and what is too much (a term that
    falls with the layers is none at all) is taken from the largest."""
    kept = {term: size for term, size in sums.items() if size > 0}
    left = allocated - sum(kept.values())
    if kept or left > 0:
        balance = REMAINDERS if left > 0 else max(kept, key=lambda term: kept[term])
        kept[balance] = kept.get(balance, 0) + left
    return tuple(sorted(((term, size) for term, size in kept.items() if size > 0), key=lambda item: -item[1]))


def _with_lost(found: Found, lost: int) -> Found:
    terms = dict(found.terms)
    terms[REMAINDERS] = terms.get(REMAINDERS, 0) + lost
    kept = tuple(sorted(((term, size) for term, size in terms.items() if size), key=lambda item: -item[1]))
    return found._replace(allocated=found.allocated + lost, reserved=found.reserved + lost, terms=kept)


def _front(ends: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pairs of bytes, of few samples and of many, of which no other has as much of few and grows faster."""
    front: list[tuple[int, int]] = []
    steepest = -1
    for few, many in sorted(ends, reverse=True):
        if many - few > steepest:
            front.append((few, many))
            steepest = many - few
    return front


def run_of(run: Run, batch: int) -> Run:
    """The run with this batch in every phase."""
    setup = run.setup._replace(per_device_train_batch_size=batch, per_device_eval_batch_size=batch)
    return run._replace(setup=setup._replace(inference_batch_size=batch))


def highest(found: Iterable[Line]) -> tuple[Line, ...]:
    """Of lines those that are the highest for some batch, by their slope."""
    kept: list[Line] = []
    for line in sorted(set(found), key=lambda line: (line.each, line.bytes)):
        while kept and (kept[-1].each == line.each or kept[-1].bytes + kept[-1].each <= line.bytes + line.each):
            kept.pop()  # lower at a batch of one already, and growing no faster
        while len(kept) > 1 and _meet(kept[-2], line) <= _meet(kept[-2], kept[-1]):
            kept.pop()
        kept.append(line)
    return tuple(kept)


def _meet(one: Line, other: Line) -> float:
    return (one.bytes - other.bytes) / (other.each - one.each)


def _highest_of_each(found: list[Line]) -> tuple[Line, ...]:
    """The highest lines of each moment by name: how much more than these bytes is reserved depends on it."""
    names = dict.fromkeys(line.moment for line in found)
    return tuple(line for name in names for line in highest(line for line in found if line.moment == name))


def _use(setup: TrainingSetup, base: Recording) -> Use:
    if setup.post is not None:
        return "training"
    return "evaluation" if _begins(base, "evaluate") else "inference"


def _processes(run: Run) -> tuple[list[Process], list[dict[Stack, int]]]:
    """The run's processes, and the layer that each deeper run of one has more, in each stack."""
    kinds = kinds_of(run.architecture)
    least = _least(run, kinds)
    layers = {kind: min(least, number) for kind, number in kinds.items()}
    wanted = [kind for kind, number in kinds.items() if number > least]
    depths = [layers, *(layers | {kind: least + 1} for kind in wanted)]
    more = [kinds[kind] - least for kind in wanted]
    if len(wanted) > 1 and len(set(more)) == 1:  # as many more of each: all at once
        depths, more = [layers, layers | dict.fromkeys(wanted, least + 1)], more[:1]
    added = [_added(layers, depth) for depth in depths[1:]]
    base, *deeper = (_recorded(run, depth, paired=bool(wanted)) for depth in depths)
    return [Process(each, others, more) for each, *others in zip(base, *deeper, strict=True)], added


def _least(run: Run, kinds: Mapping[Kind, int]) -> int:
    """How many layers of each kind the shallow model has."""
    if run.setup.zero_stage == 3:  # what is used again within so many elements is kept whole: all of a shallow model
        return max(kinds.values(), default=LEAST)
    # T5's biases go back with the second layer, which is neither the last one nor the one that a deeper run has more
    shared = run.setup.gradient_checkpointing and run.architecture.relative_buckets > 0
    return LEAST + shared


def _recorded(run: Run, layers: Mapping[Kind, int], *, paired: bool) -> list[Recording]:
    """The run of a model of so many layers; ``paired`` with another, whose layers are looked at one by one."""
    shallow = _of(run.architecture, layers)
    kind = partial(PlacedUnsummed, shallow) if paired else Unsummed
    return record_runs(run.setup, shallow, run.capability, kind=kind)


def _added(layers: Mapping[Kind, int], deeper: Mapping[Kind, int]) -> dict[Stack, int]:
    """The layer of each stack that a deeper model has more: the last but one of its kind."""
    found: dict[Stack, int] = {}
    for stack in STACKS:
        number = 0
        for kind, here in layers.items():
            if kind[0] == stack:
                number += here
                if deeper[kind] > here:
                    found[stack] = number - 1
    return found


def _like(place: Place, added: Mapping[Stack, int]) -> Place | None:
    """The shallow model's layer that a deeper one's is like; None of the one that was added."""
    stack, number = place
    here = added.get(stack)
    if here is None or number < here:
        return place
    return None if number == here else (stack, number - 1)


def kinds_of(architecture: Architecture) -> dict[Kind, int]:
    """How many layers of each kind the model has, in the order in which the first of each comes."""
    found: dict[Kind, int] = {}
    for stack, fields in OF_LAYERS.items():
        layers = getattr(architecture, f"{stack}_layers")
        rows = [getattr(architecture, field) or (None,) * layers for field in fields]
        sliding = architecture.windowed_layers
        if not architecture.slides and 0 < sliding < layers:  # known by their number alone (ModernBERT)
            rows.append((False,) * (layers - sliding) + (True,) * sliding)
        for key in zip(*rows, strict=True):
            kind: Kind = (stack, key)
            found[kind] = found.get(kind, 0) + 1
    return found


def _of(architecture: Architecture, layers: Mapping[Kind, int]) -> Architecture:
    """The architecture with so many layers of each kind, those of a kind together."""
    changed: dict[str, object] = {}
    for stack, fields in OF_LAYERS.items():
        keys = [key for (of, key), number in layers.items() if of == stack for _ in range(number)]
        if not keys:
            continue
        changed[f"{stack}_layers"] = len(keys)
        for at, field in enumerate(fields):
            if getattr(architecture, field):
                changed[field] = tuple(key[at] for key in keys)
        if architecture.windowed_layers:
            slides = [key[len(fields)] if len(key) > len(fields) else key[0] for key in keys]
            changed["windowed_layers"] = len(keys) if None in slides else sum(map(bool, slides))
        if architecture.dense:
            changed["dense_layers"] = sum(map(bool, changed["dense"]))  # type: ignore[call-overload]
    return architecture._replace(**changed)  # type: ignore[arg-type]


def _begins(recording: Recording, phase: str) -> list[int]:
    """The entries with which a phase begins."""
    return [at for at, name in recording.starts if name == phase]


def _before(allocated: Sequence[int], at: int) -> int:
    return allocated[at - 1] if at else 0


def _passes(recording: Recording, allocated: Sequence[int], phase: str) -> bool:
    """Whether a phase ever takes more than what it begins with."""
    ends = [at for at, _ in recording.starts[1:]]
    for (start, name), end in zip(recording.starts, [*ends, len(allocated)], strict=True):
        if name == phase and max(allocated[start:end], default=0) > _before(allocated, start):
            return True
    return False


def _loaded(recording: Recording) -> list[int]:
    """Bytes asked for by what stays of loading, in its order."""
    end = next((at for at, phase in recording.starts if phase != "load"), len(recording.log))
    return [recording.log[number] for number in recording.alive([end - 1])[end - 1]]


def _asked_behind(recording: Recording, phase: str) -> int:
    """Bytes that were asked for by what is alive as a phase ends that only places tensors, and the next one begins."""
    begun = [at for at, _ in recording.starts]
    at = max(number for number, (_, name) in enumerate(recording.starts) if name == phase)
    log = recording.log
    passed = log[: begun[at + 1]] if at + 1 < len(begun) else log
    return sum([entry if entry >= 0 else -log[~entry] for entry in passed])


def kept_of_segments(loaded: Sequence[list[int]], more: Sequence[int]) -> int:
    """Bytes that blocks of freshly loaded weights keep of their segments: of all layers, placed one after the other.

    Args:
        loaded: what the shallow model's weights ask for, and those of each deeper one.
        more: by how many layers the model is deeper than the shallow one, for each.
    """
    base, *deeper = loaded
    put: dict[int, list[int]] = {}
    for each, number in zip(deeper, more, strict=True):
        for at, block in inserted(base, each):
            put.setdefault(at, []).extend(block * min(number, MOST_PLACED))
    sizes = [size for at in range(len(base) + 1) for size in (*put.get(at, ()), *base[at : at + 1])]
    pool = CachingAllocator()
    pool.serve(sizes, [None] * len(sizes), 0, len(sizes))
    return max(pool.allocated - (summed(sizes) or [0])[-1], 0)
