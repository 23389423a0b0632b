"""The host's or container's memory and /dev/shm, read again and again: a handful of small files each time."""

import os

from kb.core.snapshot import HostState
from kb.machine import cgroup, host, surroundings

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
        memory = host.smaller_of(self._root, limit)
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
