"""Many files checked one after another and told as they come; and files watched until Ctrl-C."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from kb import __version__
from kb.core.result import CheckResult, Unusable
from kb.knowledge.locations import cache_folder
from kb.report.check.json_report import json_ends, units_json
from kb.report.check.text import GAP, Repeated, Tally, closing_lines, units_text
from kb.report.terminal import choose_style
from kb.report.words import Words
from kb.session.cache import ResultCache, context_of
from kb.session.file import FileChecker
from kb.session.kept import code_folders, decided_by
from kb.session.output import STREAMED
from kb.session.project import Project
from kb.session.run import Input
from kb.session.tree import Tree, default_jobs

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


Put = Callable[[str], object]


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
    """Check the files and write the report, byte for byte that of a run that keeps all results; the counts.

    Args:
        put: writes to standard output.
    """
    style = choose_style(sys.stdout, options.color)
    empty = CheckResult(
        machine=checker.machine,
        units=(),
        sources_text={},
        version=__version__,
        rules_version=checker.catalog.version,
    )
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
        import time

        self._total, self._words, self._stream = total, words, stream
        self._shown = False
        self._clock = time.monotonic
        self._next = self._clock() + self.SECONDS

    def __call__(self, done: int) -> None:
        if not self._stream.isatty() or self._clock() < self._next:
            return
        self._next = self._clock() + self.SECONDS
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
