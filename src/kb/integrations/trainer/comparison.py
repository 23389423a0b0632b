"""A prediction beside its measurement, as a record for trackers. Bytes in, GiB out: the names carry the unit."""

from collections.abc import Iterable

from kb.core.memory_report import MemoryReport
from kb.core.record import NamedTuple
from kb.core.units import GIB
from kb.integrations.trainer.meter import Reading

EVALUATION = ("evaluate", "generate")


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
