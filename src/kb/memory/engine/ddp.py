"""DistributedDataParallel: the copies it broadcasts when it wraps a model, and the buckets gradients are reduced in.

Sources (torch 2.13.0): torch/nn/parallel/distributed.py (``_BucketCapacityConfig``, ``_pre_forward``, ``_DDPSink``),
torch/csrc/distributed/c10d/comm.cpp (``broadcast_coalesced``) and reducer.cpp (``initialize_buckets``,
``mark_variable_ready_dense``, ``compute_bucket_assignment_by_size``). Whether unused parameters are looked for is the
Trainer's choice (``_build_accelerator_args`` of transformers/trainer.py 5.23.0). What NCCL takes is not in here.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.faults import DdpRefusesError
from kb.memory.engine.modules import Model
from kb.memory.engine.options import unshared
from kb.memory.engine.tensor import I8, WIDTH, Tensor, new
from kb.memory.engine.world import world

BROADCAST_BYTES = 250 << 20
IN_FLIGHT = 2  # broadcasts at once
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


def finds_unused(setup: TrainingSetup) -> bool:
    """Whether DDP looks for parameters that a pass did not use: as set, else by the Trainer's default.

    That asks the model for checkpointing, and takes one that PEFT wraps for none of transformers' own.
    """
    said = setup.spread.find_unused
    return said if said is not None else setup.method != "full" or not setup.gradient_checkpointing


class Reducer:
    """What DDP keeps beside a model. Buckets are as large as all gradients together, whatever their number.

    Without a look for unused parameters they are made again before the second pass, in the order in which gradients
    came. ``view``: gradients are views of them (``gradient_as_bucket_view``).
    """

    def __init__(self, model: Model, setup: TrainingSetup) -> None:
        self.view = setup.spread.gradient_as_bucket_view
        self.finds_unused = finds_unused(setup)
        self.named = model.parameters
        own = [tensor for _, tensor in model.parameters if tensor.storage is not None]
        self.shared = [each for each in model.buffers if isinstance(each, Tensor)]
        self.reduces = True
        self.shares = True  # the next pass begins with a broadcast of the model's buffers
        _broadcast([*own, *model.adapters, *self.shared], "loading")
        trained = set(map(id, model.trained()))
        tensors = [tensor for _, tensor in model.parameters] if model.options.adapters is None else model.adapters
        found = list(_buckets([t for t in tensors if id(t) in trained], self.limits))
        self.buckets: dict[int, Tensor] = {}  # a parameter → its bucket
        self._make(found[::-1])
        self.order: list[Tensor] | None = None if self.finds_unused else []

    @property
    def limits(self) -> tuple[int, ...]:
        """The sizes of the first buckets: one for everything, where they are made again."""
        return (FIRST_BUCKET_BYTES, BUCKET_BYTES) if self.finds_unused else (1 << 62,)

    def before_pass(self) -> None:
        """Before a pass's forward. ``reduces`` is False where its gradients are only added up (``no_sync``).

        Raises:
            DdpRefusesError: the pass before left out parameters that nobody looks for, which DDP refuses.
        """
        if self.order:
            order, self.order = self.order, None
            unused = self.buckets.keys() - {id(tensor) for tensor in order}
            if unused:
                raise DdpRefusesError(tuple(name for name, tensor in self.named if id(tensor) in unused))
            self.buckets.clear()
            self._make(list(_buckets(order, (FIRST_BUCKET_BYTES, BUCKET_BYTES))))
        if self.shares:
            _broadcast(self.shared, "forward")
        self.shares = self.reduces
        world.ready = self._ready if self.reduces else None

    def _make(self, found: Iterable[Sequence[Tensor]]) -> None:
        recording = world.recording
        before, recording.term = recording.term, "buckets"
        for tensors in found:
            bucket = new((sum(prod(tensor.shape) for tensor in tensors),), tensors[0].dtype)
            for tensor in tensors:
                self.buckets[id(tensor)] = bucket
        recording.term = before

    def _ready(self, tensor: Tensor) -> None:
        """A parameter's gradient is there: it is copied into its bucket, and as a view of that takes its own place."""
        bucket = self.buckets.get(id(tensor))
        if bucket is None:  # a leaf of a recomputation
            return
        if self.order is not None:
            self.order.append(tensor)
        if self.view and tensor.grad is not None and tensor.grad.storage is not bucket.storage:
            tensor.grad = Tensor(tensor.shape, tensor.dtype, tensor.strides, bucket.storage)


def reducer_of(model: Model, setup: TrainingSetup) -> Reducer | None:
    """DDP's, where a run on several GPUs has one."""
    alone = setup.data_parallel_size < 2 or setup.fsdp or setup.zero_stage or unshared(setup)
    return None if alone else Reducer(model, setup)


def through_sink(model: Model, outputs: Sequence[Any]) -> list[Any]:
    """``_DDPSink``: where unused parameters are looked for, a pass's outputs are cloned on their way out of DDP."""
    reducer: Reducer | None = model.reducer
    if reducer is None or not reducer.finds_unused or not world.training:
        return list(outputs)
    return [ops.clone(each) if isinstance(each, Tensor) else each for each in outputs]


def _broadcast(tensors: Sequence[Tensor], moment: str) -> None:
    """``_sync_module_states``: tensors are flattened into buffers of 250 MiB, two of them at a time."""
    recording = world.recording
    recording.moment, before, recording.term = moment, recording.term, "temporaries"
    sizes = [(tensor.storage.size, _stored_as(tensor)) for tensor in tensors]
    flying: list[Tensor] = []
    for bucket in assigned(sizes, (BROADCAST_BYTES,)):
        if len(flying) == IN_FLIGHT:
            del flying[0]
        if len(bucket) > 1:  # one alone is sent as it is
            flying.append(new((sum(sizes[at][0] for at in bucket),), I8))
    del flying
    recording.term = before


def _stored_as(tensor: Tensor) -> str:
    """The type that decides what is sent together: what bitsandbytes packed is integers."""
    whole = prod(tensor.shape) * WIDTH[tensor.dtype]
    return tensor.dtype if tensor.storage.size == whole else I8


def _buckets(tensors: Sequence[Tensor], limits: tuple[int, ...]) -> Iterator[list[Tensor]]:
    sizes = [(prod(tensor.shape) * WIDTH[tensor.dtype], tensor.dtype) for tensor in tensors]
    for bucket in assigned(sizes, limits):
        yield [tensors[at] for at in bucket]


def assigned(sizes: Sequence[tuple[int, str]], limits: tuple[int, ...]) -> list[list[int]]:
    """``compute_bucket_assignment_by_size``: places of tensors by bucket, for each type its own.

    A bucket is full once it holds its limit or more: of each type's, the first has the first limit, and so on; the
    last limit stays.

    Args:
        sizes: of each tensor its bytes and its type.
    """
    found: list[list[int]] = []
    filling: dict[str, list[int]] = {}
    held: dict[str, int] = {}
    made: dict[str, int] = {}
    for at, (size, dtype) in enumerate(sizes):
        filling.setdefault(dtype, []).append(at)
        held[dtype] = held.get(dtype, 0) + size
        number = made.get(dtype, 0)
        if held[dtype] >= limits[min(number, len(limits) - 1)]:
            found.append(filling.pop(dtype))
            held[dtype], made[dtype] = 0, number + 1
    return sorted([*found, *filling.values()], key=lambda bucket: bucket[0])
