"""GPUs, host and processes read over time: a driver that goes away and comes back, recorded trees, real processes."""

import contextlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from kb.core.units import GIB, MIB
from kb.machine import host
from kb.machine.host import HostWatch
from kb.machine.processes import ProcessTree
from native.probe import SOURCES, compiled, script

TREES = Path(__file__).parents[1] / "data" / "cgroup"
RTX_3090 = (
    "name=NVIDIA GeForce RTX 3090,total=24576,reserved=309,used=18430,major=8,minor=6,uuid=GPU-aaaa-1,"
    "util=97,power=341,limit=350,celsius=71,slowdown=93,throttle=36"
)
SECOND = "name=NVIDIA GeForce RTX 3090,total=24576,used=5,major=8,minor=6,uuid=GPU-bbbb-2"
A100_MIG = "name=NVIDIA A100-SXM4-40GB,total=40960,reserved=600,mig=1,major=8,minor=0,uuid=GPU-cccc-3,util=50,power=200"
SLICES = (
    "gpu=0,instance=1,name=NVIDIA A100-SXM4-40GB MIG 3g.20gb,total=19968,used=100,uuid=MIG-dddd-4;"
    "gpu=0,instance=5,name=NVIDIA A100-SXM4-40GB MIG 1g.5gb,total=4864,used=7,uuid=MIG-eeee-5"
)
# Reads so often, with so short a patience, and prints each reading as a line of JSON.
PROGRAM = """
import json, os, sys, time
from kb.machine.live_gpus import GpuWatch
options = json.loads(sys.argv[1])
times, pause = options.pop("times"), options.pop("pause", 0.0)
watch = GpuWatch(os.environ, **options)
for _ in range(times):
    began = time.monotonic()
    reading = watch.read()
    gpus = [{**gpu._asdict(), "processes": [list(each) for each in gpu.processes]} for gpu in reading.gpus]
    print(json.dumps([gpus, reading.note, reading.notes, time.monotonic() - began]), flush=True)
    time.sleep(pause)
watch.close()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver")).parent


@pytest.fixture(scope="module")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("old-driver"), "-DOLD_DRIVER").parent


def watched(library: Path | None, times: int = 1, options: dict | None = None, **environment: str) -> list[list]:
    """What ``times`` readings gave: [GPUs, note, notes, seconds it took]."""
    scenario = {"PATH": "", "PYTHONPATH": str(SOURCES), "NVML_DRIVER": "575.57.08", **environment}
    if library is not None:
        scenario["LD_LIBRARY_PATH"] = str(library)
    arguments = json.dumps({"times": times, **(options or {})})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, arguments],
        env=scenario,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_everything_of_a_gpu_is_read(library: Path) -> None:
    processes = "gpu=0,pid=4242,used=17900;gpu=0,pid=4300"
    (((gpu,), note, notes, _),) = watched(library, NVML_GPUS=RTX_3090, NVML_PROCESSES=processes)
    assert (note, [each for each in notes if each != "foreign_processes"]) == (None, [])
    assert (gpu["key"], gpu["used_bytes"], gpu["total_bytes"]) == ("0", 18430 * MIB, 24 * GIB)
    assert (gpu["utilisation"], gpu["power_watts"], gpu["power_limit_watts"]) == (0.97, 341.0, 350.0)
    assert (gpu["temperature_celsius"], gpu["slowdown_celsius"]) == (71, 93)
    assert gpu["throttle"] == ["power_cap", "thermal"]
    assert [row[:2] for row in gpu["processes"]] == [[4242, 17900 * MIB], [4300, None]]


def test_an_old_driver_tells_what_it_can(old_library: Path) -> None:
    (((gpu,), _, _, _),) = watched(old_library, NVML_GPUS=RTX_3090)
    assert gpu["used_bytes"] == 18430 * MIB
    assert gpu["throttle"] == ["power_cap", "thermal"]


def test_readings_follow_the_driver(library: Path) -> None:
    rows = watched(library, 3, NVML_GPUS=RTX_3090 + ",grow=100")
    used = [row[0][0]["used_bytes"] // MIB for row in rows]
    assert used[1] - used[0] == used[2] - used[1] == 100


def test_what_a_gpu_does_not_tell_is_unknown(library: Path) -> None:
    (((gpu,), _, _, _),) = watched(library, NVML_GPUS=SECOND)
    assert [gpu[name] for name in ("utilisation", "power_watts", "temperature_celsius")] == [None, None, None]
    assert gpu["throttle"] == []


def test_several_gpus_are_read_in_cudas_order_and_said(library: Path) -> None:
    ((gpus, _, notes, _),) = watched(library, NVML_GPUS=f"{RTX_3090};{SECOND}", CUDA_VISIBLE_DEVICES="1,0")
    assert [gpu["key"] for gpu in gpus] == ["1", "0"]
    assert "several_gpus" in notes


def test_slices_have_memory_of_their_own_and_their_cards_power(library: Path) -> None:
    ((gpus, _, notes, _),) = watched(library, NVML_GPUS=A100_MIG, NVML_SLICES=SLICES)
    assert [(gpu["key"], gpu["used_bytes"] // MIB, gpu["total_bytes"] // MIB) for gpu in gpus] == [
        ("0.1", 100, 19968),
        ("0.5", 7, 4864),
    ]
    assert [(gpu["utilisation"], gpu["power_watts"]) for gpu in gpus] == [(None, 200.0), (None, 200.0)]
    assert "mig_slices" in notes


def test_a_driver_that_goes_away_is_said_and_read_again_when_it_is_back(library: Path) -> None:
    rows = watched(library, 12, {"retry_seconds": 0}, NVML_GPUS=RTX_3090, NVML_GONE="after=3,for=4")
    notes = [row[1] for row in rows]
    assert notes[0] is None
    assert {"gpu_lost", "driver_not_loaded"} >= set(notes) - {None}
    assert "gpu_lost" in notes
    assert rows[-1][1] is None
    assert rows[-1][0][0]["used_bytes"] == 18430 * MIB


def test_a_gone_driver_is_not_asked_at_every_reading(library: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    watched(library, 30, NVML_GPUS=RTX_3090, NVML_GONE="after=2,for=999", NVML_LOG=str(log))
    assert log.read_text().split().count("init") == 1


def test_a_reading_that_hangs_is_left_behind_and_taken_up_later(library: Path) -> None:
    options = {"answer_seconds": 0.3, "pause": 0.4}
    rows = watched(library, 8, options, NVML_GPUS=RTX_3090, NVML_STALL="after=2,seconds=2")
    assert "nvml_hangs" in [row[1] for row in rows]
    assert max(row[3] for row in rows[1:]) < 1.5
    assert rows[-1][1] is None


def test_a_start_that_hangs_does_not_hold_the_watch_up(library: Path) -> None:
    options = {"start_seconds": 0.3, "pause": 0.4}
    rows = watched(library, 8, options, NVML_GPUS=RTX_3090, NVML_HANG="2")
    assert rows[0][1] == "nvml_hangs"
    assert rows[-1][1] is None
    assert rows[-1][0][0]["key"] == "0"


@pytest.mark.parametrize(
    ("scenario", "note"),
    [
        ({"NVML_INIT": "9"}, "driver_not_loaded"),
        ({"NVML_INIT": "18"}, "driver_mismatch"),
        ({"NVML_INIT": "4"}, "no_permission"),
        ({"NVML_GPUS": RTX_3090, "CUDA_VISIBLE_DEVICES": ""}, "gpus_hidden"),
        ({"NVML_GPUS": RTX_3090, "CUDA_VISIBLE_DEVICES": "7"}, "visible_devices_invalid"),
        ({"NVML_GPUS": ""}, "no_device"),
        ({"NVML_GPUS": A100_MIG}, "mig_without_slices"),
    ],
)
def test_why_there_is_no_gpu_is_the_note_that_detection_gives(library: Path, scenario: dict, note: str) -> None:
    ((gpus, found, _, _),) = watched(library, **scenario)
    assert (gpus, found) == ([], note)


def smi(folder: Path, rows: str) -> None:
    script(
        folder,
        'case "$1" in *memory.free*) echo "0, GPU-1, 24576, 6000, 550.54.14, 8.6, [N/A], NVIDIA GeForce RTX 3090";; '
        f"*) {rows};; esac\n",
    )


def test_nvidia_smi_is_watched_where_the_library_does_not_fit(library: Path, tmp_path: Path) -> None:
    smi(tmp_path, 'echo "0, GPU-1, 18430, 24576, 97, 341.02, 350.00, 71, 0x0000000000000004"')
    rows = watched(library, 2, PATH=str(tmp_path), NVML_INIT="18")
    (gpu,), note, notes, _ = rows[1]
    assert (gpu["name"], gpu["used_bytes"], gpu["utilisation"]) == ("NVIDIA GeForce RTX 3090", 18430 * MIB, 0.97)
    assert gpu["throttle"] == ["power_cap"]
    assert (note, notes) == (None, ["driver_mismatch"])


def test_nvidia_smi_that_hangs_is_said(tmp_path: Path) -> None:
    script(tmp_path, "exec /bin/sleep 50\n")
    blocked = tmp_path / "no-driver"
    blocked.mkdir()
    (blocked / "libnvidia-ml.so.1").write_text("not a library")
    ((_, note, _, seconds),) = watched(blocked, options={"root": str(tmp_path)}, PATH=str(tmp_path))
    assert note == "nvidia_smi_hangs"
    assert seconds < 10


def test_recorded_trees_give_the_hosts_state() -> None:
    v2 = HostWatch(str(TREES / "docker-v2")).read()
    assert (v2.limit_bytes, v2.used_bytes, v2.source) == (8 * GIB, 3 * GIB - 768 * MIB, "cgroup-v2")
    assert v2.shm_used_bytes is None  # that of a recorded tree cannot be asked
    v1 = HostWatch(str(TREES / "v1-docker")).read()
    assert (v1.limit_bytes, v1.source) == (4 * GIB, "cgroup-v1")


def copied(folder: Path, case: str) -> Path:
    tree = folder / case
    shutil.copytree(TREES / case, tree)
    return tree


def test_kills_are_counted_in_both_versions(tmp_path: Path) -> None:
    v2 = copied(tmp_path, "docker-v2")
    place = host.group("memory", str(v2), host.mounts(str(v2)))
    assert place is not None
    watch = HostWatch(str(v2))
    assert watch.read().oom_kills is None
    events = Path(place.folders[0]) / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert watch.read().oom_kills == 2
    v1 = copied(tmp_path, "v1-docker")
    place = host.group("memory", str(v1), host.mounts(str(v1)))
    assert place is not None
    (Path(place.folders[0]) / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert HostWatch(str(v1)).read().oom_kills == 4


def test_where_no_group_counts_the_system_does(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/vmstat").write_text("pgfault 1\noom_kill 5\n")
    assert HostWatch(str(tmp_path)).read().oom_kills == 5
    (tmp_path / ".dockerenv").touch()
    assert HostWatch(str(tmp_path)).read().oom_kills is None  # those of other containers


def test_a_limit_that_is_changed_while_a_run_goes_on_is_read(tmp_path: Path) -> None:
    tree = copied(tmp_path, "docker-v2")
    watch = HostWatch(str(tree))
    place = host.group("memory", str(tree), host.mounts(str(tree)))
    assert place is not None
    (Path(place.folders[0]) / "memory.max").write_text(str(6 * GIB))
    assert watch.read().limit_bytes == 6 * GIB


def test_the_watched_process_has_its_own_group(tmp_path: Path) -> None:
    tree = copied(tmp_path, "v2-host-max")
    point = tree / "sys/fs/cgroup/job"
    point.mkdir()
    (point / "memory.max").write_text("1000000\n")
    (tree / "proc/77").mkdir()
    (tree / "proc/77/cgroup").write_text("0::/job\n")
    assert HostWatch(str(tree), pid=77).read().limit_bytes == 1_000_000
    assert HostWatch(str(tree)).read().limit_bytes != 1_000_000


@pytest.fixture
def family():
    """A process with two forked workers that hold 30 MB each."""
    code = (
        "import multiprocessing, os, time\n"
        "def hold():\n    block = bytearray(b'x' * 30_000_000); os.write(1, b'held\\n'); time.sleep(60)\n"
        "fork = multiprocessing.get_context('fork')\n"
        "workers = [fork.Process(target=hold) for _ in range(2)]\n"
        "for worker in workers: worker.start()\n"
        "for worker in workers: worker.join()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        assert [process.stdout.readline().strip() for _ in range(2)] == ["held", "held"]
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def test_workers_are_told_from_the_process_that_started_them(family: subprocess.Popen) -> None:
    tree = ProcessTree(family.pid).read()
    assert tree is not None
    assert (tree.count_all, tree.workers) == (3, 2)
    assert tree.worker_pss_bytes is not None
    assert 30 * 10**6 < tree.worker_pss_bytes < 90 * 10**6
    assert tree.pss_bytes == sum(each.pss_bytes or 0 for each in tree.processes)
    assert [each.worker for each in tree.processes if each.pid == family.pid] == [False]


def test_a_worker_that_vanishes_and_the_end_of_all_are_survived(family: subprocess.Popen) -> None:
    now = [0.0]
    watch = ProcessTree(family.pid, clock=lambda: now[0])
    first = watch.read()
    assert first is not None
    worker = next(each.pid for each in first.processes if each.worker)
    os.kill(worker, 9)
    for _ in range(100):
        now[0] += 60
        tree = watch.read()
        assert tree is not None
        if tree.workers == 1:
            break
        time.sleep(0.05)
    assert tree.workers == 1
    os.killpg(family.pid, 9)
    family.wait()
    assert watch.read() is None
    assert not watch.alive


def test_a_spawned_worker_is_one_and_the_resource_tracker_is_none() -> None:
    spawn = multiprocessing.get_context("spawn")
    worker = spawn.Process(target=time.sleep, args=(30,))
    worker.start()
    try:
        tree = ProcessTree(os.getpid()).read()
        assert tree is not None
        marked = {each.pid for each in tree.processes if each.worker}
        assert worker.pid in marked
        assert resource_tracker._resource_tracker._pid not in marked
    finally:
        worker.kill()
        worker.join()


def test_a_process_that_is_not_there_is_said() -> None:
    with pytest.raises(ValueError, match="no process"):
        ProcessTree(2**22 + 1)
