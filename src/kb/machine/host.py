"""The host's side: memory, CPUs and /dev/shm that this process may use. Unknown where there is no /proc."""

import os
from typing import Literal

from kb.core.record import NamedTuple
from kb.core.snapshot import HostState
from kb.machine import cgroup, surroundings

HostMemorySource = Literal["cgroup-v2", "cgroup-v1", "meminfo", "unknown"]
CpuSource = Literal["cgroup-v2", "cgroup-v1", "affinity", "unknown"]


class HostMemory(NamedTuple):
    """Bytes that may be used and bytes in use, counted over the same group or, without a limit, the same host."""

    limit_bytes: int | None = None
    used_bytes: int | None = None
    source: HostMemorySource = "unknown"


class Cpus(NamedTuple):
    """Whole CPUs, at least 1: a quota of 1.5 keeps one process busy, not two."""

    whole: int | None = None
    source: CpuSource = "unknown"


def host_memory(root: str, mounted: list[cgroup.Mount]) -> HostMemory:
    """The smaller of the group's limit and the host's memory."""
    return smaller_of(root, cgroup.memory_limit(root, mounted))


def smaller_of(root: str, limit: cgroup.MemoryLimit | None) -> HostMemory:
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
    for line in (cgroup.read_text(os.path.join(root, "proc/meminfo")) or "").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()
        if name in ("MemTotal", "MemAvailable") and number and number[0].isdigit():
            values[name] = int(number[0]) * 1024
    return values.get("MemTotal"), values.get("MemAvailable")


def cpus(root: str, mounted: list[cgroup.Mount]) -> Cpus:
    """The smaller of the group's quota and the CPUs that the process may run on."""
    quota, affinity = cgroup.cpu_quota(root, mounted), _affinity(root)
    if quota is not None:
        whole = max(int(quota.cpus), 1)
        if affinity is None or whole < affinity:
            return Cpus(whole=whole, source="cgroup-v2" if quota.version == 2 else "cgroup-v1")
    return Cpus() if affinity is None else Cpus(whole=affinity, source="affinity")


def _affinity(root: str) -> int | None:
    if root == "/":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    status = cgroup.read_text(os.path.join(root, "proc/self/status")) or ""
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


def shm_bytes(root: str, mounted: list[cgroup.Mount]) -> int | None:
    """The size of /dev/shm; None where nothing of its own is mounted there."""
    mount = next((mount for mount in reversed(mounted) if mount.point == "/dev/shm"), None)
    if mount is None:
        return None
    if root == "/":
        try:
            space = os.statvfs(mount.point)
        except OSError:
            return None
        return space.f_frsize * space.f_blocks
    size = next((option[5:] for option in mount.options if option.startswith("size=")), "")
    return int(size[:-1]) * 1024 if size.endswith("k") and size[:-1].isdigit() else None


_SHM = "/dev/shm"


class HostWatch:
    """Where the files lie is found once; a limit may be changed while a run goes on, so limits are read each time.

    Args:
        pid: the watched process, whose control group may be another than this one's.
    """

    def __init__(self, root: str = "/", pid: int | None = None) -> None:
        self._root = root
        mounted = cgroup.mounts(root)
        self._place = cgroup.group("memory", root, mounted, pid) or cgroup.group("memory", root, mounted)
        self._shm = next((mount for mount in reversed(mounted) if mount.point == _SHM), None)

    def read(self) -> HostState:
        """What is in use now, less file cache that can be dropped; unknown where there is no /proc."""
        limit = None if self._place is None else cgroup.limit_of(self._place)
        memory = smaller_of(self._root, limit)
        used, total = self._shared_memory()
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
        found = None if self._place is None else cgroup.oom_kills(self._place)
        if found is not None or surroundings.in_container(self._root):
            return found
        for line in (cgroup.read_text(os.path.join(self._root, "proc/vmstat")) or "").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return None

    def _shared_memory(self) -> tuple[int | None, int | None]:
        """Bytes in use and in all of what is mounted at /dev/shm of this process."""
        if self._shm is None or self._root != "/":
            return None, None
        try:
            space = os.statvfs(_SHM)
        except OSError:
            return None, None
        return (space.f_blocks - space.f_bfree) * space.f_frsize, space.f_blocks * space.f_frsize
