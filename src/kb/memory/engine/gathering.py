"""Which parameters ZeRO-3 has whole at what time: fetched for a module, ahead of it, and let go behind it.

Source: DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py (``fetch_sub_module``, ``release_sub_module``,
``__params_to_release``, ``reset_step``) and partition_parameters.py (``AllGatherCoalescedHandle.wait``). The first pass
records the order of modules; from the second on parameters are fetched ahead by it.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any

from kb.core.setup import TrainingSetup
from kb.memory.engine.fsdp import asking, fill
from kb.memory.engine.tensor import I8, WIDTH, Storage, Tensor, new
from kb.memory.engine.world import world

PREFETCH = 50_000_000  # DeepSpeed's defaults, in elements
MAX_LIVE = 1_000_000_000
MAX_REUSE = 1_000_000_000
PERSISTENT = 100_000
SUB_GROUP = 1_000_000_000  # of one process
GATHER = 1  # the stream that parameters are gathered in, where that overlaps


class Module:
    """A module of the model; only its ``parameters`` matter, and when it runs.

    ``named``: it gets its input by name, which DeepSpeed does not look at (attention).
    """

    __slots__ = ("again", "elements", "keys", "named", "parameters")

    def __init__(self, parameters: tuple[Tensor, ...] = (), *, named: bool = False) -> None:
        self.parameters, self.named = parameters, named
        self.keys = tuple(map(id, parameters))
        self.again: dict[int, None] = {}  # frozen parameters that were gathered once more while its backward ran
        self.elements = sum(prod(tensor.shape) for tensor in parameters)


class Hooked:
    """A module's call with DeepSpeed's hooks around it; whatever else is asked of it is the module's own."""

    def __init__(self, within: Callable[..., Any], module: Module, call: Callable[..., Any]) -> None:
        self._within, self._module, self._call = within, module, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __call__(self, x: Any, *rest: Any, **named: Any) -> Any:
        return self._within(self._module, self._call, x, *rest, **named)


def own(module: Any) -> tuple[Tensor, ...]:
    """A module's own parameters; a bias that is computed is none."""
    # a table of relative positions, the weights of experts, a tower's class
    names = ("weight", "bias", "table", "up", "down", "first")
    found = (getattr(module, name, None) for name in names)
    return tuple(tensor for tensor in found if isinstance(tensor, Tensor))


def sub_groups(group: Sequence[Tensor], part: Mapping[int, int]) -> Iterator[list[Tensor]]:
    """``_create_fp16_sub_groups``: what is stepped together; ``part`` has each tensor's elements of this process."""
    found: list[Tensor] = []
    held = 0
    for tensor in group:
        found.append(tensor)
        held += part[id(tensor)]
        if held >= SUB_GROUP or tensor is group[-1]:
            yield found
            found, held = [], 0


class Handle:
    """An all-gather under way; of several parameters it arrives as one buffer, from which each is copied."""

    __slots__ = ("buffer", "tensors")

    def __init__(self, tensors: Sequence[Tensor], buffer: Tensor | None) -> None:
        self.tensors, self.buffer = tensors, buffer


