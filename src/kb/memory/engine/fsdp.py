"""FSDP2 (``fully_shard``) as accelerate wraps a decoder: shards at rest, units gathered for use, gradients scattered.

Sources: torch 2.13.0, torch/distributed/fsdp/_fully_shard (_fsdp_param_group.py ``unshard``, ``wait_for_unshard``,
``post_backward``; _fsdp_collectives.py ``foreach_all_gather``, ``foreach_reduce``; _fsdp_state.py for the order of
hooks); accelerate 1.15.0, utils/fsdp_utils.py (``fsdp2_prepare_model``), for which parameters are one unit. What NCCL
takes is not in here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from math import prod
from typing import Any

from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import Model
from kb.memory.engine.options import TYPES
from kb.memory.engine.quantized import packed_elements
from kb.memory.engine.tape import record
from kb.memory.engine.tensor import BF16, F16, F32, I8, WIDTH, Storage, Tensor, mark, new
from kb.memory.engine.world import Recording, world

COPY_IN, REDUCE = 1, 3  # streams that ask for blocks, beside the first
FLOATS = (F32, F16, BF16)
ORDER = ("layer", "embed", "tail")  # in which units are made


class Group(NamedTuple):
    """What one unit is made of: ``prefixes`` of its parameters' paths, the ``modules`` whose calls gather it."""

    kind: str
    prefixes: tuple[str, ...]
    modules: tuple[str, ...]


class Sharded(NamedTuple):
    """A parameter: whole, of this process, and the rows of its shard with those that fill it up."""

    whole: Tensor
    shard: Tensor
    padded: int  # elements


class Unit:
    """``FSDPParamGroup``: parameters that are gathered and scattered together.

    ``reshards``: they are let go after forward, and gathered again for backward.
    """

    def __init__(self, group: "Units", parameters: Sequence[Sharded], parts: int, *, reshards: bool) -> None:
        self.group, self.parameters, self.reshards = group, parameters, reshards
        self.parts = self.left = parts  # modules that are one unit together; those still to run in this pass
        self.whole = False
        self.arriving: Tensor | None = None  # the result of an all-gather that nobody waited for yet
        self.state = "idle"
        self.places: list[int] = []  # in the order of forward passes

    def enter(self, x: Any) -> Any:
        """Before a module's forward; ``x`` is its input, which backward leaves last."""
        if self.state == "backward":  # a checkpointed module that runs again
            return x
        first, self.state = self.state != "forward", "forward"
        self._gather()
        self._wait()
        if first and world.grad and isinstance(x, Tensor) and x.needs:
            node = record(lambda _, grad: self._passed(grad), (x,))
            return Tensor(x.shape, x.dtype, x.strides, x.storage, node)
        return x

    def leave(self, out: Any) -> None:
        """After a module's forward; the last of the unit's."""
        if self.state == "backward":
            return
        self.left -= 1
        if not self.left:
            self.end(out)

    def end(self, out: Any) -> None:
        """All modules of the unit have run, or the root has ended: ``out`` is what the last of them gave."""
        self.left = self.parts
        if self.reshards:
            self._let_go()
        self.places.append(len(self.group.order))
        self.group.order.append(self)
        before_backward(out, self._before_backward)
        self.state = "idle"

    def _gather(self) -> None:
        if self.arriving is not None or self.whole:
            return
        group = self.group
        with asking("gathered_parameters", COPY_IN):
            narrowed = self._narrowed()
            size = sum(one.padded * WIDTH[one.whole.dtype] for one in self.parameters) * group.ranks
            self.arriving = new((size,), I8)
            del narrowed

    def _narrowed(self) -> list[Tensor]:
        """The shards as they are sent: those of another type are cast, offloaded ones first moved to the GPU."""
        if not self.group.on_host:
            cast = [one for one in self.parameters if one.shard.dtype != one.whole.dtype]
            size = sum(one.padded for one in cast)
            return [new((size,), cast[0].whole.dtype)] if cast else []
        found = []
        for one in self.parameters:
            sent = new((one.padded,), one.shard.dtype)
            if one.shard.dtype != one.whole.dtype:
                sent = new((one.padded,), one.whole.dtype)
            found.append(sent)
        return found

    def _wait(self) -> None:
        """Copy out of what was gathered. In forward that stays until the next unit's copy."""
        group = self.group
        if self.arriving is None:
            return
        with asking("gathered_parameters"):
            for one in self.parameters:
                fill(one.whole, one.padded * group.ranks)
        self.whole = True
        arrived, self.arriving = self.arriving, None
        if self.state == "forward":
            group.copied = arrived

    def _let_go(self) -> None:
        self.whole = False
        for one in self.parameters:
            drop(one.whole)

    def _before_backward(self) -> None:
        group = self.group
        if self.state == "backward":
            return
        self.state = "backward"
        self._gather()
        self._wait()
        if self.places:
            at = self.places.pop()
            if at > 0:
                group.order[at - 1]._gather()

    def _passed(self, grad: Any) -> tuple[Any]:
        self.after_backward()
        return (grad,)

    def after_backward(self) -> None:
        """``post_backward``: parameters go, gradients are reduced, each process keeps its share of them."""
        group = self.group
        self.state = "passed"
        found = [one for one in self.parameters if one.whole.grad is not None] if group.reduces else []
        grads = [one.whole.grad for one in found]
        for one in found:
            one.whole.grad = None
        self._let_go()
        if not group.reduces:
            return
        group.scattering.clear()
        if not found:
            return
        sizes = [one.padded for one in found]
        dtype = found[0].whole.dtype
        with asking("buckets"):
            sent = new((sum(sizes) * group.ranks,), dtype)
        del grads[:-1]  # a loop's name holds the last until all is reduced
        with asking("gradients", REDUCE):
            kept = new((sum(sizes),), dtype)
            kept = kept if dtype == found[0].shard.dtype else new((sum(sizes),), found[0].shard.dtype)
        grads.clear()
        for one in found:
            if not group.on_host:
                one.shard.grad = Tensor(one.shard.shape, one.shard.dtype, one.shard.strides, kept.storage)
        group.scattering.append(sent)

    def finish(self) -> None:
        """At the end of backward, for what no gradient of an input ended."""
        if self.state != "passed":
            self.after_backward()
        self.state = "idle"
        self.arriving = None
        self.places.clear()


