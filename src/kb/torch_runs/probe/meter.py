"""Peaks by phase: torch's allocator and NVML on a GPU, the unique set on a CPU. Import only in a trial's process."""

import contextlib
import importlib
import os
import threading
from typing import Any

import psutil
import torch

LOOK_SECONDS = 0.02
Sizes = dict[str, int]


class Meter:
    """The highest of each phase since it began, in bytes.

    On a GPU ``allocated_bytes``, ``reserved_bytes`` and ``process_bytes``; on a CPU ``host_bytes``, the process's
    unique set: its own pages, whatever holds them.
    """

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")
        self.phases: dict[str, Sizes] = {}
        self._host = None if self.cuda else _HostPeak()

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._host is not None:
            self._host.close()

    def start(self) -> None:
        if self._host is not None:
            self._host.start()
            return
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def end(self, phase: str) -> None:
        """The phase's peaks, or the highest of those it had before."""
        if self._host is not None:
            found = {"host_bytes": self._host.end()}
        else:
            torch.cuda.synchronize()
            found = {
                "allocated_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
                "process_bytes": process_bytes(),
            }
        kept = self.phases.setdefault(phase, found)
        self.phases[phase] = {name: max(size, kept.get(name, 0)) for name, size in found.items()}

    def whole(self, phase: str, parts: tuple[str, ...]) -> None:
        """A phase that others make up: the highest of theirs."""
        rows = [self.phases[part] for part in parts if part in self.phases]
        self.phases[phase] = {name: max(row[name] for row in rows) for name in rows[0]}


class _HostPeak:
    """The highest unique set while a phase runs, looked at from a thread until it is closed."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._highest = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="host-peak")
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def start(self) -> None:
        with self._lock:
            self._highest = 0
        self._look()

    def end(self) -> int:
        self._look()
        return self._highest

    def _look(self) -> None:
        size = self._process.memory_full_info().uss
        with self._lock:
            self._highest = max(self._highest, size)

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self._look()


def process_bytes() -> int:
    """What NVML says this process holds; where it hides processes (containers), what is in use on the whole GPU."""
    pynvml = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    try:
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except (pynvml.NVMLError, AttributeError):  # torch before 2.5 tells no UUID
        running = []
    for process in running:
        if process.pid == os.getpid() and process.usedGpuMemory:
            return int(process.usedGpuMemory)
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def machine_of(device: str) -> dict[str, Any]:
    """Where it runs, as the driver names it."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not device.startswith("cuda"):
        return {"cpus": cpus}
    properties = torch.cuda.get_device_properties(0)
    found = {"gpu_name": properties.name, "gpu_memory_bytes": properties.total_memory, "cpus": cpus}
    with contextlib.suppress(Exception):  # NVML's errors and the import's: then the driver is not known
        pynvml = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        found["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
    return found
