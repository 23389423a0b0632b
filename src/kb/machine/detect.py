"""The machine as named on the command line and, where nothing is named, as found.

With everything named nothing is asked: neither pynvml, subprocess nor ctypes is imported. Records that stay within
this package are NamedTuples: making a frozen dataclass takes 0.5 ms at start-up, and a named tuple 0.06.
"""

import os
from collections.abc import Mapping
from typing import Any, Literal

from kb.core.hardware import DetectedGpu, Gpu, Machine
from kb.core.record import NamedTuple
from kb.machine.arguments import AUTO, NONE, check_gpu_count, named_gpus, read_cpus, read_host_memory
from kb.machine.reading import NO_DRIVER, Note

GpuSource = Literal["named", "nvml", "nvidia-smi", "torch", "none"]

# Reasons that say little of the driver itself: what NVML or nvidia-smi says of it is told first.
_VAGUE = (*NO_DRIVER, "library_not_found", "pynvml_missing", "torch_failed", "torch_sees_none")


class FoundGpus(NamedTuple):
    """GPUs, which source gave them, why there are none, and what else is worth saying."""

    gpus: tuple[DetectedGpu, ...] = ()
    source: GpuSource = "none"
    note: Note | None = None
    notes: tuple[Note, ...] = ()


def detect(
    gpus: Mapping[str, Gpu],
    *,
    gpu: str | None = None,
    gpu_count: int | None = None,
    host_memory: str | None = None,
    cpus: str | None = None,
    root: str = "/",
    environ: Mapping[str, str] | None = None,
) -> Machine:
    """The machine a run is to happen on.

    Args:
        gpus: the catalogue, by id.
        gpu: an id, alias or name; None or ``auto`` detects; ``none`` is a machine without one.
        gpu_count: how many; None is those found, or one of the GPU named.
        host_memory: a size; None or ``auto`` detects; ``none`` leaves it (and /dev/shm) unknown, unasked.
        cpus: a number; None, ``auto`` and ``none`` likewise.
        root: where the file system begins; another one than ``/`` serves tests and images.
        environ: PATH, CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read from it; None is the process's own.

    Raises:
        UnknownGpu, UserError: a name, size or number cannot be used.
    """
    check_gpu_count(gpu_count)
    found = _gpus(gpus, gpu, gpu_count, root, os.environ if environ is None else environ)
    return Machine(
        gpus=found.gpus,
        gpu_source=found.source,
        gpu_note=found.note,
        notes=found.notes,
        gpu_count=gpu_count,
        **_host(_wish(host_memory), _wish(cpus), root),
    )


def _wish(text: str | None) -> str:
    folded = AUTO if text is None else text.strip().casefold()
    return folded if folded in (AUTO, NONE) else text or ""


def _host(host_memory: str, cpus: str, root: str) -> dict[str, Any]:
    """The host's fields of :class:`Machine`. A named memory means another machine: this one's /dev/shm is not its."""
    fields: dict[str, Any] = {}
    if host_memory not in (AUTO, NONE):
        fields |= {"host_memory_bytes": read_host_memory(host_memory), "host_memory_source": "named"}
    if cpus not in (AUTO, NONE):
        fields |= {"cpus": read_cpus(cpus), "cpu_source": "named"}
    if AUTO not in (host_memory, cpus):
        return fields
    from kb.machine import host

    mounted = host.mounts(root)
    if host_memory == AUTO:
        memory = host.host_memory(root, mounted)
        fields |= {"host_memory_bytes": memory.limit_bytes, "host_memory_source": memory.source}
        fields |= {"host_memory_used_bytes": memory.used_bytes, "shm_bytes": host.shm_bytes(root, mounted)}
    if cpus == AUTO:
        found = host.cpus(root, mounted)
        fields |= {"cpus": found.whole, "cpu_source": found.source}
    return fields


def _gpus(
    gpus: Mapping[str, Gpu], name: str | None, count: int | None, root: str, environ: Mapping[str, str]
) -> FoundGpus:
    wish = _wish(name)
    if wish == NONE:
        return FoundGpus(source="named", note="named_none")
    if wish != AUTO:
        return FoundGpus(gpus=named_gpus(wish, count, gpus), source="named")
    found = find_gpus(gpus, root=root, environ=environ)
    if count is None or not found.gpus:
        return found
    chosen = found.gpus[:count]
    if len(chosen) == count:
        return found._replace(gpus=chosen)
    # More than are here: planned ones like the first, of which nothing is known to be in use.
    first = chosen[0]._replace(memory_free=None, uuid=None, processes=())
    planned = tuple(first._replace(number=index) for index in range(len(chosen), count))
    return found._replace(gpus=chosen + planned, notes=(*found.notes, "more_gpus_than_found"))


def find_gpus(gpus: Mapping[str, Gpu], *, root: str = "/", environ: Mapping[str, str]) -> FoundGpus:
    """The GPUs that a CUDA process started here would see, each with its row of the catalogue where one matches."""
    from kb.machine import sources

    if sources.hides_all(environ):
        return FoundGpus(note="gpus_hidden")
    source, reading, reasons = sources.ask(root, environ)
    if reading is None:
        first = next((reason for reason in reasons if reason not in _VAGUE), reasons[0])
        return FoundGpus(note=first, notes=tuple(reason for reason in reasons if reason != first))
    seen, notes = (reading.devices, ()) if source == "torch" else sources.visible(reading.devices, environ)
    notes = tuple(dict.fromkeys((*(reason for reason in reasons if reason not in NO_DRIVER), *reading.notes, *notes)))
    if not seen:
        hidden_by: Note = "visible_devices_invalid" if "visible_devices_invalid" in notes else "gpus_hidden"
        return FoundGpus(note=hidden_by, notes=tuple(note for note in notes if note != hidden_by))
    found = tuple(sources.with_row(device, gpus) for device in seen)
    return FoundGpus(gpus=found, source=source, notes=(*notes, *sources.changes_of(found, root)))
