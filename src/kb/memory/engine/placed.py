"""A recording that knows whose turn it is: which layer asks for a block, and gives one back."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Literal

from kb.core.model import Architecture
from kb.memory.engine.world import NO_ENDS, Recording, world

Stack = Literal["encoder", "decoder"]
Place = tuple[Stack, int]  # a layer of a stack
STACKS: tuple[Stack, ...] = ("encoder", "decoder")
OF_LAYERS: Mapping[Stack, tuple[str, ...]] = {  # fields of an architecture that say something of each layer
    "encoder": ("windows",),
    "decoder": ("slides", "turns", "dense"),
}
TOWERS = ("vision", "visual")  # whose layers are not the model's own


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
        at = -1 if step is None else bisect_left(self._since, step) - 1
        place = self._places[at] if at >= 0 else None
        if self._turns[-1][1] != place:
            self._turns.append((len(self.log), place))

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
