"""One reading of everything at once, from sources that are handed in."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from kb.core.snapshot import GpuProcess, GpuState, HostState, Snapshot, SpeedState, TreeState


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
