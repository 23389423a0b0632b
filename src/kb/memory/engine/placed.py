"""A recording that knows whose turn it is: which layer asks for a block, and gives one back; and of two runs of one
model, of which one has a layer more, which of their allocations are each other's like.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Literal

from kb.core.model import Architecture
from kb.memory.engine.world import NO_ENDS, Label, Recording, world

Stack = Literal["encoder", "decoder"]
Place = tuple[Stack, int]  # a layer of a stack
STACKS: tuple[Stack, ...] = ("encoder", "decoder")
OF_LAYERS: Mapping[Stack, tuple[str, ...]] = {  # fields of an architecture that say something of each layer
    "encoder": ("windows",),
    "decoder": ("slides", "turns", "dense", "mixes", "reuses"),
}
TOWERS = ("vision", "visual")  # whose layers are not the model's own
Asked = tuple[int, Label, Place | None]  # a size, the moment with the term, and the layer
AGREEING = 4  # requests in a row that must be alike where two logs come together again


class PlacedRecording(Recording):
    """In forward it is the turn of the layer that runs, in backward of the one whose step of the tape runs back, and in
    a loop over parameters of the one whose parameter has its turn.

    ``first`` are the entries of what was asked for again: with what stays of it, that takes no less.
    """

    knows_layers = True

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.depth: Mapping[Stack, int] = {stack: getattr(architecture, f"{stack}_layers") for stack in STACKS}
        self.first = range(0)
        self._turns: list[tuple[int, Place | None]] = [(0, None)]  # from which entry on
        self._inside: Place | None = None
        self._passed: dict[Stack, int] = {}
        self._of_paths: dict[str, Place | None] = {}  # the layers of parameters
        self._since: list[int] = []  # steps of the tape before which a layer begins or ends
        self._places: list[Place | None] = []  # and the place from there on

    @contextmanager
    def inside(self, path: str) -> Iterator[None]:
        """It is the turn of the layer at ``path``. Layers are counted as they run: some share their path."""
        outer, self._inside = self._inside, self._next(path)
        self._begin(self._inside)
        try:
            yield
        finally:
            self._inside = outer
            self._begin(outer)

    def runs_back(self, step: int | None) -> None:
        """Steps that a checkpointed layer makes again come after all of forward."""
        self._turn(self._place_of(step))

    def runs_again(self, step: int) -> None:
        """The steps made from here on are those of the layer that made ``step`` (reentrant checkpointing)."""
        self._since.append(world.sequence)
        self._places.append(self._place_of(step))

    def _place_of(self, step: int | None) -> Place | None:
        at = -1 if step is None else bisect_left(self._since, step) - 1
        return self._places[at] if at >= 0 else None

    def about(self, path: str) -> None:
        self._turn(self.layer_of(path))

    def here(self) -> tuple[int, ...]:
        return *super().here(), len(self._turns)

    def repeat(self, since: tuple[int, ...], ends: Mapping[int, tuple[int, ...]] = NO_ENDS) -> list[int]:
        start, end = since[0], len(self.log)
        turns = self.turns_of_entries()
        ended = {~number: self._turns[here[3] - 1][1] for number, here in ends.items()}
        spans = self.spans()
        order = super().repeat(since, ends)
        more = [turns[number] if number >= 0 else ended[number] for number in order]
        spans += [(end + at, turn) for at, turn in enumerate(more) if not at or more[at - 1] != turn]
        self._turns = spans or [(0, None)]
        self._turn(None)
        if not ends:
            self.first = range(start, end)
        return order

    def spans(self) -> list[tuple[int, Place | None]]:
        """From which entry on it is whose turn; None: nobody's."""
        found: list[tuple[int, Place | None]] = []
        ends = [at for at, _ in self._turns[1:]]
        for (at, place), end in zip(self._turns, [*ends, len(self.log)], strict=True):
            if end > at and not (found and found[-1][1] == place):
                found.append((at, place))
        return found

    def turns_of_entries(self) -> list[Place | None]:
        """Whose turn it is at each entry."""
        found: list[Place | None] = []
        for (at, place), (end, _) in pairwise([*self.spans(), (len(self.log), None)]):
            found += [place] * (end - at)
        return found

    @property
    def cuts(self) -> set[int]:
        """The entries before which a turn begins, or something happens."""
        return {at for at, _ in self._turns} | {at for at, _, _ in self.acts}

    def layer_of(self, path: str) -> Place | None:
        """The layer of a parameter by its path; None where it is no layer's."""
        if path not in self._of_paths:
            stack = self._stack_of(path)
            number = next((int(part) for part in path.split(".") if part.isdigit()), None)
            known = stack is not None and number is not None and number < self.depth[stack]
            self._of_paths[path] = (stack, number) if known else None  # type: ignore[assignment]
        return self._of_paths[path]

    def _turn(self, place: Place | None) -> None:
        if self._turns[-1][1] != place:
            self._turns.append((len(self.log), place))

    def _begin(self, place: Place | None) -> None:
        if world.thread == "main":
            self._turn(place)
        if self._since and self._since[-1] == world.sequence:
            self._places[-1] = place
        else:
            self._since.append(world.sequence)
            self._places.append(place)

    def _next(self, path: str) -> Place | None:
        stack = self._stack_of(path)
        if stack is None:
            return None
        number = self._passed.get(stack, 0)
        self._passed[stack] = number + 1
        return stack, number % max(self.depth[stack], 1)

    def _stack_of(self, path: str) -> Stack | None:
        if any(name in path for name in TOWERS):
            return None
        stack: Stack = "encoder" if ".encoder." in f".{path}" or not self.depth["decoder"] else "decoder"
        return stack if self.depth[stack] else "decoder"


