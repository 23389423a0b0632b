"""Readings against the notes' targets and danger lines; nvidia-smi's CSV as it is saved."""

import pytest

from catalog_sample import load_guide
from kb.advice.watching import judge
from kb.core.snapshot import Sample
from kb.core.units import GIB, MIB
from kb.machine.gpu_csv import read_gpu_csv

TARGETS = load_guide()["formulas"]["targets"]


def labels(sample: Sample, scope: str | None = None) -> dict[str, str]:
    return {row.threshold: row.label for row in judge(sample, TARGETS, scope)}


def gpu(used: float, total: float = 24) -> Sample:
    return Sample(gpu_used=round(used * GIB), gpu_total=round(total * GIB))


def test_a_reading_in_the_target_range_is_ok_and_its_rule_is_named() -> None:
    found = {row.threshold: row for row in judge(gpu(18.3), TARGETS)}
    row = found["gpu-memory-training"]
    assert (round(row.value), row.unit, row.label) == (76, "%", "ok")
    assert (row.row["source"], row.row["lines"]) == ("guide-memory", "130")
    assert "gpu-memory-danger" not in found and "gpu-memory-safe" not in found


@pytest.mark.parametrize(
    ("used", "line", "label", "training"),
    [(22, "gpu-memory-danger", "danger", "above"), (14, "gpu-memory-safe", "safe", "below")],
)
def test_danger_and_safe_lines(used: float, line: str, label: str, training: str) -> None:
    found = labels(gpu(used))
    assert (found[line], found["gpu-memory-training"]) == (label, training)


def test_lines_of_a_24_gb_card_say_nothing_of_another_card() -> None:
    assert labels(gpu(22, 80)).keys() == {"gpu-memory-training", "gpu-memory-history"}
    as_drivers_report_it = Sample(gpu_used=22 * GIB, gpu_total=24268 * MIB)
    assert labels(as_drivers_report_it)["gpu-memory-danger"] == "danger"


@pytest.mark.parametrize(("used", "label"), [(40, "ok"), (48, "ok"), (50, "above")])
def test_host_memory_against_its_limit(used: int, label: str) -> None:
    found = judge(Sample(host_used=used * 10**9, host_limit=60 * 10**9), TARGETS)
    assert [(row.threshold, row.label) for row in found] == [("host-memory", label)]
    assert found[0].value == pytest.approx(used / 60 * 100)


@pytest.mark.parametrize(("share", "label"), [(1.0, "ok"), (0.85, "ok"), (0.5, "below")])
def test_utilisation(share: float, label: str) -> None:
    assert labels(Sample(gpu_utilisation=share))["gpu-utilisation"] == label


def test_steps_and_workers() -> None:
    assert labels(Sample(step_ratio=1.6, worker_bytes=10**9)) == {"step-time": "above", "worker-memory": "ok"}


def test_a_scope_leaves_the_others_thresholds_out() -> None:
    assert labels(gpu(14), "inference") == {"gpu-memory-safe": "safe"}
    assert labels(gpu(14), "training").keys() == {"gpu-memory-training", "gpu-memory-history"}


def test_what_was_not_read_is_not_judged() -> None:
    assert judge(Sample(), TARGETS) == ()
    assert judge(Sample(gpu_used=GIB, host_used=GIB), TARGETS) == ()


SAVED = """\
               total        used        free
Mem:           251Gi        40Gi       200Gi
=== GPU ===
memory.used [MiB], memory.total [MiB]
18739 MiB, 24576 MiB
[N/A], 24576 MiB
memory.used [MiB], memory.total [MiB]
22528 MiB, 24576 MiB
"""


def test_a_saved_record_is_read_without_a_gpu() -> None:
    rows = list(read_gpu_csv(SAVED))
    assert [(row.line, row.sample.gpu_used) for row in rows] == [(5, 18739 * MIB), (8, 22528 * MIB)]
    assert [labels(row.sample).get("gpu-memory-danger") for row in rows] == [None, "danger"]


def test_several_gpus_with_time_and_utilisation() -> None:
    text = (
        "timestamp, index, utilization.gpu [%], memory.used [MiB], memory.total [MiB]\n"
        "2026/01/02 03:04:05.678, 0, 100 %, 18739 MiB, 24576 MiB\n"
        "2026/01/02 03:04:05.678, 1, 0 %, 5 MiB, 24576 MiB\n"
    )
    first, second = read_gpu_csv(text)
    assert (first.gpu, second.gpu, first.time) == ("0", "1", "2026/01/02 03:04:05.678")
    assert (first.sample.gpu_utilisation, second.sample.gpu_utilisation) == (1.0, 0.0)


def test_a_record_without_a_header_needs_the_fields() -> None:
    text = "18739, 24576, 97\n"
    with pytest.raises(ValueError, match="no header"):
        list(read_gpu_csv(text))
    sample = Sample(gpu_used=18739 * MIB, gpu_total=24576 * MIB, gpu_utilisation=0.97)
    (row,) = read_gpu_csv(text, ("memory.used", "memory.total", "utilization.gpu"))
    assert (row.line, row.sample, row.gpu) == (1, sample, None)


def test_power_temperature_and_what_holds_the_clocks_down_are_read_by_either_name() -> None:
    for reasons in ("clocks_throttle_reasons.active", "clocks_event_reasons.active"):
        text = (
            f"index, name, memory.used [MiB], power.draw [W], enforced.power.limit [W], temperature.gpu, {reasons}\n"
            "0, NVIDIA GeForce RTX 3090, 18739 MiB, 349.12 W, 350.00 W, 83, 0x0000000000000024\n"
        )
        (row,) = read_gpu_csv(text)
        assert (row.state.power_watts, row.state.power_limit_watts) == (349.12, 350.0)
        assert (row.state.temperature_celsius, row.state.throttle) == (83.0, ("power_cap", "thermal"))


def test_a_record_is_read_line_by_line() -> None:
    rows = read_gpu_csv(iter(["memory.used [MiB]\n", "18739 MiB\n"]))
    assert [row.line for row in rows] == [2]
