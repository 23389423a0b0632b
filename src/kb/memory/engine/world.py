"""What torch keeps as global state, and the recording that a run's allocations go to."""

import gc
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from operator import itemgetter
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from kb.memory.engine.allocator import Blocks, CachingAllocator

Turn = TypeVar("Turn")
AMPERE = (8, 0)
# at::cuda::getChosenWorkspaceSize (aten/src/ATen/cuda/CublasHandlePool.cpp): ":4096:2:16:8", or 32 MiB.
WORKSPACE_BYTES = (2 * 4096 + 8 * 16) << 10
WIDE_WORKSPACE_BYTES = 32 << 20
WIDE_WORKSPACE_MAJORS = (9, 10, 12)


def workspace_bytes(capability: tuple[int, int]) -> int:
    """What cuBLAS takes at a first product."""
    return WIDE_WORKSPACE_BYTES if capability[0] in WIDE_WORKSPACE_MAJORS else WORKSPACE_BYTES


class Peak(NamedTuple):
    """One phase's peaks in bytes; ``at`` is the entry of the log with which ``allocated`` was reached."""

    allocated: int
    reserved: int
    at: int


def _higher(one: Peak, other: Peak) -> Peak:
    """Of a phase that was begun twice."""
    higher = other if other.allocated > one.allocated else one
    return higher._replace(reserved=max(one.reserved, other.reserved))


