"""Memory limit, CPU quota and /dev/shm from recorded and written control group trees (tests/data/cgroup)."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb.core.units import GIB
from kb.machine import host
from kb.machine.detect import detect

TREES = Path(__file__).parents[1] / "data" / "cgroup"
KIB = 1024


@pytest.mark.parametrize(
    ("case", "limit_bytes", "used_bytes", "source"),
    [
        ("docker-v2", 8 * GIB, 3 * GIB - 768 * 2**20, "cgroup-v2"),
        ("kubernetes-v2-nested", 60 * 10**9, 30 * 10**9, "cgroup-v2"),
        ("v1-host", 32780916 * KIB, (32780916 - 21004120) * KIB, "meminfo"),
        ("v1-docker", 4 * GIB, 3 * GIB - 640 * 2**20, "cgroup-v1"),
        ("v1-kubernetes-pod-limit", 16 * GIB, 6 * GIB - 512 * 2**20, "cgroup-v1"),
        ("hybrid-systemd", 48 * GIB, 21 * GIB, "cgroup-v1"),
        ("v2-host-max", 65835408 * KIB, (65835408 - 41118220) * KIB, "meminfo"),
        ("v2-outside-namespace", 12 * GIB, GIB, "cgroup-v2"),
        ("v2-mounted-twice", 20 * GIB, 5 * GIB, "cgroup-v2"),
        ("recorded-microvm-v1", 24684084 * KIB, (24684084 - 23483172) * KIB, "meminfo"),
    ],
)
def test_smallest_memory_limit_counts(case: str, limit_bytes: int, used_bytes: int, source: str) -> None:
    machine = detect({}, gpu="none", root=str(TREES / case))
    assert machine.host_memory_bytes == limit_bytes
    assert machine.host_memory_used_bytes == used_bytes
    assert machine.host_memory_source == source


@pytest.mark.parametrize(
    ("case", "cpus", "source"),
    [
        ("docker-v2", 1, "cgroup-v2"),  # 1.5 keep one process busy
        ("kubernetes-v2-nested", 8, "cgroup-v2"),
        ("v1-host", 8, "affinity"),
        ("v1-docker", 2, "cgroup-v1"),
        ("v1-kubernetes-pod-limit", 8, "affinity"),
        ("hybrid-systemd", 1, "cgroup-v1"),  # half a CPU is still one process
        ("v2-host-max", 24, "affinity"),
        ("v2-outside-namespace", 4, "affinity"),
        ("v2-mounted-twice", 3, "cgroup-v2"),
        ("recorded-microvm-v1", 2, "affinity"),
    ],
)
def test_smaller_of_quota_and_affinity_counts(case: str, cpus: int, source: str) -> None:
    machine = detect({}, gpu="none", root=str(TREES / case))
    assert (machine.cpus, machine.cpu_source) == (cpus, source)


@pytest.mark.parametrize(
    ("case", "shm_bytes"),
    [
        ("docker-v2", 64 * 2**20),
        ("v1-docker", 8 * GIB),
        ("v2-host-max", 32917704 * KIB),
        ("v1-host", None),  # without a size= the kernel's default applies, which only the running system knows
        ("v2-mounted-twice", None),
    ],
)
def test_shm_size_is_read_where_it_is_mounted(case: str, shm_bytes: int | None) -> None:
    assert detect({}, gpu="none", root=str(TREES / case)).shm_bytes == shm_bytes


def test_every_tree_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in os.listdir(TREES) if name != "README.md" and f'"{name}"' not in text] == []


def test_machine_without_proc_is_unknown_not_guessed(tmp_path: Path) -> None:
    machine = detect({}, gpu="none", root=str(tmp_path))
    assert (machine.host_memory_bytes, machine.host_memory_source) == (None, "unknown")
    assert (machine.cpus, machine.cpu_source, machine.shm_bytes) == (None, "unknown", None)


def test_named_values_win_over_the_tree() -> None:
    machine = detect({}, gpu="none", host_memory="60GB", cpus="48", root=str(TREES / "docker-v2"))
    assert (machine.host_memory_bytes, machine.cpus) == (60 * 10**9, 48)
    assert machine.host_memory_used_bytes is None


def test_limit_without_meminfo_is_still_known(tmp_path: Path) -> None:
    tree = _tree(tmp_path, "0::/", "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", {"memory.max": "1000\n"})
    machine = detect({}, gpu="none", root=str(tree))
    assert (machine.host_memory_bytes, machine.host_memory_used_bytes) == (1000, None)


@pytest.mark.parametrize(
    "broken", [{"memory.max": ""}, {"memory.max": "banana"}, {"memory.max": "-1"}, {"cpu.max": "0 0"}, {"cpu.max": "5"}]
)
def test_file_that_makes_no_sense_is_no_limit(tmp_path: Path, broken: dict[str, str]) -> None:
    tree = _tree(tmp_path, "0::/", "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", broken)
    mounted = host.mounts(str(tree))
    assert host.memory_limit(str(tree), mounted) is None
    assert host.cpu_quota(str(tree), mounted) is None


def test_cache_larger_than_use_is_not_less_than_nothing(tmp_path: Path) -> None:
    files = {"memory.max": "1000", "memory.current": "10", "memory.stat": "inactive_file 50\n"}
    tree = _tree(tmp_path, "0::/", "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", files)
    limit = host.memory_limit(str(tree), host.mounts(str(tree)))
    assert limit is not None
    assert limit.used_bytes == 0


_LINE = st.text(st.sampled_from("0123456789 /:-.,\\abcgroup2emory="), max_size=60)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(groups=st.lists(_LINE, max_size=4), mounts=st.lists(_LINE, max_size=4))
def test_no_text_in_proc_raises(tmp_path_factory: pytest.TempPathFactory, groups: list[str], mounts: list[str]) -> None:
    known = [
        "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        "2 0 0:2 /a /sys/fs/cgroup/m rw - cgroup cgroup memory",
    ]
    folder = tmp_path_factory.getbasetemp() / "noise"
    tree = _tree(folder, "\n".join(groups), "\n".join([*known, *mounts]), {"memory.max": "max"})
    machine = detect({}, gpu="none", root=str(tree))
    assert machine.host_memory_source in ("unknown", "cgroup-v1", "cgroup-v2")


def _tree(folder: Path, groups: str, mountinfo: str, files: dict[str, str]) -> Path:
    for path, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": mountinfo}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / "sys/fs/cgroup" / name).write_text(text)
    return folder


def test_this_machine_has_memory_and_cpus() -> None:
    if not os.path.exists("/proc/self/mountinfo") and not os.environ.get("CI"):
        pytest.skip("/proc is missing: not Linux")
    machine = detect({}, gpu="none")
    assert machine.host_memory_bytes is not None
    assert machine.host_memory_used_bytes is not None
    assert 0 < machine.host_memory_used_bytes < machine.host_memory_bytes
    assert machine.cpus is not None
    assert 1 <= machine.cpus <= len(os.sched_getaffinity(0))


def test_cpu_lists_with_gaps_are_counted() -> None:
    tree = str(TREES / "v1-kubernetes-pod-limit")
    assert "0,2,4-9" in (TREES / "v1-kubernetes-pod-limit/proc/self/status").read_text()
    assert host.cpus(tree, host.mounts(tree)).whole == 8
