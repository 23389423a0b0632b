"""The watch itself: samples at an even pace, and what a session keeps of them."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kb.advice.watching import Alert, Watch
from kb.core.record import NamedTuple
from kb.core.snapshot import GpuProcess, GpuState, HostState, ServerState, Snapshot, SpeedState, TreeState

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


class GpusRead(Protocol):
    """The GPUs at one moment; ``note`` says why there are none."""

    @property
    def gpus(self) -> tuple[GpuState, ...]: ...
    @property
    def note(self) -> str | None: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


class Sources(NamedTuple):
    """Who is asked for what. ``foreign`` is true where the driver counts processes otherwise than this system does."""

    gpus: Callable[[], GpusRead]
    host: Callable[[], HostState]
    tree: Callable[[], TreeState | None] | None = None
    speed: Callable[[], SpeedState | None] | None = None
    foreign: bool = False
    server: Callable[[], ServerState] | None = None


class Sampler:
    """Reads all sources one after the other; what one cannot tell is unknown in the snapshot."""

    def __init__(self, sources: Sources, clock: Callable[[], float] = time.time) -> None:
        self._sources, self._clock = sources, clock

    def read(self) -> Snapshot:
        """Everything now."""
        sources = self._sources
        gpus, tree = sources.gpus(), sources.tree() if sources.tree else None
        states = gpus.gpus
        if tree is not None and not sources.foreign:
            states = attributed(states, {each.pid: each.name for each in tree.processes})
        return Snapshot(
            time=self._clock(),
            gpus=states,
            host=sources.host(),
            tree=tree,
            speed=sources.speed() if sources.speed else None,
            gpu_note=gpus.note,
            notes=gpus.notes,
            server=sources.server() if sources.server else None,
        )


def attributed(states: tuple[GpuState, ...], watched: Mapping[int, str]) -> tuple[GpuState, ...]:
    """The states with the watched tree's processes (number → name) marked and named."""
    return tuple(
        state._replace(
            processes=tuple(
                GpuProcess(each.pid, each.used_bytes, watched.get(each.pid, each.name), each.pid in watched)
                for each in state.processes
            )
        )
        for state in states
    )
