"""ZeRO-3 as DeepSpeed runs it: partitions at rest, each module's parameters gathered before it runs and let go after.

It follows DeepSpeed 0.19.8: runtime/zero/partition_parameters.py (``all_gather_coalesced``, ``_partition_param``),
parameter_offload.py (which hooks stand around a module), stage3.py (``__init__``, ``_create_fp32_partitions``,
``__add_grad_to_ipg_bucket``, ``__avg_scatter_grads``, ``partition_grads``, ``step``). Of the first process.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.fsdp import asking, drop, fill, originals, packed_weights, with_adapters
from kb.memory.engine.gathering import Coordinator, Hooked, Module, own, sub_groups
from kb.memory.engine.modules import Linear, Model
from kb.memory.engine.optimizers import Optimizer
from kb.memory.engine.tape import record
from kb.memory.engine.tensor import F32, Storage, Tensor, mark, new
from kb.memory.engine.world import world

REDUCE_BUCKET = 500_000_000  # elements
REDUCE = 2  # the stream that gradients are reduced in, where that overlaps
SERVES = 4  # the stream that parameters are gathered in where nothing trains


class Zero3:
    """``DeepSpeedZeroOptimizer_Stage3`` with the hooks that it puts on a model's modules.

    ``serves``: nothing trains, and of all that only the hooks are there (``DeepSpeedZeRoOffload``).
    """

    flat = True  # buffers are as the model has them, which families ask

    def __init__(self, model: Model, setup: TrainingSetup, *, serves: bool = False) -> None:
        spread = setup.spread
        self.model, self.ranks = model, setup.data_parallel_size
        self.on_host, self.params_on_host = setup.offload_optimizer, setup.offload_param
        self.overlaps = spread.overlap_comm is not False  # its default is on in stage 3
        self.bucket_size = REDUCE_BUCKET if spread.reduce_bucket is None else spread.reduce_bucket
        self.dtype = model.options.dtype
        self.alike = False  # the first pass only records which modules run
        recording = world.recording
        recording.moment, recording.term = "loading", "parameters"
        packed = packed_weights(model)
        tensors = [packed.get(id(tensor), tensor) for tensor in with_adapters(model)]
        self.frozen: list[Tensor | None] = []
        self.coordinator = Coordinator(tensors, setup)
        if serves and self.overlaps:  # beside one that trains it has a stream of its own
            self.coordinator.stream = SERVES
        self.part = {id(tensor): -(-prod(tensor.shape) // self.ranks) for tensor in tensors}
        for buffer in model.buffers:
            fill(buffer, prod(buffer.shape))
        partitions = [self._partitioned(tensor) for tensor in tensors]
        self._hook(packed)
        trained = [] if serves else model.trained()
        groups = [[tensor for tensor in trained if model.decays(tensor) is decays] for decays in (True, False)]
        self.groups = [part for group in groups if group for part in sub_groups(group, self.part)]
        kept = set(map(id, trained))
        self.frozen = [part for tensor, part in zip(tensors, partitions, strict=True) if id(tensor) not in kept]
        for part in self.frozen:
            if part is not None:
                mark(part, "parameters")
        del partitions
        recording.empty_cache()
        # of what is offloaded in part, the first groups stay here (stage3.py, ``subgroup_to_device``)
        left = 1 - spread.optimizer_offload_ratio if self.on_host else 1.0
        self.here, self.masters = int(left * len(self.groups)), list[Tensor]()
        if not serves:
            self._keep()
        self.filled: list[Tensor] = []  # parameters whose gradients wait to be reduced
        self.elements = 0
        self.optimizer = Optimizer(self, "none" if serves else setup.optim)

    def _partitioned(self, tensor: Tensor) -> Tensor | None:
        """A parameter on its way to the GPU, of which this process's part stays; packed weights are there already."""
        there = bool(tensor.storage.size)
        dtype = tensor.dtype if there else self.dtype
        whole = None if there else new(tensor.shape, dtype)
        part = None if self.params_on_host else new((self.part[id(tensor)],), dtype)
        drop(tensor)
        del whole
        return part

    def size(self, group: Sequence[Tensor]) -> int:
        """Elements of this process's parts."""
        return sum(self.part[id(tensor)] for tensor in group)

    def _keep(self) -> None:
        """Partitions in one flat buffer, fp32 masters, the bucket and a buffer for gradients: what stays."""
        sizes = [self.size(group) for group in self.groups]
        self.parts = None if self.params_on_host else new((sum(sizes),), self.dtype)
        if self.parts is not None:
            mark(self.parts, "parameters")
        wide: Any = None
        for at, size in enumerate(sizes):
            if at >= self.here:
                self.masters.append(Tensor((size,), F32, (1,), None))
                continue
            wide = new((size,), F32)
            self.masters.append(new((size,), F32))
            mark(self.masters[-1], "optimizer")
        del wide
        recording = world.recording
        if self.here:
            with asking("temporaries"):
                largest = new((max(sizes[: self.here]),), F32)
                del largest
        recording.term = "buckets"
        self.bucket = new((self.bucket_size,), self.dtype)
        self.sums: Tensor | None = None
        if not self.on_host:
            self.sums = new((sum(sizes),), self.dtype)
            mark(self.sums, "gradients")
        recording.term = "temporaries"
        for group in self.groups:  # hooks are put on each parameter while it is whole
            for tensor in group:
                if self.ranks == 1 and not self.params_on_host:
                    continue  # its part is the whole
                sent = new((self.part[id(tensor)],), self.dtype) if self.params_on_host and self.ranks > 1 else None
                whole = new((self.part[id(tensor)] * self.ranks,), self.dtype)
                del sent, whole

    def _hook(self, packed: Mapping[int, Tensor]) -> None:
        """Put hooks around the modules that the model is made of, whether they have parameters or not."""
        model: Any = self.model
        adapted = model.options.adapters is not None
        self.roots = [Module() for _ in range(3 if adapted else 1)]  # PEFT's two lie around the model
        self.stem, self.hooked = Module(), list[Module]()
        self.stems = [Module() for _ in range(model.stems)]
        self.leaves: dict[int, Module] = {}
        self.dropouts: dict[int, Module] = {}
        self.dropout = Module()
        model.product, model.drop, model.units = self._product, self._drop, self
        for linear in model.linears:
            whole = own(linear)
            self.leaves[id(linear.weight)] = Module(tuple(packed.get(id(tensor), tensor) for tensor in whole))
            if linear.product is not None:  # a class of the model's own, which DeepSpeed's function is not in
                linear.product = partial(self._own_product, linear.product)
            if linear.a is not None:
                self.leaves[id(linear.a)], self.leaves[id(linear.b)] = Module((linear.a,)), Module((linear.b,))
                self.dropouts[id(linear.weight)] = Module()
        words = getattr(model, "embed", None)  # a decoder's, which is looked up under another name
        self.named: dict[str, Module | None] = {
            path: Module((table,)) for path, table, _ in model.lookups if table is not words
        }
        if model.architecture.family == "decoder":
            self.named |= {
                "embed": Module((model.embed,)),
                "embed_norm": Module(own(model.embed_norm)) if model.embed_norm else None,
                "norm": Module(own(model.norm)),
                "head": None,
                "turn": Module() if model.rotary_width else None,
            }
            self._base, model.base = model.base, self._through_base
        layers = model.every_layer()
        self.named |= {layer.path: Module() for layer in layers}
        for holder in (*model.beside_layers(), *layers):
            self._wrap(holder)
        self._give_the_rest_to_the_root()

    def _give_the_rest_to_the_root(self) -> None:
        """What lies in no module that is hooked (tables of positions, norms outside of layers) is whole for a pass."""
        owned = {id(tensor) for module in self.modules for tensor in module.parameters}
        owned |= set(originals(self.model))  # which nobody calls
        rest = tuple(tensor for key, tensor in self.coordinator.tensors.items() if key not in owned)
        if rest:
            self.roots[-1] = Module(rest)

    @property
    def modules(self) -> list[Module]:
        """All that hooks stand around."""
        named = [module for module in self.named.values() if module is not None]
        return [*self.leaves.values(), *named, *self.hooked]

    def _wrap(self, holder: Any) -> None:
        for name, value in list(vars(holder).items()):
            if isinstance(value, list):
                value[:] = map(self._hooked, value)
            elif name == "act":
                setattr(holder, name, Hooked(self.within, Module(), value))
            elif name not in ("model", "traits", "units"):
                setattr(holder, name, self._hooked(value))

    def _hooked(self, value: Any) -> Any:
        if not (callable(value) and hasattr(value, "path")) or value.path in self.named:
            return value
        if isinstance(value, Linear) and value.state is not None:
            return Hooked(self.within, self.leaves[id(value.weight)], value)
        if isinstance(value, Linear):  # what has parameters is hooked at its product
            return value if value.a is None else Hooked(self.within, Module(), value)
        if not hasattr(value, "weight"):
            self._wrap(value)
        self.hooked.append(Module(own(value), named=hasattr(value, "projections")))
        return Hooked(self.within, self.hooked[-1], value)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        """A linear layer's call; behind an adapted one comes its adapter's dropout."""
        self.dropout = self.dropouts.get(id(weight), self.dropout)
        return self.within(self.leaves[id(weight)], ops.linear_by_function, x, weight, bias)

    def _own_product(
        self, product: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Any:
        """As :meth:`_product`, of a class with a product of its own."""
        self.dropout = self.dropouts.get(id(weight), self.dropout)
        return self.within(self.leaves[id(weight)], product, x, weight, bias)

    def _drop(self, x: Tensor, rate: float) -> Any:
        return self.within(self.dropout, ops.dropout, x, rate)

    def _through_base(self, *args: Any, **named: Any) -> Any:
        return self.within(self.stem, self._base, *args, **named)

    def within(self, module: Module, call: Callable[..., Any], x: Any, *rest: Any, **named: Any) -> Any:
        """A module's call: its parameters are there before and go after; backward finds nodes on both sides of it."""
        coordinator = self.coordinator
        coordinator.fetch(module, forward=True)
        if not module.named and isinstance(x, Tensor) and x.needs and world.grad:
            node = record(lambda _, grad: self._after_backward(module, grad), (x,))
            x = Tensor(x.shape, x.dtype, x.strides, x.storage, node)
        out = call(x, *rest, **named)
        x = None
        coordinator.release(module)
        return self._before_backward(module, out)

    def _before_backward(self, module: Module, out: Any) -> Any:
        if isinstance(out, tuple):
            return tuple(self._before_backward(module, each) for each in out)
        if not (isinstance(out, Tensor) and out.needs and world.grad):
            return out
        node = record(lambda _, grad: self._fetched(module, grad), (out,))
        return Tensor(out.shape, out.dtype, out.strides, out.storage, node)

    def _fetched(self, module: Module, grad: Any) -> tuple[Any]:
        self.coordinator.fetch(module, forward=False)
        return (grad,)

    def _after_backward(self, module: Module, grad: Any) -> tuple[Any]:
        self.coordinator.release(module, forward=False)
        return (grad,)

    # What a model asks of what shards it.

    @contextmanager
    def running(self, batch: Sequence[Any] = ()) -> Iterator[Sequence[Any]]:
        """The root's forward; its inputs stay as they are."""
        self.coordinator.begin()
        for module in (*self.roots, *self.stems):
            self.coordinator.fetch(module, forward=True)
        yield batch

    def through(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
        """Run a module under its name in the model."""
        module = self.named.get(name)
        return call(*args) if module is None else self.within(module, call, *args)

    def given(self, outputs: Sequence[Any]) -> list[Any]:
        """The root's outputs: backward begins at them."""
        found = list(outputs)
        for root in reversed(self.roots):
            found = [self._before_backward(root, each) for each in found]
        return found

    def made_whole(self, tensor: Tensor) -> Tensor:
        """What is gathered while it is read: :meth:`reading`."""
        return tensor

    @contextmanager
    def reading(self, tensors: Sequence[Tensor | None]) -> Iterator[None]:
        """``GatheredParameters``, around what reads parameters outside of their module."""
        apart = [each for each in tensors if each is not None and id(each) not in self.coordinator.whole]
        with asking("gathered_parameters"):
            for tensor in apart:
                fill(tensor, self.part[id(tensor)] * self.ranks)
        yield
        for tensor in apart:
            tensor.storage = Storage(0)

    def finish(self) -> None:
        """``release_backward_leftovers`` comes after the last reduction: see :meth:`after_pass`."""

    # Gradients.

    def before_pass(self) -> None:
        """Backward's hooks: each gradient goes into the bucket as it comes."""
        world.ready = self._ready

    def _ready(self, tensor: Tensor) -> None:
        if id(tensor) not in self.part:  # a leaf of a recomputation
            return
        size = self.coordinator.elements[id(tensor)]
        if self.elements + size > self.bucket_size and self.elements:
            self._reduce()
        if self.elements + size <= self.bucket_size:
            tensor.grad = Tensor(tensor.shape, self.dtype, tensor.strides, self.bucket.storage)
        self.filled.append(tensor)
        self.elements += size

    def _reduce(self) -> None:
        """``reduce_scatter_coalesced``: gradients side by side, process by process; ours go to their buffer."""
        filled, self.filled, self.elements = self.filled, [], 0
        if not filled:
            return
        alone = len(filled) == 1 and prod(filled[0].shape) % self.ranks == 0
        with asking("temporaries", REDUCE if self.overlaps else 0):
            joined = None if alone else new((self.size(filled) * self.ranks,), self.dtype)
            for tensor in filled:
                if self.on_host:
                    self._to_host(tensor)
                tensor.grad = None
            del joined

    def _to_host(self, tensor: Tensor) -> None:
        """``_offload_grad_partition_at_boundary``: of a part that is there again, a norm in fp64 and a copy in fp32."""
        kept = new((self.part[id(tensor)],), self.dtype) if self.passes else None
        wide = new((2 * self.part[id(tensor)],), F32)
        del wide
        if self.dtype != F32:
            wide = new((self.part[id(tensor)],), F32)
            del wide
        del kept

    passes = 0

    def after_pass(self, *, last: bool) -> None:
        """What is left is reduced, and parameters whose modules no gradient left go."""
        world.ready = None
        self._reduce()
        self.coordinator.release_leftovers()
        self.passes = 0 if last else self.passes + 1

    @property
    def settled(self) -> Any:
        """What the next pass begins with: two that begin alike ask for the same. None where that is not known."""
        coordinator = self.coordinator
        return None if self.on_host or not coordinator.complete or coordinator.flying else coordinator.whole.copy()

    def step(self) -> None:
        """Parameters go, norms in fp64, then group by group: gradients in fp32, the optimizer; small ones come back."""
        recording = world.recording
        recording.moment, recording.term = "optimizer_step", "temporaries"
        self.coordinator.release_all()
        if self.optimizer.name != "none":
            for group in self.groups if not self.on_host else ():
                for tensor in group:
                    wide = new((2 * self.part[id(tensor)],), F32)
                    del wide
            for group, master in list(zip(self.groups, self.masters, strict=True))[: self.here]:
                joined = new(master.shape, self.dtype) if len(group) > 1 and not self.on_host else None
                grad = new(master.shape, F32) if self.dtype != F32 or joined is None else joined
                del joined
                master.grad = grad
                del grad
                self.optimizer.update([master])
                master.grad = None
        self.coordinator.gather_persistent()

    # What an optimizer asks of a model.

    wide: frozenset[int] = frozenset()

    def trained(self) -> list[Tensor]:
        return self.masters

    def names(self) -> dict[int, str]:
        return dict.fromkeys(map(id, self.masters), "")

    def decays(self, _: Tensor) -> bool:
        return True
