"""The order in which NVML, nvidia-smi and torch are asked for GPUs, and when asking further is of no use."""

from collections.abc import Mapping
from typing import Literal

from kb.core.hardware import DetectedGpu, Gpu
from kb.machine.match import match_gpu, without_mig
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
    from kb.machine import nvml

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
    from kb.machine import torch_devices

    try:
        if torch_devices.installed():
            return "torch", torch_devices.read(), reasons
    except Unanswered as unanswered:
        reasons.append(unanswered.note)
    return "none", None, list(dict.fromkeys(reasons))


def with_row(reported: Reported, gpus: Mapping[str, Gpu]) -> DetectedGpu:
    """The GPU with its row of the catalogue; a slice has its whole GPU's, where that GPU's memory is known."""
    gpu = reported.gpu
    if not gpu.mig:
        return gpu._replace(gpu=match_gpu(gpu.name, gpu.memory_total, gpus))
    if reported.parent_memory_total is None:
        return gpu
    return gpu._replace(gpu=match_gpu(without_mig(gpu.name), reported.parent_memory_total, gpus))
