"""Autograd's tape: what forward saves, the order of backward, gradients added in place or not, checkpoints.

Sources: torch/csrc/autograd/engine.cpp (order, ``validate_outputs``), input_buffer.cpp (adding in place),
functions/accumulate_grad.h (stealing a gradient), torch/utils/checkpoint.py (``use_reentrant=False``).
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from math import prod
from sys import getrefcount
from typing import Any

from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.kernel_choice import summed_buffers
from kb.memory.engine.tensor import BF16, F32, WIDTH, Tensor, bare, dense, like, mark, new, packed, scratch, stays
from kb.memory.engine.world import world

Gradients = Iterable[Tensor | None]
LEAST_AWAY = 2 << 20  # bytes of an input that Unsloth leaves where it is (MINIMUM_SIZE)


class Node:
    """A step of the tape.

    ``edges`` are (what the gradient goes to, its shape, its type) or None; ``saved`` holds tensors, or slots of
    ``frame``, the checkpointed call that must run again before they are there; ``extra`` whatever ``run`` needs.
    A node that splits a tensor says how many ``results`` it has, were it one (a batch of one row): each is named with
    the result's number, and the node gets all their gradients together. 0 is a plain node, named by itself.
    """

    __slots__ = ("edges", "extra", "frame", "results", "run", "saved", "sequence")

    edges: list[tuple[Any, tuple[int, ...], str] | None]
    extra: Any
    frame: "Frame | None"
    results: int
    run: Callable[["Node", Any], Gradients]
    saved: Any
    sequence: int


class Stop(Exception):  # noqa: N818 (no error: it ends a recomputation)
    """All that a checkpointed call saves has been made again."""


def record(
    run: Callable[[Any, Any], Gradients],
    inputs: Sequence[Tensor],
    saved: Sequence[Tensor | None] = (),
    extra: Any = None,
) -> Node | None:
    """A node for an operator on ``inputs``, made before its result as torch does; None where nothing needs it."""
    if not world.grad:
        return None
    edges: list[Any] = []
    needed = False
    for tensor in inputs:
        if tensor.needs:
            needed = True
            edges.append((tensor.node or tensor, tensor.shape, tensor.dtype))
        else:
            edges.append(None)
    if not needed:
        return None
    node = Node()
    world.sequence = node.sequence = world.sequence + 1
    node.run, node.extra, node.edges = run, extra, edges
    node.frame, node.saved, node.results = None, [], 0
    if saved:
        save(node, saved)
    return node


def save(node: Node | None, tensors: Iterable[Tensor | None]) -> None:
    """Keep ``tensors`` for backward; inside a checkpointed call only their places."""
    if node is None:
        return
    kept, frame = node.saved, world.frame
    if world.recomputed is not None:  # handed to the frame, which ends the recomputation with the last
        values, wanted = world.recomputed
        for tensor in tensors:
            if tensor is not None:
                values.append(bare(tensor))
            kept.append(tensor)
            if len(values) == wanted and tensor is not None:
                raise Stop
    elif frame is not None:  # only a node that saves something holds the frame
        for tensor in tensors:
            if tensor is not None:
                node.frame = frame
                kept.append(frame.count)
                frame.count += 1
            else:
                kept.append(None)
    else:
        kept += tensors


def saved(node: Node) -> list[Any]:
    """What the node kept; recomputed first where a checkpointed call made it."""
    if node.frame is None or world.recomputed is not None:
        return node.saved  # type: ignore[no-any-return]
    return [None if slot is None else node.frame.take(slot) for slot in node.saved]


class Frame:
    """A checkpointed call: what it saves is counted, and made again when first asked for."""

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.call, self.args, self.count = call, args, 0
        self.values: list[Tensor | None] | None = None
        self.autocast = world.autocast

    def take(self, slot: int) -> Tensor | None:
        """The tensor of a slot, which is given away."""
        if self.values is None:
            self.values = self._again()
        value, self.values[slot] = self.values[slot], None
        return value

    def _again(self) -> list[Tensor | None]:
        values: list[Tensor | None] = []
        recording = world.recording
        before = world.grad, world.autocast, world.cache, world.frame, recording.moment, recording.term
        world.grad, world.autocast, world.cache, world.frame = True, self.autocast, {}, None
        world.recomputed = values, self.count
        with suppress(Stop):
            self.call(*self.args)
        world.recomputed = None
        world.grad, world.autocast, world.cache, world.frame, recording.moment, recording.term = before
        return values


def checkpoint(call: Callable[..., Any], *args: Any) -> Any:
    """Run ``call`` without keeping what it saves."""
    world.frame = Frame(call, args)
    try:
        return call(*args)
    finally:
        world.frame = None


class Staging:
    """Where inputs of checkpointed layers come back to from pinned host memory, one after the other: one buffer, as
    large as the largest, that stays.

    Source: ``UnslothCheckpointFunction`` (unsloth_zoo/gradient_checkpointing.py 2026.10.9). What it takes besides where
    much of the GPU is free, a second buffer, it gives back where that is not so.
    """

    def __init__(self) -> None:
        self.buffer: Tensor | None = None

    def takes(self, x: Tensor) -> bool:
        """Whether an input is large enough to be sent away; room for it to come back is made."""
        size = prod(x.shape) * WIDTH[_stored(x.dtype)]
        if not x.needs or size <= LEAST_AWAY:
            return False
        if self.buffer is None or self.buffer.storage.size < size:  # resize_: the new one before the old is let go
            self.buffer = new((size // WIDTH[BF16],), BF16)
        return True

    def back(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """An input that has come back: the buffer seen as it, or a copy where it was stored narrower."""
        assert self.buffer is not None
        if _stored(dtype) != dtype:
            return new(shape, dtype)
        return Tensor(shape, dtype, packed(shape), self.buffer.storage)


def _stored(dtype: str) -> str:
    return BF16 if dtype == F32 else dtype


def checkpoint_reentrant(
    call: Callable[..., Any], x: Tensor, *rest: Any, kept: tuple[int, ...] = (), staging: Staging | None = None
) -> Any:
    """``use_reentrant=True``: nothing of ``call`` is recorded; backward runs it again, with a backward of its own.

    Source: ``CheckpointFunction`` (torch/utils/checkpoint.py). What a gradient reaches beside ``x`` (an encoder's
    result) is an input too, and so are the ``kept`` of ``rest``, which are given by their place. A second result (a
    block's attention weights) is one that nothing reads. With ``staging`` ``x`` waits on the host.
    """
    places = [at for at, each in enumerate(rest) if isinstance(each, Tensor) and (each.needs or at in kept)]
    inputs = (x, *(rest[at] for at in places))
    others = tuple(None if at in places else each for at, each in enumerate(rest))
    if staging is not None and not staging.takes(x):
        staging = None
    saves = inputs if staging is None else (None, *inputs[1:])
    node = record(_reentrant_back, inputs, saves, (call, others, places, world.autocast, staging))
    before, world.grad = world.grad, False
    out = call(x, *rest)
    world.grad = before
    results = out if type(out) is tuple else (out,)
    if node is not None and len(results) > 1:
        node.results = len(results)
        node.extra = (*node.extra, [(one.shape, one.dtype) for one in results[1:] if one is not None])
    for at, result in enumerate(results):
        if result is not None:
            result.node, result.needs = node and ((node, at) if node.results else node), node is not None
    return out


def _reentrant_back(node: Node, grad: Any) -> Gradients:
    """Of a result that nothing read the gradient is zeros (``materialize_grads``), and runs back with the other."""
    call, rest, places, kind, staging, *shapes = node.extra
    x, *others = saved(node)
    if x is None:
        _, shape, dtype = node.edges[0]  # type: ignore[misc]
        x = staging.back(shape, dtype)
    given, inputs = list(rest), [bare(each) for each in (x, *others)]
    del x, others
    unread: list[Tensor] = []
    if node.results:
        grad = grad[0]
        unread = [new(*shape) for shape in shapes[0]]
    for at, each, edge in zip((None, *places), inputs, node.edges, strict=True):
        each.needs = edge is not None
        if at is not None:
            given[at] = each
    recording = world.recording
    before = world.autocast, world.cache, recording.moment, recording.term
    if recording.knows_layers:
        recording.runs_again(node.sequence)
    world.grad, world.autocast, world.cache = True, kind, {}
    out = call(inputs[0], *given)
    world.autocast, world.cache, recording.moment, recording.term = before
    world.grad = False
    out, *others = out if type(out) is tuple else (out,)
    run_back(out.node, grad, [(other.node, zeros) for other, zeros in zip(others, unread, strict=False)])
    del given
    return tuple(each.grad for each in inputs)


def _references() -> tuple[int, int]:
    """What ``getrefcount`` says of an object that one local name holds, and of one that one attribute holds."""
    holder = Node()
    holder.extra = object()
    return getrefcount(holder), getrefcount(holder.extra)


ALONE, HELD_ONCE = _references()


def backward(loss: Tensor, then: Callable[[], None] | None = None, *, again: bool = False) -> None:
    """From a scalar to the gradients of the leaves, node by node, the newest first; ``then`` is called at its end.
    ``again``: part of what the loss was made of runs back once more, for another one.

    Raises:
        NotFollowedError: nothing that the loss was made of trains, which torch refuses.
    """
    if loss.node is None:
        raise NotFollowedError("nothing to train")
    world.grad, world.thread = False, "autograd"
    first = new(loss.shape, loss.dtype)
    passed = run_back(loss.node, first)
    if then is not None:
        then()
    if not again:
        part(loss.node, passed)
    del first, passed
    world.grad, world.thread = True, "main"
    if world.recording.knows_layers:
        world.recording.runs_back(None)


def part(root: Node, passed: Iterable[Any]) -> None:
    """Part the nodes that were ``passed`` on the way back from one another, to live as long as the ``root``: thousands
    that lead to one another, let go all at once, would be freed by a recursion that a browser has no stack for."""
    nodes = [each for each in passed if type(each) is Node and each is not root]
    for node in (root, *nodes):
        node.edges = []
    root.saved = nodes


def run_back(root: Any, first: Tensor, more: Sequence[tuple[Any, Tensor]] = ()) -> dict[Any, int]:
    """Backward from a node, whose own gradient ``first`` lives to the end; ``more``: gradients of nodes before it.

    Returns:
        All nodes and leaves that were passed.
    """
    waits = _waits(root)
    buffers: dict[Any, Tensor | None] = {root: first, **dict(more)}
    ready, hooks = [(-root.sequence, root)], world.hooks
    recording = world.recording
    runs_back, late = recording.runs_back if recording.knows_layers else None, recording.looks_around
    while ready:
        node = heappop(ready)[1]
        edges = node.edges
        if runs_back is not None and not late:
            runs_back(node.sequence)
        if hooks and node in hooks:
            hooks.pop(node)()
        if runs_back is not None and late:
            runs_back(node.sequence)
        world.back = node.sequence
        grad: Any
        if not node.results:
            grad = buffers.pop(node)
        else:
            grad = [buffers.pop((node, number), None) for number in range(node.results)]
        outs = list(node.run(node, grad))
        valid = True
        for out, wanted in zip(outs, edges, strict=False):
            if out is not None and (wanted is None or out.shape != wanted[1] or out.dtype != wanted[2]):
                valid = False
                break
        out = wanted = None  # lest they hold what is replaced
        if not valid:
            _validate(node, outs)
        grad = None
        if node.saved:  # what saved nothing may run back again, for another root
            node.saved.reverse()  # release_variables: the first goes first
        node.saved = node.frame = None
        for at, edge in enumerate(edges):
            if edge is None:
                continue
            target, out = edge[0], outs[at]
            outs[at] = None
            if out is not None:
                old = buffers.pop(target, None)
                if old is None:
                    buffers[target] = out
                elif (
                    not old.based and getrefcount(old) == ALONE and getrefcount(old.storage) == HELD_ONCE and dense(old)
                ):
                    buffers[target] = old  # added in place
                else:
                    buffers[target] = like(old)
                old = out = None
            if type(target) is tuple:
                target = target[0]
            left = waits[target] - 1
            if left:
                waits[target] = left
                continue
            if type(target) is Node:
                heappush(ready, (-target.sequence, target))
                continue
            if hooks and target in hooks:
                hooks.pop(target)()
            out = buffers.pop(target, None)
            if target.grad is None and out is not None:
                if getrefcount(out) == ALONE and out.strides == target.strides:
                    if recording.gradients is not None:
                        alone = getrefcount(out.storage) == HELD_ONCE
                        stays(out, alone=alone)
                    target.grad = out
                else:
                    target.grad = new(target.shape, out.dtype)
                mark(target.grad, "gradients")
            out = None
            if world.ready is not None and target.grad is not None:
                world.ready(target)
    return waits


def _waits(root: Node) -> dict[Any, int]:
    """How many gradients each node and leaf waits for."""
    waits, stack = {root: 0}, [root]
    while stack:
        for edge in stack.pop().edges:
            if edge is not None:
                target = edge[0][0] if type(edge[0]) is tuple else edge[0]
                if target not in waits:
                    waits[target] = 0
                    if type(target) is Node:
                        stack.append(target)
                waits[target] += 1
    return waits


def hold_sum(tensor: Tensor, shape: tuple[int, ...]) -> None:
    """What summing a tensor up to ``shape`` holds meanwhile."""
    if not world.recording.books_sums:
        return
    fewer = len(tensor.shape) - len(shape)
    kept = (False,) * fewer + tuple(a == b for a, b in zip(tensor.shape[fewer:], shape, strict=True))
    if buffers := summed_buffers(tensor.shape, tensor.strides, kept, world.capability):
        scratch(*buffers)


def _validate(node: Node, outs: list[Any]) -> None:
    """``validate_outputs``: gradients are summed to their input's shape and cast to its type."""
    for at, edge in enumerate(node.edges):
        out = outs[at]
        if edge is None or out is None:
            outs[at] = None
            continue
        if out.shape != edge[1]:
            fewer = len(edge[1]) < len(out.shape)  # at::sum_to: dimensions that go make its result a view
            summed = new(edge[1], out.dtype)
            hold_sum(out, edge[1])
            outs[at] = out = summed
            out.based = fewer
        if out.dtype != edge[2]:
            outs[at] = like(out, edge[2])
        out = None
