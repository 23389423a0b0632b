"""What a run takes, as measured: PyTorch's own counters on CUDA, the process's memory elsewhere;
and a prediction beside it, as a record for trackers. Bytes in, GiB out: the names carry the unit.
"""

import sys
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from kb.core.memory_report import MemoryReport
from kb.core.record import NamedTuple
from kb.core.units import GIB

EVALUATION = ("evaluate", "generate")


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


class Comparison(NamedTuple):
    """``kind`` of the meter; ``phase`` is ``train`` or ``evaluate``. None: nobody predicted or measured it."""

    phase: str
    kind: str
    predicted_allocated: int | None = None
    measured_allocated: int | None = None
    predicted_reserved: int | None = None
    measured_reserved: int | None = None
    predicted_host: int | None = None
    measured_host: int | None = None

    @property
    def pair(self) -> tuple[int | None, int | None]:
        """Predicted and measured, of what this device measures."""
        if self.kind == "cuda":
            return self.predicted_allocated, self.measured_allocated
        return self.predicted_host, self.measured_host

    @property
    def error(self) -> float | None:
        """How far the prediction is off, as a share of what was measured: −0.02 is 2 % too low."""
        predicted, measured = self.pair
        return None if predicted is None or not measured else predicted / measured - 1

    def record(self) -> dict[str, float]:
        """``kb/predicted_allocated_gib`` and so on; of an evaluation ``kb/eval_predicted_allocated_gib``."""
        prefix = "kb/" if self.phase == "train" else "kb/eval_"
        sizes = {name: size for name, size in self._asdict().items() if isinstance(size, int)}
        return {f"{prefix}{name}_gib": round(size / GIB, 4) for name, size in sizes.items()}


def compare(
    phase: str,
    kind: str,
    report: MemoryReport | None,
    reading: Reading,
    *,
    counted: Iterable[str],
    host_before: int,
    parameters_bytes: int,
) -> Comparison:
    """The phases that a reading counts, beside it.

    Args:
        counted: the phases since the last reset of the peaks.
        host_before: resident bytes of the process before the first step, the model's parameters among them.
        parameters_bytes: the model as it was held then.

    On a CPU the tensors lie in host memory: what is predicted is what was there, and what the run adds.
    """
    phases = [found for name in counted if report and (found := report.phase(name))]
    allocated = max((each.peak_allocated_bytes for each in phases), default=None)
    host = None
    if kind == "host" and allocated is not None:
        host = host_before + max(allocated - parameters_bytes, 0)
    return Comparison(
        phase=phase,
        kind=kind,
        predicted_allocated=allocated,
        measured_allocated=reading.allocated,
        predicted_reserved=max((each.peak_reserved_bytes for each in phases), default=None) if kind == "cuda" else None,
        measured_reserved=reading.reserved,
        predicted_host=host,
        measured_host=reading.host,
    )
