"""Opens a simulation: fake CUDA tensors, the allocator's model under them, and the artefacts of both undone.

Import only in the simulator's process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kb.memory.engine.allocator import CachingAllocator
from kb.memory.engine.expandable import ExpandableAllocator
from kb.torch_runs.simulation import kernels
from kb.torch_runs.simulation.artefacts import undone
from kb.torch_runs.simulation.attention import Attention, Backend
from kb.torch_runs.simulation.tracer import Tracer

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
else:
    from kb.torch_runs.simulation.torch_modules import FakeTensorMode, torch


@contextmanager
def open_session(
    capability: tuple[int, int],
    limit_bytes: int | None = None,
    expandable_segments: bool = False,
    sdpa_backend: Backend | None = None,
    bits_and_bytes: bool = True,
) -> Iterator[Tracer]:
    """A tracer under which every tensor on ``cuda`` is fake and booked.

    ``capability`` is the target GPU's; ``limit_bytes`` what its driver can give (None: without end). ``sdpa_backend``
    pins the kernel of ``scaled_dot_product_attention``, as ``torch.nn.attention.sdpa_kernel`` does. Without
    ``bits_and_bytes`` that library is not imported: it takes a second or two, and only some runs need it.

    Raises:
        NoCompilerError: torch is a CPU build and the shim could not be compiled (on import of this module).
        OutOfMemory: in the body, where the run would have run out.
    """
    allocator = (ExpandableAllocator if expandable_segments else CachingAllocator)(limit_bytes)
    tracer = Tracer(allocator, capability)
    kernels.install(tracer)
    if bits_and_bytes:
        _install_quantized(tracer)
    with FakeTensorMode(allow_non_fake_inputs=True):
        tracer.engine_count = _engine_count()
        with undone(tracer, Attention(capability, sdpa_backend)), _modules_named(tracer), tracer:
            yield tracer
    tracer._close_span()


def _install_quantized(tracer: Tracer) -> None:
    from importlib.util import find_spec

    if find_spec("bitsandbytes") is not None:
        from kb.torch_runs.simulation import quantized

        quantized.install(tracer)


def _engine_count() -> int:
    """The use count of a gradient that only autograd's buffer holds: it differs between versions of torch."""
    seen: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():
                seen.append(args[0]._use_count())
            return func(*args, **(kwargs or {}))

    with Watch():
        start = torch.ones(2, device="cuda", requires_grad=True)
        twice = start * 1
        (twice.exp() * twice.sin()).sum().backward()  # type: ignore[no-untyped-call]
    return seen[0]


@contextmanager
def _modules_named(tracer: Tracer) -> Iterator[None]:
    """Keep ``tracer.modules``: the path of the module whose forward runs is its last."""
    hooks = torch.nn.modules.module
    depths: list[int] = []

    def enter(module: Any, _: Any) -> None:
        depths.append(len(tracer.modules))
        tracer.modules.append(tracer.names.get(module, type(module).__name__))

    def leave(module: Any, _: Any, __: Any) -> None:
        if depths:
            del tracer.modules[depths.pop() :]

    handles = [
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
