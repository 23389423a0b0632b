"""A recording read back, and judged as if it were watched."""

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from kb.advice.watching import Watch
from kb.commands.monitor import code_of
from kb.commands.monitor.columns import COLUMNS, BadCell, snapshot_from_json, snapshot_of, state_of, time_of
from kb.commands.monitor.outputs import Outputs
from kb.config.log import log_lines
from kb.core.snapshot import GpuState, Snapshot
from kb.core.text import UserError
from kb.machine.gpu_csv import GpuLine, read_gpu_csv
from kb.report.monitor.json_report import summary_json
from kb.report.monitor.text import summary_text
from kb.report.terminal import choose_style
from kb.report.words import Words
from kb.session import cli

Rows = Iterable[tuple[int, str]]
"""(line number from 1, text) of each line that is not empty."""


class BrokenRecording(UserError):  # noqa: N818
    """A recording that cannot be read on, and where."""

    def __init__(self, key: str, line: int | None, **values: Any) -> None:
        super().__init__(key, **values)
        self.line, self.column = line, 1


class Replay:
    """Iterates over a recording's snapshots. What was found on the way is in ``kind`` and ``notes``.

    Args:
        rows: the file's lines.
        path: its name, for what is said of it.
        fields: nvidia-smi's queried fields, where it wrote no header.
        interval_seconds: between readings that bear no time.

    Raises:
        BrokenRecording: while iterating: a line is not what it should be, or there is no reading at all. A last line
            that was cut off is a note instead.
    """

    def __init__(self, rows: Rows, path: str, fields: Sequence[str] = (), interval_seconds: float = 1.0) -> None:
        self._rows, self._path = iter(rows), path
        self._fields, self._interval = tuple(fields), interval_seconds
        self.kind = ""
        self.notes: list[str] = []  # keys of i18n

    def __iter__(self) -> Iterator[Snapshot]:
        first = next(self._rows, None)
        if first is None:
            raise BrokenRecording("monitor.recording.empty", None, path=self._path)
        rows = chain([first], self._rows)
        start = first[1].removeprefix("\ufeff").strip()
        count = 0
        for snapshot in self._read(rows, start):
            count += 1
            yield snapshot
        if not count:
            raise BrokenRecording("monitor.recording.empty", None, path=self._path)

    def _read(self, rows: Rows, start: str) -> Iterator[Snapshot]:
        if start.startswith("{"):
            self.kind = "json-lines"
            return self._json(rows)
        if start.split(",")[:2] == ["time", "gpu"]:
            self.kind = "csv"
            return self._csv(rows)
        self.kind = "nvidia-smi"
        return self._nvidia_smi(rows)

    def _json(self, rows: Rows) -> Iterator[Snapshot]:
        for line, text, last in _with_last(rows):
            try:
                yield snapshot_from_json(json.loads(text))
            except BadCell as bad:
                raise self._bad(line, bad) from None
            except (ValueError, RecursionError):
                if not last:
                    raise BrokenRecording("monitor.recording.not_json", line, path=self._path) from None
                self.notes.append("monitor.recording.cut_off")

    def _csv(self, rows: Rows) -> Iterator[Snapshot]:
        names: list[str] = []
        open_row: dict[str, str] | None = None
        open_line, states = 0, list[GpuState]()
        for line, text, last in _with_last(rows):
            cells = _cells(text)
            if cells[:2] == ["time", "gpu"]:
                names = cells
                if not set(names) <= set(COLUMNS):
                    unknown = ", ".join(sorted(set(names) - set(COLUMNS)))[:100]
                    raise BrokenRecording("monitor.recording.unknown_columns", line, path=self._path, names=unknown)
                continue
            if len(cells) != len(names):
                if last:
                    self.notes.append("monitor.recording.cut_off")
                    break
                raise BrokenRecording(
                    "monitor.recording.cells", line, path=self._path, found=len(cells), wanted=len(names)
                )
            row = dict(zip(names, cells, strict=True))
            again = row["gpu"] in {state.key for state in states}
            if open_row is not None and (row["time"] != open_row["time"] or again or not row["gpu"]):
                yield self._snapshot(open_line, open_row, states)
                states = []
            open_row, open_line = row, line
            if row["gpu"]:
                try:
                    states.append(state_of(row))
                except BadCell as bad:
                    raise self._bad(line, bad) from None
        if open_row is not None:
            yield self._snapshot(open_line, open_row, states)

    def _snapshot(self, line: int, row: dict[str, str], states: Sequence[GpuState]) -> Snapshot:
        try:
            return snapshot_of(row, states)
        except BadCell as bad:
            raise self._bad(line, bad) from None

    def _bad(self, line: int, bad: BadCell) -> BrokenRecording:
        return BrokenRecording("monitor.recording.value", line, path=self._path, name=bad.name, text=bad.text[:60])

    def _nvidia_smi(self, rows: Rows) -> Iterator[Snapshot]:
        lines = _Numbered(rows)
        states: dict[str, GpuState] = {}
        time: float | None = None
        stamp: str | None = None
        count = 0
        try:
            for found in read_gpu_csv(lines.texts(), self._fields):
                if self._begins_anew(found, states, stamp):
                    yield Snapshot(self._time(time, count), tuple(states.values()))
                    states, count = {}, count + 1
                key = found.state.key or str(len(states))
                states[key] = found.state._replace(key=key)
                stamp = found.time
                time = None if found.time is None else time_of(found.time)
        except BadCell as bad:
            raise self._bad(lines.number, bad) from None
        except ValueError:
            raise BrokenRecording("monitor.recording.no_header", lines.first, path=self._path) from None
        if states:
            yield Snapshot(self._time(time, count), tuple(states.values()))

    def _begins_anew(self, found: GpuLine, states: dict[str, GpuState], stamp: str | None) -> bool:
        """Whether the row belongs to the next reading: its GPU was read already, or, of unnamed ones, the time is
        another.
        """
        if not states:
            return False
        if found.state.key:
            return found.state.key in states
        if found.time is None:
            self._note("monitor.recording.unnamed")
            return True
        return found.time != stamp

    def _time(self, time: float | None, count: int) -> float:
        if time is None:
            self._note("monitor.recording.untimed")
            return count * self._interval
        return time

    def _note(self, key: str) -> None:
        if key not in self.notes:
            self.notes.append(key)


