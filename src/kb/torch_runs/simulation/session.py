"""Opens a simulation: fake CUDA tensors, the allocator's model under them, and undone what fake tensors, or a build
without CUDA, do that a run on a GPU would not.

Every patch is an entry of :func:`patches`, with the artefact that it undoes, and holds only inside :func:`undone`.
Import only in the simulator's process.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kb.core.record import NamedTuple
from kb.memory.engine.allocator import CachingAllocator
from kb.memory.engine.expandable import ExpandableAllocator
from kb.torch_runs.simulation import kernels
from kb.torch_runs.simulation.attention import Attention, Backend, flash_attn_functions
from kb.torch_runs.simulation.known import tell_even_spread
from kb.torch_runs.simulation.tracer import Tracer

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
else:
    from kb.torch_runs.simulation.torch_modules import FakeTensor, FakeTensorMode, torch


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
    if bits_and_bytes and find_spec("bitsandbytes") is not None:
        kernels.install_bits_and_bytes(tracer)
    with FakeTensorMode(allow_non_fake_inputs=True):
        tracer.engine_count = _engine_count()
        with undone(tracer, Attention(capability, sdpa_backend)), _modules_named(tracer), tracer:
            yield tracer
    tracer._close_span()


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


class Patch(NamedTuple):
    """``name`` of the module or class ``owner`` becomes ``value``; ``artefact`` is what would happen without."""

    owner: str
    name: str
    value: Any
    artefact: str


def _never(*_: Any, **__: Any) -> bool:
    return False


def _always(*_: Any, **__: Any) -> bool:
    return True


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _made(data: Any, *args: Any, **named: Any) -> Any:
    """``torch.tensor``, with numbers in the place of tensors that hold one."""
    if isinstance(data, list):
        data = [each.item() if isinstance(each, torch.Tensor) and not each.dim() else each for each in data]
    return _torch_tensor(data, *args, **named)


_torch_tensor = torch.tensor


def _one_hot(tracer: Tracer, tensor: Any, num_classes: int = -1) -> Any:
    """``torch.nn.functional.one_hot`` as ATen/native/Onehot.cpp has it where there is a GPU."""
    found = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64, device=tensor.device)
    found = found.scatter_(-1, tensor.unsqueeze(-1), 1)
    if tracer.routes:
        tell_even_spread(tracer, found)
    return found


def _linear(tracer: Tracer) -> Callable[..., Any]:
    """``torch.nn.functional.linear``, whose operators the tracer knows by it."""
    linear = torch.nn.functional.linear

    def told(*args: Any, **named: Any) -> Any:
        tracer.in_linear = True
        try:
            return linear(*args, **named)
        finally:
            tracer.in_linear = False

    return told


def _of_the_gpu(tracer: Tracer) -> list[Patch]:
    """What is asked of a GPU that is not there."""
    return [
        Patch(
            "torch.cuda", "is_bf16_supported", _always, "Without a GPU autocast refuses bf16, which any can emulate."
        ),
        Patch("torch.cuda", "empty_cache", tracer.allocator.empty_cache, "The cache to empty is the model's."),
        Patch("torch.cuda", "synchronize", _nothing, "There is no stream to wait for."),
        Patch("torch.cuda", "is_current_stream_capturing", _never, "There is no stream to ask."),
        Patch("torch.cuda", "get_device_capability", lambda *_: tracer.capability, "There is no GPU to ask."),
        Patch("torch.cuda", "current_device", lambda: 0, "There is no GPU to ask."),
    ]


def patches(tracer: Tracer, attention: Attention) -> list[Patch]:
    """All of them. An owner that is not installed, or has no such name, is passed over."""
    return [
        Patch(
            "torch.nn.functional",
            "scaled_dot_product_attention",
            attention,
            "The backend is chosen by the properties of a GPU that is not there.",
        ),
        *(
            Patch(
                f"transformers.{module}",
                "is_tracing",
                _never,
                "Fake tensors count as tracing: a mask is built that a real run, which looks at its input, does not.",
            )
            for module in ("masking_utils", "modeling_attn_mask_utils", "modeling_flash_attention_utils")
        ),
        Patch(
            "torch.nn.Module",
            "_apply",
            apply_to_parameters,
            "Moving a module swaps tensors in place, which is refused where they are watched by a weak reference.",
        ),
        Patch(
            "torch.cuda.amp.common",
            "amp_definitely_not_available",
            _never,
            "Without a GPU autocast for CUDA switches itself off.",
        ),
        *(
            Patch(
                module,
                "_foreach_supported_types",
                [torch.Tensor, torch.nn.Parameter, FakeTensor],
                "Optimizers and clipping loop over tensors one by one where these are of a type they do not know.",
            )
            for module in ("torch.optim.optimizer", "torch.utils._foreach_utils")
        ),
        Patch("torch.nn.functional", "linear", _linear(tracer), "To a fake product a bias is not added in its place."),
        Patch(
            "torch.nn.functional", "one_hot", partial(_one_hot, tracer), "Fake tensors are compared with every class."
        ),
        Patch("torch", "tensor", _made, "A list of fake tensors is read past whoever knows their numbers."),
        *_of_the_gpu(tracer),
        Patch("transformers.PreTrainedModel", "_flash_attn_import_error", _nothing, "flash-attn needs a GPU."),
        Patch(
            "transformers.modeling_flash_attention_utils",
            "_lazy_imports",
            flash_attn_functions,
            "flash-attn needs a GPU.",
        ),
        Patch(
            "transformers.modeling_flash_attention_utils",
            "_loaded_implementation",
            None,
            "What was loaded before the trace is not what it needs.",
        ),
    ]


@contextmanager
def undone(tracer: Tracer, attention: Attention) -> Iterator[None]:
    """Apply every patch, register the kernels that a CPU build lacks, and restore all of it at the end."""
    saved: list[tuple[Any, str, Any]] = []
    library = _missing_kernels()
    try:
        for patch in patches(tracer, attention):
            owner = _owner(patch.owner)
            if owner is not None and hasattr(owner, patch.name):
                saved.append((owner, patch.name, getattr(owner, patch.name)))
                setattr(owner, patch.name, patch.value)
        yield
    finally:
        for owner, name, value in reversed(saved):
            setattr(owner, name, value)
        if library is not None:
            library._destroy()


@contextmanager
def gpu_seen() -> Iterator[None]:
    """Libraries skip ``empty_cache`` where they see no GPU. Not for a whole trace: torch would then compute on it."""
    before = torch.cuda.is_available
    torch.cuda.is_available = _always  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.cuda.is_available = before


def _owner(path: str) -> Any:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        try:
            return getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError:
            return None


def _missing_kernels() -> "torch.library.Library | None":
    """One output, as the CUDA kernel: a CPU build decomposes these, with temporaries that no GPU has."""
    names = [
        name
        for name in ("silu_backward", "mish_backward")
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA")
    ]
    if not names:
        return None
    library = torch.library.Library("aten", "IMPL")
    for name in names:
        library.impl(name, lambda grad, like: torch.empty_like(like), "CUDA")
    return library


def apply_to_parameters(
    module: "torch.nn.Module", change: Callable[["torch.Tensor"], "torch.Tensor"], recurse: bool = True
) -> "torch.nn.Module":
    """``torch.nn.Module._apply``: children first, then own. A parameter whose type changes stays itself, as there, so
    that a table which two modules share is changed for both."""
    if recurse:
        for child in module.children():
            child._apply(change)
    for name, parameter in list(module._parameters.items()):
        if parameter is None:
            continue
        with torch.no_grad():
            changed = change(parameter)
        if changed is parameter:
            continue
        # a fake tensor stays on its device whatever data it is given
        if changed.device == parameter.device and torch._has_compatible_shallow_copy_type(parameter, changed):
            parameter.data = changed
        else:
            module._parameters[name] = torch.nn.Parameter(changed.detach(), parameter.requires_grad)
    for name, buffer in list(module._buffers.items()):
        if buffer is not None:
            module._buffers[name] = change(buffer)
    return module
