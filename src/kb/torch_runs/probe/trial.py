"""What is tried and what came of it, as JSON: a trial is one process's work, an outcome what was seen of it. The
journal of a campaign has both on disk: what was asked, then a line for each trial that ended.

Sizes in bytes, times in seconds, utilisation as a ratio. What is not known is None, or left out of a mapping.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any, Literal, get_args

from kb.core.hardware import Gpu
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.core.text import UserError

Kind = Literal["smoke", "ramp", "max-batch", "host"]
Backend = Literal["cuda", "cpu", "fake"]
Status = Literal["ok", "oom", "hang", "crash", "lost"]
Sizes = Mapping[str, int]
STEPS = 10


class Limits(NamedTuple):
    """What a trial may take: seconds by the clock, and bytes of host memory, resident, of all its processes."""

    seconds: float = 600
    host_bytes: int | None = None


class Trial(NamedTuple):
    """One process's work.

    ``setup`` holds the fields of a TrainingSetup that differ from its defaults, ``config`` is the model's
    ``config.json``; a ``command`` of the user's own has none. ``predicted`` is kb's own, by phase.
    ``fake`` scripts a GPU that is not there. ``gpu`` is the id of the GPU that is wanted, ``device`` the value of
    CUDA_VISIBLE_DEVICES.
    """

    kind: Kind
    backend: Backend
    setup: Mapping[str, Any]
    config: Mapping[str, Any] | None = None
    model: str | None = None
    phases: tuple[str, ...] = ("train",)
    steps: int = STEPS
    command: tuple[str, ...] = ()
    predicted: Mapping[str, Sizes] = {}
    gpu: str | None = None
    device: str | None = None
    fake: Mapping[str, Any] | None = None
    limits: Limits = Limits()

    @property
    def batch(self) -> int:
        """Samples per device of a training step."""
        return int(self.setup.get("per_device_train_batch_size", TrainingSetup().per_device_train_batch_size))

    @property
    def workers(self) -> int:
        return int(self.setup.get("dataloader_num_workers", 0))


class Outcome(NamedTuple):
    """What came of a trial. ``oom`` is memory that ran out, of the ``resource`` gpu or host; ``hang`` the time limit;
    ``lost`` the machine it ran on.

    ``phases`` holds the peaks of the phases that were passed, also of a run that then failed; ``host`` those of all
    its processes together.
    """

    status: Status
    seconds: float
    resource: Literal["gpu", "host"] | None = None
    phase: str | None = None  # where it ended, unless it is ok
    reason: str | None = None  # the line that tells most
    exit_code: int | None = None
    signal: str | None = None
    phases: Mapping[str, Sizes] = {}
    host: Mapping[str, Any] = {}
    step_seconds: float | None = None
    samples_per_second: float | None = None
    utilisation: float | None = None
    trainable: int | None = None
    machine: Mapping[str, Any] = {}
    stack: Mapping[str, str] = {}
    node: str | None = None
    output: str | None = None  # the end of what a run that failed printed

    @property
    def fits(self) -> bool:
        return self.status == "ok"

    @property
    def peak_bytes(self) -> int | None:
        """The most that the process held of the GPU, as the driver reports it; of torch's allocator without that."""
        for name in ("process_bytes", "reserved_bytes"):
            sizes = [row[name] for row in self.phases.values() if row.get(name)]
            if sizes:
                return max(sizes)
        return None


def as_json(record: Trial | Outcome) -> dict[str, Any]:
    """The record as JSON has it, without what it leaves at its default."""
    own = {name: value for name, value in record._asdict().items() if value != record._field_defaults.get(name, ...)}
    if "limits" in own:
        own["limits"] = own["limits"]._asdict()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}


def trial_from(data: Mapping[str, Any]) -> Trial:
    """The trial that :func:`as_json` wrote."""
    given: dict[str, Any] = {
        name: tuple(value) if name in ("phases", "command") else value for name, value in data.items()
    }
    if "limits" in given:
        given["limits"] = Limits(**given["limits"])
    return Trial(**given)


_NUMBER = (int, float)
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("status", "resource", "phase", "reason", "signal", "node", "output"), str),
    **dict.fromkeys(("seconds", "step_seconds", "samples_per_second", "utilisation"), _NUMBER),
    **dict.fromkeys(("exit_code", "trainable"), int),
    **dict.fromkeys(("phases", "host", "machine", "stack"), dict),
}


def outcome_from(data: Mapping[str, Any]) -> Outcome:
    """The outcome that :func:`as_json` wrote.

    Raises:
        KeyError: of another version.
        TypeError: what it holds is no outcome.
    """
    outcome = Outcome(**data)
    rows = outcome.phases.values() if isinstance(outcome.phases, dict) else ()
    fits = all(isinstance(value, _KINDS[name]) for name, value in data.items() if value is not None)
    if not fits or outcome.status not in get_args(Status) or outcome.seconds is None:
        raise TypeError("no outcome")
    if not all(isinstance(row, dict) and all(isinstance(size, _NUMBER) for size in row.values()) for row in rows):
        raise TypeError("no sizes")
    return outcome


def trial_key(trial: Trial) -> str:
    """Equal for trials that ask the same of a machine: their limits, and what was predicted of them, do not count."""
    asked = {name: value for name, value in as_json(trial).items() if name not in ("limits", "predicted", "kind")}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


class Cell(NamedTuple):
    """One trial of the matrix. ``found`` is the GPU that ran it, where that is another than was asked for."""

    gpu: Gpu
    trial: Trial
    outcome: Outcome
    found: str | None = None


class Matrix(NamedTuple):
    """All cells in the order of the axes."""

    backend: str
    address: str
    cells: tuple[Cell, ...]


FORMAT = 1
LONGEST = 64 << 20  # characters; a trial's line has some 2,000


class Journal:
    """Each line is safe on the disk once it is written: a process killed at any moment loses at most the trial under
    way, whose line, cut short, is left out when it is read.

    Open with :meth:`open`. ``done`` holds the outcomes so far by the key of their trial.

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


@contextlib.contextmanager
def opened_journal(path: str | None, plan: Mapping[str, Any], resume: bool) -> Iterator[Journal | None]:
    """The journal of a campaign, marked as complete where that comes to its end; None keeps none."""
    if path is None:
        yield None
        return
    journal = Journal.open(path, plan, resume)
    try:
        yield journal
        journal.finish()
    finally:
        journal.close()


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
