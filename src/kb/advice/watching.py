"""A run as it is watched: each reading held against the targets and the danger lines of the notes
(rules/formulas/targets), warnings before a limit, and what is remembered: peaks, trends. Pure, no clock.

What is kept is bounded, however long a run is watched: peaks, counts, the last two minutes of each value.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from kb.advice.fit.decision import nominal_gb
from kb.core.record import NamedTuple
from kb.core.snapshot import GpuState, HostState, Sample, ServerState, Snapshot, SpeedState, TreeState
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
    """A watch as a whole, with the peaks of the host and of /dev/shm; ``alerts`` are the last ones."""

    readings: int
    began: float | None
    ended: float | None
    gpus: tuple[GpuPeak, ...]
    host: HostState  # the last one, its used bytes and /dev/shm at their peak
    oom_kills: int
    tree_bytes: int | None
    workers: int
    worker_bytes: int | None
    speed: SpeedState | None
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


MOST_GPUS = 64
MOST_ALERTS = 50
AHEAD_SECONDS = 600.0  # a limit that is further away is not warned of
FORECAST_EVERY = 10  # readings; a line through two minutes does not turn within seconds
QUIET_SECONDS = 600.0  # before the same warning is given again
# Held clocks that mean heat or power beyond what the card takes; at its power limit a busy GPU simply works.
TROUBLING = ("hardware_slowdown", "thermal", "hardware_thermal", "power_brake")

# The threshold that speaks first for a reading, and what to do beyond it (rules/remedies).
_SPEAKS = {
    "gpu-memory-danger": ("gpu_danger", "gpu-oom"),
    "gpu-memory-training": ("gpu_above", "gpu-oom"),
    "host-memory": ("host_above", "host-out-of-memory"),
    "step-time": ("steps_slow", "slow-training"),
    "worker-memory": ("worker_large", "host-out-of-memory"),
}


class Watch:
    """Takes snapshots in order; says what is new to warn of, and at the end what the run came to.

    Args:
        targets: ``load_guide()["formulas"]["targets"]``.
        scope: ``training`` or ``inference``: thresholds for the other one say nothing. None asks all.
    """

    def __init__(self, targets: Mapping[str, Any], scope: str | None = None) -> None:
        self._targets, self._scope = targets, scope
        self._gpus: dict[str, WatchedGpu] = {}
        self._host = HostState()
        self._host_memory, self._shm = Trend(), Trend()
        self._kills_before: int | None = None
        self._kills = 0
        self._tree_bytes: int | None = None
        self._worker_bytes: int | None = None
        self._workers = self._readings = 0
        self._speed: SpeedState | None = None
        self._server: ServerState | None = None
        self._preemptions = 0
        self._preempted_before: int | None = None
        self._began: float | None = None
        self._ended: float | None = None
        self._note: str | None = None
        self._said: dict[tuple[str, str], float] = {}
        self._alerts: deque[Alert] = deque(maxlen=MOST_ALERTS)
        self._counts: Counter[str] = Counter()

    def add(self, snapshot: Snapshot) -> tuple[Alert, ...]:
        """Take the next reading; the warnings that it is the first to give rise to."""
        self._began = snapshot.time if self._began is None else self._began
        self._ended = snapshot.time
        self._readings += 1
        for state in snapshot.gpus:
            if state.key in self._gpus or len(self._gpus) < MOST_GPUS:
                self._gpus.setdefault(state.key, WatchedGpu(state)).add(snapshot.time, state)
        self._take_host(snapshot.time, snapshot.host)
        self._take_tree(snapshot.tree)
        if snapshot.speed is not None:
            self._speed = snapshot.speed
        new = tuple(alert for alert in self._due(snapshot) if self._is_news(alert))
        self._take_server(snapshot.server)
        self._note = snapshot.gpu_note
        for alert in new:
            self._alerts.append(alert)
            self._counts[alert.kind] += 1
        return new

    def judged(self, snapshot: Snapshot) -> tuple[tuple[str, Judged], ...]:
        """Every threshold that says something of the reading, with the GPU's key or nothing for the host.

        Utilisation is the mean of the last minute: single readings jump between 0 and 100.
        """
        found: list[tuple[str, Judged]] = []
        for state in snapshot.gpus:
            kept = self._gpus.get(state.key)
            share = kept.utilisation.mean() if kept else state.utilisation
            found += [(state.key, row) for row in self._judge(_of_gpu(state, share))]
        return (*found, *(("", row) for row in self._judge(_of_host(snapshot.host, snapshot.tree, snapshot.speed))))

    def utilisation(self, key: str) -> float | None:
        """The GPU's mean of the last minute, 0 … 1."""
        return self._gpus[key].utilisation.mean() if key in self._gpus else None

    def summary(self) -> Summary:
        """What the watch has come to so far, its peaks held against the targets."""
        gpus = tuple(kept.peak for kept in self._gpus.values())
        return Summary(
            readings=self._readings,
            began=self._began,
            ended=self._ended,
            gpus=gpus,
            host=self._host,
            oom_kills=self._kills,
            tree_bytes=self._tree_bytes,
            workers=self._workers,
            worker_bytes=self._worker_bytes,
            speed=self._speed,
            server=self._server and self._server._replace(preemptions=self._preemptions),
            judged=tuple(self._judged_peaks(gpus)),
            alerts=tuple(self._alerts),
            alert_counts=dict(self._counts),
        )

    def _judge(self, sample: Sample) -> tuple[Judged, ...]:
        return judge(sample, self._targets, self._scope)

    def _judged_peaks(self, gpus: Sequence[GpuPeak]) -> Iterator[tuple[str, Judged]]:
        for peak in gpus:
            state = peak.state._replace(used_bytes=peak.used_bytes)
            yield from ((peak.state.key, row) for row in self._judge(_of_gpu(state, peak.utilisation)))
        tree = TreeState(worker_pss_bytes=self._worker_bytes)
        yield from (("", row) for row in self._judge(_of_host(self._host, tree, self._speed)))

    def _take_host(self, time: float, host: HostState) -> None:
        used = most(self._host.used_bytes, host.used_bytes)
        shm = most(self._host.shm_used_bytes, host.shm_used_bytes)
        if host.used_bytes is not None:
            self._host_memory.add(time, host.used_bytes)
        if host.shm_used_bytes is not None:
            self._shm.add(time, host.shm_used_bytes)
        self._host = host._replace(used_bytes=used, shm_used_bytes=shm)

    def _take_tree(self, tree: TreeState | None) -> None:
        if tree is not None:
            self._tree_bytes = most(self._tree_bytes, tree.pss_bytes)
            self._worker_bytes = most(self._worker_bytes, tree.worker_pss_bytes)
            self._workers = max(self._workers, tree.workers)

    def _take_server(self, server: ServerState | None) -> None:
        """Keep the peaks; what the server had put back before the watch began is not the watch's."""
        if server is None or server.reason:
            self._server = self._server or server
            return
        before = self._server if self._server is not None and not self._server.reason else ServerState()
        self._preemptions += _more(self._preempted_before, server.preemptions)
        self._preempted_before = server.preemptions if server.preemptions is not None else self._preempted_before
        self._server = server._replace(
            kv_usage=most(before.kv_usage, server.kv_usage),
            running=most(before.running, server.running),
            waiting=most(before.waiting, server.waiting),
        )

    def _due(self, snapshot: Snapshot) -> Iterator[Alert]:
        """Every warning that holds now, whether said before or not."""
        time = snapshot.time
        for key, row in self.judged(snapshot):
            speaks = _SPEAKS.get(row.threshold)
            if speaks and row.label in ("above", "danger"):
                limit = row.row.get("low" if row.label == "danger" else "high")
                yield Alert(time, speaks[0], key, row.threshold, speaks[1], row.value, limit)
        for state in snapshot.gpus:
            kept = self._gpus.get(state.key)
            if kept is None:
                continue
            left = self._left(kept.memory, state.total_bytes)
            if left is not None and left <= AHEAD_SECONDS:
                yield Alert(time, "gpu_filling", state.key, remedy="gpu-oom", seconds_left=left)
            for reason in state.throttle:
                if reason in TROUBLING:
                    yield Alert(time, "throttled", state.key, reason=reason)
        yield from self._due_of_host(snapshot)
        server = snapshot.server
        if server is not None and (more := _more(self._preempted_before, server.preemptions)):
            yield Alert(time, "server_preempts", remedy="serving-preempted", value=more)

    def _left(self, trend: Trend, limit: int | None) -> float | None:
        return trend.seconds_to(limit) if limit and self._readings % FORECAST_EVERY == 0 else None

    def _due_of_host(self, snapshot: Snapshot) -> Iterator[Alert]:
        time, host = snapshot.time, snapshot.host
        fills = (
            ("host_filling", "host-out-of-memory", self._host_memory, host.limit_bytes),
            ("shm_filling", "shared-memory-full", self._shm, host.shm_total_bytes),
        )
        for kind, remedy, trend, limit in fills:
            left = self._left(trend, limit)
            if left is not None and left <= AHEAD_SECONDS:
                yield Alert(time, kind, remedy=remedy, seconds_left=left)
        if host.oom_kills is not None:
            before, self._kills_before = self._kills_before, host.oom_kills
            if before is not None and host.oom_kills > before:
                self._kills += host.oom_kills - before
                yield Alert(time, "oom_kill", remedy="host-out-of-memory", value=host.oom_kills - before)
        if self._readings > 1 and snapshot.gpu_note != self._note:
            gone = snapshot.gpu_note is not None
            yield Alert(time, "driver_gone" if gone else "driver_back", reason=snapshot.gpu_note or "")

    def _is_news(self, alert: Alert) -> bool:
        """Kills and the driver's coming and going are always news; what lasts is said again after ten minutes."""
        if alert.kind in ("oom_kill", "driver_gone", "driver_back"):
            return True
        key = (alert.kind + alert.reason, alert.subject)
        last = self._said.get(key)
        if last is not None and 0 <= alert.time - last < QUIET_SECONDS:
            return False
        self._said[key] = alert.time
        return True


def _more(before: int | None, now: int | None) -> int:
    """What a counter grew by since the last reading; a server that was started anew counts from zero."""
    return max(now - before, 0) if before is not None and now is not None else 0


def _of_gpu(state: GpuState, utilisation: float | None) -> Sample:
    return Sample(gpu_used=state.used_bytes, gpu_total=state.total_bytes, gpu_utilisation=utilisation)


def _of_host(host: HostState, tree: TreeState | None, speed: SpeedState | None) -> Sample:
    return Sample(
        host_used=host.used_bytes,
        host_limit=host.limit_bytes,
        step_ratio=speed.ratio if speed else None,
        worker_bytes=tree.worker_pss_bytes if tree else None,
    )
