"""Recordings judged by the command: kb's own forms and nvidia-smi's, both languages, broken ones, a whole day."""

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog_sample import load_guide
from kb.advice.watching import Watch
from kb.commands.monitor import main
from kb.commands.monitor.columns import csv_header, csv_rows, json_line, stamp
from kb.commands.monitor.replay import BrokenRecording, Replay
from kb.core.snapshot import GpuState, HostState, ProcessState, Snapshot, SpeedState, TreeState
from kb.core.units import GIB
from output_schemas import answers_to

ROOT = Path(__file__).parents[3]
RECORDINGS = ROOT / "tests" / "data" / "recordings"
TARGETS = load_guide()["formulas"]["targets"]


def replayed(capsys: pytest.CaptureFixture[str], name: str, *more: str, lang: str = "en") -> tuple[int, str]:
    code = main(["--replay", str(RECORDINGS / name), "--lang", lang, *more])
    return code, capsys.readouterr().out


def test_18_of_24_gb_is_76_percent_and_inside_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = replayed(capsys, "gpu-18.csv")
    assert code == 0
    assert "18.3 of 24.0 GiB, 76% · inside 70–85% (gpu-memory-training)" in out
    assert "Warnings" not in out


def test_22_of_24_gb_is_danger(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = replayed(capsys, "gpu-22.csv")
    assert code == 1
    assert "danger: ≥ 22 GiB (gpu-memory-danger)" in out
    assert "kb rules explain gpu-oom" in out


@pytest.mark.parametrize(
    ("name", "code", "share", "said"),
    [
        ("host-40.csv", 0, "40.0 of 60.0 GB, 67%", "inside ≤ 80% (host-memory)"),
        ("host-50.csv", 1, "50.0 of 60.0 GB, 83%", "above 80% (host-memory)"),
    ],
)
def test_host_memory_against_its_limit(
    capsys: pytest.CaptureFixture[str], name: str, code: int, share: str, said: str
) -> None:
    found, out = replayed(capsys, name)
    assert found == code
    assert share in out
    assert said in out


def test_korean_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = replayed(capsys, "gpu-18.csv", lang="ko")
    assert code == 0
    assert "18.3 / 24.0 GiB, 76% · 목표 70–85% 안 (gpu-memory-training)" in out
    code, out = replayed(capsys, "gpu-22.csv", lang="ko")
    assert code == 1
    assert "위험: ≥ 22 GiB (gpu-memory-danger)" in out


@pytest.mark.long
def test_every_recording_is_tested_and_read(capsys: pytest.CaptureFixture[str]) -> None:
    for name in sorted(os.listdir(RECORDINGS)):
        if name != "README.md":
            code, out = replayed(capsys, name)
            assert code in (0, 1), name
            assert "reading" in out, name


def test_a_scope_leaves_the_other_ones_lines_out(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = replayed(capsys, "gpu-22.csv", "--scope", "training")
    assert "gpu-memory-danger" not in out
    _, out = replayed(capsys, "gpu-22.csv", "--scope", "inference")
    assert "gpu-memory-danger" in out
    assert "gpu-memory-training" not in out


def test_several_gpus_without_units_are_judged_each(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = replayed(capsys, "two-gpus.csv")
    assert code == 1  # heat
    assert "10 readings in 9 s" in out
    first, second = out[out.index("GPU 0") :].split("\nGPU 1\n")
    assert "76%" in first
    assert "clocks held down by heat in 30% of readings" in first
    assert "safe: ≤ 16 GiB" in second


def test_a_saved_watch_is_read_and_what_it_lacks_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = replayed(capsys, "saved-by-watch.log")
    assert code == 1
    assert "2 readings" in out
    assert "no index column" in out
    assert "no times" in out


def test_kills_and_the_driver_away_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = replayed(capsys, "run.jsonl")
    assert code == 1
    assert "The GPUs are no longer read: the driver has lost contact with a GPU" in " ".join(out.split())
    assert "The GPUs are read again." in out
    assert "the kernel killed 1 process for the memory limit" in out
    assert "8 data loader workers · largest 1.9 GB" in out


def test_json_holds_the_same_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = replayed(capsys, "gpu-22.csv", "--format", "json")
    data = json.loads(out)
    answers_to("monitor", data)
    assert code == 1
    assert data["recording"] == "nvidia-smi"
    verdicts = {row["rule"]: (row["label"], round(row["value"])) for row in data["verdicts"]}
    assert verdicts["gpu-memory-danger"] == ("danger", 22)
    assert verdicts["gpu-memory-training"] == ("above", 92)
    assert {row["kind"] for row in data["warnings"]} == {"gpu_above", "gpu_danger"}


def test_json_of_a_whole_run_keeps_to_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = replayed(capsys, "run.jsonl", "--format", "json")
    answers_to("monitor", json.loads(out))


def test_a_recording_is_converted_and_judged_alike(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, before = replayed(capsys, "run.jsonl")
    assert main(["--replay", str(RECORDINGS / "run.jsonl"), "--lang", "en", "--csv", str(tmp_path / "run.csv")]) == 1
    capsys.readouterr()
    assert main(["--replay", str(tmp_path / "run.csv"), "--lang", "en"]) == 1
    assert capsys.readouterr().out == before


FULL = Snapshot(
    1767323045.25,
    (GpuState("0", 'a "GPU", with a comma', "GPU-1", 5 * GIB, 24 * GIB, 0.5, 100.5, 350.0, 61.0, 93.0, ("thermal",)),),
    HostState(10, 20, "cgroup-v2", 1, 2, 3),
    TreeState((ProcessState(7, 1, "python", 5, 4, True),), 1, 4, 1, 4),
    SpeedState(1.5, 1.1, 3, 10, 12.5),
)


def test_what_is_written_as_json_is_read_again_whole() -> None:
    (read,) = Replay([(1, json_line(FULL))], "x")
    assert read == FULL


def test_what_is_written_as_csv_is_read_again() -> None:
    two = FULL._replace(gpus=(FULL.gpus[0], FULL.gpus[0]._replace(key="1")))
    text = csv_header() + csv_rows(two) + csv_rows(FULL._replace(time=FULL.time + 1, gpus=(), gpu_note="gpu_lost"))
    first, second = Replay(enumerate(text.splitlines(), 1), "x")
    assert [state.key for state in first.gpus] == ["0", "1"]
    assert first.gpus[0].name == 'a "GPU", with a comma'
    assert (first.time, first.host, first.gpus[1].throttle) == (FULL.time, FULL.host, ("thermal",))
    assert (second.gpus, second.gpu_note) == ((), "gpu_lost")


HEADER = "time,gpu,gpu_used_bytes,gpu_total_bytes"


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        (f"{HEADER}\n2026-01-02T03:04:05Z,0,banana,5\n", 2, "monitor.recording.value"),
        (f"{HEADER}\n2026-01-02T03:04:05Z,0,-1,5\n", 2, "monitor.recording.value"),
        (f"{HEADER}\n2026-01-02T03:04:05Z,0,1,5\nyesterday,0,1,5\nx,0,1,5\n", 3, "monitor.recording.value"),
        (f"{HEADER}\n2026-01-02T03:04:05Z,0\n2026-01-02T03:04:06Z,0,1,5\n", 2, "monitor.recording.cells"),
        (f"{HEADER},colour\n", 1, "monitor.recording.unknown_columns"),
        (f"{HEADER}\n", None, "monitor.recording.empty"),
        ("", None, "monitor.recording.empty"),
        ('{"kb_monitor":1,"time":"2026-01-02T03:04:05Z"}\n{oh\n{}\n', 2, "monitor.recording.not_json"),
        ('{"kb_monitor":2}\n', 1, "monitor.recording.value"),
        ('{"kb_monitor":1,"time":"2026-01-02T03:04:05Z","gpus":[{"key":7}]}', 1, "monitor.recording.value"),
        ('{"kb_monitor":1,"time":"2026-01-02T03:04:05Z","host":{"used_bytes":NaN}}', 1, "monitor.recording.value"),
        ('{"kb_monitor":1,"time":"2026-01-02T03:04:05Z","gpus":[{}]}', 1, "monitor.recording.value"),
        ("nothing of this is a recording\n", 1, "monitor.recording.no_header"),
        ("timestamp, memory.used [MiB]\nnever, 5 MiB\n", 2, "monitor.recording.value"),
    ],
)  # fmt: skip
def test_a_broken_recording_is_said_with_its_line(text: str, line: int | None, key: str) -> None:
    rows = ((number, row) for number, row in enumerate(text.splitlines(), 1) if row)
    with pytest.raises(BrokenRecording) as caught:
        list(Replay(rows, "run.csv"))
    assert (caught.value.key, caught.value.line) == (key, line)


def test_a_broken_recording_ends_with_2_file_and_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(f"{HEADER}\n2026-01-02T03:04:05Z,0,banana,5\n")
    assert main(["--replay", str(path), "--lang", "en"]) == 2
    assert f"{path}:2:1: 'banana' cannot be a value of gpu_used_bytes" in capsys.readouterr().err
    assert main(["--replay", str(tmp_path / "none.csv"), "--lang", "ko"]) == 2
    assert "none.csv" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_last_line_that_was_cut_off_is_left_out_and_said(kind: str) -> None:
    text = csv_header() + csv_rows(FULL) if kind == "csv" else json_line(FULL)
    text += (csv_rows(FULL) if kind == "csv" else json_line(FULL))[:40]
    replay = Replay(enumerate(text.splitlines(), 1), "x")
    assert len(list(replay)) == 1
    assert replay.notes == ["monitor.recording.cut_off"]


def test_a_record_without_a_header_is_read_by_the_fields_named() -> None:
    rows = [(1, "0, 18739, 24576"), (2, "1, 5, 24576"), (3, "0, 18740, 24576")]
    snapshots = list(Replay(rows, "x", ("index", "memory.used", "memory.total"), interval_seconds=5))
    assert [len(each.gpus) for each in snapshots] == [2, 1]
    assert [each.time for each in snapshots] == [0, 5]


def hours_of(seconds: range) -> Iterator[tuple[int, str]]:
    """Memory that goes up and down, a driver that comes and goes, kills, workers, slow steps: as kb records them."""
    yield 1, csv_header()
    host = "cgroup-v2,{kills},1000000,1000000000,1000000000,4,1000000000,{step},{ratio},{done},86400"
    for second in seconds:
        away = second % 1500 == 0
        used = (10 + 8 * (second % 600) / 600) * GIB
        gpu = "," * 9 if away else f"0,GPU,GPU-1,{used:.0f},{24 * GIB},{second % 2},300,70,power_cap,"
        rest = host.format(kills=second // 7000, step=1 + second % 3, ratio=0.5 + second % 3, done=second)
        note = "gpu_lost" if away else ""
        yield second, f"{stamp(1767323045 + second)},{gpu},{second % 1000 * 10**7},60000000000,{rest},{note},,,,,"


@pytest.mark.long
def test_hours_at_one_reading_a_second_leave_nothing_behind() -> None:
    """What is kept after 8,000 readings is no more than after 1,000."""
    watch = Watch(TARGETS)
    for snapshot in Replay(hours_of(range(1000)), "x"):
        watch.add(snapshot)
    after_start = len(pickle.dumps(watch))
    for snapshot in Replay(hours_of(range(1000, 8000)), "x"):
        watch.add(snapshot)
    summary = watch.summary()
    assert summary.readings == 8000
    assert summary.oom_kills == 1
    assert len(summary.alerts) <= 50
    assert len(pickle.dumps(watch)) < after_start * 1.1 + 10_000