class _Numbered:
    """Lines without their numbers, which stay known."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.number = self.first = 1
        self._seen = False

    def texts(self) -> Iterator[str]:
        for number, text in self._rows:
            self.number = number
            if not self._seen:
                self.first, self._seen = number, True
            yield text


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader([text]), [])
    except csv.Error:  # a field without an end
        return []


def _with_last(rows: Rows) -> Iterator[tuple[int, str, bool]]:
    """Each line, and whether it is the last."""
    before: tuple[int, str] | None = None
    for row in rows:
        if before is not None:
            yield (*before, False)
        before = row
    if before is not None:
        yield (*before, True)


def replay(options: argparse.Namespace, watch: Watch, words: Words) -> int:
    """Print what the recording comes to; 1 where it was beyond a target.

    Raises:
        UserError: it cannot be read, or is broken: with file and line.
    """
    fields = [name for name in (options.fields or "").split(",") if name.strip()]
    recording = Replay(log_lines(options.replay), options.replay, fields, options.interval)
    outputs = Outputs(options, words)
    try:
        sinks = outputs.sinks
        for snapshot in recording:
            watch.add(snapshot)
            for sink in sinks:
                sink(snapshot)
    finally:
        outputs.close()
    notes = [words(key, seconds=f"{options.interval:g}") for key in recording.notes] + outputs.lost()
    summary = watch.summary()
    if options.format == "json":
        cli.put(summary_json(summary, recording.kind, notes, options.versions))
    else:
        cli.put(summary_text(summary, words, choose_style(sys.stdout, options.color), notes))
    return code_of(summary.alert_counts)
