"""Many files: checked in several processes, remembered, and told as they come, so that memory does not grow with them;
and files watched until Ctrl-C.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TextIO

from kb.core.record import NamedTuple
from kb.core.result import CheckResult, Unusable
from kb.knowledge.locations import cache_folder
from kb.report.check.json_report import json_ends, units_json
from kb.report.check.text import GAP, Repeated, Tally, closing_lines, tally_of, units_text
from kb.report.terminal import choose_style
from kb.report.words import Words
from kb.session.cache import ResultCache, code_folders, context_of, decided_by, installs, key_of
from kb.session.file import FileChecker
from kb.session.lookups import LOOKUPS, Lookup, Row, still
from kb.session.output import STREAMED
from kb.session.project import Project
from kb.session.run import (
    STDIN,
    Input,
    Run,
    check_input,
    internal_fault,
    read_bytes,
    shown_files,
    without_group_files,
)

MANY = 32  # files from which on several processes pay
WINDOW = 512  # files in memory at a time
BATCH = 16  # files handed to a process at a time
PAUSE_SECONDS = 0.5  # between two looks at the files that are watched
Render = Callable[[CheckResult], str]
Put = Callable[[str], object]


class Told(NamedTuple):
    """What one input comes to: its part of the report, its counts, and why it could not be checked."""

    text: str
    tally: Tally
    unusable: tuple[Unusable, ...] = ()
    seen: tuple[Row, ...] = ()

    def stored(self) -> list[Any]:
        """As JSON holds it."""
        return [self.text, list(self.tally), list(map(list, self.unusable)), list(map(list, self.seen))]

    @staticmethod
    def restored(data: Any) -> "Told":
        """From :meth:`stored`.

        Raises:
            ValueError: it is something else.
        """
        text, counts, faults, seen = data
        return Told(text, Tally.restored(counts), tuple(Unusable(*fault) for fault in faults), tuple(map(tuple, seen)))


class Tree:
    """One run over many files.

    Args:
        checker: the rules on one machine.
        render: the report of some units, as it stands in the whole.
        context: what decides a result beside the file (:func:`kb.session.cache.context_of`).
        cache: None goes without.
        jobs: processes to use at most.
        progress: hears how many files are done, now and then.
    """

    def __init__(
        self,
        checker: FileChecker,
        render: Render,
        *,
        context: bytes = b"",
        cache: ResultCache | None = None,
        jobs: int = 1,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self._checker, self._render = checker, render
        self._context, self._cache = context, cache
        self._jobs, self._progress = jobs, progress
        self._pool: Any = None
        self._lookups: dict[str, Lookup] = {**LOOKUPS, **checker.lookups}

    def tell(self, inputs: Iterable[Input]) -> Iterator[Told]:
        """Each input's part, in the inputs' order; what is not worth showing has none."""
        done, waiting = 0, without_group_files(inputs)
        try:
            while window := list(islice(waiting, WINDOW)):
                yield from self._window(window)
                done += len(window)
                self._progress(done)
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)
                self._pool = None

    def _window(self, inputs: Sequence[Input]) -> Iterator[Told]:
        keys = {at: key for at, given in enumerate(inputs) if (key := self._key(given)) is not None}
        found = {at: told for at, key in keys.items() if (told := self._stored(key)) is not None}
        missing = [at for at in range(len(inputs)) if at not in found]
        made = dict(zip(missing, self._check([inputs[at] for at in missing]), strict=True))
        if self._cache is not None:
            whole = [(at, told) for at, told in made.items() if at in keys and not told.unusable]
            # not of a file that was saved meanwhile
            self._cache.put((keys[at], told.stored()) for at, told in whole if self._key(inputs[at]) == keys[at])
        yield from (told for _, told in sorted({**found, **made}.items()))

    def _key(self, given: Input) -> bytes | None:
        if self._cache is None or given.path == STDIN or given.raw is not None:
            return None
        try:
            raw = read_bytes(given.path)
            return None if installs(raw) else key_of(self._context, given.path, given.named, raw)
        except ValueError:
            return None  # said when it is checked

    def _stored(self, key: bytes) -> Told | None:
        data = self._cache.get(key) if self._cache is not None else None
        if data is None:
            return None
        try:
            told = Told.restored(data)
        except (TypeError, ValueError, IndexError):
            return None
        return told if still(told.seen, self._lookups) else None

    def _check(self, inputs: Sequence[Input]) -> list[Told]:
        pool = (self._pool or self._start()) if self._jobs > 1 and len(inputs) >= MANY else None
        if pool is None:
            return [self._told(given) for given in inputs]
        batches = [list(inputs[at : at + BATCH]) for at in range(0, len(inputs), BATCH)]
        made: list[Told] = []
        from concurrent.futures.process import BrokenProcessPool

        try:
            for batch in pool.map(_work, batches):
                made += batch
        except BrokenProcessPool:
            return made + self._one_by_one(inputs[len(made) :])
        return made

    def _one_by_one(self, inputs: Sequence[Input]) -> list[Told]:
        """Each input in a batch of its own, after a process died over one of them: it is that one's fault alone."""
        from concurrent.futures.process import BrokenProcessPool

        made = []
        pool = self._start()
        for given in inputs:
            try:
                made += pool.submit(_work, [given]).result()
            except BrokenProcessPool as error:
                made.append(Told("", Tally(), (internal_fault(given.path, error),)))
                pool = self._start()
        return made

    def _start(self) -> Any:
        """Processes that have what this one has; none where the platform cannot fork."""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        if "fork" not in multiprocessing.get_all_start_methods():
            self._jobs = 1
            return None
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        _worker.append(self)
        self._pool = ProcessPoolExecutor(self._jobs, mp_context=multiprocessing.get_context("fork"))
        return self._pool

    def _told(self, given: Input) -> Told:
        self._checker.seen.take()
        outcome = check_input(given, self._checker)
        seen = tuple(self._checker.seen.take())
        if isinstance(outcome, Unusable):
            return Told("", Tally(), (outcome,), seen)
        files = shown_files(given, outcome) if outcome is not None else []
        units = tuple(unit for file in files for unit in file.results)
        if not units:
            return Told("", Tally(), (), seen)
        try:
            return Told(self._render(Run(tuple(files), ()).result(self._checker)), tally_of(units), (), seen)
        except Exception as error:
            return Told("", Tally(), (internal_fault(given.path, error),), seen)