class Coordinator:
    """``PartitionedParameterCoordinator`` over ``tensors`` in the order in which the model names them."""

    def __init__(self, tensors: Sequence[Tensor], setup: TrainingSetup) -> None:
        spread = setup.spread

        def given(value: int | None, default: int) -> int:
            return default if value is None else value

        self.ranks, self.on_host = setup.data_parallel_size, setup.offload_param
        self.stream = GATHER if spread.overlap_comm is not False else 0
        self.ahead = given(spread.prefetch_bucket, PREFETCH)
        self.most = given(spread.max_live_parameters, MAX_LIVE)
        self.reuse = given(spread.max_reuse_distance, MAX_REUSE)
        self.tensors = {id(tensor): tensor for tensor in tensors}
        self.frozen = {id(tensor) for tensor in tensors if not tensor.needs}
        self.number = {id(tensor): at for at, tensor in enumerate(tensors)}
        self.elements = {id(tensor): prod(tensor.shape) for tensor in tensors}
        self.persistent = {key: None for key, size in self.elements.items() if size <= PERSISTENT}
        self.whole: set[int] = set()
        self.flying: dict[int, Handle] = {}
        self.active: dict[int, set[int]] = {id(tensor): set() for tensor in tensors}
        self.backward: dict[int, Module] = {}  # whose backward runs
        self.order: list[Module] = []
        self.recording = self.complete = False
        self.step = self.available = 0
        self.queue: deque[tuple[int, int]] = deque()
        self.newest: dict[int, int] = {}  # of a parameter, the step that it was last fetched for
        self.uses: dict[int, list[int]] = {}
        self.before: list[int] = []  # elements that modules have before each step

    def begin(self) -> None:
        """``reset_step``: before a pass."""
        self._land()
        if self.recording and not self.complete:
            self.complete = True
            self.before = list(accumulate((module.elements for module in self.order), initial=0))
            for at, module in enumerate(self.order):
                for key in module.keys:
                    self.uses.setdefault(key, []).append(at)
        self.recording = True
        number = self.number.__getitem__
        self.queue = deque(
            (key, at)
            for at, module in enumerate(self.order if self.complete else ())
            for key in (sorted(module.keys, key=number) if len(module.keys) > 1 else module.keys)
        )
        self.newest = {}
        self.step = self.available = 0

    def _land(self) -> None:
        for key in list(self.flying):
            self._wait(key)
            self._release(key)

    def fetch(self, module: Module, *, forward: bool) -> None:
        """Gather what a module needs, wait for it, and send for what comes next."""
        if self.complete and (self.step >= len(self.order) or self.order[self.step] is not module):
            self.complete = self.recording = False  # what runs is not what was recorded
            self.order, self.uses = [], {}
            self.queue.clear()
            self._land()
        if self.recording and not self.complete:
            self.order.append(module)
        if not forward:
            self.backward[id(module)] = module
        keys = module.keys
        if keys:
            self._bring_together(module, forward=forward)
        if self.complete:
            self._fetch_ahead(keys)
        self.step += 1

    def _bring_together(self, module: Module, *, forward: bool) -> None:
        keys, whole = module.keys, self.whole
        self._gather([key for key in keys if key not in whole and key not in self.flying])
        owner = next(reversed(self.backward.values()), None) if forward and world.thread == "autograd" else None
        for key in keys:
            self.active[key].add(id(module))
            if owner is not None and key in self.frozen:
                owner.again[key] = None
                self.active[key].add(id(owner))
            if self.flying:
                self._wait(key)

    def _fetch_ahead(self, keys: Sequence[int]) -> None:
        queue, newest = self.queue, self.newest
        if keys:
            due = {key for key in keys if newest.get(key, -1) < self.step}
            seen: set[int] = set()
            while queue and len(seen) < len(due):
                key, at = queue.popleft()
                newest[key] = at
                seen.add(key)
        if not self.ahead or not queue:
            return
        most = min(self.most - self.available, self.ahead)
        wanted: dict[int, None] = {}
        elements = 0
        while queue and elements < most:
            key, at = queue.popleft()
            newest[key] = at  # later than any that it had: they come in their order
            if key not in self.whole and key not in self.flying and key not in wanted:
                wanted[key] = None
                elements += self.elements[key]
        if wanted:
            self._gather(list(wanted))

    def _gather(self, keys: list[int]) -> None:
        if not keys:
            return
        keys.sort(key=self.number.__getitem__)
        self.available += sum(self.elements[key] for key in keys)
        tensors = [self.tensors[key] for key in keys]
        parts = [-(-self.elements[key] // self.ranks) for key in keys]
        if self.ranks == 1:
            self._bring(tensors)
            return
        with asking("gathered_parameters", self.stream):
            if len(keys) == 1:
                fill(tensors[0], parts[0] * self.ranks)
                handle = Handle(tensors, None)
                sent = self._sent(tensors, parts)
            else:
                size = sum(part * WIDTH[tensor.dtype] for part, tensor in zip(parts, tensors, strict=True))
                handle = Handle(tensors, new((size * self.ranks,), I8))
                sent = self._sent(tensors, parts)
            del sent
        for key in keys:
            self.flying[key] = handle

    def _bring(self, tensors: Sequence[Tensor]) -> None:
        """``_no_gather_coalesced``: one alone uses its parts as they are, or copies of what is on the host."""
        with asking("gathered_parameters"):
            for tensor in tensors if self.on_host else ():
                fill(tensor, prod(tensor.shape))
        self.whole.update(map(id, tensors))

    def _sent(self, tensors: Sequence[Tensor], parts: list[int]) -> list[Tensor]:
        """Our parts, brought from the host where they are kept there."""
        if not self.on_host:
            return []
        return [new((part,), tensor.dtype) for tensor, part in zip(tensors, parts, strict=True)]

    def _wait(self, key: int) -> None:
        """What comes together is copied out at once; its buffer stays until the last of it was waited for."""
        handle: Any = self.flying.pop(key, None)
        if handle is None:
            return
        if key not in self.whole:
            if handle.buffer is not None:
                with asking("gathered_parameters", self.stream):
                    for tensor in handle.tensors:
                        fill(tensor, self.elements[id(tensor)])
            self.whole.update(map(id, handle.tensors))

    def release(self, module: Module, *, forward: bool = True) -> None:
        """Let go of a module's parameters, but for those that stay and those that are needed again soon."""
        if not forward:
            self.backward.pop(id(module), None)
        for key in module.keys:
            self.active[key].discard(id(module))
            if not self.complete or not self._stays(key):
                self._release(key)
        if not forward and module.again:
            self._release_again(module)

    def _release_again(self, module: Module) -> None:
        for key in module.again:
            self.active[key].discard(id(module))
            if key not in self.persistent:
                self._release(key)
        module.again.clear()

    def _stays(self, key: int) -> bool:
        if key in self.persistent or self.newest.get(key, -1) > self.step:
            return True
        uses, before = self.uses[key], self.before
        at = bisect_left(uses, self.step)
        return at < len(uses) and before[uses[at]] - before[self.step] < self.reuse

    def _release(self, key: int) -> None:
        if key in self.whole and not self.active[key]:
            self.whole.discard(key)
            # ``param.data = torch.empty(0)``: who holds a view keeps the whole, as what a recomputation saves does
            self.tensors[key].storage = Storage(0)
            self.available -= self.elements[key]

    def release_leftovers(self) -> None:
        """``release_backward_leftovers``: modules whose input gets no gradient."""
        while self.backward:
            _, module = self.backward.popitem()
            for key in module.keys:
                self.active[key].discard(id(module))
                if key not in self.persistent:
                    self._release(key)
            self._release_again(module)

    def release_all(self) -> None:
        """``release_and_reset_all``: before a step."""
        for key in self.tensors:
            self._wait(key)
            self.active[key].clear()
            self._release(key)

    def gather_persistent(self) -> None:
        """``_post_step``: small parameters are whole between steps."""
        if self.ranks == 1:
            self._bring([self.tensors[key] for key in self.persistent])
            return
        with asking("gathered_parameters"):
            tensors = [self.tensors[key] for key in self.persistent]
            parts = [-(-self.elements[key] // self.ranks) for key in self.persistent]
            sent = self._sent(tensors, parts)
            for tensor, part in zip(tensors, parts, strict=True):
                fill(tensor, part * self.ranks)
            del sent
        self.whole.update(self.persistent)
