"""A recording that knows which layer asked for each block, in forward and in backward."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from kb.memory.engine.world import Recording, world

Stack = Literal["encoder", "decoder"]
Place = tuple[Stack, int]  # a layer of a stack
TOWERS = ("vision", "visual")  # whose layers are not the model's own


class PlacedRecording(Recording):
    """``places`` holds the layer of each entry that one asked for: in forward the layer that runs, in backward the one
    whose step of the tape runs back.
    """

    watches = knows_layers = True

    def __init__(self, depth: Mapping[Stack, int]) -> None:
        super().__init__()
        self.depth = depth  # layers of each stack
        self.places: dict[int, Place] = {}
        self.first = range(0)  # entries of what was asked for again: with what stays of it, that takes no less
        self._inside: Place | None = None
        self._passed: dict[Stack, int] = {}
        self._since: list[int] = []  # steps of the tape before which a layer begins or ends
        self._places: list[Place | None] = []  # and the place from there on

    def watch(self, number: int) -> None:
        place = self._inside if world.thread == "main" else self._of_step(world.back)
        if place is not None:
            self.places[number] = place

    @contextmanager
    def inside(self, path: str) -> Iterator[None]:
        """What is asked for here is of the layer at ``path``. Layers are counted as they run: some share their path."""
        outer, self._inside = self._inside, self._next(path)
        self._begin(self._inside)
        try:
            yield
        finally:
            self._inside = outer
            self._begin(outer)

    def repeat(self, since: tuple[int, int, int]) -> dict[int, int]:
        before = len(self.log)
        made = super().repeat(since)
        self.first = range(since[0], before)
        self.places |= {like: self.places[number] for number, like in made.items() if number in self.places}
        return made

    def _next(self, path: str) -> Place | None:
        if any(name in path for name in TOWERS):
            return None
        stack: Stack = "encoder" if ".encoder." in f".{path}" or not self.depth["decoder"] else "decoder"
        if not self.depth[stack]:
            stack = "decoder"
        number = self._passed.get(stack, 0)
        self._passed[stack] = number + 1
        return stack, number % max(self.depth[stack], 1)

    def _begin(self, place: Place | None) -> None:
        if self._since and self._since[-1] == world.sequence:
            self._places[-1] = place
        else:
            self._since.append(world.sequence)
            self._places.append(place)

    def _of_step(self, step: int) -> Place | None:
        """Of a step of the tape; those that a checkpointed layer makes again come after all of forward."""
        at = bisect_left(self._since, step) - 1
        return self._places[at] if at >= 0 else None
