"""What torch keeps as global state, and the recording that a run's allocations go to."""

import gc
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Any, NamedTuple

from kb.memory.engine.allocator import CachingAllocator

AMPERE = (8, 0)
# at::cuda::getChosenWorkspaceSize (aten/src/ATen/cuda/CublasHandlePool.cpp): ":4096:2:16:8", or 32 MiB.
WORKSPACE_BYTES = (2 * 4096 + 8 * 16) << 10
WIDE_WORKSPACE_BYTES = 32 << 20
WIDE_WORKSPACE_MAJORS = (9, 10, 12)


class Booked(NamedTuple):
    """One allocation: bytes allocated after it, bytes asked for, and the moment and term it was made under."""

    allocated: int
    requested: int
    moment: str
    term: str


_booked = tuple.__new__  # what Booked(…) calls in the end: there are thousands


class Peak(NamedTuple):
    """One phase's peaks in bytes; ``at`` is the entry of the log after which ``allocated`` was reached."""

    allocated: int
    reserved: int
    at: int


class Recording:
    """What one process of a run asks of its allocator.

    ``log`` holds a :class:`Booked` for every block made and the number of that entry when the block is freed.
    ``terms`` overrides the term of an entry, where it is known only later what a block was for; ``paths`` says of which
    parameter.
    """

    gpu: "Recording | None" = None  # of what lies on the host: the GPU beside it
    knows_layers = False  # whether it is told which layer asks
    repeats = True  # whether what is known to come again is asked for again without being followed again

    def __init__(self, pool: CachingAllocator) -> None:
        self.pool = pool
        self.log: list[Booked | int] = []
        self.terms: dict[int, str] = {}
        self.paths: dict[int, str] = {}
        self.moment, self.term = "loading", "parameters"
        self.phases: dict[str, Peak] = {}
        self.starts: list[tuple[int, str]] = []  # entry of the log with which a phase begins
        self.emptied: list[int] = []  # entries before which free segments were given back
        self.streams: dict[int, int] = {}  # of which stream an entry was asked, where not of the first
        self._phase = ""
        self._start = 0

    def book(self, size: int) -> tuple[int, int]:
        """Allocate ``size`` bytes: the block's address and the number of its entry."""
        pool = self.pool
        address = pool.malloc(size)
        log = self.log
        log.append(_booked(Booked, (pool.allocated, size, self.moment, self.term)))
        number = len(log) - 1
        if pool.stream:
            self.streams[number] = pool.stream
        return address, number

    def free(self, address: int, number: int) -> None:
        """Give back the block at ``address``, which entry ``number`` made."""
        self.pool.free(address)
        self.log.append(number)

    def inside(self, path: str) -> AbstractContextManager[None]:
        """What is asked for here is of the layer at ``path``."""
        raise NotImplementedError

    def here(self) -> tuple[int, int]:
        """Where the recording stands: what :meth:`repeat` begins with."""
        return len(self.log), len(self.starts)

    def repeat(self, since: tuple[int, int]) -> None:
        """Ask again for what was asked for since :meth:`here` gave ``since``, in the same order and phases.

        Blocks that are still there are not made again, and those from before that were given back are not given back
        again: what stays is made once (states of an optimizer, workspaces).
        """
        start, begun = since
        log, terms, paths, streams = self.log, self.terms, self.paths, self.streams
        phases: dict[int, list[str]] = {}  # begun before an entry
        for entry_at, phase in self.starts[begun:]:
            phases.setdefault(entry_at, []).append(phase)
        malloc, give_back, append, pool = self.pool.malloc, self.pool.free, log.append, self.pool
        acts = log[start:]
        passing = {entry for entry in acts if type(entry) is int and entry >= start}
        made: dict[int, tuple[int, int]] = {}  # entry → address and entry of its like
        at = len(log)
        for number, entry in enumerate(acts, start):
            if number in phases:
                for phase in phases[number]:
                    self.begin(phase)
            if type(entry) is int:
                if entry in passing:
                    address, like = made.pop(entry)
                    give_back(address)
                    append(like)
                    at += 1
            elif number in passing:
                _, requested, moment, term = entry  # type: ignore[misc]
                if streams:
                    stream = streams.get(number, 0)
                    if stream != pool.stream:
                        pool.switch(stream)
                    if stream:
                        streams[at] = stream
                made[number] = malloc(requested), at
                append(_booked(Booked, (pool.allocated, requested, moment, term)))
                if number in terms:
                    terms[at] = terms[number]
                if number in paths:
                    paths[at] = paths[number]
                at += 1
        pool.switch(0)

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``."""
        self.emptied.append(len(self.log))
        self.pool.empty_cache()

    def replay(self, pool: CachingAllocator, phase: str) -> int:
        """The most that another allocator reserves from the first beginning of ``phase`` on, asked for the same."""
        start = next(at for at, name in self.starts if name == phase)
        marks = {start, *self.emptied}
        addresses: dict[int, int] = {}
        for number, entry in enumerate(self.log):
            if number in marks:
                if number in self.emptied:
                    pool.empty_cache()
                if number == start:
                    pool.reset_peaks()
            if isinstance(entry, Booked):
                pool.switch(self.streams.get(number, 0))
                addresses[number] = pool.malloc(entry.requested)
            else:
                pool.free(addresses.pop(entry))
        return pool.peak_reserved

    def begin(self, phase: str) -> None:
        """From here on peaks count for ``phase``; a phase may be begun more than once. "" ends the last."""
        pool = self.pool
        if self._phase:
            known = self.phases.get(self._phase)
            found = Peak(pool.peak_allocated, pool.peak_reserved, self._where(pool.peak_allocated))
            if known is not None:
                higher = found if found.allocated > known.allocated else known
                found = higher._replace(reserved=max(found.reserved, known.reserved))
            self.phases[self._phase] = found
        self._phase, self._start = phase, len(self.log)
        self.starts.append((self._start, phase))
        pool.reset_peaks()

    def alive(self, ats: Collection[int]) -> dict[int, list[tuple[int, Booked, str]]]:
        """What was alive after each of these entries of the log: the entry that made it, what it booked, its term."""
        log, terms, living = self.log, self.terms, dict[int, Booked]()
        found, done = {}, 0
        for at in sorted({at + 1 for at in ats}):
            for number, entry in enumerate(log[done:at], done):
                if type(entry) is int:
                    del living[entry]
                else:
                    living[number] = entry  # type: ignore[assignment]
            done = at
            found[at - 1] = [(number, booked, terms.get(number, booked.term)) for number, booked in living.items()]
        return found

    def _where(self, allocated: int) -> int:
        """The first entry since the phase began after which so much was allocated; the last before it otherwise."""
        for at in range(self._start, len(self.log)):
            entry = self.log[at]
            if type(entry) is Booked and entry.allocated == allocated:
                return at
        return self._start - 1


class World:
    """The state that operators read: one run at a time."""

    __slots__ = (
        "autocast", "back", "cache", "capability", "frame", "grad", "hooks", "inside", "ready", "recomputed",
        "recording", "sequence", "thread", "training", "workspaces",
    )  # fmt: skip

    recording: Recording

    def begin(
        self,
        pool: CachingAllocator,
        capability: tuple[int, int],
        kind: Callable[[CachingAllocator], Recording] = Recording,
    ) -> Recording:
        """Start a run in a fresh process with an empty GPU of this compute capability."""
        self.recording = kind(pool)
        self.capability = capability
        self.grad = self.training = True
        self.sequence = 0  # of the tape's nodes
        self.back = 0  # the node that runs back
        self.inside: dict[str, str] = {}  # a class of modules → the path of the one that ran last, or runs
        self.autocast: str | None = None
        self.cache: dict[Any, Any] = {}  # autocast's copies of weights
        self.ready: Any = None  # called with each leaf whose gradient has come (DDP's hook)
        self.hooks: dict[Any, Any] = {}  # a node or leaf → what runs before it gets its gradient (FSDP's)
        self.frame: Any = None  # the checkpointed call that is running
        self.recomputed: Any = None  # what a recomputation has made again
        self.thread = "main"
        self.workspaces: set[tuple[str, str]] = set()
        return self.recording

    def multiplied(self, biased: bool = False) -> None:
        """Book cuBLAS's workspace at each thread's first product, and cuBLASLt's own at the first with a bias.

        Source: aten/src/ATen/cuda/CublasHandlePool.cpp, CUDABlas.cpp; two threads multiply, forward's and autograd's.
        """
        if (self.thread, "cublas") not in self.workspaces:
            self.workspaces.add((self.thread, "cublas"))
            wide = self.capability[0] in WIDE_WORKSPACE_MAJORS
            self._hold_workspace(WIDE_WORKSPACE_BYTES if wide else WORKSPACE_BYTES)
        if biased and (self.thread, "cublaslt") not in self.workspaces:
            self.workspaces.add((self.thread, "cublaslt"))
            self._hold_workspace(1 << 20)

    def _hold_workspace(self, size: int) -> None:
        recording = self.recording
        before, recording.term = recording.term, "workspace"
        recording.book(size)
        recording.term = before


world = World()
_LOCK = Lock()


@contextmanager
def held() -> Iterator[None]:
    """The world for one run at a time: threads of an editor wait for each other.

    What a run makes is let go by its references; looking for circles among so many objects would take a third longer.
    """
    with _LOCK:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()
