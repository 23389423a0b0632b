"""Resident, proportional and unique sets of a process, now and at their highest."""

import gc
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kb.torch_runs.probe.tree_watch import sizes

__all__ = ["Row", "peak", "sizes"]

Row = dict[str, Any]


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
