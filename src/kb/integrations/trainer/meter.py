"""What a run takes, as measured: PyTorch's own counters on CUDA, the process's memory elsewhere."""

import sys
from typing import Any, Protocol

import torch

from kb.core.record import NamedTuple


class Reading(NamedTuple):
    """Peaks in bytes since the last reset; None where this device does not tell. ``host``: resident, of the process."""

    allocated: int | None = None
    reserved: int | None = None
    host: int | None = None


class Meter(Protocol):
    """``kind`` says what a reading holds: ``cuda``, ``host`` or, on another accelerator, ``none``. Where nothing
    ``resets``, a peak counts from the start."""

    kind: str
    resets: bool

    def read(self) -> Reading: ...

    def reset(self) -> None: ...


class CudaMeter:
    """The caching allocator's peaks on one device.

    Args:
        resets: whether peaks may be set back between phases. They may not where the Trainer itself measures
            (``skip_memory_metrics=False``): its figures would be wrong.
    """

    kind = "cuda"

    def __init__(self, device: Any, *, resets: bool = True) -> None:
        self._device = device
        self.resets = resets

    def read(self) -> Reading:
        return Reading(
            allocated=torch.cuda.max_memory_allocated(self._device),
            reserved=torch.cuda.max_memory_reserved(self._device),
            host=host_peak_bytes(),
        )

    def reset(self) -> None:
        if self.resets:
            torch.cuda.reset_peak_memory_stats(self._device)


class HostMeter:
    """The process's resident memory; its peak counts from the start of the process and cannot be set back."""

    resets = False

    def __init__(self, kind: str = "host") -> None:
        self.kind = kind

    def read(self) -> Reading:
        return Reading(host=host_peak_bytes())

    def reset(self) -> None:
        """Nothing to set back."""


def meter_for(device: Any, *, resets: bool = True) -> Meter:
    """The meter for a ``torch.device``."""
    kind = getattr(device, "type", str(device))
    if kind == "cuda":
        return CudaMeter(device, resets=resets)
    return HostMeter("host" if kind == "cpu" else "none")


def host_peak_bytes() -> int | None:
    """The most that this process was resident with, in bytes; None where the system does not say."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def host_bytes() -> int:
    """What this process is resident with now."""
    import psutil

    return int(psutil.Process().memory_info().rss)
