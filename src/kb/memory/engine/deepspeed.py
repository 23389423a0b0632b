"""ZeRO 1 and 2 as DeepSpeed runs them: flat weights, fp32 masters of one partition, gradients reduced in a bucket;
and DeepSpeed without ZeRO, where each GPU has all masters.

It follows the text of DeepSpeed 0.19.8, deepspeed/runtime/zero/stage_1_and_2.py (``__init__`` 397–602,
``initialize_optimizer_states`` 934, ``reduce_independent_p_g_buckets_and_remove_grads`` 1414, ``average_tensor`` 1590,
``copy_grads_in_partition`` 2142, ``get_grad_norm_direct`` 2648, ``step`` 3013); no run confirms it. What is followed is
the first process, whose partitions are full. What NCCL takes is not in here.
"""

from math import prod

from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.engine.modules import Model
from kb.memory.engine.optimizers import Optimizer
from kb.memory.engine.tensor import F32, Tensor, like, mark, new
from kb.memory.engine.world import world

REDUCE_BUCKET = 500_000_000  # elements
ALIGNMENT = 2  # elements of each process: NCCL starts at 4 bytes


class Place(NamedTuple):
    """Where a parameter lies in its group's flat weights: the partitions that it is in, and its elements in ours."""

    partitions: tuple[int, ...]
    own: int


