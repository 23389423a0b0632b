"""The watched process and all that it started, with their memory (psutil); and what an inference server among them says
of itself. Processes vanish at any time.

A process's share of its pages (PSS) costs the kernel a walk over all of its mappings, milliseconds for a CUDA process:
it is measured as often as a share of one core allows, and the resident size each time.
"""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from kb.core.snapshot import ProcessState, ServerState, TreeState
from kb.core.text import UserError

MOST_PROCESSES = 256
# PyTorch's loader gives this name to its workers from 2.6 on; before, a forked worker has its parent's command line.
_WORKER_NAME = "pt_data_worker"
_SPAWNED = ("multiprocessing.spawn", "--multiprocessing-fork", "multiprocessing.forkserver")
_NO_WORKER = ("resource_tracker", "semaphore_tracker")
# What measuring PSS, and looking for new processes, may each take of one core.
CPU_SHARE = 0.002
# A run starts most of its processes early on.
EAGER_SEARCHES = 10
# A process that has just been forked may still become another program, and a worker still get its name.
LOOKS = 3


class ProcessTree:
    """One process and its descendants, read again and again.

    Raises:
        ValueError: there is no such process, or it cannot be seen.
    """

    def __init__(self, pid: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        import psutil

        self._psutil, self._clock = psutil, clock
        try:
            self._root: Any = psutil.Process(pid)
        except (psutil.Error, ValueError, OverflowError) as error:
            raise ValueError(f"no process {pid}") from error
        self._known: dict[int, _Process] = {}
        self._count_all = 0
        self._search_again_at = 0.0
        self._searches = 0

    @property
    def alive(self) -> bool:
        """Whether the watched process itself still runs; one that only waits to be collected does not."""
        try:
            return bool(self._root.is_running() and self._root.status() != self._psutil.STATUS_ZOMBIE)
        except self._psutil.Error:
            return False

    def read(self) -> TreeState | None:
        """The tree now; None once the watched process is gone."""
        if not self.alive:
            return None
        now = self._clock()
        if now >= self._search_again_at:
            began = time.thread_time()
            if not self._search():
                return None
            self._searches += 1
            if self._searches >= EAGER_SEARCHES:
                self._search_again_at = now + (time.thread_time() - began) / CPU_SHARE
        states = [state for each in self._known.values() if (state := self._state(each, now)) is not None]
        return _tree(tuple(states), self._count_all)

    def _search(self) -> bool:
        """Looks through every process of the system for those of the tree."""
        try:
            found = [self._root, *self._root.children(recursive=True)]
        except self._psutil.Error:
            return False
        known = {}
        for process in found[:MOST_PROCESSES]:
            old = self._known.get(process.pid)
            known[process.pid] = old if old is not None and old.process == process else _Process(process)
        self._known, self._count_all = known, len(found)
        return True

    def _state(self, each: "_Process", now: float) -> ProcessState | None:
        try:
            if each.looks < LOOKS:
                self._describe(each)
            rss = each.process.memory_info().rss
            if now >= each.measured_again_at:
                began = time.thread_time()
                full = each.process.memory_full_info()
                each.pss_bytes = getattr(full, "pss", None)
                each.measured_again_at = now + (time.thread_time() - began) * len(self._known) / CPU_SHARE
        except self._psutil.AccessDenied:
            rss, each.measured_again_at = None, now + 60
        except self._psutil.Error:
            self._search_again_at = 0.0
            return None
        return ProcessState(each.process.pid, each.parent, each.name, rss, each.pss_bytes, each.worker)

    def _describe(self, each: "_Process") -> None:
        with each.process.oneshot():
            each.name, each.parent, each.line = each.process.name(), each.process.ppid(), each.process.cmdline()
        each.worker = each.name == _WORKER_NAME or self._looks_like_worker(each, each.line)
        each.looks += 1

    def _looks_like_worker(self, each: "_Process", line: list[str]) -> bool:
        text = " ".join(line)
        if each.process.pid == self._root.pid or any(name in text for name in _NO_WORKER):
            return False
        if any(mark in text for mark in _SPAWNED):
            return True
        above = self._known.get(each.parent)
        return bool(line) and above is not None and above.line == line


class _Process:
    """What is kept of one process from reading to reading."""

    __slots__ = ("line", "looks", "measured_again_at", "name", "parent", "process", "pss_bytes", "worker")

    def __init__(self, process: Any) -> None:
        self.process = process
        self.name = ""
        self.parent = self.looks = 0
        self.line: list[str] = []
        self.pss_bytes: int | None = None
        self.measured_again_at = 0.0
        self.worker = False


def _tree(states: tuple[ProcessState, ...], count_all: int) -> TreeState:
    sizes = [state.pss_bytes for state in states]
    workers = [state for state in states if state.worker]
    of_workers = [state.pss_bytes for state in workers if state.pss_bytes is not None]
    largest = sorted(states, key=lambda state: -(state.pss_bytes or state.rss_bytes or 0))
    return TreeState(
        processes=tuple(largest),
        count_all=count_all,
        pss_bytes=None if not sizes or None in sizes else sum(size for size in sizes if size is not None),
        workers=len(workers),
        worker_pss_bytes=max(of_workers, default=None),
    )


SECONDS = 2.0  # a server that is busy answers late; one that hangs must not stop the watch
MOST_BYTES = 16 << 20
_FULLEST = "kv_usage"  # of several ranks the fullest counts; requests are added up


class ServerWatch:
    """Reads one server again and again.

    Args:
        url: ``http://host:port``; ``/metrics`` where no path is given.
        engines: ``rules/serving``: by engine, under ``metrics``, the names that each value has had.

    Raises:
        UserError: the address cannot be one, or prometheus_client is not installed.
    """

    def __init__(self, url: str, engines: Mapping[str, Mapping[str, Any]]) -> None:
        try:
            from prometheus_client.parser import text_string_to_metric_families
        except ImportError:
            raise UserError("monitor.needs_prometheus") from None
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        if not usable:
            raise UserError("monitor.bad_server", value=url[:200])
        self.url = url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"
        self._families = text_string_to_metric_families
        self._engines = {name: engine["metrics"] for name, engine in engines.items() if "metrics" in engine}

    def read(self) -> ServerState:
        """The server now; where it cannot be read, why."""
        try:
            with urllib.request.urlopen(self.url, timeout=SECONDS) as answer:
                text = answer.read(MOST_BYTES).decode("utf-8", "replace")
        except urllib.error.HTTPError:
            return ServerState(reason="without_metrics")
        except (OSError, http.client.HTTPException, ValueError):
            return ServerState(reason="silent")
        try:
            samples = [(one.name, one.value) for family in self._families(text) for one in family.samples]
        except (ValueError, KeyError, IndexError):
            return ServerState(reason="without_metrics")
        return self._state(samples)

    def _state(self, samples: Iterable[tuple[str, float]]) -> ServerState:
        values: dict[str, list[float]] = {}
        for name, value in samples:
            values.setdefault(name, []).append(value)
        for engine, names in self._engines.items():
            found = {field: _first(values, known, field) for field, known in names.items()}
            if any(value is not None for value in found.values()):
                return ServerState(engine, **found)  # type: ignore[arg-type]
        return ServerState(reason="without_metrics")


def _first(values: Mapping[str, list[float]], names: Iterable[str], field: str) -> float | None:
    """The value under the first name that the server has: an old name may stay beside the new one for a release."""
    rows = next((values[name] for name in names if name in values), None)
    if rows is None:
        return None
    return max(rows) if field == _FULLEST else round(sum(rows))
