"""What a tree of processes takes while it runs: host memory by psutil, GPU memory and utilisation by NVML."""

import contextlib
import importlib
import os
import time
from typing import Any

import psutil

from kb.core.record import NamedTuple

FULL_SECONDS = 0.5  # between two looks at the pages themselves: the kernel walks the whole address space for them


class Utilisation(NamedTuple):
    """One reading: when (monotonic seconds), and the share of time that kernels ran."""

    at: float
    share: float


class HostWatch:
    """Resident, proportional and unique memory of a process and all below it, now and at its highest, in bytes."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.peaks = {"peak_rss_bytes": 0, "peak_pss_bytes": 0, "peak_uss_bytes": 0}
        self.pids: set[int] = set()
        self._looked = 0.0

    def look(self, now: float) -> int:
        """Take a reading; bytes of host memory in use: the proportional set where it is known, else the resident."""
        processes = self._processes()
        self.pids = {process.pid for process in processes}
        resident = 0
        for process in processes:
            with contextlib.suppress(psutil.Error):
                resident += process.memory_info().rss
        self._raise("peak_rss_bytes", resident)
        if now - self._looked < FULL_SECONDS:
            return 0
        self._looked = now
        proportional = unique = 0
        for process in processes:
            with contextlib.suppress(psutil.Error, OSError):
                full = process.memory_full_info()
                proportional += getattr(full, "pss", 0)
                unique += full.uss
        self._raise("peak_pss_bytes", proportional)
        self._raise("peak_uss_bytes", unique)
        return proportional or resident

    def remember(self, path: str) -> None:
        """Take what the keeper left in ``path``, in bytes, where no look found the processes alive."""
        if not self.peaks["peak_rss_bytes"]:
            with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as stream:
                self._raise("peak_rss_bytes", int(stream.read()))

    def found(self) -> dict[str, int]:
        """The peaks; without those that this system does not tell."""
        return {name: size for name, size in self.peaks.items() if size}

    def _processes(self) -> list[psutil.Process]:
        """All below the keeper, and not the keeper."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.Error:
            return []

    def _raise(self, name: str, size: int) -> None:
        self.peaks[name] = max(self.peaks[name], size)


class GpuWatch:
    """One GPU as NVML sees it, seen while processes run on it; silent where NVML does not answer.

    Args:
        device: as in CUDA_VISIBLE_DEVICES: a number or a UUID; the first of several. None is the first GPU.
    """

    def __init__(self, device: str | None) -> None:
        self.peak_bytes = 0
        self.readings: list[Utilisation] = []
        self._nvml: Any = None
        self._handle: Any = None
        self._others = 0
        with contextlib.suppress(Exception):  # NVML's errors and the loader's: without it nothing is seen
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._nvml = nvml
            self._handle = _handle(nvml, device)
            self._others = self._used()

    def look(self, pids: set[int]) -> None:
        """Take a reading; where NVML hides processes (containers), what is in use beyond what was before counts."""
        if self._handle is None:
            return
        with contextlib.suppress(self._nvml.NVMLError):
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            own = sum(process.usedGpuMemory or 0 for process in running if process.pid in pids)
            self.peak_bytes = max(self.peak_bytes, own or self._used() - self._others)
        with contextlib.suppress(self._nvml.NVMLError):
            share = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
            self.readings.append(Utilisation(time.monotonic(), share))

    def mean(self, begun: float, ended: float) -> float | None:
        """The mean share over a time; None where nothing was read."""
        shares = [reading.share for reading in self.readings if begun <= reading.at <= ended]
        return sum(shares) / len(shares) if shares else None

    def busy(self) -> float | None:
        """The mean share from the first kernel on."""
        first = next((number for number, reading in enumerate(self.readings) if reading.share > 0), None)
        if first is None:
            return None
        shares = [reading.share for reading in self.readings[first:]]
        return sum(shares) / len(shares)

    def machine(self) -> dict[str, Any]:
        """The GPU's name, its memory and the driver's version."""
        if self._handle is None:
            return {}
        nvml = self._nvml
        found: dict[str, Any] = {}
        with contextlib.suppress(nvml.NVMLError):
            found["gpu_name"] = _text(nvml.nvmlDeviceGetName(self._handle))
            found["gpu_memory_bytes"] = int(nvml.nvmlDeviceGetMemoryInfo(self._handle).total)
            found["driver"] = _text(nvml.nvmlSystemGetDriverVersion())
        return found

    def close(self) -> None:
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _used(self) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)


def _handle(nvml: Any, device: str | None) -> Any:
    first = (device or "0").split(",")[0].strip()
    if first.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(first))
    try:
        return nvml.nvmlDeviceGetHandleByUUID(first)
    except (nvml.NVMLError, TypeError):  # a library without the call, or one that wants bytes
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        return next(handle for handle in handles if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(first))


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


Sizes = dict[str, int]


def sizes(pid: int | None = None) -> Sizes:
    """Bytes of a process's sets; of this one without ``pid``.

    ``anonymous_bytes`` and ``shared_bytes`` are the proportional set's private and shared-memory pages. What the system
    does not tell (the proportional set is Linux's) is left out.

    Raises:
        psutil.Error: there is no such process, or it is another user's.
    """
    full = psutil.Process(pid).memory_full_info()
    found = {"rss_bytes": full.rss, "uss_bytes": full.uss}
    if not hasattr(full, "pss"):
        return found
    found |= {"pss_bytes": full.pss, "anonymous_bytes": 0, "shared_bytes": 0}
    with open(f"/proc/{pid or os.getpid()}/smaps_rollup", encoding="ascii") as stream:
        for line in stream:
            name, _, value = line.partition(":")
            key = {"Pss_Anon": "anonymous_bytes", "Pss_Shmem": "shared_bytes"}.get(name)
            if key:
                found[key] += int(value.split()[0]) * 1024
    return found
