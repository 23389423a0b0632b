"""A watched run: verdicts, warnings before the limit, peaks, and memory that stays flat."""

import pytest

from catalog_sample import load_guide
from kb.advice.watching import Trend, Watch
from kb.core.snapshot import GpuProcess, GpuState, HostState, Snapshot, SpeedState, TreeState
from kb.core.units import GIB

TARGETS = load_guide()["formulas"]["targets"]


def gpu(used: float, total: float = 24, **more: object) -> GpuState:
    used_bytes, total_bytes = round(used * GIB), round(total * GIB)
    return GpuState("0", "NVIDIA GeForce RTX 3090", used_bytes=used_bytes, total_bytes=total_bytes, **more)


def kinds(watch: Watch, *snapshots: Snapshot) -> list[str]:
    return [alert.kind for snapshot in snapshots for alert in watch.add(snapshot)]


def test_a_reading_inside_the_target_warns_of_nothing() -> None:
    watch = Watch(TARGETS)
    now = Snapshot(0, (gpu(18.3),))
    assert watch.add(now) == ()
    verdicts = {row.threshold: (round(row.value), row.label) for key, row in watch.judged(now) if key == "0"}
    assert verdicts["gpu-memory-training"] == (76, "ok")


def test_the_danger_line_and_the_target_are_both_warned_of_once() -> None:
    watch = Watch(TARGETS)
    snapshots = [Snapshot(time, (gpu(22.5),)) for time in range(100)]
    assert kinds(watch, *snapshots) == ["gpu_above", "gpu_danger"]
    alert = watch.summary().alerts[-1]
    assert (alert.rule, alert.remedy, alert.subject, alert.value) == ("gpu-memory-danger", "gpu-oom", "0", 22.5)
    assert kinds(watch, Snapshot(700, (gpu(22.5),))) == ["gpu_above", "gpu_danger"]  # said again after ten minutes


def test_another_scope_leaves_the_danger_line_of_inference_out() -> None:
    assert kinds(Watch(TARGETS, "training"), Snapshot(0, (gpu(22.5),))) == ["gpu_above"]


def test_growing_memory_is_warned_of_before_the_limit() -> None:
    watch = Watch(TARGETS)
    rows = [Snapshot(float(t), host=HostState(20 * GIB + t * GIB // 10, 60 * GIB)) for t in range(200)]
    alerts = [alert for row in rows for alert in watch.add(row)]
    first = alerts[0]
    assert (first.kind, first.remedy) == ("host_filling", "host-out-of-memory")
    assert first.time < 100
    assert first.seconds_left == pytest.approx((60 - 20 - first.time / 10) * 10, rel=0.02)


@pytest.mark.parametrize("used", [lambda t: 18 if t > 20 else t, lambda t: 10 + t % 2, lambda t: 18])
def test_a_plateau_a_ripple_and_a_flat_line_fill_nothing(used) -> None:
    watch = Watch(TARGETS)
    assert kinds(watch, *(Snapshot(float(t), (gpu(used(t)),)) for t in range(300))) == []


def test_a_kill_is_warned_of_each_time_and_those_before_the_watch_are_not_its_own() -> None:
    watch = Watch(TARGETS)
    rows = [Snapshot(float(t), host=HostState(oom_kills=kills)) for t, kills in enumerate([3, 3, 4, 6])]
    assert kinds(watch, *rows) == ["oom_kill", "oom_kill"]
    assert watch.summary().oom_kills == 3


def test_the_driver_going_away_and_coming_back_is_said() -> None:
    watch = Watch(TARGETS)
    rows = [Snapshot(0.0, (gpu(1),)), Snapshot(1.0, gpu_note="gpu_lost"), Snapshot(2.0, gpu_note="gpu_lost")]
    assert kinds(watch, *rows, Snapshot(3.0, (gpu(1),))) == ["driver_gone", "driver_back"]


def test_heat_is_warned_of_and_the_power_limit_is_not() -> None:
    watch = Watch(TARGETS)
    assert kinds(watch, Snapshot(0, (gpu(18, throttle=("power_cap",)),))) == []
    assert kinds(watch, Snapshot(1, (gpu(18, throttle=("power_cap", "thermal")),))) == ["throttled"]
    assert watch.summary().gpus[0].throttled == {"power_cap": 2, "thermal": 1}


def test_slow_steps_and_large_workers_are_warned_of() -> None:
    watch = Watch(TARGETS)
    tree = TreeState(workers=4, worker_pss_bytes=3 * 10**9)
    row = Snapshot(0, tree=tree, speed=SpeedState(2.0, ratio=1.6))
    assert sorted(kinds(watch, row)) == ["steps_slow", "worker_large"]


def test_peaks_are_kept_with_when_they_were() -> None:
    watch = Watch(TARGETS)
    for time, used, share in ((0.0, 10, 1.0), (1.0, 18.3, 0.9), (2.0, 12, 0.5)):
        process = GpuProcess(7, round(used * GIB) // 2, watched=True)
        state = gpu(used, utilisation=share, power_watts=used * 10, processes=(process,))
        watch.add(Snapshot(time, (state,), HostState(round(used * 10**9), 60 * 10**9)))
    summary = watch.summary()
    peak = summary.gpus[0]
    assert (peak.used_bytes, peak.used_at, peak.power_watts) == (round(18.3 * GIB), 1.0, 183.0)
    assert peak.watched_bytes == round(18.3 * GIB) // 2
    assert peak.utilisation == pytest.approx(0.8)
    assert summary.host.used_bytes == round(18.3 * 10**9)
    assert {row.threshold: row.label for key, row in summary.judged if key == "0"}["gpu-memory-training"] == "ok"


def test_utilisation_is_judged_by_its_mean_of_the_last_minute() -> None:
    watch = Watch(TARGETS)
    rows = [Snapshot(float(t), (gpu(18, utilisation=t % 2),)) for t in range(120)]
    for row in rows:
        watch.add(row)
    verdicts = {row.threshold: round(row.value) for _, row in watch.judged(rows[-1])}
    assert verdicts["gpu-utilisation"] == pytest.approx(50, abs=1)


def test_a_record_that_starts_anew_has_no_trend_across_the_gap() -> None:
    trend = Trend()
    for time in range(100):
        trend.add(float(time), time)
    assert trend.seconds_to(200) == pytest.approx(101)
    trend.add(0.0, 99)
    assert trend.seconds_to(200) is None