_worker: list[Tree] = []


def _work(inputs: Sequence[Input]) -> list[Told]:
    return [_worker[-1]._told(given) for given in inputs]


def default_jobs() -> int:
    """As many processes as this one may use processors."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


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


def is_for(options: argparse.Namespace, project: Project, inputs: Sequence[Input]) -> bool:
    """Whether a run is one of several files, and asks for nothing that needs all results at once."""
    whole = (options.fix, options.diff, options.statistics, options.explain, options.baseline, options.write_baseline)
    return len(inputs) > 1 and options.format in STREAMED and not any(whole) and not project.baseline


def stream_report(
    options: argparse.Namespace,
    project: Project,
    checker: FileChecker,
    inputs: Sequence[Input],
    faults: Sequence[Unusable],
    words: Words,
    put: Put,
) -> tuple[Tally, tuple[Unusable, ...]]:
    """Check the files and write the report, byte for byte that of a run that keeps all results; the counts."""
    style = choose_style(sys.stdout, options.color)
    empty = Run((), ()).result(checker)
    if options.format == "json":

        def render(result: CheckResult) -> str:
            return units_json(result, words)

        between = ",\n"
        put(json_ends(empty, words, {})[0])
    else:

        def render(result: CheckResult) -> str:
            fold = not options.verbose
            return units_text(result, words, style, panel=not options.quiet, verbose=options.verbose, fold=fold)

        between = GAP
    repeated = Repeated(words, style)
    progress = Progress(len(inputs), words, sys.stderr)
    tree = _tree(options, project, checker, render, repr(style), progress)
    tally, unusable = Tally(), list(faults)
    shown = False
    for told in tree.tell(inputs):
        unusable += told.unusable
        if told.text:
            text = repeated.unmarked(told.text)
            put(between + text if shown else text)
            shown = True
        tally = tally.plus(told.tally)
    progress.clear()
    if not tally.units and not unusable and not options.skip_unknown:
        unusable.append(Unusable(path="", key="config.none-recognised", values={}))
    if options.format == "json":
        put(json_ends(empty._replace(unusable=tuple(unusable)), words, tally.severities())[1])
    elif tally.units:
        closing = "\n".join((*repeated.lines(), *closing_lines(tally, words, style, folded=not options.verbose)))
        put((between if shown else "") + closing + "\n")
    return tally, tuple(unusable)


def _tree(
    options: argparse.Namespace,
    project: Project,
    checker: FileChecker,
    render: Callable[[CheckResult], str],
    style: str,
    progress: Callable[[int], None],
) -> Tree:
    # what could not be fetched is said by the process that asked, and asked for again next time
    jobs = 1 if options.online else options.jobs or default_jobs()
    if options.no_cache or options.online or options.model_config:  # whose bytes no key has
        return Tree(checker, render, jobs=jobs, progress=progress)
    decided = decided_by(options, project, checker.machine, checker.catalog, style)
    return Tree(
        checker,
        render,
        context=context_of(decided, code_folders(options)),
        cache=ResultCache(cache_folder()),
        jobs=jobs,
        progress=progress,
    )


class Progress:
    """One line on a terminal, written over again: how many files are done. Elsewhere, and on short runs, silent."""

    SECONDS = 0.5

    def __init__(self, total: int, words: Words, stream: TextIO) -> None:
        self._total, self._words, self._stream = total, words, stream
        self._shown = False
        self._next = time.monotonic() + self.SECONDS

    def __call__(self, done: int) -> None:
        if not self._stream.isatty() or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self.SECONDS
        width = 24
        full = width * done // max(self._total, 1)
        bar = "#" * full + "-" * (width - full)
        self._stream.write(f"\r[{bar}] {self._words('progress.files', done=done, total=self._total)}\033[K")
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            self._stream.write("\r\033[K")
            self._stream.flush()
