"""A watch from its first reading to its last: every reading is judged, recorded, served and shown."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from kb.advice.watch_records import Alert
from kb.advice.watching import Watch
from kb.core.snapshot import Snapshot

MOST_BEHIND = 5.0  # intervals; a machine that slept is not read over and over to make up for it


class Sink(Protocol):
    """Takes every snapshot: a recording, a server."""

    def __call__(self, snapshot: Snapshot) -> object: ...


class Screen(Protocol):
    """Shows the watch to a person; ``off`` once nobody sees it any more."""

    @property
    def off(self) -> bool: ...
    def show(self, snapshot: Snapshot, watch: Watch) -> None: ...
    def warn(self, alert: Alert) -> None: ...


class Session:
    """Reads until it is told to stop.

    Args:
        read: one snapshot of everything.
        watch: judges and keeps what is kept.
        sinks: where each snapshot goes.
        screen: who shows it.
        needed: whether the watch goes on when nobody sees the screen any more.
    """

    def __init__(
        self, read: Callable[[], Snapshot], watch: Watch, sinks: Sequence[Sink], screen: Screen, needed: bool
    ) -> None:
        self._read, self._sinks, self._screen, self._needed = read, sinks, screen, needed
        self.watch = watch
        self.stop = threading.Event()

    def once(self) -> Snapshot:
        """One reading, through all that takes it."""
        snapshot = self._read()
        alerts = self.watch.add(snapshot)
        for sink in self._sinks:
            sink(snapshot)
        self._screen.show(snapshot, self.watch)
        for alert in alerts:
            self._screen.warn(alert)
        return snapshot

    def run(
        self,
        interval_seconds: float,
        ended: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read every ``interval_seconds`` until ``stop`` is set, ``ended`` says so, or nobody is left to see it."""
        due = clock()
        while not self.stop.is_set():
            self.once()
            if ended() or (self._screen.off and not self._needed):
                return
            due = max(due + interval_seconds, clock() - MOST_BEHIND * interval_seconds)
            self.stop.wait(max(due - clock(), 0.0))
