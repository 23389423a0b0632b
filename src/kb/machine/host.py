"""The host's side: memory, CPUs and /dev/shm that this process may use, by its control groups and by /proc; and whether
it runs in a container or under WSL, which change what the driver shows and what mends it.

Control groups are read, version 1 and 2, after the kernel's documentation: cgroups(7), cgroup-v2, cgroup-v1/memory,
proc_pid_mountinfo(5). A limit binds every group below it, so the smallest from the process's own group up to the mount
counts. Groups above the mount are not visible from inside a container; v1's ``hierarchical_memory_limit`` tells of them
all the same. What cannot be known is unknown, as all is where there is no /proc.
"""

import os
import re
from typing import Literal

from kb.core.record import NamedTuple
from kb.core.snapshot import HostState

Version = Literal[1, 2]
HostMemorySource = Literal["cgroup-v2", "cgroup-v1", "meminfo", "unknown"]
CpuSource = Literal["cgroup-v2", "cgroup-v1", "affinity", "unknown"]

# v1 writes "no limit" as the largest signed 64-bit number, rounded down to a page (4 or 64 KiB).
_UNLIMITED_BYTES = 2**62

_SHM = "/dev/shm"
_ESCAPED = re.compile(r"\\([0-7]{3})")

# Docker and Podman leave these.
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")
_CONTAINER_MARKS = ("/docker/", "/docker-", "/kubepods", "/libpod", "/containerd", "/lxc/", "/crio-")
# Every runtime, Kubernetes' too, mounts these files of its own into the container.
_CONTAINER_MOUNTS = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
# PROC_PID_INIT_INO of the kernel: the number of the namespace that the host's own processes are in.
_HOST_PIDS = "pid:[4026531836]"


class Mount(NamedTuple):
    """One line of mountinfo: ``root`` is the part of the file system that is mounted, ``point`` where."""

    root: str
    point: str
    kind: str
    options: tuple[str, ...]  # of the superblock: v1's controllers, tmpfs's size


class Group(NamedTuple):
    """A process's place in one hierarchy: folders from its own group up to the mount."""

    version: Version
    folders: tuple[str, ...]


class MemoryLimit(NamedTuple):
    """The smallest limit, and what is used of it without file cache that can be dropped, in bytes."""

    version: Version
    limit_bytes: int
    used_bytes: int | None


class CpuQuota(NamedTuple):
    """CPU time in CPUs: 1.5 is three halves of one."""

    version: Version
    cpus: float


def read_text(path: str) -> str | None:
    """The file's text; None where it is not there or may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def mounts(root: str) -> list[Mount]:
    """What is mounted for this process: ``/proc/self/mountinfo``."""
    found = []
    for line in (read_text(os.path.join(root, "proc/self/mountinfo")) or "").splitlines():
        before, separator, after = line.partition(" - ")
        head, tail = before.split(" "), after.split(" ")
        if not separator or len(head) < 6 or len(tail) < 3:
            continue
        found.append(
            Mount(root=_unescape(head[3]), point=_unescape(head[4]), kind=tail[0], options=tuple(tail[2].split(",")))
        )
    return found


def _unescape(path: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), path)


def group(controller: str, root: str, mounted: list[Mount], pid: int | None = None) -> Group | None:
    """The group that rules over ``controller`` (``memory``, ``cpu``): v1's if it is mounted there, else v2's.

    Of this process, or of another one that is seen from here.
    """
    paths = _own_paths(root, pid)
    for version, kind, path in ((1, "cgroup", paths.get(controller)), (2, "cgroup2", paths.get(""))):
        suitable = [m for m in mounted if m.kind == kind and (kind == "cgroup2" or controller in m.options)]
        if path is None or not suitable:
            continue
        candidates = [_folders(root, mount, path) for mount in suitable]
        # The same hierarchy may be mounted twice; only one of the mounts may reach down to the process's group.
        return Group(version=2 if version == 2 else 1, folders=max(candidates, key=len))
    return None


def _own_paths(root: str, pid: int | None = None) -> dict[str, str]:
    """The process's group by controller; the empty name is v2's hierarchy."""
    paths = {}
    process = "self" if pid is None else str(pid)
    for line in (read_text(os.path.join(root, "proc", process, "cgroup")) or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _folders(root: str, mount: Mount, path: str) -> tuple[str, ...]:
    """From the group up to the mount's root. A path that the mount does not hold means another namespace's view."""
    top = os.path.join(root, mount.point.lstrip("/"))
    base = mount.root.rstrip("/")
    below = path[len(base) :] if path == base or path.startswith(base + "/") else path
    parts = [part for part in below.split("/") if part]
    if ".." in parts or not os.path.isdir(os.path.join(top, *parts)):
        parts = []
    return tuple(os.path.join(top, *parts[:depth]) for depth in range(len(parts), -1, -1))


def memory_limit(root: str, mounted: list[Mount]) -> MemoryLimit | None:
    """The smallest memory limit over this process; None where there is none."""
    place = group("memory", root, mounted)
    return None if place is None else limit_of(place)


def limit_of(place: Group) -> MemoryLimit | None:
    """The smallest memory limit from the group up; None where there is none."""
    name = "memory.max" if place.version == 2 else "memory.limit_in_bytes"
    limits = [(size, folder) for folder in place.folders if (size := _size(os.path.join(folder, name))) is not None]
    smallest = min(limits, key=lambda limit: limit[0], default=None)
    if place.version == 1:
        hierarchical = _stat(place.folders[0]).get("hierarchical_memory_limit", _UNLIMITED_BYTES)
        if hierarchical < _UNLIMITED_BYTES and (smallest is None or hierarchical < smallest[0]):
            smallest = (hierarchical, place.folders[0])
    if smallest is None:
        return None
    return MemoryLimit(version=place.version, limit_bytes=smallest[0], used_bytes=_used(place.version, smallest[1]))


def oom_kills(place: Group) -> int | None:
    """How many processes the kernel has killed for the group's memory limits; None where it does not count them.

    v2 counts those of the groups below too, so the highest group under the mount that has the file tells most. v1
    counts each group's own.
    """
    name = "memory.events" if place.version == 2 else "memory.oom_control"
    counts = [
        int(fields[1])
        for folder in place.folders
        for line in (read_text(os.path.join(folder, name)) or "").splitlines()
        if len(fields := line.split()) == 2 and fields[0] == "oom_kill" and fields[1].isdigit()
    ]
    if not counts:
        return None
    return max(counts) if place.version == 2 else sum(counts)


def _size(path: str) -> int | None:
    """A limit or usage in bytes; None for ``max``, v1's huge number, and a file that is not there."""
    text = (read_text(path) or "").strip()
    return int(text) if text.isdigit() and int(text) < _UNLIMITED_BYTES else None


