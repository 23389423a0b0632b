"""The GPUs that a CUDA process would see: the order in which NVML, nvidia-smi and torch are asked, when asking further
is of no use, and which of those reported are visible, in what order.

An installed PyTorch is the last resort, since importing it takes a second. The rules of visibility are those of
NVIDIA's CUDA programming guide (environment variables) and MIG user guide (CUDA device enumeration). Where the guide is
silent (duplicates, ``1gpu``), PyTorch's own parsing is followed.
"""

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from kb.core.hardware import DetectedGpu, Gpu
from kb.machine import host, nvml
from kb.machine.detect import match_gpu, without_mig
from kb.machine.reading import NO_DRIVER, Note, Reading, Reported, Unanswered

Source = Literal["nvml", "nvidia-smi", "torch", "none"]

# Nothing else finds a GPU then: nvidia-smi and CUDA need the same driver.
_FINAL = ("driver_not_loaded", "no_device")
# A driver that hangs for one hangs for all.
_HANGING = ("nvml_hangs", "nvidia_smi_hangs")
# nvidia-smi may have another copy of the library; CUDA meets the same driver and the same device files.
_FINAL_FOR_CUDA = ("driver_mismatch", "no_permission")

_LEADING_INTEGER = r"\s*([+-]?\d{1,9})"

# From R570 a process sees one compute instance of every GPU instance; before, one slice in all and no whole GPU.
_MANY_SLICES_DRIVER = 570


def ask(root: str, environ: Mapping[str, str]) -> tuple[Source, Reading | None, list[Note]]:
    """Who answered, the answer, and why those asked before could not."""
    reasons: list[Note] = []
    try:
        return "nvml", nvml.read(root=root), reasons
    except Unanswered as unanswered:
        reasons.append(unanswered.note)
    if reasons[-1] in _FINAL + _HANGING:
        return "none", None, reasons

    from kb.machine import nvidia_smi  # where NVML does not answer

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


def changes_of(gpus: Sequence[DetectedGpu], root: str, *, watched: bool = False) -> tuple[Note, ...]:
    """What changes how the figures are to be read; of those that are ``watched`` also that there are several."""
    found: list[Note] = ["mig_slices"] if any(gpu.mig for gpu in gpus) else []
    if watched and len({gpu.number for gpu in gpus}) > 1:
        found.append("several_gpus")
    return (*found, "wsl") if host.in_wsl(root) else tuple(found)


def hides_all(environ: Mapping[str, str]) -> bool:
    """Whether ``CUDA_VISIBLE_DEVICES`` alone says that no GPU is to be seen: empty, or a negative number first."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    return value is not None and (not value.strip() or value.strip().startswith("-"))


def visible(devices: Sequence[Reported], environ: Mapping[str, str]) -> tuple[tuple[Reported, ...], tuple[Note, ...]]:
    """The devices that CUDA would show, in CUDA's order, and what to say of it."""
    notes: list[Note] = []
    value = environ.get("CUDA_VISIBLE_DEVICES")
    seen = list(devices)
    if value is not None:
        seen, complete = _listed(value, devices)
        if not complete:
            notes.append("visible_devices_invalid")
    by_uuid = value is not None and value.strip().startswith(("GPU-", "MIG-"))
    if not by_uuid and _order_uncertain(devices, environ):
        notes.append("device_order_uncertain")
    enumerable = _enumerable(seen)
    if len(enumerable) < len(seen):
        notes.append("mig_not_all_visible")
    return tuple(enumerable), tuple(notes)


def _order_uncertain(devices: Sequence[Reported], environ: Mapping[str, str]) -> bool:
    """CUDA's default order is "fastest first" by a heuristic of its own; only GPUs that differ are affected."""
    names = {reported.gpu.name for reported in devices if not reported.gpu.mig}
    return len(names) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


def _listed(value: str, devices: Sequence[Reported]) -> tuple[list[Reported], bool]:
    """Devices in the order of the list, and whether every entry meant one. The first entry that does not ends it."""
    entries = [entry.strip() for entry in value.split(",")]
    physical = [list(group) for _, group in groupby(devices, key=lambda reported: reported.gpu.number)]
    prefix = entries[0][:4] if entries[0].startswith(("GPU-", "MIG-")) else ""
    chosen: list[list[Reported]] = []
    for entry in entries:
        group = _by_uuid(entry, prefix, physical) if prefix else _by_index(entry, physical)
        if group is None:
            return _flat(chosen), entry.startswith("-") and entry[1:].isdigit()  # -1 is the usual way to end the list
        if group in chosen:
            return [], False
        chosen.append(group)
    return _flat(chosen), True


def _by_index(entry: str, physical: list[list[Reported]]) -> list[Reported] | None:
    match = re.match(_LEADING_INTEGER, entry)
    index = int(match[1]) if match else -1
    return physical[index] if 0 <= index < len(physical) and not entry.startswith("-") else None


def _by_uuid(entry: str, prefix: str, physical: list[list[Reported]]) -> list[Reported] | None:
    """The GPU (with its slices) or the slice whose UUID begins so; None where none does, or several do."""
    if not entry.startswith(prefix):
        return None
    if prefix == "GPU-":
        uuids = ((group, group[0].parent_uuid if group[0].gpu.mig else group[0].gpu.uuid) for group in physical)
        found = [group for group, uuid in uuids if (uuid or "").startswith(entry)]
    else:
        slices = [reported for group in physical for reported in group if reported.gpu.mig]
        found = [[reported] for reported in slices if (reported.gpu.uuid or "").startswith(entry)]
    return found[0] if len(found) == 1 else None


def _flat(groups: list[list[Reported]]) -> list[Reported]:
    return [reported for group in groups for reported in group]


def _enumerable(seen: list[Reported]) -> list[Reported]:
    """Those of ``seen`` that one process gets under MIG's limits."""
    slices = [reported for reported in seen if reported.gpu.mig]
    if not slices:
        return seen
    if _major(slices[0].gpu.driver) < _MANY_SLICES_DRIVER:
        return slices[:1]
    taken: set[tuple[int, int]] = set()
    kept = []
    for reported in seen:
        place = (reported.gpu.number, reported.instance) if reported.instance is not None else None
        if place is None or place not in taken:
            kept.append(reported)
        if place is not None:
            taken.add(place)
    return kept


def _major(driver: str | None) -> int:
    """575 of ``575.57.08``; 0 where unknown, which is read as an old driver: less memory promised, not more."""
    number = (driver or "").partition(".")[0]
    return int(number) if number.isdigit() else 0
