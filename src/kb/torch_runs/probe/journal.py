"""The journal of a campaign on disk: what was asked, then a line for each trial that ended, each line safe on the disk.

A process killed at any moment loses at most the trial under way: a line cut short is left out when it is read.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from typing import IO, Any

from kb.core.text import UserError
from kb.torch_runs.probe.trial import Outcome, Trial, as_json, outcome_from, trial_key

FORMAT = 1
LONGEST = 64 << 20  # characters; a trial's line has some 2,000


class Journal:
    """Open with :meth:`open`. ``done`` holds the outcomes so far by the key of their trial.

    A campaign that came to its end has marked it: its journal makes way for the next one, under a name beside it.
    """

    def __init__(self, path: str, stream: IO[str], done: dict[str, Outcome]) -> None:
        self.path = path
        self.done = done
        self._stream = stream

    @classmethod
    def open(cls, path: str, plan: Mapping[str, Any], resume: bool) -> "Journal":
        """A new journal, or with ``resume`` the one that is there; where none is there, a new one.

        Args:
            plan: what the campaign was asked, as JSON; its results mean nothing for another one.

        Raises:
            UserError: it cannot be written; it is there, unfinished, and was not to be resumed; it is no journal, one
                of another plan, or another process is writing it.
        """
        before = _read(path)
        if before is not None and not resume:
            if not any("finished" in entry for entry in before):
                raise UserError("probe.journal_unfinished", path=path)
            _put_aside(path)
            before = None
        try:
            if folder := os.path.dirname(path):
                os.makedirs(folder, exist_ok=True)
            stream = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the campaign runs
        except OSError as error:
            raise UserError("probe.journal_unwritable", path=path, reason=error.strerror or str(error)) from None
        journal = cls(path, stream, {})
        try:
            _lock(stream, path)
            if before:
                _check(before, plan, path)
                _end_line(path, stream)
                journal.done = _outcomes(before)
            else:
                journal._write({"journal": FORMAT, "plan": plan})
        except BaseException:
            stream.close()
            raise
        return journal

    def append(self, trial: Trial, outcome: Outcome) -> None:
        """Write one trial's end; when this returns it is on the disk.

        Raises:
            UserError: it could not be written.
        """
        self._write({"key": trial_key(trial), "trial": as_json(trial), "outcome": as_json(outcome)})
        self.done[trial_key(trial)] = outcome

    def finish(self) -> None:
        """Mark the campaign as complete."""
        self._write({"finished": True})

    def close(self) -> None:
        self._stream.close()

    def _write(self, entry: Mapping[str, Any]) -> None:
        try:
            self._stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
            self._stream.flush()
            with contextlib.suppress(OSError):  # a pipe or a device has no disk to reach
                os.fsync(self._stream.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._stream.close()
            raise UserError("probe.journal_unwritable", path=self.path, reason=error.strerror or str(error)) from None


def _read(path: str) -> list[dict[str, Any]] | None:
    """Its whole lines; None where there is no such file, or an empty one. A device has nothing to be read."""
    if os.path.exists(path) and not os.path.isfile(path):
        return None
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            text = stream.read(LONGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError("probe.journal_unwritable", path=path, reason=error.strerror or str(error)) from None
    if len(text) > LONGEST:
        raise UserError("probe.not_a_journal", path=path)
    lines = text.splitlines()
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):  # brackets in brackets in brackets
            entry = json.loads(line)
            if isinstance(entry, dict):
                found.append(entry)
    if lines and not (found and found[0].get("journal") == FORMAT):
        raise UserError("probe.not_a_journal", path=path)
    return found or None


def _put_aside(path: str) -> None:
    try:
        os.replace(path, f"{path}.old")
    except OSError as error:
        raise UserError("probe.journal_unwritable", path=path, reason=error.strerror or str(error)) from None


def _check(entries: list[dict[str, Any]], plan: Mapping[str, Any], path: str) -> None:
    before = entries[0].get("plan")
    now = json.loads(json.dumps(plan))
    before = before if isinstance(before, dict) else {}
    differing = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if not differing:
        return
    raise UserError("probe.journal_of_another_plan", path=path, settings=", ".join(differing))


def _outcomes(entries: list[dict[str, Any]]) -> dict[str, Outcome]:
    found = {}
    for entry in entries[1:]:
        with contextlib.suppress(KeyError, TypeError):  # a line of a later version, or damaged: it is tried again
            found[str(entry["key"])] = outcome_from(entry["outcome"])
    return found


def _end_line(path: str, stream: IO[str]) -> None:
    """What a killed process left half written stays a line of its own."""
    with open(path, "rb") as before:
        before.seek(-1, os.SEEK_END)
        if before.read(1) != b"\n":
            stream.write("\n")


def _lock(stream: IO[str], path: str) -> None:
    """Two campaigns in one journal would mix; the lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError("probe.journal_in_use", path=path) from None
    except OSError:  # a file system without locks
        return
