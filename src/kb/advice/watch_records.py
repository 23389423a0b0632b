"""What a watch remembers: peaks, trends, and the readings that were over a threshold."""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from kb.advice.targets import Judged
from kb.core.record import NamedTuple
from kb.core.snapshot import GpuState, HostState, ServerState, SpeedState

MOST_SAMPLES = 120
FEWEST_SAMPLES, FEWEST_SECONDS = 20, 60.0  # before that a run is still filling its caches, and any line fits
STRAIGHT = 0.8  # share of the variance that a straight line must explain: steps up and plateaus do not grow on
WINDOW_SECONDS = 60.0


class Trend:
    """The last readings of one value; bounded, however long it is watched."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: deque[tuple[float, float]] = deque(maxlen=MOST_SAMPLES)

    def add(self, time: float, value: float) -> None:
        """Take a reading; one from before the last means another record, and all is forgotten."""
        if self._rows and time < self._rows[-1][0]:
            self._rows.clear()
        self._rows.append((time, value))

    def mean(self) -> float | None:
        """Over the last minute, or the last reading where they are further apart."""
        if not self._rows:
            return None
        since = self._rows[-1][0] - WINDOW_SECONDS
        late = [value for time, value in self._rows if time >= since]
        return sum(late) / len(late)

    def seconds_to(self, limit: float) -> float | None:
        """Seconds until the value reaches ``limit`` if it goes on growing as it does; None where it does not grow.

        The slope is that of the least-squares line; the later half must grow on as well.
        """
        rows = self._rows
        if len(rows) < FEWEST_SAMPLES or rows[-1][0] - rows[0][0] < FEWEST_SECONDS or rows[-1][1] <= rows[0][1]:
            return None
        whole = list(rows)
        slope, explained = _line(whole)
        later, _ = _line(whole[len(whole) // 2 :])
        if slope <= 0 or explained < STRAIGHT or later < slope / 2:
            return None
        return max((limit - rows[-1][1]) / slope, 0.0)


def _line(rows: list[tuple[float, float]]) -> tuple[float, float]:
    """The slope of the least-squares line and the share of the variance that it explains."""
    count = len(rows)
    mean_time = sum(time for time, _ in rows) / count
    mean_value = sum(value for _, value in rows) / count
    times = sum((time - mean_time) ** 2 for time, _ in rows)
    values = sum((value - mean_value) ** 2 for _, value in rows)
    both = sum((time - mean_time) * (value - mean_value) for time, value in rows)
    if not times or not values:
        return 0.0, 0.0
    return both / times, both * both / (times * values)


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
    server: ServerState | None = None  # the most of each value, and what was preempted during the watch


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
