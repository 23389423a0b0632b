"""``--watch``: check again whenever a file changes, until Ctrl-C."""

import os
import sys
import time
from collections.abc import Callable, Sequence

PAUSE_SECONDS = 0.5


def watch(
    paths: Callable[[], Sequence[str]],
    check: Callable[[], int],
    notice: Callable[..., None],
    beside: Callable[[], Sequence[str]] = list,
) -> int:
    """Run ``check`` now and after each change of ``paths``, which are asked for anew each time, without end.

    ``beside`` are the files that the checks looked at besides: group files, a DeepSpeed file.

    Files are looked at twice a second: a config is small, and this works on every file system.
    """
    seen: dict[str, tuple[int, int]] | None = None
    while True:
        now = _stamps([*paths(), *beside()])
        if now != seen:
            if seen is not None and sys.stdout.isatty():
                sys.stdout.write("\033[2J\033[H")
            check()
            sys.stdout.flush()
            now = {**_stamps(beside()), **now}  # what this check was the first to look at is no change
            notice("watch.waiting", n=len(now))
            # as it was before the check: what comes while it runs is seen next time, and what a fix wrote is checked
            # once more and then rests
            seen = now
        time.sleep(PAUSE_SECONDS)


def _stamps(paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    stamps = {}
    for path in paths:
        try:
            info = os.stat(path)
        except OSError:
            continue
        stamps[path] = (info.st_mtime_ns, info.st_size)
    return stamps
