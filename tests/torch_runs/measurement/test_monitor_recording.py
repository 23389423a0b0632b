"""Recordings as they are written: continued, refused, a full disk, Prometheus."""

import os
import socket
import urllib.request
from pathlib import Path

import pytest

from kb.commands.monitor.outputs import Exporter, csv_recorder, json_recorder
from kb.commands.monitor.printed import Command
from kb.commands.monitor.replay import Replay
from kb.core.snapshot import GpuState, HostState, Snapshot
from kb.core.text import UserError
from native.probe import SOURCES

NOW = Snapshot(1767323045.0, (GpuState("0", "GPU", "GPU-1", 5, 10, 0.5, throttle=("thermal",)),), HostState(1, 2))


def quiet(path: str, reason: str | None) -> None:
    raise AssertionError((path, reason))


def snapshots(path: Path) -> list[Snapshot]:
    return list(Replay(enumerate(path.read_text().splitlines(), 1), str(path)))


@pytest.mark.parametrize("recorder", [csv_recorder, json_recorder])
def test_a_recording_is_continued_also_after_a_line_that_was_cut_off(tmp_path: Path, recorder) -> None:
    path = tmp_path / "run"
    for time in (1.0, 2.0):
        recording = recorder(str(path), quiet)
        recording.write(NOW._replace(time=NOW.time + time))
        recording.close()
    assert [each.time - NOW.time for each in snapshots(path)] == [1.0, 2.0]
    assert path.read_text().count("time,gpu") <= 1
    path.write_text(path.read_text() + "2026")
    recording = recorder(str(path), quiet)
    recording.write(NOW)
    recording.close()
    assert len(path.read_text().splitlines()[-1]) > 50  # whole, on a line of its own


@pytest.mark.parametrize("recorder", [csv_recorder, json_recorder])
def test_a_file_of_another_kind_is_not_written_into(tmp_path: Path, recorder) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("fp16: true\n")
    with pytest.raises(UserError) as caught:
        recorder(str(path), quiet)
    assert caught.value.key == "monitor.other_file"
    assert path.read_text() == "fp16: true\n"


def test_a_path_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "run.csv"):
        with pytest.raises(UserError) as caught:
            csv_recorder(str(path), quiet)
        assert caught.value.key == "monitor.unwritable"


def test_a_full_disk_is_said_once() -> None:
    if not os.path.exists("/dev/full") and not os.environ.get("CI"):
        pytest.skip("/dev/full is missing: not Linux")
    told: list[tuple[str, str | None]] = []
    recording = csv_recorder("/dev/full", lambda path, reason: told.append((path, reason)))
    for _ in range(5):
        recording.write(NOW)
    recording.close()
    assert [path for path, _ in told] == ["/dev/full"]
    assert recording.lost == 5


def test_rows_that_did_not_fit_leave_nothing_half_written(tmp_path: Path) -> None:
    """A file that may not grow past a limit, as a full disk or a quota would have it, then room again."""
    import subprocess
    import sys

    code = (
        "import resource, signal, sys\n"
        "from kb.core.snapshot import GpuState, Snapshot\n"
        "from kb.commands.monitor.outputs import csv_recorder\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "told = []\n"
        "recording = csv_recorder(sys.argv[1], lambda path, reason: told.append(bool(reason)))\n"
        "row = lambda n: recording.write(Snapshot(1767323045.0 + n, (GpuState('0', 'G'),)))\n"
        "for n in range(3): row(n)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600, resource.RLIM_INFINITY))\n"
        "for n in range(3, 9): row(n)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "for n in range(9, 12): row(n)\n"
        "print(told, recording.lost)\n"
    )
    path = tmp_path / "run.csv"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    told, lost = done.stdout.split("] ")
    assert told == "[True, False"
    assert 0 < int(lost) < 9
    assert len(snapshots(path)) == 12 - int(lost)
    assert {9, 10, 11} <= {round(each.time - 1767323045) for each in snapshots(path)}


def test_prometheus_is_served_on_the_loopback() -> None:
    exporter = Exporter(0, "127.0.0.1")
    try:
        assert exporter.address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(exporter.address, timeout=10) as answer:
            assert b"kb_gpu" not in answer.read()
        exporter.show(NOW)
        with urllib.request.urlopen(exporter.address, timeout=10) as answer:
            text = answer.read().decode()
    finally:
        exporter.close()
    assert 'kb_gpu_memory_used_bytes{gpu="0",name="GPU",uuid="GPU-1"} 5.0' in text
    assert 'kb_gpu_throttled{gpu="0",reason="thermal"} 1.0' in text
    assert "kb_host_memory_limit_bytes 2.0" in text
    assert "kb_shm" not in text  # not known
    assert "kb_gpu_power_watts{" not in text


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError) as caught:
            Exporter(taken.getsockname()[1], "127.0.0.1")
    assert caught.value.key == "monitor.port_taken"


def test_a_fault_of_the_watch_does_not_hold_the_command_up() -> None:
    import sys

    def faulty(number: int, data: bytes) -> None:
        raise RuntimeError("a fault of the watch")

    code = "print('x' * 1_000_000)"
    command = Command([sys.executable, "-c", code], dict(os.environ), faulty, lambda line, text: None)
    assert command.wait() == 0
    assert isinstance(command.fault, RuntimeError)
