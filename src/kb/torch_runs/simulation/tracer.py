"""Watches every operator on fake CUDA tensors and books each new storage with the allocator's model.

A storage's block is freed when the storage dies, so liveness is Python's and autograd's own, not a guess.
Import only in the simulator's process: torch is imported here.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kb.core.record import NamedTuple
from kb.memory.engine.allocator import CachingAllocator
from kb.memory.engine.tensor import is_dense
from kb.torch_runs.simulation.timeline import Event

if TYPE_CHECKING:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
else:
    from kb.torch_runs.simulation.torch_modules import TorchDispatchMode, torch

Scalar = bool | int | float
aten = torch.ops.aten
PUT_INTO_ZEROS = (aten.index_put.default, aten.index_add.default, aten.scatter_add.default)


class Span(NamedTuple):
    """One stay in a phase: peaks in bytes, with what was there when it began."""

    phase: str
    peak_allocated: int
    peak_reserved: int


class Booked(NamedTuple):
    """A storage's block; ``watch`` frees it when the storage dies."""

    address: int
    event: int
    size: int
    watch: "weakref.ref[Any]"


class Tracer(TorchDispatchMode):
    """Set ``phase`` before each part of a run, then read ``spans``, ``events`` and ``roles``.

    ``events`` is the allocator's log. ``roles`` says what the block of an ``alloc`` event holds, where :meth:`mark` was
    called. ``answer`` replies where the host reads a number from the GPU (``.item()``, ``if tensor:``).
    ``engine_count`` is the use count that a gradient has when nothing but autograd's buffer holds it.
    """

    def __init__(self, allocator: CachingAllocator, capability: tuple[int, int]) -> None:
        super().__init__()
        self.allocator = allocator
        allocator._record = self._record
        self.capability = capability
        self.device = torch.device("cuda")
        self.events: list[Event] = []
        self.roles: dict[int, str] = {}
        self.padded = True
        self.answer: Callable[[torch.Tensor], Scalar] = self.usual_answer
        self.modules: list[str] = []
        self.names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self.engine_count = 4
        self.replaced: dict[Any, Callable[..., Any]] = {}
        self.known: Any = None  # numbers of fake tensors, where a model asks for them
        self.shaped: Sequence[Any] = ()
        self.routes = False  # inside a mixture whose experts are modules
        self.in_linear = False  # inside torch.nn.functional.linear
        self.scratch: dict[Any, Callable[..., Sequence[Sequence[int]]]] = {}
        self.workspaces: dict[Any, Callable[..., Sequence[int]]] = {}
        self.spans: list[Span] = []
        self._phase = "load"
        self._live: dict[int, Booked] = {}
        self._workspaces: set[tuple[int, int]] = set()
        self._op = ""
        self._requested = 0
        self._unbooked = False

    @property
    def phase(self) -> str:
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        self._close_span()
        self._phase = name
        self.allocator.reset_peaks()

    def _close_span(self) -> None:
        self.spans.append(Span(self._phase, self.allocator.peak_allocated, self.allocator.peak_reserved))

    def mark(self, tensor: "torch.Tensor", role: str) -> None:
        """Say what the block under ``tensor`` holds, for its whole life."""
        if tensor.device.type == "cuda":
            booked = self._live.get(tensor.untyped_storage()._cdata)
            if booked is not None:
                self.roles[booked.event] = role

    def name_modules(self, model: "torch.nn.Module") -> None:
        """From here on ``module`` of an event is the path inside ``model``."""
        for name, module in model.named_modules():
            self.names[module] = name

    def has(self, tensor: "torch.Tensor") -> bool:
        return tensor.device.type == "cuda" and tensor.untyped_storage()._cdata in self._live

    def live_blocks(self) -> list[tuple[int, Event]]:
        """(number of the alloc event, the event) of every storage that is alive."""
        return [(booked.event, self.events[booked.event]) for booked in self._live.values()]

    @contextmanager
    def unbooked(self) -> Iterator[None]:
        """What is made inside is no block of its own: views whose storage gets one by :meth:`pass_on`."""
        before, self._unbooked = self._unbooked, True
        try:
            yield
        finally:
            self._unbooked = before

    def hold(self, requested: int, op: str, role: str = "") -> int:
        """Book a block that no tensor stands for, until :meth:`release`; returns its address."""
        self._op, self._requested = op, requested
        address = self.allocator.malloc(requested)
        if role:
            self.roles[len(self.events) - 1] = role
        return address

    def release(self, address: int) -> None:
        self.allocator.free(address)

    def usual_answer(self, tensor: "torch.Tensor") -> Scalar:
        """Masks are "all ones" where the batch is not padded, no sample is several in one; any number is 1."""
        if tensor.dtype != torch.bool:
            return 1
        return not self.padded and not _asks_of_packing()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not torch._C._only_lift_cpu_tensors():  # backward's thread: data would be asked of a CUDA that is not there
            torch._C._set_only_lift_cpu_tensors(True)
        if func is torch.ops.aten._local_scalar_dense.default and getattr(args[0], "constant", None) is None:
            number = self.known and self.known.number(args[0])
            return self.answer(args[0]) if number is None else number
        numbers = self.known and self.known.result(func, args, kwargs)
        if numbers is not None and func in self.shaped:
            return self._shaped(func, args, numbers)
        replacement = self.replaced.get(func)
        if replacement is not None:
            with self:
                return replacement(self, *args, **kwargs)
        grown = self._engine_accumulates(func, args)
        out = func(*args, **kwargs)
        if grown is not None:
            self.pass_on(grown, out)
        if numbers is not None:
            self.known.keep(out, numbers)
        self._op = func.__name__
        for leaf in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(leaf, torch.Tensor):
                self.book(leaf)
            elif isinstance(leaf, (tuple, list)):
                for tensor in leaf:
                    self.book(tensor)
        if func is torch.ops.aten._to_copy.default and self._phase != "load":
            self._mark_copy(args[0], out)
        if func in self.workspaces:
            for size in self.workspaces[func](*args):
                self._book_workspace(size)
        if func in self.scratch:
            self._book_scratch(self.scratch[func](self, *args, **kwargs), func.__name__)
        return out

    def _shaped(self, func: Any, args: Any, numbers: Any) -> Any:
        """A result whose shape only numbers tell, which are known; a mask is first made a list of places."""
        device = next(each.device for each in args if isinstance(each, torch.Tensor))
        with self:
            out = torch.utils._pytree.tree_map(
                lambda each: torch.empty(each.shape, dtype=each.dtype, device=device), numbers
            )
        self.known.keep(out, numbers)
        return out

    def _mark_copy(self, source: "torch.Tensor", copy: "torch.Tensor") -> None:
        """A weight cast during the run is autocast's copy, which its cache keeps."""
        booked = self._live.get(source.untyped_storage()._cdata)
        if booked is not None and self.roles.get(booked.event) in ("weights", "adapters"):
            self.mark(copy, "autocast_copies")

    def book(self, tensor: Any) -> None:
        """Book the storage under ``tensor``, unless it is known, empty, or not on the GPU."""
        if self._unbooked or not isinstance(tensor, torch.Tensor) or tensor.device.type != "cuda":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        size = storage.nbytes()
        if key in self._live or not size:
            return
        self._requested = size
        address = self.allocator.malloc(size)
        self._live[key] = Booked(address, len(self.events) - 1, size, self._watch(storage, key))

    def _watch(self, storage: Any, key: int) -> "weakref.ref[Any]":
        return weakref.ref(storage, lambda _: self._died(key))

    def _died(self, key: int) -> None:
        booked = self._live.pop(key, None)
        if booked is not None:
            self.allocator.free(booked.address)

    def _record(self, action: str, address: int, size: int) -> None:
        if action == "alloc":
            module = self.modules[-1] if self.modules else ""
            event = Event("alloc", address, size, self._op, module, self._phase, self._requested)
        else:
            event = Event(action, address, size, "", "", self._phase)  # type: ignore[arg-type]
        self.events.append(event)

    def _book_workspace(self, size: int) -> None:
        """cuBLAS, and cuBLASLt, take a workspace for each thread that multiplies, at its first product, for good."""
        kept = (threading.get_ident(), size)
        if kept not in self._workspaces:
            self._workspaces.add(kept)
            self.hold(size, "cublas_workspace", "workspace")

    def _book_scratch(self, stages: Sequence[Sequence[int]], op: str) -> None:
        for sizes in stages:
            for address in [self.hold(size, op, "workspace") for size in sizes if size]:
                self.release(address)

    def _engine_accumulates(self, func: Any, args: Any) -> int | None:
        """The storage into which autograd would add in place, were this not a tensor subclass.

        ``InputBuffer::accumulate`` (torch/csrc/autograd/input_buffer.cpp) adds into the gradient it already has where
        that has no other holder; for a subclass, as fake tensors are, it makes a new one. So do ``index_backward``,
        ``index_select_backward`` and ``gather_backward`` (FunctionsManual.cpp), which put gradients in zeros. A linear
        layer adds its bias to the product of an input that is not contiguous in its place, unless one of the two is a
        subclass (ATen/native/Linear.cpp).
        """
        if self.in_linear and func is aten.add.Tensor:
            return int(args[0].untyped_storage()._cdata)
        if func in PUT_INTO_ZEROS and self._called_by_engine():
            return int(args[0].untyped_storage()._cdata)
        if func is not aten.add.Tensor or torch.is_grad_enabled() or not isinstance(args[1], torch.Tensor):
            return None
        old = args[0]
        storage = old.untyped_storage()
        if not self._called_by_engine() or torch._C._storage_Use_Count(storage._cdata) > 2:
            return None
        if old._use_count() > self.engine_count or not is_dense(tuple(old.shape), old.stride()):
            return None
        return int(storage._cdata)

    @staticmethod
    def _called_by_engine() -> bool:
        """Whether no Python stands between autograd's engine and the operator but torch's own wrappers.

        The engine is where its thread begins, or where a backward inside of one (``CheckpointFunction``) starts it.
        """
        frame: Any = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "_engine_run_backward":
                return True
            if code.co_name not in ("_fn", "inner", "__torch_dispatch__", "_engine_accumulates"):
                return False
            frame = frame.f_back
        return True

    def pass_on(self, key: int, heir: "torch.Tensor") -> None:
        """The block of the storage ``key`` becomes that of ``heir``, which is never allocated."""
        booked = self._live.get(key)
        storage = heir.untyped_storage()
        if booked is None or storage._cdata in self._live or booked.size != storage.nbytes():
            return
        del self._live[key]
        self._live[storage._cdata] = booked._replace(watch=self._watch(storage, storage._cdata))


def _asks_of_packing() -> bool:
    """Whether flash attention of one sample asks if it is several (``_is_packed_sequence``)."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_flash_attention_forward":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