@contextmanager
def uncollected() -> Iterator[None]:
    """What a run makes is let go by its references; looking for circles among so many objects takes a third longer."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


Label = tuple[str, str]  # the moment, and the term, that something is asked for under
NO_ENDS: Mapping[int, tuple[int, ...]] = {}
# What a step keeps until the next has made it anew: its storage, and where the one before is let go of.
Replaced = tuple[Any, tuple[int, ...]]
Act = tuple[int, str, Any]  # before which entry; `phase`, `empty` or `stream`; which


class Recording:
    """What one process of a run asks of its allocator. Any allocator can serve it afterwards (:meth:`peaks`).

    ``log`` is in the order of time: a number of bytes that are asked for, or, below zero, ``~n``: what entry ``n`` got
    is given back.
    ``terms`` overrides the term of an entry, where it is known only later what a block was for; ``paths`` says of which
    parameter.
    """

    gpu: "Recording | None" = None  # of what lies on the host: the GPU beside it
    watches = False  # whether :meth:`watch` is told of each entry that asks
    knows_layers = False  # whether it is told which layer asks
    # Whether a hook before a step's backward, and what shards parameters, is no turn of its own: where two runs are
    # paired, that is found by what comes before and behind.
    looks_around = False
    books_sums = True  # whether it is asked for what sums hold while they run
    repeats = True  # whether what is known to come again is asked for again without being followed again

    def __init__(self) -> None:
        self.log: list[int] = []
        self.terms: dict[int, str] = {}
        self.paths: dict[int, str] = {}
        self.acts: list[Act] = []  # what happens between entries
        # Of leaves: where each came to stay, and the term that it had. None where no second pass asks for it.
        self.gradients: dict[int, tuple[tuple[int, ...] | None, str | None]] | None = None
        self.limit: int | None = None  # bytes that PyTorch may reserve, for code that asks
        self._moment, self._term = "loading", "parameters"
        self._labels: list[tuple[int, Label]] = [(0, (self._moment, self._term))]

    @property
    def moment(self) -> str:
        """``forward``, ``backward``, …: what is asked for from here on is of it."""
        return self._moment

    @moment.setter
    def moment(self, moment: str) -> None:
        self._moment = moment
        self._labels.append((len(self.log), (moment, self._term)))

    @property
    def term(self) -> str:
        """The report's term of what is asked for from here on."""
        return self._term

    @term.setter
    def term(self, term: str) -> None:
        self._term = term
        self._labels.append((len(self.log), (self._moment, term)))

    def ask(self, size: int) -> int:
        """Ask for ``size`` bytes: the number of the entry."""
        number = len(self.log)
        self.log.append(size)
        if self.watches:
            self.watch(number)
        return number

    def give_back(self, number: int) -> None:
        """Give back what entry ``number`` asked for."""
        self.log.append(~number)

    def watch(self, number: int) -> None:
        """Entry ``number`` has asked for something."""
        raise NotImplementedError

    def inside(self, path: str) -> AbstractContextManager[None]:
        """What is asked for here is of the layer at ``path``."""
        raise NotImplementedError

    def runs_back(self, step: int | None) -> None:
        """A step of the tape runs back; None: the last has."""

    def runs_again(self, step: int) -> None:
        """What made ``step`` of the tape runs again, and makes steps of its own."""

    def about(self, path: str) -> None:
        """What is asked for from here on is about the parameter at ``path``; "": about none."""

    def turns(self, pairs: Iterable[tuple[str, Turn]]) -> Iterator[Turn]:
        """Each of some things, with the path of the parameter that it is about while its turn lasts."""
        if not self.knows_layers:
            yield from map(itemgetter(1), pairs)
            return
        for path, each in pairs:
            self.about(path)
            yield each
        self.about("")

    def begin(self, phase: str) -> None:
        """From here on peaks count for ``phase``; a phase may be begun more than once. "" ends the last."""
        self.acts.append((len(self.log), "phase", phase))

    def close(self) -> None:
        """The run is over: what is given back from here on, as its objects go, is not written down."""
        self.begin("")
        self.log = self.log[:]

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``."""
        self.acts.append((len(self.log), "empty", None))

    def switch(self, stream: int) -> None:
        """From here on the stream of this number asks."""
        self.acts.append((len(self.log), "stream", stream))

    @property
    def starts(self) -> list[tuple[int, str]]:
        """The entry with which each phase begins, in order."""
        return [(at, which) for at, kind, which in self.acts if kind == "phase"]

    @property
    def phases(self) -> dict[str, Peak]:
        """Each phase's peaks on a GPU that is never full."""
        return self.peaks(CachingAllocator())

    def peaks(self, pool: CachingAllocator, last: str = "") -> dict[str, Peak]:
        """Each phase's peaks where ``pool`` serves the log.

        Args:
            last: nothing behind this phase is looked at.

        Raises:
            OutOfMemory: past the limit of an allocator that has one.
        """
        found: dict[str, Peak] = {}
        blocks: Blocks = [None] * len(self.log)
        phase, start = "", 0
        ends = max((at for at, which in self.starts if which == last), default=len(self.log))
        with uncollected():
            for at, stop, kind, which in self._stages():
                pool.serve(self.log, blocks, at, stop)
                if kind == "phase":
                    if phase:
                        place = start - 1 if pool.peak_at is None else pool.peak_at
                        peak = Peak(pool.peak_allocated, pool.peak_reserved, place)
                        found[phase] = peak if phase not in found else _higher(found[phase], peak)
                    if stop > ends:
                        break
                    phase, start = which, stop
                self._done(pool, kind, which)
        return found

    def served(self, pool: CachingAllocator) -> Iterator[tuple[int, int]]:
        """Each entry with its number, once ``pool`` has served it."""
        blocks: Blocks = [None] * len(self.log)
        for start, stop, kind, which in self._stages():
            for number in range(start, stop):
                pool.serve(self.log, blocks, number, number + 1)
                yield number, self.log[number]
            self._done(pool, kind, which)

    def _done(self, pool: CachingAllocator, kind: str, which: Any) -> None:
        """What happens between entries, to an allocator."""
        if kind == "empty":
            pool.empty_cache()
        elif kind == "stream":
            pool.switch(which)
        elif kind == "phase":
            pool.reset_peaks()

    def _stages(self) -> Iterator[tuple[int, int, str, Any]]:
        """From which entry to which the allocator serves, and what happens behind it."""
        done = 0
        for at, kind, which in self.acts:
            yield done, at, kind, which
            done = at
        yield done, len(self.log), "", None

    def alive(self, ats: Collection[int]) -> dict[int, list[int]]:
        """For each of some entries of the log, the entries that asked for what is alive after it."""
        living: list[int] = []
        found, done = {}, 0
        for at in sorted(ats):
            passed = self.log[done : at + 1]
            given_back = set(passed)  # sizes among them, which no ``~number`` is
            living = [number for number in living if ~number not in given_back]
            backs = range(~done, ~done - len(passed), -1)
            living += [
                ~back for back, entry in zip(backs, passed, strict=True) if entry >= 0 and back not in given_back
            ]
            done = max(done, at + 1)
            found[at] = living
        return found

    def sums(self, ats: Collection[int], *, since: int = 0) -> dict[int, dict[str, int]]:
        """For each of some entries of the log, the bytes that were asked for, from entry ``since`` on, by what is alive
        after it, by term."""
        terms, log, labels = self.terms, self.log, self.labels()
        sums: dict[int, dict[str, int]] = {}
        for at, alive in self.alive(ats).items():
            found = sums[at] = dict[str, int]()
            for number in alive:
                if number >= since:
                    term = terms.get(number) or labels[number][1]
                    found[term] = found.get(term, 0) + log[number]
        return sums

    def labels(self) -> list[Label]:
        """The moment and the term of each entry, as it was asked for."""
        found: list[Label] = []
        ends = [at for at, _ in self._labels[1:]]
        for (at, label), end in zip(self._labels, [*ends, len(self.log)], strict=True):
            if end > at:
                found += [label] * (end - at)
        return found

    def label(self, number: int) -> Label:
        """The moment and the term of one entry."""
        return self._labels[bisect_right(self._labels, number, key=itemgetter(0)) - 1][1]

    def here(self) -> tuple[int, ...]:
        """Where the recording stands: its entries, acts and labels. What :meth:`repeat` begins with."""
        return len(self.log), len(self.acts), len(self._labels)

    def point(self) -> tuple[Any, ...]:
        """Where the recording stands, with all that is known of its entries: for :meth:`back_to`."""
        return *Recording.here(self), (self._moment, self._term), dict(self.terms), dict(self.paths)

    def back_to(self, point: tuple[Any, ...]) -> bool:
        """Forget what was asked for since :meth:`point` gave ``point``.

        Returns:
            Whether it was all given back, and nothing of before was; else nothing is forgotten.
        """
        entries, acts, labels, label, terms, paths = point
        since = self.log[entries:]
        asked = {number for number, entry in enumerate(since, entries) if entry >= 0}
        if asked != {~entry for entry in since if entry < 0}:
            return False
        del self.log[entries:], self.acts[acts:], self._labels[labels:]
        self._moment, self._term = label
        self.terms, self.paths = dict(terms), dict(paths)
        return True

    def copied(self) -> "Recording":
        """The same, to which nothing is added any more."""
        found = Recording()
        found.log, found.acts, found._labels = self.log[:], self.acts[:], self._labels[:]
        found.terms, found.paths = dict(self.terms), dict(self.paths)
        return found

    def stays(self, number: int, *, alone: bool) -> None:
        """What entry ``number`` asked for is a leaf's gradient from here on. A pass that finds one there adds to it,
        and lets go of its own: here, where nothing else holds it (``alone``)."""
        if self.gradients is not None:
            self.gradients.pop(number, None)
            self.gradients[number] = (self.here() if alone else None), self.terms.get(number)

    def repeat_whole(self, since: tuple[int, ...]) -> bool:
        """Ask again for a pass that gave back all that it asked for and nothing else; whether it did."""
        log, start = self.log, since[0]
        asked = {number for number in range(start, len(log)) if log[number] >= 0}
        if asked != {~entry for entry in log[start:] if entry < 0}:
            return False
        self.repeat(since)
        return True

    def repeat_step(self, since: tuple[int, ...], replaced: Iterable[Replaced]) -> None:
        """Ask again for all of a step, as :meth:`repeat`: what it ``replaced`` is made before the old one goes."""
        at = len(self.log)
        self._swap(at, self.repeat(since, {storage.number: here for storage, here in replaced}), replaced)

    def _swap(self, at: int, order: list[int], replaced: Iterable[Replaced]) -> None:
        """Of what was repeated from entry ``at`` on as ``order`` tells, the new one stays and the old one goes."""
        for storage, _ in replaced:
            old, storage.number = storage.number, at + order.index(storage.number)
            self.log[at + order.index(~old)] = ~old

    def repeat_pass(self, since: tuple[int, ...], replaced: Iterable[Replaced] = ()) -> bool:
        """Ask for what a second pass asks for, which finds the gradients of the one since :meth:`here` gave ``since``.

        Args:
            replaced: as of :meth:`repeat_step`.

        Returns:
            Whether that is known; else nothing is asked for.
        """
        given_back = {~entry for entry in self.log[since[0] :] if entry < 0}
        found = {number: kept for number, kept in (self.gradients or {}).items() if number not in given_back}
        ends = {number: here for number, (here, _) in found.items() if here is not None}
        if len(ends) < len(found) or len(self.acts) > since[1]:
            return False
        at = len(self.log)
        ends |= {storage.number: here for storage, here in replaced}
        order = self.repeat(since, dict(sorted(ends.items(), key=itemgetter(1))))
        self._swap(at, order, replaced)
        for like, number in enumerate(order, at):
            if number in found:
                del self.terms[like]
                term = found[number][1]
                if term is not None:
                    self.terms[like] = term
        return True

    def repeat(self, since: tuple[int, ...], ends: Mapping[int, tuple[int, ...]] = NO_ENDS) -> list[int]:
        """Ask again for what was asked for since :meth:`here` gave ``since``, in the same order and phases.

        Blocks that are still there are not made again, and those from before that were given back are not given back
        again: what stays is made once (states of an optimizer, workspaces).

        Args:
            ends: of blocks that are still there where they are given back, asked for again: what :meth:`here` gave.

        Returns:
            For each entry that follows from here on the one that it is like; ``~n``: it gives back the like of ``n``.
        """
        start, acted, labelled, *_ = since
        log, at = self.log, len(self.log)
        order = self._again(start, ends)
        made = dict(zip(order, range(at, at + len(order)), strict=True))
        log += [
            ~made[~number] if number < 0 else entry if (entry := log[number]) >= 0 else ~made[~entry]
            for number in order
        ]
        followed = [number for number in order if number >= 0] if ends else order
        marks = [here[2] for here in ends.values()]

        def place(before: int, mark: int) -> int:
            """Where what happened before an entry goes; ``mark``: which of the labels it is."""
            return at + bisect_left(followed, before) + bisect_right(marks, mark)

        self.acts += [(place(before, 0), kind, which) for before, kind, which in self.acts[acted:]]
        again = [(place(before, mark), label) for mark, (before, label) in enumerate(self._labels[labelled:], labelled)]
        self._labels += [(at, self._labels[labelled - 1][1]), *again]
        self._moment, self._term = self._labels[-1][1]
        for said in (self.terms, self.paths):
            said |= {made[number]: what for number, what in said.items() if number in made}
        return order

    def _again(self, start: int, ends: Mapping[int, tuple[int, ...]]) -> list[int]:
        """What :meth:`repeat` returns: entries from ``start`` on that are asked for and given back again."""
        asked = self.log[start:]
        passing = {~entry for entry in asked if entry < 0 and ~entry >= start} | ends.keys()
        order = [number for number, entry in enumerate(asked, start) if (number if entry >= 0 else ~entry) in passing]
        if not ends:
            return order
        found: list[int] = []
        done = 0
        for number, (before, *_) in ends.items():
            place = bisect_left(order, before)
            found += order[done:place]
            found.append(~number)
            done = place
        return found + order[done:]


