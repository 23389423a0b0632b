"""Resident, proportional and unique sets of a process, now and at their highest."""

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

Row = dict[str, Any]


def sizes(pid: int | None = None) -> Row:
    """Resident, proportional and unique set of a process, and what of the proportional set no one can take back."""
    info = psutil.Process(pid).memory_full_info()
    anonymous, shared = 0, 0
    with open(f"/proc/{pid or os.getpid()}/smaps_rollup", encoding="ascii") as stream:
        for line in stream:
            name, _, value = line.partition(":")
            if name in ("Pss_Anon", "Pss_Shmem"):
                amount = int(value.split()[0]) * 1024
                anonymous += amount if name == "Pss_Anon" else 0
                shared += amount if name == "Pss_Shmem" else 0
    return {"rss_bytes": info.rss, "pss_bytes": info.pss, "uss_bytes": info.uss, "anonymous_bytes": anonymous,
            "shared_bytes": shared}  # fmt: skip


@contextmanager
def peak(row: Row) -> Iterator[None]:
    """Adds to ``row`` the highest unique, proportional and anonymous sets while the block runs, above those before."""
    gc.collect()
    before, highest, done = sizes(), {"uss_bytes": 0, "pss_bytes": 0, "anonymous_bytes": 0}, threading.Event()

    def watch() -> None:
        while not done.is_set():
            now = sizes()
            for name in highest:
                highest[name] = max(highest[name], now[name] - before[name])
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    after = sizes()
    row.update({name: max(after[name] - before[name], 0) for name in ("rss_bytes", "pss_bytes", "uss_bytes")})
    row["anonymous_bytes"] = max(after["anonymous_bytes"] - before["anonymous_bytes"], 0)
    row["peak_uss_bytes"], row["peak_pss_bytes"] = highest["uss_bytes"], highest["pss_bytes"]
    row["peak_anonymous_bytes"] = highest["anonymous_bytes"]
