"""The GPUs watched over time: NVML kept open, and asked again where the driver went away; nvidia-smi where there is no
NVML. A call that hangs is left behind in its thread, and nothing else is asked of the driver until it returns.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from kb.core.record import NamedTuple
from kb.core.snapshot import GpuProcess, GpuState
from kb.machine import live_nvml, live_smi, surroundings, visible
from kb.machine.cgroup import read_text
from kb.machine.reading import Note, Unanswered

# A driver that is being restarted takes seconds; asking more often than this only fills the kernel's log.
RETRY_SECONDS = 5.0
# A reading is milliseconds; starting NVML without persistence mode takes seconds, once.
ANSWER_SECONDS = 3.0
START_SECONDS = 15.0

Source = Callable[[], tuple[GpuState, ...]]


class GpuReading(NamedTuple):
    """The GPUs at one moment; ``note`` says why there are none (a key of i18n under `machine.`)."""

    gpus: tuple[GpuState, ...] = ()
    note: Note | None = None
    notes: tuple[Note, ...] = ()


class GpuWatch:
    """Reads the GPUs that a CUDA process started here would see, again and again; no fault of the driver ends it."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        root: str = "/",
        retry_seconds: float = RETRY_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        start_seconds: float = START_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environ, self._root, self._clock = environ, root, clock
        self._retry, self._answer, self._start = retry_seconds, answer_seconds, start_seconds
        self._source: live_nvml.Session | live_smi.Session | None = None
        self._note: Note | None = None
        self._asked_at: float | None = None
        self._pending: _Call | None = None
        self._thread: _Caller | None = None

    def read(self) -> GpuReading:
        """The GPUs now. Never raises for what the driver does, and never waits longer than it was told to."""
        if visible.hides_all(self._environ):
            return GpuReading(note="gpus_hidden")
        if self._pending is not None and not self._pending.done.is_set():
            return GpuReading(note="nvml_hangs")
        if self._pending is not None:
            self._take_late(self._pending)
        if self._source is None and not self._open():
            return GpuReading(note=self._note)
        assert self._source is not None
        try:
            states = self._call(self._source.read, self._answer)
        except Unanswered as unanswered:
            return self._gone(unanswered.note)
        if surroundings.sees_host_processes(self._root):
            states = tuple(state._replace(processes=tuple(map(self._named, state.processes))) for state in states)
        return GpuReading(gpus=states, notes=self._notes(self._source, states))

    def close(self) -> None:
        """Lets the driver go."""
        if self._thread is None:
            return
        if self._source is not None and self._pending is None:
            self._thread.ask(self._source.close).done.wait(self._answer)
        self._source = None
        self._thread.stop()

    def _open(self) -> bool:
        now = self._clock()
        if self._asked_at is not None and now - self._asked_at < self._retry:
            return False
        self._asked_at = now
        try:
            self._source = self._call(self._opened, self._start)
        except Unanswered as unanswered:
            self._note = unanswered.note
        return self._source is not None

    def _opened(self) -> "live_nvml.Session | live_smi.Session":
        try:
            return live_nvml.Session(self._root, self._environ)
        except Unanswered as unanswered:
            first = unanswered.note
        # Another copy of the library, which nvidia-smi may have, helps where ours is missing or of another version.
        if first in ("driver_not_loaded", "no_device", "gpus_hidden", "visible_devices_invalid"):
            raise Unanswered(first)
        session = live_smi.opened(self._root, self._environ)
        if session is None:
            raise Unanswered(first)
        session.notes = tuple(dict.fromkeys((*([first] if not first.startswith("no_driver") else []), *session.notes)))
        return session

    def _gone(self, note: Note) -> GpuReading:
        """The driver stopped answering: everything that was open is stale, and is opened anew later."""
        self._note, self._asked_at = note, self._clock()
        if self._source is not None and self._pending is None and self._thread is not None:
            self._thread.ask(self._source.close)  # not waited for: a driver that went away may hang here
        self._source = None
        return GpuReading(note=note)

    def _call(self, work: Callable[[], Any], seconds: float) -> Any:
        if self._thread is None:
            self._thread = _Caller()
        call = self._thread.ask(work)
        if not call.done.wait(seconds):
            self._pending = call
            raise Unanswered("nvml_hangs")
        return call.result()

    def _take_late(self, call: "_Call") -> None:
        """What hung has returned at last. A session that it opened is used; a reading of a while ago is not."""
        self._pending = None
        try:
            late = call.result()
        except Unanswered as unanswered:
            self._note = unanswered.note
            return
        if isinstance(late, live_nvml.Session | live_smi.Session):
            self._source = late
        else:
            self._asked_at = None

    def _named(self, process: GpuProcess) -> GpuProcess:
        name = read_text(os.path.join(self._root, "proc", str(process.pid), "comm"))
        return process._replace(name=name.strip()) if name else process

    def _notes(self, source: "live_nvml.Session | live_smi.Session", states: tuple[GpuState, ...]) -> tuple[Note, ...]:
        notes = list(source.notes)
        processes = [process for state in states for process in state.processes]
        if processes and not surroundings.sees_host_processes(self._root):
            notes.append("foreign_processes")
        return tuple(dict.fromkeys(notes))


class _Call:
    """One piece of work handed to the thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work, self.done = work, threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self.work()
        except BaseException as error:
            self._error = error
        self.done.set()

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class _Caller:
    """The one thread that talks to the driver: it may hang there, and kb goes on."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="gpu-watch", daemon=True).start()

    def ask(self, work: Callable[[], Any]) -> _Call:
        call = _Call(work)
        self._calls.put(call)
        return call

    def stop(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