class World:
    """The state that operators read: one run at a time."""

    __slots__ = (
        "autocast", "back", "cache", "capability", "frame", "grad", "hooks", "inside", "ready", "recomputed",
        "recording", "sequence", "thread", "training", "workspaces",
    )  # fmt: skip

    recording: Recording

    def begin(
        self,
        capability: tuple[int, int],
        kind: Callable[[], Recording] = Recording,
        limit: int | None = None,
    ) -> Recording:
        """Start a run in a fresh process with an empty GPU of this compute capability.

        ``limit``: bytes that PyTorch may reserve there, for code that asks.
        """
        self.recording = kind()
        self.recording.limit = limit
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

    def state(self) -> dict[str, Any]:
        """All of it, for :meth:`resume`."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: each.copy() if isinstance(each, dict | set) else each for name, each in found.items()}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on with a run that was left in a state."""
        for name, each in state.items():
            setattr(self, name, each.copy() if isinstance(each, dict | set) else each)

    def multiplied(self, biased: bool = False) -> None:
        """Book cuBLAS's workspace at each thread's first product, and cuBLASLt's own at the first with a bias.

        Source: aten/src/ATen/cuda/CublasHandlePool.cpp, CUDABlas.cpp; two threads multiply, forward's and autograd's.
        """
        if (self.thread, "cublas") not in self.workspaces:
            self.workspaces.add((self.thread, "cublas"))
            self._hold_workspace(workspace_bytes(self.capability))
        if biased and (self.thread, "cublaslt") not in self.workspaces:
            self.workspaces.add((self.thread, "cublaslt"))
            self._hold_workspace(1 << 20)

    def _hold_workspace(self, size: int) -> None:
        recording = self.recording
        before, recording.term = recording.term, "workspace"
        recording.ask(size)
        recording.term = before


world = World()
_LOCK = Lock()


@contextmanager
def held() -> Iterator[None]:
    """The world for one run at a time: threads of an editor wait for each other."""
    with _LOCK, uncollected():
        yield
