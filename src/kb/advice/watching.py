"""A run as it is watched: each reading held against the targets, warnings before a limit, peaks. Pure, no clock.

What is kept is bounded, however long a run is watched: peaks, counts, the last two minutes of each value.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb.advice.watch_records import Alert, GpuPeak, Judged, Summary, Trend, WatchedGpu, judge, most
from kb.core.snapshot import GpuState, HostState, Sample, ServerState, Snapshot, SpeedState, TreeState

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
        self._host_at: float | None = None
        self._host_memory, self._shm = Trend(), Trend()
        self._kills_before: int | None = None
        self._kills = 0
        self._tree_bytes: int | None = None
        self._worker_bytes: int | None = None
        self._workers = self._readings = self._without_gpus = 0
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
        self._without_gpus += not snapshot.gpus
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
            host_at=self._host_at,
            oom_kills=self._kills,
            tree_bytes=self._tree_bytes,
            workers=self._workers,
            worker_bytes=self._worker_bytes,
            speed=self._speed,
            server=self._server and self._server._replace(preemptions=self._preemptions),
            without_gpus=self._without_gpus,
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
        used, shm = self._host.used_bytes, most(self._host.shm_used_bytes, host.shm_used_bytes)
        if host.used_bytes is not None:
            self._host_memory.add(time, host.used_bytes)
            if used is None or host.used_bytes > used:
                used, self._host_at = host.used_bytes, time
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
