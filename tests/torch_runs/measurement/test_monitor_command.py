"""`kb monitor` as a user runs it: real commands, signals, closed outputs, a terminal, the compiled stand-in driver."""

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from kb.core.units import GIB
from native.probe import SOURCES, compiled
from output_schemas import answers_to

RTX_3090 = "name=NVIDIA GeForce RTX 3090,total=24576,reserved=309,used=18739,major=8,minor=6,uuid=GPU-a,util=97"
OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.20 GiB is "
    "free. Including non-PyTorch memory, this process has 22.40 GiB memory in use."
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver")).parent


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A folder that ends the loader's search before it comes to a driver of this machine's own."""
    folder = tmp_path / "no-driver"
    folder.mkdir()
    (folder / "libnvidia-ml.so.1").write_text("not a library")
    return folder


def environment(library: Path, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": str(SOURCES), "LC_ALL": "C.UTF-8", "LD_LIBRARY_PATH": str(library), **more}


def monitor(library: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "kb.monitor", *arguments],
        env=environment(library, **more),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def running(library: Path, *arguments: str, **more: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "kb.monitor", "--lang", "en", *arguments],
        env=environment(library, **more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def python(code: str) -> Sequence[str]:
    return ("--interval", "0.2", "--", sys.executable, "-c", code)


def plain(text: str) -> str:
    return " ".join(text.split())


def test_one_reading_of_this_machine(library: Path) -> None:
    done = monitor(library, "--once", NVML_GPUS=RTX_3090, NVML_PROCESSES="gpu=0,pid=1,used=100")
    assert (done.returncode, done.stderr) == (0, "")
    assert "18.3 of 24.0 GiB, 76% · inside 70–85% (gpu-memory-training)" in plain(done.stdout)
    assert "Host" in done.stdout
    data = json.loads(monitor(library, "--once", "--format", "json", NVML_GPUS=RTX_3090).stdout)
    answers_to("monitor", data)
    assert data["gpus"][0]["total_bytes"] == 24 * GIB


def test_a_reading_in_danger_ends_with_1(library: Path) -> None:
    done = monitor(library, "--once", NVML_GPUS=RTX_3090.replace("18739", "22600"))
    assert done.returncode == 1
    assert "danger: ≥ 22 GiB (gpu-memory-danger)" in done.stdout


def test_without_a_gpu_the_host_is_watched_and_that_is_said(blocked: Path) -> None:
    done = monitor(blocked, "--once")
    assert done.returncode == 0
    assert "GPU not watched: " in done.stdout
    assert "memory" in done.stdout


def test_output_passes_through_and_the_exit_code_is_the_commands(blocked: Path) -> None:
    code = "import sys; print('to out'); print('to err', file=sys.stderr); sys.exit(7)"
    done = monitor(blocked, *python(code))
    assert done.returncode == 7
    assert done.stdout == "to out\n"
    assert "to err\n" in done.stderr
    assert "The command ended with exit code 7." in done.stderr


def test_a_command_that_ends_well_is_said_to(blocked: Path) -> None:
    done = monitor(blocked, *python("print('done')"))
    assert done.returncode == 0
    assert "The command ended normally" in done.stderr
    korean = monitor(blocked, *python("pass"), LC_ALL="ko_KR.UTF-8", PYTHONUTF8="1")
    assert "명령이 정상으로 끝났습니다" in korean.stderr


def test_out_of_gpu_memory_is_told_from_the_output_with_its_remedy(blocked: Path) -> None:
    done = monitor(blocked, *python(f"raise RuntimeError({OOM!r})"))
    said = plain(done.stderr)
    assert done.returncode == 1
    assert "GPU out of memory" in said
    assert "Remedy gpu-oom: kb rules explain gpu-oom" in said
    assert "1. Halve per_device_train_batch_size" in said


def test_a_signal_is_named(blocked: Path) -> None:
    done = monitor(blocked, *python("import os; os.kill(os.getpid(), 9)"))
    assert done.returncode == 137
    assert "ended by signal SIGKILL" in done.stderr


def test_workers_and_speed_of_the_run_are_in_the_report(blocked: Path) -> None:
    code = (
        "import multiprocessing, sys, time\n"
        "def hold():\n    block = bytearray(b'x' * 30_000_000); time.sleep(2.5)\n"
        "fork = multiprocessing.get_context('fork')\n"
        "workers = [fork.Process(target=hold) for _ in range(2)]\n"
        "for worker in workers: worker.start()\n"
        "for step in range(1, 21):\n"
        "    sys.stderr.write(f'\\r{step*5}%|##| {step}/20 [00:01<00:01, {4 if step < 12 else 2}.00it/s]')\n"
        "    sys.stderr.flush(); time.sleep(0.05)\n"
        "for worker in workers: worker.join()\n"
    )
    said = plain(monitor(blocked, *python(code)).stderr)
    assert "2 data loader workers" in said
    assert "0.5 s a step" in said
    assert "above 1.5× (step-time)" in said


def test_what_is_recorded_can_be_replayed(library: Path, tmp_path: Path) -> None:
    files = {"--csv": tmp_path / "run.csv", "--json-lines": tmp_path / "run.jsonl"}
    options = [word for name, path in files.items() for word in (name, str(path))]
    done = monitor(library, *options, *python("import time; time.sleep(1.5)"), NVML_GPUS=RTX_3090)
    assert done.returncode == 0
    for path in files.values():
        assert "18.3 of 24.0 GiB, 76%" in monitor(library, "--replay", str(path)).stdout


def test_the_driver_may_go_away_and_come_back(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    arguments = ("--csv", str(path), *python("import time; time.sleep(9)"))
    done = monitor(library, *arguments, NVML_GPUS=RTX_3090, NVML_GONE="after=5,for=1")
    said = plain(done.stderr)
    assert "The GPUs are no longer read: the driver has lost contact with a GPU" in said
    assert "The GPUs are read again." in said
    assert "gpu_lost" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--", "no-such-program-here"), "'no-such-program-here' cannot be started"),
        (("--",), "-- is followed by no command"),
        (("--pid", "4194303"), "there is no process 4194303"),
        (("--csv", "/nowhere/run.csv", "--", "touch", "{tmp}/started"), "/nowhere/run.csv cannot be written"),
        (("--pid", "1", "--replay", "x.csv"), "--pid, --replay cannot be used together"),
        (("--once", "--", "true"), "--once, -- cannot be used together"),
        (("--interval", "0"), "--interval"),
        (("--prometheus", "99999"), "--prometheus"),
        (("--format", "json"), "--format json goes with"),
        (("--fields", "x"), "--replay"),
    ],
)
def test_what_cannot_be_done_ends_with_2_before_anything_starts(
    blocked: Path, tmp_path: Path, arguments: Sequence[str], said: str
) -> None:
    done = monitor(blocked, *(each.format(tmp=tmp_path) for each in arguments))
    assert done.returncode == 2
    assert said in plain(done.stderr)
    assert not (tmp_path / "started").exists()


def test_a_full_disk_is_said_once_and_the_run_goes_on(blocked: Path) -> None:
    if not os.path.exists("/dev/full") and not os.environ.get("CI"):
        pytest.skip("/dev/full is missing: not Linux")
    done = monitor(blocked, "--csv", "/dev/full", *python("import time; time.sleep(1.5); print('done')"))
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.count("takes no more") == 1
    assert "/dev/full lacks" in done.stderr


def test_prometheus_serves_while_a_command_runs(library: Path) -> None:
    process = running(library, "--prometheus", "0", *python("import time; time.sleep(60)"), NVML_GPUS=RTX_3090)
    assert process.stderr is not None
    try:
        address = process.stderr.readline().split()[-1]
        assert address.startswith("http://127.0.0.1:")
        for _ in range(100):
            try:
                with urllib.request.urlopen(address, timeout=10) as answer:
                    text = answer.read().decode()
            except OSError:  # it says its address a moment before it listens
                text = ""
            if "kb_gpu_memory_used_bytes{" in text or process.poll() is not None:
                break
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()
    assert f'kb_gpu_memory_total_bytes{{gpu="0",name="NVIDIA GeForce RTX 3090",uuid="GPU-a"}} {24 * GIB:.10e}' in text


def await_line(stream, start: str) -> None:
    while (line := stream.readline()) and not line.startswith(start):
        pass
    assert line


def test_a_signal_to_the_watch_goes_on_to_the_command(blocked: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('tidied', flush=True), sys.exit(3)))\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    process = running(blocked, *python(code))
    await_line(process.stdout, "ready")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert "tidied" in out
    assert process.returncode == 3
    assert "ended as asked for" in err


def test_ctrl_c_ends_a_watch_with_its_report(blocked: Path, tmp_path: Path) -> None:
    process = running(blocked, "--interval", "0.2", "--csv", str(tmp_path / "run.csv"))
    await_line(process.stdout, "Host")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert "memory peak" in out
    assert len((tmp_path / "run.csv").read_text().splitlines()) >= 2


def test_a_watch_of_a_process_ends_with_it_and_reads_its_log(blocked: Path, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"\r{n}%|#| {n}/100 [00:01<00:10, 4.00it/s]" for n in range(1, 20)))
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3)"]) as target:
        process = running(blocked, "--pid", str(target.pid), "--log", str(log), "--interval", "0.2")
        time.sleep(1.0)
        with log.open("a") as file:
            file.write("".join(f"\r{n}%|#| {n}/100 [00:02<00:30, 1.00it/s]" for n in range(20, 40)) + "\r")
        target.wait()
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "1 s a step" in plain(out)
    assert f"kbdiagnose{log}" in "".join(out.split()), "a long path is broken where the line ends"


def test_a_closed_output_ends_a_watch_that_nobody_sees_and_no_command(blocked: Path, tmp_path: Path) -> None:
    mark = tmp_path / "done"
    code = f"import time\nfor n in range(30): print(n, flush=True); time.sleep(0.05)\nopen({str(mark)!r}, 'w').close()"
    process = running(blocked, *python(code))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert process.wait(30) == 0
    assert mark.exists()


def in_terminal(library: Path, arguments: Sequence[str], resize_after: float, **more: str) -> tuple[int, str]:
    """The exit code and everything drawn on a terminal of 100 × 30 that becomes 50 × 8."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "kb.monitor", "--lang", "en", *arguments],
        env=environment(library, TERM="xterm-256color", **more),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    drawn, began, resized = b"", time.monotonic(), False
    while time.monotonic() - began < 60:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                data = os.read(ours, 65536)
            except OSError:
                break
            if not data:
                break
            drawn += data
        if not resized and time.monotonic() - began > resize_after:
            resized = True
            fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 50, 0, 0))
            process.send_signal(signal.SIGWINCH)
    os.close(ours)
    return process.wait(30), drawn.decode("utf-8", "replace")


def test_on_a_terminal_the_view_is_redrawn_and_survives_a_resize(library: Path) -> None:
    code = (
        "import sys, time\n"
        "print('a line of the run')\n"
        "for n in range(1, 30):\n"
        "    sys.stderr.write(f'\\r{n}%|#| {n}/30 [00:01<00:01, 5.00it/s]'); sys.stderr.flush(); time.sleep(0.1)\n"
    )
    code_, drawn = in_terminal(library, python(code), 1.5, NVML_GPUS=RTX_3090)
    assert code_ == 0
    assert drawn.count("kb monitor") > 3  # drawn again and again
    assert "a line of the run" in drawn
    assert "29/30" in drawn
    assert "\x1b[1A" in drawn  # in place
    assert "The command ended normally" in drawn


def test_without_rich_a_terminal_gets_lines(blocked: Path, tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'rich' else find(name, *more)\n"
    )
    path = f"{modules}{os.pathsep}{SOURCES}"
    code, drawn = in_terminal(blocked, python("print('done')"), 99, PYTHONPATH=path)
    assert code == 0
    assert "pip install 'gpu-memory-kb[monitor]'" in drawn
    assert "The command ended normally" in drawn
