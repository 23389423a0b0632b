"""Control groups, version 1 and 2: where this process's group lies, and what it may use.

After the kernel's documentation: cgroups(7), cgroup-v2, cgroup-v1/memory, proc_pid_mountinfo(5).

A limit binds every group below it, so the smallest from the process's own group up to the mount counts. Groups above
the mount are not visible from inside a container; v1's ``hierarchical_memory_limit`` tells of them all the same.
"""

import os
import re
from typing import Literal

from kb.core.record import NamedTuple

Version = Literal[1, 2]

# v1 writes "no limit" as the largest signed 64-bit number, rounded down to a page (4 or 64 KiB).
_UNLIMITED_BYTES = 2**62

_ESCAPED = re.compile(r"\\([0-7]{3})")


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


def memory_limit(root: str, mounted: list[Mount], pid: int | None = None) -> MemoryLimit | None:
    """The smallest memory limit over this process, or over another one seen from here; None where there is none."""
    place = group("memory", root, mounted, pid)
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
