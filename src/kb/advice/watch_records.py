"""What is kept of a run that is watched: warnings, peaks, and the whole of it. Pure."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from kb.advice.targets import Judged
from kb.advice.trend import Trend
from kb.core.snapshot import GpuState, HostState, SpeedState


class Alert(NamedTuple):
    """A warning. ``kind`` names its sentence (`monitor.alert.`), ``rule`` the threshold, ``remedy`` what to do.

    ``subject`` is the GPU's key, empty for the host; ``value`` and ``limit`` are in the rule's unit.
    """

    time: float
    kind: str
    subject: str = ""
    rule: str = ""
    remedy: str = ""
    value: float | None = None
    limit: float | None = None
    seconds_left: float | None = None
    reason: str = ""


class GpuPeak(NamedTuple):
    """One GPU over the whole watch. ``throttled`` counts readings by reason."""

    state: GpuState  # the last one
    used_bytes: int | None = None
    used_at: float | None = None
    watched_bytes: int | None = None
    utilisation: float | None = None  # mean
    readings: int = 0
    power_watts: float | None = None
    temperature_celsius: float | None = None
    throttled: Mapping[str, int] = {}


class Summary(NamedTuple):
    """A watch as a whole. Peaks of the host and of /dev/shm with when they were; ``alerts`` are the last ones."""

    readings: int
    began: float | None
    ended: float | None
    gpus: tuple[GpuPeak, ...]
    host: HostState  # the last one, its used bytes and /dev/shm at their peak
    host_at: float | None
    oom_kills: int
    tree_bytes: int | None
    workers: int
    worker_bytes: int | None
    speed: SpeedState | None
    without_gpus: int
    judged: tuple[tuple[str, Judged], ...]  # of the peaks: the GPU's key or nothing, and the verdict
    alerts: tuple[Alert, ...]
    alert_counts: Mapping[str, int]


class WatchedGpu:
    """What is kept of one GPU."""

    def __init__(self, state: GpuState) -> None:
        self.peak = GpuPeak(state)
        self.utilised = self.with_utilisation = 0.0
        self.throttled: Counter[str] = Counter()
        self.memory, self.utilisation = Trend(), Trend()

    def add(self, time: float, state: GpuState) -> None:
        peak = self.peak._replace(state=state, readings=self.peak.readings + 1)
        if state.used_bytes is not None:
            self.memory.add(time, state.used_bytes)
            if peak.used_bytes is None or state.used_bytes > peak.used_bytes:
                peak = peak._replace(used_bytes=state.used_bytes, used_at=time)
        if state.utilisation is not None:
            self.utilisation.add(time, state.utilisation)
            self.utilised, self.with_utilisation = self.utilised + state.utilisation, self.with_utilisation + 1
            peak = peak._replace(utilisation=self.utilised / self.with_utilisation)
        watched = [each.used_bytes for each in state.processes if each.watched and each.used_bytes is not None]
        self.throttled.update(state.throttle)
        self.peak = peak._replace(
            watched_bytes=most(peak.watched_bytes, sum(watched) if watched else None),
            power_watts=most(peak.power_watts, state.power_watts),
            temperature_celsius=most(peak.temperature_celsius, state.temperature_celsius),
            throttled=self.throttled,
        )


def most(first: Any, second: Any) -> Any:
    """The larger of two values of which either may be unknown."""
    if first is None or second is None:
        return second if first is None else first
    return max(first, second)
