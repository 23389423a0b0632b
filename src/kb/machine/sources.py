"""The order in which NVML, nvidia-smi and torch are asked for GPUs, and when asking further is of no use.

An installed PyTorch is the last resort, since importing it takes a second.
"""

import importlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from kb.core.hardware import DetectedGpu, Gpu
from kb.machine import nvml, surroundings
from kb.machine.arguments import match_gpu, without_mig
from kb.machine.reading import NO_DRIVER, Note, Reading, Reported, Unanswered

Source = Literal["nvml", "nvidia-smi", "torch", "none"]

# Nothing else finds a GPU then: nvidia-smi and CUDA need the same driver.
_FINAL = ("driver_not_loaded", "no_device")
# A driver that hangs for one hangs for all.
_HANGING = ("nvml_hangs", "nvidia_smi_hangs")
# nvidia-smi may have another copy of the library; CUDA meets the same driver and the same device files.
_FINAL_FOR_CUDA = ("driver_mismatch", "no_permission")


def ask(root: str, environ: Mapping[str, str]) -> tuple[Source, Reading | None, list[Note]]:
    """Who answered, the answer, and why those asked before could not."""
    reasons: list[Note] = []
    try:
        return "nvml", nvml.read(root=root), reasons
    except Unanswered as unanswered:
        reasons.append(unanswered.note)
    if reasons[-1] in _FINAL + _HANGING:
        return "none", None, reasons

    from kb.machine import nvidia_smi

    program = nvidia_smi.find(root, environ.get("PATH", ""))
    if program is None and reasons[-1] in NO_DRIVER:
        return "none", None, reasons
    if program is not None:
        try:
            return "nvidia-smi", nvidia_smi.read(program), reasons
        except Unanswered as unanswered:
            reasons.append(unanswered.note)
        if reasons[-1] in _FINAL + _HANGING:
            return "none", None, reasons
    if set(reasons).intersection(_FINAL_FOR_CUDA):
        return "none", None, list(dict.fromkeys(reasons))
    return _ask_torch(reasons)


def _ask_torch(reasons: list[Note]) -> tuple[Source, Reading | None, list[Note]]:
    try:
        if _torch_is_here():
            return "torch", _torch_devices(), reasons
    except Unanswered as unanswered:
        reasons.append(unanswered.note)
    return "none", None, list(dict.fromkeys(reasons))


def _torch_is_here() -> bool:
    """Whether torch is there to be imported, without importing it."""
    if "torch" in sys.modules:
        return True
    import importlib.util

    return importlib.util.find_spec("torch") is not None


def _torch_devices() -> Reading:
    """The GPUs that torch sees, ``CUDA_VISIBLE_DEVICES`` already applied.

    Free memory is not asked: it would start CUDA.

    Raises:
        Unanswered: torch cannot be imported, has no CUDA, or sees no GPU.
    """
    try:
        cuda: Any = importlib.import_module("torch").cuda
        count = cuda.device_count() if cuda.is_available() else 0
        found = [cuda.get_device_properties(index) for index in range(count)]
    except (ImportError, OSError, RuntimeError):
        raise Unanswered("torch_failed") from None
    if not found:
        raise Unanswered("torch_sees_none")
    return Reading(devices=tuple(Reported(gpu=_torch_gpu(index, properties)) for index, properties in enumerate(found)))


def _torch_gpu(index: int, properties: Any) -> DetectedGpu:
    uuid, mig = getattr(properties, "uuid", None), " MIG " in properties.name
    return DetectedGpu(
        number=index,
        name=properties.name,
        memory_total=properties.total_memory,
        compute_capability=(properties.major, properties.minor),
        uuid=f"{'MIG' if mig else 'GPU'}-{uuid}" if uuid else None,
        mig=mig,
    )


def with_row(reported: Reported, gpus: Mapping[str, Gpu]) -> DetectedGpu:
    """The GPU with its row of the catalogue; a slice has its whole GPU's, where that GPU's memory is known."""
    gpu = reported.gpu
    if not gpu.mig:
        return gpu._replace(gpu=match_gpu(gpu.name, gpu.memory_total, gpus))
    if reported.parent_memory_total is None:
        return gpu
    return gpu._replace(gpu=match_gpu(without_mig(gpu.name), reported.parent_memory_total, gpus))


def changes_of(gpus: Iterable[DetectedGpu], root: str) -> tuple[Note, ...]:
    """What changes how the figures are to be read."""
    sliced: tuple[Note, ...] = ("mig_slices",) if any(gpu.mig for gpu in gpus) else ()
    return (*sliced, "wsl") if surroundings.in_wsl(root) else sliced