class Units:
    """A model whose parameters are sharded, unit by unit; what an optimizer finds of it are the shards.

    ``copied`` is the last result of an all-gather in forward, ``scattering`` the input of the last reduce-scatter.
    """

    flat = False

    def __init__(self, model: Model, setup: TrainingSetup) -> None:
        self.model, self.ranks, self.on_host = model, setup.world_size, setup.offload_param
        self.output = TYPES["bf16" if setup.bf16 else "fp16"] if setup.autocast else None
        self.loaded, self.words = TYPES[setup.weights], model.architecture.vocab_size
        self.paths, self.adapters = model.names(), set(map(id, model.adapters))
        self.packs = model.options.quantization is not None
        self.packed = packed_weights(model)
        self.packed_ids = set(map(id, self.packed.values()))
        self.paths |= {id(seen): self.paths[key] for key, seen in self.packed.items()} | originals(model)
        self.reduces = True
        self.order: list[Unit] = []
        self.copied: Tensor | None = None
        self.scattering: list[Tensor] = []
        trained = set(map(id, model.trained()))
        self.shards: dict[int, Tensor] = {}
        self.named: dict[str, Unit] = {}
        self.every: list[Unit] = []  # the root first, the others as the model names them
        self._wrap(trained, setup)
        self.plain = {id(self.shards[id(tensor)]) for tensor in model.trained() if not model.decays(tensor)}

    def _wrap(self, trained: set[int], setup: TrainingSetup) -> None:
        """``fsdp2_prepare_model``: layers, then the embedding, the last norm and the head, then what is left."""
        model, reshards = self.model, setup.spread.fsdp_reshard
        left = {self.paths[id(tensor)]: self.packed.get(id(tensor), tensor) for tensor in with_adapters(model)}
        for path in [path for path, tensor in left.items() if tensor.dtype == I8]:
            left.pop(path)  # accelerate leaves integers out: they stay as they are
        originals: list[Any] = []  # the state dict holds what is on the GPU already, to the end
        groups = model.units_of_fsdp(layers=setup.spread.fsdp_wrapped)
        made: dict[int, Unit] = {}
        held: list[Tensor] = []  # local names keep both tables and the last parameter whole to the end
        for at, group in sorted(enumerate(groups), key=lambda pair: ORDER.index(pair[1].kind)):
            paths = [path for prefix in group.prefixes for path in left if path.startswith(prefix)]
            own = self._sharded(
                [left.pop(path) for path in paths], trained, held if group.kind != "layer" else [], originals=originals
            )
            made[at] = Unit(self, own, len(group.modules), reshards=reshards and group.kind != "tail")
            self.named |= dict.fromkeys(group.modules, made[at])
        root = self._sharded(list(left.values()), trained, [], model.buffers, originals=originals)
        self.root = Unit(self, root, 1, reshards=False)
        self.every = [self.root, *(made[at] for at in range(len(groups)))]

    def _sharded(
        self,
        tensors: Sequence[Tensor],
        trained: set[int],
        held: list[Tensor],
        buffers: Sequence[Tensor] = (),
        originals: list[Any] | None = None,
    ) -> list[Sharded]:
        """Move a unit to the GPU, and leave of it this process's shards (the first's, which are the largest)."""
        found = []
        before, world.recording.term = world.recording.term, "parameters"
        dtypes = [self._own(tensor, id(tensor) in trained) for tensor in tensors]
        moved = [on_gpu(tensor, dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
        if originals is not None:
            originals += [each for each, tensor in zip(moved, tensors, strict=True) if each.storage is tensor.storage]
        for tensor in tensors:
            if tensor.storage.size:
                tensor.storage = Storage(0)
            if self.packs and self.output is not None and id(tensor) not in self.packed_ids:
                tensor.dtype = self.output
        for buffer in buffers:
            if not buffer.storage.size:
                fill(buffer, prod(buffer.shape))
        for tensor, dtype in zip(tensors, dtypes, strict=True):
            rows = -(-tensor.shape[0] // self.ranks)
            shard = new((rows, *tensor.shape[1:]), dtype)
            if self.on_host:
                shard.storage = None
            self.shards[id(tensor)] = shard
            found.append(Sharded(tensor, shard, prod(shard.shape)))
        last = self.model.parameters[-1][1]
        held += [each for old, each in zip(tensors, moved, strict=True) if old is last or self._is_table(old)]
        del moved
        world.recording.term = before
        for one in found if not self.on_host else ():
            term = "adapters" if id(one.whole) in self.adapters else "parameters"
            mark(one.shard, term, self.paths[id(one.whole)])
        return found

    def _is_table(self, tensor: Tensor) -> bool:
        return len(tensor.shape) > 1 and tensor.shape[0] == self.words

    def _own(self, tensor: Tensor, trained: bool) -> str:
        """The type of a parameter's shard: under mixed precision what trains is fp32, but not beside packed weights."""
        if self.packs or not self.output:
            return tensor.dtype
        return F32 if trained else self.loaded

    @contextmanager
    def running(self, batch: Sequence[Any] = ()) -> Iterator[Sequence[Any]]:
        """The root's forward; its inputs in the type of mixed precision (``cast_forward_inputs``)."""
        batch = taken(batch, self.output)
        if self.root.parameters:
            self.root.enter(None)
        yield batch
        if self.root.parameters:
            self.root.leave(None)

    def through(self, name: str, call: Callable[..., Any], x: Any, *rest: Any) -> Any:
        """Run a module of the unit ``name``."""
        unit = self.named.get(name)
        if unit is None:
            return call(x, *rest)
        if unit.state != "backward":
            x, *rest = taken((x, *rest), self.output)  # type: ignore[assignment]
        x = unit.enter(x)
        out = call(x, *rest)
        unit.leave(out)
        return out

    def given(self, outputs: Sequence[Any]) -> list[Any]:
        """The root's outputs: backward begins at them, and they leave in the type of mixed precision.

        A unit that not all modules of have run (a loss reads the output layer's weight) ends with the root.
        """
        for unit in self.every:
            if unit.left < unit.parts:
                unit.end(list(outputs))
        if self.root.parameters:
            for each in outputs:
                before_backward(each, self.root._before_backward)
        found = list(outputs)
        for at, each in enumerate(found):
            if isinstance(each, Tensor) and self.output is not None:
                found[at] = ops.cast(each, self.output)
        self.copied = None
        return found

    def reading(self, _: Sequence[Tensor | None]) -> AbstractContextManager[None]:
        """What a loss reads is whole already: in a unit that runs, or by :meth:`made_whole`."""
        return nullcontext()

    def made_whole(self, tensor: Tensor) -> Tensor:
        """``DTensor.full_tensor`` of a parameter whose unit no module has gathered.

        Raises:
            NotFollowedError: it trains, and so its gradient is shared out by what made it whole.
        """
        if tensor.storage.size:
            return tensor
        if tensor.needs:
            raise NotFollowedError("FSDP of an output layer that a loss reads")
        with asking("gathered_parameters"):
            gathered = new(tensor.shape, self.shards[id(tensor)].dtype)
            found = new(tensor.shape, gathered.dtype)
            del gathered
        return found

    def finish(self) -> None:
        """``_root_post_backward_final_callback``."""
        for unit in self.every:
            unit.finish()
        self.order.clear()
        self.scattering.clear()
        world.hooks.clear()

    # What an optimizer asks of a model.

    wide: frozenset[int] = frozenset()

    def trained(self) -> list[Tensor]:
        return [self.shards[id(tensor)] for tensor in self.model.trained()]

    def names(self) -> dict[int, str]:
        return {id(self.shards[key]): name for key, name in self.paths.items() if key in self.shards}

    def decays(self, shard: Tensor) -> bool:
        return id(shard) not in self.plain


def taken(inputs: Sequence[Any], dtype: str | None) -> Sequence[Any]:
    """What a module is given, its numbers in the type of mixed precision, where there is one (``_cast_fp_tensor``,
    _fsdp_common.py)."""
    if dtype is None:
        return inputs
    return [ops.cast(each, dtype) if isinstance(each, Tensor) and each.dtype in FLOATS else each for each in inputs]


def with_adapters(model: Model) -> list[Tensor]:
    """Parameters as a walk over modules finds them, each layer's adapters behind its own, or its copy that trains."""
    after: dict[int, list[Tensor]] = {}
    for linear in model.linears:
        copies = (linear.weight, linear.bias) if linear.replaced else ()
        weight, bias = linear.replaced or (linear.weight, linear.bias)
        more = [tensor for tensor in (*copies, linear.a, linear.b, linear.magnitude) if tensor is not None]
        after[id(weight if bias is None else bias)] = more
    found = [each for _, tensor in model.parameters for each in (tensor, *after.get(id(tensor), ()))]
    return [*found, *model.stack_words.values()]


def originals(model: Model) -> dict[int, str]:
    """The paths of what a copy that trains stands for (``ModulesToSaveWrapper.original_module``)."""
    found = {}
    for linear in model.linears:
        for name, tensor in zip(("weight", "bias"), linear.replaced or (), strict=False):
            if tensor is not None:
                found[id(tensor)] = f"{linear.path}.original_module.{name}"
    return found


def packed_weights(model: Model) -> dict[int, Tensor]:
    """Of each packed weight, by its ``id``, what FSDP sees of it: so many elements of the type that it is stored in."""
    quantization = model.options.quantization
    found = {}
    for linear in model.linears if quantization is not None else ():
        if linear.packs and quantization is not None:
            elements = packed_elements(linear.weight.shape, quantization.storage)
            seen = Tensor((elements, 1), quantization.storage, (1, 1), linear.weight.storage)
            found[id(linear.weight)], linear.weight.storage = seen, Storage(0)
    return found


def on_gpu(tensor: Tensor, dtype: str) -> Tensor:
    """A parameter that is brought to the GPU, unless it is there."""
    if not tensor.storage.size:
        return new(tensor.shape, dtype)
    return Tensor(tensor.shape, tensor.dtype, tensor.strides, tensor.storage)


def before_backward(out: Any, hook: Callable[[], None]) -> None:
    """``register_hook`` on each result that gets a gradient; what a checkpoint makes again gets none."""
    if world.recomputed is not None:
        return
    for tensor in out if isinstance(out, (tuple, list)) else (out,):
        if isinstance(tensor, Tensor) and tensor.needs and world.grad:
            node = tensor.node or tensor
            node = node[0] if type(node) is tuple else node
            known = world.hooks.get(node)
            world.hooks[node] = hook if known is None else partial(_both, known, hook)


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


class asking:  # noqa: N801 (it stands behind `with`, as a function would: there are thousands)
    """What is made inside is for ``term``, of another stream."""

    __slots__ = ("before", "recording", "stream", "term")

    def __init__(self, term: str, stream: int = 0) -> None:
        self.term, self.stream = term, stream

    def __enter__(self) -> None:
        self.recording = recording = world.recording
        self.before, recording.term = recording.term, self.term
        recording.switch(self.stream)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.recording.switch(0)
            self.recording.term = self.before


def fill(tensor: Tensor, elements: int) -> None:
    """``alloc_storage``: a block for a storage that was let go; its views see it too."""
    storage: Storage = tensor.storage
    storage.recording, storage.log = world.recording, world.recording.log
    storage.size = elements * WIDTH[tensor.dtype]
    storage.number = storage.recording.ask(storage.size)


def drop(tensor: Tensor) -> None:
    """``free_storage``."""
    storage: Storage = tensor.storage
    if storage.size:
        storage.recording.give_back(storage.number)
        storage.size = 0


@contextmanager
def on_host() -> Iterator[None]:
    """What is made inside lies in host memory."""
    before = world.recording
    world.recording = Recording()
    world.recording.gpu = before
    yield
    world.recording = before
