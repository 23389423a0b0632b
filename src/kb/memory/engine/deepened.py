"""The recording of a deep model, on one GPU or sharded by FSDP, written from those of two shallow ones, entry by entry.

Layers between the first and the last ask for the same in the same order; only which entries they give back moves with
them. So a model of four units of layers shows what one unit more adds wherever a run passes its layers, and the log of
any depth can be written: what comes before, the unit between as often as there are such, what comes behind. A model of
three units proves it: the log that is written of it has to be its own, entry by entry, but for sizes that grow with the
depth (a tensor of a number for each parameter), which lie on a line. Where that does not hold the whole model is
followed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise, repeat
from operator import add
from typing import Any

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.engine.options import unshared
from kb.memory.engine.placed import OF_LAYERS, STACKS, Place, PlacedRecording, Stack
from kb.memory.engine.predict import is_deep
from kb.memory.engine.world import Act, Label, Recording

FEWER, MORE = 3, 4  # units of the shallow models: a first, a last, and one or two between them
LONGEST_UNIT = 8  # layers: those of a pattern, as five that slide and one that does not
LONGEST_LEAD = 4  # layers before the pattern begins
PAYS = 0.45  # the share of a model's layers that the two shallow ones may have: writing takes time, too

Record = Callable[[Architecture, Callable[[], Recording]], list[Recording]]


class NotAlikeError(Exception):
    """The layers between do not all do the same."""


class Units(NamedTuple):
    """A stack's layers taken together: ``first`` in the first unit, ``each`` in those between, the rest in the last."""

    first: int
    each: int
    layers: int
    number: int

    def kept(self, number: int) -> list[int]:
        """The layers that a model of so many units keeps."""
        last = self.first + self.each * (self.number - 2)
        return [*range(self.first + self.each * (number - 2)), *range(last, self.layers)]

    def of(self, layer: int, number: int) -> int:
        """The unit of a layer in a model of so many units."""
        return 0 if layer < self.first else min((layer - self.first) // self.each + 1, number - 1)


Acts = list[tuple[int, str, Any]]  # as of a recording, by the place in a unit


class Return(NamedTuple):
    """What every unit gives back at place ``at`` of a pass: entry ``number`` of pass ``of``, its own or that of the
    unit ``shift`` further. Where that is the first or the last unit, which has entries of its own, it is ``end``, in
    the log of four units."""

    at: int
    of: int
    number: int
    shift: int = 0
    end: int = 0


class Pass(NamedTuple):
    """Where a log passes the units between the first and the last: so many entries each, from ``start`` on; ``up``:
    from the first to the last."""

    stack: Stack
    start: int
    length: int
    up: bool

    def begin(self, unit: int, number: int, start: int) -> int:
        """Where a unit's entries begin, where there are ``number`` between the ends, from ``start`` on."""
        return start + self.length * (unit - 1 if self.up else number - unit)


class WrittenRecording(Recording):
    """One that is written whole, entry by entry."""

    def __init__(self, log: list[int], labels: list[Label], terms: dict[int, str]) -> None:
        super().__init__()
        self.log, self.terms, self._of_entries = log, terms, labels

    def labels(self) -> list[Label]:
        return self._of_entries

    def label(self, number: int) -> Label:
        return self._of_entries[number]


def recorded_deep(setup: TrainingSetup, architecture: Architecture, record: Record) -> list[Recording] | None:
    """What ``record`` gives of the architecture, as it gives it of two shallow ones. What is given back at once may
    come in another order, which makes no difference to an allocator.

    Returns:
        None where that is no shorter, or the layers are not alike.
    """
    if not _spread_by_layers(setup) or architecture.vision is not None or is_deep(architecture):  # which is refused
        return None
    ends = 2 if setup.fsdp else 1  # while a layer runs the next one is gathered already
    units = {stack: found for stack in STACKS if (found := units_of(architecture, stack, ends)) is not None}
    shallow = [_of(architecture, units, number) for number in (MORE, FEWER)]
    if sum(map(_depth, shallow)) > PAYS * _depth(architecture):
        return None
    more, fewer = (record(each, partial(PlacedRecording, each)) for each in shallow)
    try:
        return [deepened(one, other, units) for one, other in zip(more, fewer, strict=True)]  # type: ignore[arg-type]
    except NotAlikeError:
        return None


def _spread_by_layers(setup: TrainingSetup) -> bool:
    """Whether what spreads the run, if anything, does the same for each layer: DDP's buckets do not end with layers,
    ZeRO looks as many elements ahead, and what is offloaded is stepped all at once."""
    if setup.zero_stage or unshared(setup):
        return False
    if setup.fsdp:
        return setup.spread.fsdp_wrapped and not (setup.offload_param or setup.offload_optimizer)
    return setup.world_size == 1


def units_of(architecture: Architecture, stack: Stack, ends: int = 1) -> Units | None:
    """The units of a stack's layers; None where it has too few of them, or none that are alike.

    Args:
        ends: of so many layers, or patterns of them, are the first unit and the last, which do not do the same.
    """
    layers = getattr(architecture, f"{stack}_layers")
    if stack == "encoder" and 0 < architecture.windowed_layers < layers:  # ModernBERT's pattern is that of its depth
        return None
    rows = [getattr(architecture, field) or (None,) * layers for field in OF_LAYERS[stack]]
    kinds = list(zip(*rows, strict=True))
    for each in range(1, LONGEST_UNIT + 1):
        for lead in range(LONGEST_LEAD + 1):
            number = (layers - lead) // each
            alike = kinds[lead : lead + number * each]
            fewer = number - 2 * (ends - 1)
            if fewer > MORE and alike[each:] == alike[:-each]:
                return Units(lead + each * ends, each, layers, fewer)
    return None


def _of(architecture: Architecture, units: Mapping[Stack, Units], number: int) -> Architecture:
    """The architecture with so many units of each stack."""
    changed: dict[str, Any] = {}
    for stack, each in units.items():
        kept = each.kept(number)
        changed[f"{stack}_layers"] = len(kept)
        for field in OF_LAYERS[stack]:
            of_layers = getattr(architecture, field)
            if of_layers:
                changed[field] = tuple(of_layers[at] for at in kept)
    if "dense" in changed:
        changed["dense_layers"] = sum(changed["dense"])
    if "slides" in changed:
        changed["windowed_layers"] = sum(changed["slides"])
    elif architecture.windowed_layers and changed:
        changed["windowed_layers"] = changed.get("decoder_layers") or changed["encoder_layers"]
    return architecture._replace(**changed)


def _depth(architecture: Architecture) -> int:
    return architecture.encoder_layers + architecture.decoder_layers


def deepened(more: PlacedRecording, fewer: PlacedRecording, units: Mapping[Stack, Units]) -> Recording:
    """The recording of the whole model from those of models of four and of three units.

    Raises:
        NotAlikeError: it cannot be told.
    """
    for recording in (more, fewer):
        _settle(recording)
    template = Template(more, units)
    proof = template.written(dict.fromkeys(units, FEWER), {})
    if proof.acts != fewer.acts or proof.labels() != fewer.labels() or proof.terms != fewer.terms:
        raise NotAlikeError
    slopes: dict[int, int] = {}
    if proof.log != fewer.log:
        likes = template.likes(dict.fromkeys(units, FEWER))
        for at, asked, less in zip(likes, proof.log, fewer.log, strict=True):
            if asked == less:
                continue
            if min(asked, less) < 0 or template.is_between(at):
                raise NotAlikeError
            slopes[at] = asked - less
    numbers = {stack: each.number for stack, each in units.items()}
    if slopes and len(set(numbers.values())) > 1:
        raise NotAlikeError  # it cannot be told which stack's depth they grow with
    return template.written(numbers, slopes)


def _settle(recording: PlacedRecording) -> None:
    """Bring what is given back at once, in one turn, in the order in which it was asked for. Python lets go of a long
    chain in an order that depends on its length."""
    log, cuts, start = recording.log, recording.cuts, 0
    for at, entry in enumerate(log):
        if entry >= 0 or at in cuts:
            if at - start > 1:
                log[start:at] = sorted(log[start:at], reverse=True)
            start = at if entry < 0 else at + 1
    log[start:] = sorted(log[start:], reverse=True)


def _turns(recording: PlacedRecording) -> list[tuple[int, Place | None]]:
    """From which entry on it is the turn of which layer. What lies in nobody's turn is of the parameter that it is, and
    what is given back there of whom it was asked by; but not between the turns of two layers that follow one another.
    """
    places = recording.turns_of_entries()
    found: list[tuple[int, Place | None]] = []
    last: Place | None = None
    began = recording.spans()
    for (start, place), (end, follower) in pairwise([*began, (len(recording.log), ("decoder", -9))]):
        found.append((start, place))
        if place is not None:
            last = place
        elif follower is None or last is None or last[0] != follower[0] or abs(last[1] - follower[1]) != 1:
            for number in range(start, end):
                entry = recording.log[number]
                if entry < 0:
                    places[number] = places[~entry]
                elif number in recording.paths:
                    places[number] = recording.layer_of(recording.paths[number])
                if places[number] != found[-1][1]:
                    found.append((number, places[number]))
    return found


def _passes(recording: PlacedRecording, units: Mapping[Stack, Units]) -> list[Pass]:
    """The passes over the two units between the first and the last of four. What is in nobody's turn belongs to the
    turn before it."""
    turns: list[tuple[int, Place]] = []
    for at, place in _turns(recording):
        if place is not None and place[0] in units:
            unit = place[0], units[place[0]].of(place[1], MORE)
            if not turns or turns[-1][1] != unit:
                turns.append((at, unit))
    found = []
    for (start, here), (end, follower) in pairwise(turns):
        if follower[0] == here[0] and {here[1], follower[1]} == {1, 2}:
            found.append(Pass(here[0], start, end - start, here[1] == 1))
    return found


class Template:
    """What a recording of four units says of those of any number.

    Raises:
        NotAlikeError: its second and third unit do not do the same.
    """

    def __init__(self, recording: PlacedRecording, units: Mapping[Stack, Units]) -> None:
        self._recording, self._labels = recording, recording.labels()
        self._passes = _passes(recording, units)
        self._between: dict[int, tuple[int, int, int]] = {}  # an entry → its pass, its unit and its number there
        end = 0
        for at, each in enumerate(self._passes):
            if each.start < end or each.start + 2 * each.length > len(recording.log):
                raise NotAlikeError
            end = each.start + 2 * each.length
            for unit in (1, 2):
                begin, length = each.begin(unit, 2, each.start), each.length
                inside = zip(repeat(at, length), repeat(unit, length), range(length), strict=True)
                self._between.update(zip(range(begin, begin + length), inside, strict=True))
        self._asked: list[list[int]] = []  # of each pass what every unit asks for; what it gives back is not yet known
        self._returns: list[list[Return]] = []
        for each in self._passes:
            self._compare(each)
        self._acts = [self._acts_in(each) for each in self._passes]

    def _acts_in(self, each: Pass) -> tuple[Acts, Acts]:
        """What happens in every unit of a pass (which stream asks), and between one and the next."""
        inside: list[Acts] = [[], []]
        between: Acts = []
        for before, kind, which in self._recording.acts:
            unit, at = divmod(before - each.start, each.length)
            if unit in (0, 1) and at:
                inside[unit].append((at, kind, which))
            elif unit == 1:
                between.append((0, kind, which))
        if inside[0] != inside[1]:
            raise NotAlikeError
        return inside[0], between

    def is_between(self, entry: int) -> bool:
        """Whether an entry is asked for by every unit between the first and the last."""
        return entry in self._between

    def _compare(self, each: Pass) -> None:
        """What the second unit does in a pass, where the third does the same."""
        log, labels, terms = self._recording.log, self._labels, self._recording.terms
        one, other = (
            range(begin, begin + each.length) for begin in (each.begin(unit, 2, each.start) for unit in (1, 2))
        )
        ones, others = log[one.start : one.stop], log[other.start : other.stop]
        if labels[one.start : one.stop] != labels[other.start : other.stop]:
            raise NotAlikeError
        if list(map(terms.get, one)) != list(map(terms.get, other)):
            raise NotAlikeError
        returns = []
        for at, (first, second) in enumerate(zip(ones, others, strict=True)):
            if first < 0 and second < 0:
                returns.append(self._given_back(at, ~first, ~second))
            elif first != second:
                raise NotAlikeError
        self._asked.append(ones)
        self._returns.append(returns)

    def _given_back(self, at: int, first: int, second: int) -> Return:
        """What two units that follow one another give back at the same place."""
        mine, others = self._between.get(first), self._between.get(second)
        if mine is not None and others is not None:  # each its own
            if (mine[0], 1, mine[2]) == mine and (mine[0], 2, mine[2]) == others:
                return Return(at, mine[0], mine[2], 0, 0)
        elif others is not None and others[1] == 1:  # what the unit before has
            return Return(at, others[0], others[2], -1, first)
        elif mine is not None and mine[1] == 2:  # what the unit behind has
            return Return(at, mine[0], mine[2], 1, second)
        raise NotAlikeError

    def written(self, units: Mapping[Stack, int], slopes: Mapping[int, int]) -> WrittenRecording:
        """The recording of so many units.

        Args:
            slopes: of entries, how many bytes more each further unit asks for.
        """
        numbers = [units[each.stack] - 2 for each in self._passes]
        starts, places = self._put(numbers)
        log: list[int] = []
        labels: list[Label] = []
        done, asked = 0, self._recording.log
        for at, (each, number) in enumerate(zip(self._passes, numbers, strict=True)):
            log += [entry if entry >= 0 else ~places[~entry] for entry in asked[done : each.start]]
            log += self._of_units(at, numbers, starts, places)
            one, length = each.begin(1, 2, each.start), each.length
            labels += self._labels[done : each.start] + self._labels[one : one + length] * number
            done = each.start + 2 * length
        log += [entry if entry >= 0 else ~places[~entry] for entry in asked[done:]]
        labels += self._labels[done:]
        for entry, more in slopes.items():
            log[places[entry]] += more * (next(iter(units.values())) - MORE)
        found = WrittenRecording(log, labels, self._terms(numbers, places))
        found.acts = self._happening(numbers, starts, [*places, len(log)])
        return found

    def likes(self, units: Mapping[Stack, int]) -> list[int]:
        """For each entry of the recording of so many units its like in that of four."""
        found: list[int] = []
        done = 0
        for each in self._passes:
            one, length = each.begin(1, 2, each.start), each.length
            found += [*range(done, each.start), *[*range(one, one + length)] * (units[each.stack] - 2)]
            done = each.start + 2 * length
        return [*found, *range(done, len(self._recording.log))]

    def _put(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Where the units of each pass begin, and where each entry of the four units goes: the second unit's are the
        first's between, the third's the last's."""
        starts: list[int] = []
        places: list[int] = []
        done = at = 0
        for each, number in zip(self._passes, numbers, strict=True):
            places += range(at, at + each.start - done)
            at += each.start - done
            starts.append(at)
            first, last = (
                range(begin, begin + each.length) for begin in (each.begin(unit, number, at) for unit in (1, number))
            )
            places += chain(first, last) if each.up else chain(last, first)
            at += number * each.length
            done = each.start + 2 * each.length
        places += range(at, at + len(self._recording.log) - done)
        return starts, places

    def _of_units(self, at: int, numbers: Sequence[int], starts: Sequence[int], places: Sequence[int]) -> list[int]:
        """The entries of all units in one pass."""
        first = self._asked[at][:]
        steps = [0] * len(first)  # by how much each entry grows from unit to unit
        for row in self._returns[at]:
            target = self._passes[row.of]
            first[row.at] = ~(target.begin(1 + row.shift, numbers[row.of], starts[row.of]) + row.number)
            steps[row.at] = -target.length if target.up else target.length
        units = [first]
        for _ in range(numbers[at] - 1):
            units.append(list(map(add, units[-1], steps)))
        for shift, end in ((-1, 0), (1, numbers[at] - 1)):
            units[end] = units[end][:]
            for row in self._returns[at]:
                if row.shift == shift:
                    units[end][row.at] = ~places[row.end]
        return list(chain.from_iterable(units if self._passes[at].up else reversed(units)))

    def _terms(self, numbers: Sequence[int], places: Sequence[int]) -> dict[int, str]:
        terms: dict[int, str] = {}
        for entry, term in self._recording.terms.items():
            at, unit, _ = self._between.get(entry, (0, 0, 0))
            if not unit:
                terms[places[entry]] = term
            elif unit == 1:
                each = self._passes[at]
                step = each.length if each.up else -each.length
                begin = places[entry]
                terms |= dict.fromkeys(range(begin, begin + step * numbers[at], step), term)
        return terms

    def _happening(self, numbers: Sequence[int], starts: Sequence[int], places: Sequence[int]) -> list[Act]:
        """What happens between the entries of so many units."""
        acts, done = self._recording.acts, 0
        found: list[Act] = []
        for each, number, start, (inside, between) in zip(self._passes, numbers, starts, self._acts, strict=True):
            while done < len(acts) and acts[done][0] <= each.start:
                before, kind, which = acts[done]
                found.append((start if before == each.start else places[before], kind, which))
                done += 1
            for unit in range(number):
                here = inside if not unit else between + inside
                found += [(start + unit * each.length + at, kind, which) for at, kind, which in here]
            while done < len(acts) and acts[done][0] < each.start + 2 * each.length:
                done += 1
        return found + [(places[before], kind, which) for before, kind, which in acts[done:]]