def _used(version: Version, folder: str) -> int | None:
    """What the group holds, less inactive file cache, which the kernel drops before it kills."""
    current, cache = ("memory.current", "inactive_file")
    if version == 1:
        current, cache = ("memory.usage_in_bytes", "total_inactive_file")
    used = _size(os.path.join(folder, current))
    return None if used is None else max(used - _stat(folder).get(cache, 0), 0)


def _stat(folder: str) -> dict[str, int]:
    lines = (read_text(os.path.join(folder, "memory.stat")) or "").splitlines()
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def cpu_quota(root: str, mounted: list[Mount]) -> CpuQuota | None:
    """The smallest CPU quota over this process; None where there is none."""
    place = group("cpu", root, mounted)
    if place is None:
        return None
    quotas = [quota for folder in place.folders if (quota := _quota(place.version, folder)) is not None]
    return CpuQuota(version=place.version, cpus=min(quotas)) if quotas else None


def _quota(version: Version, folder: str) -> float | None:
    """Quota over period, both in µs; ``max`` and v1's -1 are no quota."""
    if version == 2:
        fields = (read_text(os.path.join(folder, "cpu.max")) or "").split()
    else:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        fields = [(read_text(os.path.join(folder, name)) or "").strip() for name in names]
    if len(fields) != 2 or not all(field.isdigit() and int(field) > 0 for field in fields):
        return None
    return int(fields[0]) / int(fields[1])


def in_wsl(root: str = "/") -> bool:
    """Whether the kernel is the one that Microsoft builds for WSL."""
    return "microsoft" in (read_text(os.path.join(root, "proc/version")) or "").lower()


def in_container(root: str = "/") -> bool:
    """Whether a container's runtime left its marks; some leave none."""
    if any(os.path.exists(os.path.join(root, name)) for name in _CONTAINER_FILES):
        return True
    groups = read_text(os.path.join(root, "proc/self/cgroup")) or ""
    points = {mount.point for mount in mounts(root)}
    return any(mark in groups for mark in _CONTAINER_MARKS) or not points.isdisjoint(_CONTAINER_MOUNTS)


def sees_host_processes(root: str = "/") -> bool:
    """Whether process numbers here are the host's, in which the driver counts."""
    try:
        return os.readlink(os.path.join(root, "proc/self/ns/pid")) == _HOST_PIDS
    except OSError:
        return False


class HostMemory(NamedTuple):
    """Bytes that may be used and bytes in use, counted over the same group or, without a limit, the same host."""

    limit_bytes: int | None = None
    used_bytes: int | None = None
    source: HostMemorySource = "unknown"