class Zero:
    """``DeepSpeedZeroOptimizer``; a Trainer's optimizer of the flat masters is inside."""

    def __init__(self, model: Model, setup: TrainingSetup) -> None:
        recording = world.recording
        recording.moment, recording.term = "loading", "temporaries"
        self.model, self.ranks, self.late = model, setup.data_parallel_size, setup.zero_stage == 1
        self.on_host, self.doubled = setup.offload_optimizer, bool(setup.spread.overlap_comm)
        given = setup.spread.reduce_bucket
        self.bucket_size = REDUCE_BUCKET if given is None else given
        trained = model.trained()
        self.groups = [[t for t in trained if model.decays(t) is decays] for decays in (True, False)]
        self.groups = [group for group in self.groups if group]
        self.dtype = trained[0].dtype if trained else F32
        self.places: dict[int, Place] = {}
        self.masters: list[Tensor] = []
        for group in self.groups:
            self._flatten(group)
        self.spare: Tensor | None = None
        if self.on_host and trained:
            self.spare = self._buffer(max(prod(tensor.shape) for tensor in trained))
        grads = [new(master.shape, F32) for master in self.masters] if not self.on_host else []
        del grads
        self.buffers: list[Tensor] = []
        self.filled: list[Tensor] = []  # parameters whose gradients are in the bucket
        self.elements = 0
        self.kept: Tensor | None = None  # gradients of our partitions, both groups in one
        self.averaged: Tensor | None = None  # as of earlier passes of the step
        self.optimizer = Optimizer(self, setup.optim)
        self.alike = True  # each step makes what the first made, but for states

    def _flatten(self, group: list[Tensor]) -> None:
        """Weights become parts of one tensor; of our partition there is a copy in fp32.

        DeepSpeed flattens on the GPU where it finds room for a second copy, which so is no need of the run.
        """
        for tensor in group:  # by way of the host, as where there is no room for both
            tensor.storage = None
        world.recording.empty_cache()
        unit = ALIGNMENT * self.ranks
        total = -(-sum(prod(tensor.shape) for tensor in group) // unit) * unit
        flat, part, at = new((total,), self.dtype), total // self.ranks, 0
        adapters = self.model.options.adapters is not None
        mark(flat, "adapters" if adapters else "parameters")
        for tensor in group:
            tensor.storage = flat.storage
            size = prod(tensor.shape)
            partitions = tuple(range(at // part, (at + size - 1) // part + 1))
            self.places[id(tensor)] = Place(partitions, max(0, min(part - at, size)))
            at += size
        if self.on_host:
            master = Tensor((part,), F32, (1,), None)
        else:
            copy = new((part,), self.dtype)
            master = copy if self.dtype == F32 else new((part,), F32)
            del copy
            mark(master, "optimizer")
        self.masters.append(master)

    def _buffer(self, elements: int) -> Tensor:
        before, world.recording.term = world.recording.term, "buckets"
        made = new((elements,), self.dtype)
        world.recording.term = before
        return made

    def before_pass(self) -> None:
        """Backward's hooks: each gradient goes into the bucket as it comes; in stage 1 only after the last pass."""
        world.ready = self._ready

    def _ready(self, tensor: Tensor) -> None:
        if id(tensor) not in self.places:  # a leaf of a recomputation
            return
        if not self.buffers:
            self.buffers = [self._buffer(self.bucket_size) for _ in range(2 if self.doubled else 1)]
        if not self.late:
            self._into_bucket(tensor)

    def _into_bucket(self, tensor: Tensor) -> None:
        size = prod(tensor.shape)
        if self.elements + size > self.bucket_size:
            self._reduce()
            self.buffers.reverse()
        if size <= self.bucket_size:
            tensor.grad = Tensor(tensor.shape, self.dtype, tensor.strides, self.buffers[0].storage)
        self.filled.append(tensor)
        self.elements += size

    def _reduce(self) -> None:
        """Slices for different processes are joined to be reduced; ours are copied, the others' let go."""
        slices: list[int] = []
        for tensor in self.filled:
            for partition in self.places[id(tensor)].partitions:
                if not slices or slices[-1] != partition:
                    slices.append(partition)
        if len(slices) > 1:
            joined = self._buffer(self.elements)
            del joined
        for tensor in self.filled:
            if 0 not in self.places[id(tensor)].partitions:
                tensor.grad = None if not self.late else tensor.grad
            elif self.on_host:
                wide = new((2 * self.places[id(tensor)].own,), F32)  # a norm in fp64
                del wide
                tensor.grad = None
            else:
                self._keep(tensor)
        self.filled, self.elements = [], 0

    def _keep(self, tensor: Tensor) -> None:
        if self.kept is None:
            ours = [each for group in self.groups for each in group if 0 in self.places[id(each)].partitions]
            self.kept = new((sum(prod(each.shape) for each in ours),), self.dtype)
            mark(self.kept, "gradients")
        tensor.grad = Tensor(tensor.shape, self.dtype, tensor.strides, self.kept.storage)

    def after_pass(self, *, last: bool) -> None:
        """The rest of the bucket is reduced, and what passes found is added up (``…_epilogue``)."""
        world.ready = None
        if self.late:
            if not last:
                return
            for group in self.groups:
                for tensor in group:
                    if tensor.grad is not None:
                        self._into_bucket(tensor)
        self._reduce()
        if self.averaged is None:
            self.averaged = self.kept
        self.kept = None
        self.buffers.clear()
        for group in self.groups:
            for tensor in group:
                tensor.grad = None

    def step(self) -> None:
        """Norms in fp64, then group by group: gradients in fp32, the optimizer, the new weights gathered in place."""
        recording = world.recording
        recording.moment, recording.term = "optimizer_step", "temporaries"
        if self.on_host or self.optimizer.name == "none":
            self.averaged = None
            return
        for group in self.groups:
            for tensor in group:
                own = self.places[id(tensor)].own
                if own:
                    wide = new((2 * own,), F32)
                    del wide
        for at, (group, master) in enumerate(zip(self.groups, self.masters, strict=True)):
            alone = len([tensor for tensor in group if self.places[id(tensor)].own]) == 1
            flat = None if alone else new(master.shape, self.dtype)
            grad = new(master.shape, F32) if self.dtype != F32 or flat is None else flat
            del flat
            if at == len(self.groups) - 1:
                self.averaged = None
            master.grad = grad
            del grad
            self.optimizer.update([master])
            master.grad = None

    # What an optimizer asks of a model.

    wide: frozenset[int] = frozenset()

    def trained(self) -> list[Tensor]:
        return self.masters

    def names(self) -> dict[int, str]:
        return dict.fromkeys(map(id, self.masters), "")

    def decays(self, master: Tensor) -> bool:
        return master is self.masters[0]


class Unshared:
    """DeepSpeed without ZeRO (``_do_optimizer_sanity_check`` of runtime/engine.py): weights in 16 bits have fp32
    masters, one for each tensor (``FP16_UnfusedOptimizer``, runtime/fp16/unfused_optimizer.py); fp32 weights have none.
    """

    def __init__(self, model: Model, setup: TrainingSetup) -> None:
        recording = world.recording
        recording.moment, recording.term = "loading", "temporaries"
        self.model, self.ranks = model, setup.data_parallel_size
        self.pairs = [(tensor, self._master(tensor)) for tensor in model.trained()]
        self.plain = {id(master) for tensor, master in self.pairs if not model.decays(tensor)}
        self.optimizer = Optimizer(self, setup.optim)
        self.alike = self.optimizer.alike

    def _master(self, tensor: Tensor) -> Tensor:
        if tensor.dtype == F32:
            return tensor
        copy = like(tensor)
        master = like(copy, F32)
        del copy
        mark(master, "optimizer")
        return master

    def before_pass(self) -> None:
        """Gradients stay where backward puts them."""

    def after_pass(self, *, last: bool) -> None:
        """``allreduce_no_retain``: after the last pass gradients are joined to be reduced, and copied back."""
        if not last or self.ranks < 2:
            return
        size, dtype = 0, F32
        for tensor in self.model.trained():
            if tensor.grad is not None:
                size, dtype = size + prod(tensor.shape), tensor.grad.dtype
                if size > REDUCE_BUCKET:
                    self._reduce(size, dtype)
                    size = 0
        if size:
            self._reduce(size, dtype)

    def _reduce(self, size: int, dtype: str) -> None:
        before, world.recording.term = world.recording.term, "buckets"
        joined = new((size,), dtype)
        del joined
        world.recording.term = before

    def step(self) -> None:
        """All gradients in fp32 beside those of backward (``FP16_UnfusedOptimizer.step``), then the optimizer."""
        recording = world.recording
        recording.moment, recording.term = "optimizer_step", "temporaries"
        pairs = [(tensor, master) for tensor, master in self.pairs if tensor.grad is not None]
        if self.optimizer.name != "none":
            for tensor, master in pairs:
                if master is not tensor:
                    master.grad = new(tensor.shape, F32)
            self.optimizer.update([master for _, master in pairs])
        for tensor, master in pairs:
            tensor.grad = master.grad = None

    # What an optimizer asks of a model.

    @property
    def wide(self) -> set[int]:
        return {id(master) for tensor, master in self.pairs if id(tensor) in self.model.wide}

    def trained(self) -> list[Tensor]:
        return [master for _, master in self.pairs]

    def names(self) -> dict[int, str]:
        names = self.model.names()
        return {id(master): names[id(tensor)] for tensor, master in self.pairs}

    def decays(self, master: Tensor) -> bool:
        return id(master) not in self.plain