def paired(
    shallow: PlacedRecording, deep: PlacedRecording, like: Callable[[Place], Place | None]
) -> dict[int, list[int]]:
    """Each allocation of a log → its likes in that of a deeper run.

    What the added layer asks for is left out, and what is asked for again is looked at once. What no layer asks for
    (weights that are loaded, a step over all parameters) is found by what comes before and behind, and has two likes
    where it could be either layer's.

    Args:
        like: the shallow run's layer that a layer of the deeper run is like; None of the added one.
    """
    one, ones = _asked(shallow, None)
    other, others = _asked(deep, like)
    found: dict[int, list[int]] = {at: [] for at in one}
    here = there = 0
    end, last = len(ones), len(others)
    while here < end and there < last:
        if ones[here] == others[there]:
            found[one[here]].append(other[there])
            here += 1
            there += 1
            continue
        more = _more(ones, others, here, there)
        if more is None:
            here += 1  # asked for in the shallow run alone: sizes that depend on all layers
            continue
        for back in range(1, min(more, here) + 1):
            if ones[here - back] == others[there + more - back] and ones[here - back][2] is None:
                found[one[here - back]].append(other[there + more - back])
        there += more
    return found


def inserted(shallow: Sequence[int], deep: Sequence[int]) -> list[tuple[int, list[int]]]:
    """What a deeper run has more in a list of sizes: before which number of the shallow one's, and the sizes."""
    found = []
    here = there = 0
    while here < len(shallow) and there < len(deep):
        if shallow[here] != deep[there]:
            more = _more(shallow, deep, here, there)
            if more is not None:
                found.append((here, list(deep[there : there + more])))
                there += more
        here, there = here + 1, there + 1
    if there < len(deep):
        found.append((len(shallow), list(deep[there:])))
    return found


def _asked(recording: PlacedRecording, like: Callable[[Place], Place | None] | None) -> tuple[list[int], list[Asked]]:
    """The entries that ask for a block, and what tells one from another."""
    log, labels, first = recording.log, recording.labels(), recording.first
    known: dict[Place | None, Place | None] = {None: None}
    ats: list[int] = []
    kinds: list[Asked] = []
    for (start, place), (end, _) in pairwise([*recording.spans(), (len(log), None)]):
        if place not in known:
            known[place] = like(place) if like is not None and place is not None else place
        if place is not None and known[place] is None:  # the added layer's
            continue
        passed: Sequence[int] = range(start, end)
        if start < first.stop and end > first.start:  # what is asked for again is looked at once
            passed = (*range(start, min(end, first.start)), *range(max(start, first.stop), end))
        here = [at for at in passed if log[at] >= 0]
        ats += here
        kinds += [(log[at], labels[at], known[place]) for at in here]
    return ats, kinds


def _more(ones: Sequence[object], others: Sequence[object], here: int, there: int) -> int | None:
    """How many requests the deeper run has more from here on before it goes on like the shallower one."""
    least = min(AGREEING, len(ones) - here)
    ahead = ones[here : here + least]
    for at in range(there + 1, len(others) - least + 1):
        if others[at] == ahead[0] and others[at : at + least] == ahead:
            return at - there
    return None
