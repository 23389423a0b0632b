"""What a watch remembers: peaks, trends, and the readings that were over a threshold: a target or a danger line of the
notes (rules/formulas/targets). Pure.
"""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Literal

from kb.advice.decision import nominal_gb
from kb.core.record import NamedTuple
from kb.core.snapshot import GpuState, HostState, Sample, ServerState, SpeedState
from kb.core.units import GIB

Label = Literal["ok", "below", "above", "danger", "safe"]


class Judged(NamedTuple):
    """One reading by one threshold. ``value`` is in the threshold's unit; the row says what it is for and who says so.

    ``ok`` is inside a target, ``below`` and ``above`` are beside it; ``danger`` and ``safe`` are lines that were
    reached.
    """

    threshold: str
    metric: str
    value: float
    unit: str
    label: Label
    row: Mapping[str, Any]


def judge(sample: Sample, targets: Mapping[str, Any], scope: str | None = None) -> tuple[Judged, ...]:
    """Every threshold that says something of the sample, in the file's order.

    Args:
        targets: ``load_guide()["formulas"]["targets"]``.
        scope: ``training`` or ``inference``; thresholds for the other one are left out. None asks all.

    A threshold that is for another size of card, or whose reading is not known, says nothing; neither does a danger or
    a safe line that was not reached: between them the note has no name.
    """
    found = []
    for row in targets["thresholds"]:
        if scope is not None and row.get("scope", scope) != scope:
            continue
        if "gpu_memory_gb" in row and (not sample.gpu_total or nominal_gb(sample.gpu_total) != row["gpu_memory_gb"]):
            continue
        value = _value(row["metric"], sample)
        label = None if value is None else _label(value, row)
        if value is not None and label is not None:
            found.append(Judged(row["id"], row["metric"], value, row["unit"], label, row))
    return tuple(found)


def _value(metric: str, sample: Sample) -> float | None:
    """The reading in the notes' unit. Their GB of a card are GiB: they read nvidia-smi, and a 24 GB card has 24 GiB."""
    if metric == "gpu_memory_share":
        return _percent(sample.gpu_used, sample.gpu_total)
    if metric == "host_memory_share":
        return _percent(sample.host_used, sample.host_limit)
    if metric == "gpu_memory_used":
        return None if sample.gpu_used is None else sample.gpu_used / GIB
    if metric == "gpu_utilisation":
        return None if sample.gpu_utilisation is None else sample.gpu_utilisation * 100
    if metric == "worker_memory":
        return None if sample.worker_bytes is None else sample.worker_bytes / 1e9
    return sample.step_ratio if metric == "step_time_ratio" else None


def _percent(used: int | None, limit: int | None) -> float | None:
    return None if used is None or not limit else used / limit * 100


def _label(value: float, row: Mapping[str, Any]) -> Label | None:
    low, high = row.get("low", float("-inf")), row.get("high", float("inf"))
    if row["state"] == "watch":
        return None
    if row["state"] in ("danger", "safe"):
        return row["state"] if low <= value <= high else None
    return "below" if value < low else "above" if value > high else "ok"


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