class Cpus(NamedTuple):
    """Whole CPUs, at least 1: a quota of 1.5 keeps one process busy, not two."""

    whole: int | None = None
    source: CpuSource = "unknown"


def host_memory(root: str, mounted: list[Mount]) -> HostMemory:
    """The smaller of the group's limit and the host's memory."""
    return smaller_of(root, memory_limit(root, mounted))


def smaller_of(root: str, limit: MemoryLimit | None) -> HostMemory:
    """The group's limit, where it is known and smaller than the host's memory, else that."""
    total, available = _meminfo(root)
    if limit is not None and (total is None or limit.limit_bytes < total):
        source: HostMemorySource = "cgroup-v2" if limit.version == 2 else "cgroup-v1"
        return HostMemory(limit_bytes=limit.limit_bytes, used_bytes=limit.used_bytes, source=source)
    if total is None:
        return HostMemory()
    used = None if available is None else max(total - available, 0)
    return HostMemory(limit_bytes=total, used_bytes=used, source="meminfo")


def _meminfo(root: str) -> tuple[int | None, int | None]:
    """MemTotal and MemAvailable in bytes; the file says kB and means KiB."""
    values: dict[str, int] = {}
    for line in (read_text(os.path.join(root, "proc/meminfo")) or "").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()
        if name in ("MemTotal", "MemAvailable") and number and number[0].isdigit():
            values[name] = int(number[0]) * 1024
    return values.get("MemTotal"), values.get("MemAvailable")


def cpus(root: str, mounted: list[Mount]) -> Cpus:
    """The smaller of the group's quota and the CPUs that the process may run on."""
    quota, affinity = cpu_quota(root, mounted), _affinity(root)
    if quota is not None:
        whole = max(int(quota.cpus), 1)
        if affinity is None or whole < affinity:
            return Cpus(whole=whole, source="cgroup-v2" if quota.version == 2 else "cgroup-v1")
    return Cpus() if affinity is None else Cpus(whole=affinity, source="affinity")


def _affinity(root: str) -> int | None:
    if root == "/":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    status = read_text(os.path.join(root, "proc/self/status")) or ""
    for line in status.splitlines():
        name, _, listed = line.partition(":")
        if name == "Cpus_allowed_list":
            return sum(_span(part) for part in listed.strip().split(",")) or None
    return None


def _span(part: str) -> int:
    """CPUs in ``4`` (1) or ``0-3`` (4)."""
    first, dash, last = part.partition("-")
    if not dash:
        return int(first.isdigit())
    return int(last) - int(first) + 1 if first.isdigit() and last.isdigit() else 0


def shm_bytes(root: str, mounted: list[Mount]) -> int | None:
    """The size of /dev/shm; None where nothing of its own is mounted there."""
    mount = _shm_of(mounted)
    if mount is None:
        return None
    if root == "/":
        return _space()[1]
    size = next((option[5:] for option in mount.options if option.startswith("size=")), "")
    return int(size[:-1]) * 1024 if size.endswith("k") and size[:-1].isdigit() else None


def _shm_of(mounted: list[Mount]) -> Mount | None:
    """What is mounted at /dev/shm: of several the last."""
    return next((mount for mount in reversed(mounted) if mount.point == _SHM), None)


def _space() -> tuple[int | None, int | None]:
    """Bytes in use and in all of /dev/shm."""
    try:
        space = os.statvfs(_SHM)
    except OSError:
        return None, None
    return (space.f_blocks - space.f_bfree) * space.f_frsize, space.f_blocks * space.f_frsize


class HostWatch:
    """Where the files lie is found once; a limit may be changed while a run goes on, so limits are read each time.

    Args:
        pid: the watched process, whose control group may be another than this one's.
    """

    def __init__(self, root: str = "/", pid: int | None = None) -> None:
        self._root = root
        mounted = mounts(root)
        self._place = group("memory", root, mounted, pid) or group("memory", root, mounted)
        self._shm = _shm_of(mounted)

    def read(self) -> HostState:
        """What is in use now, less file cache that can be dropped; unknown where there is no /proc."""
        limit = None if self._place is None else limit_of(self._place)
        memory = smaller_of(self._root, limit)
        used, total = _space() if self._shm is not None and self._root == "/" else (None, None)
        return HostState(
            used_bytes=memory.used_bytes,
            limit_bytes=memory.limit_bytes,
            source=memory.source,
            oom_kills=self._kills(),
            shm_used_bytes=used,
            shm_total_bytes=total,
        )

    def _kills(self) -> int | None:
        """Of the control group; where no group counts, of the whole system, unless that is not this container's."""
        found = None if self._place is None else oom_kills(self._place)
        if found is not None or in_container(self._root):
            return found
        for line in (read_text(os.path.join(self._root, "proc/vmstat")) or "").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return None
