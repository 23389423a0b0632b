"""What a process holds of host memory: resident, proportional and unique set, and what of it no one can take back."""

import os

import psutil

Sizes = dict[str, int]


def sizes(pid: int | None = None) -> Sizes:
    """Bytes of a process's sets; of this one without ``pid``.

    ``anonymous_bytes`` and ``shared_bytes`` are the proportional set's private and shared-memory pages. What the system
    does not tell (the proportional set is Linux's) is left out.

    Raises:
        psutil.Error: there is no such process, or it is another user's.
    """
    full = psutil.Process(pid).memory_full_info()
    found = {"rss_bytes": full.rss, "uss_bytes": full.uss}
    if not hasattr(full, "pss"):
        return found
    found |= {"pss_bytes": full.pss, "anonymous_bytes": 0, "shared_bytes": 0}
    with open(f"/proc/{pid or os.getpid()}/smaps_rollup", encoding="ascii") as stream:
        for line in stream:
            name, _, value = line.partition(":")
            key = {"Pss_Anon": "anonymous_bytes", "Pss_Shmem": "shared_bytes"}.get(name)
            if key:
                found[key] += int(value.split()[0]) * 1024
    return found
