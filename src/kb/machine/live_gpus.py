"""The GPUs watched over time: NVML kept open, and asked again where the driver went away; nvidia-smi where there is no
NVML. A call that hangs is left behind in its thread, and nothing else is asked of the driver until it returns.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kb.core.record import NamedTuple
from kb.core.snapshot import GpuProcess, GpuState
from kb.machine import host, nvidia_smi, nvml, sources
from kb.machine.gpu_csv import read_gpu_csv, throttle_reasons
from kb.machine.reading import Note, Reported, Unanswered

# A driver that is being restarted takes seconds; asking more often than this only fills the kernel's log.
RETRY_SECONDS = 5.0
# A reading is milliseconds; starting NVML without persistence mode takes seconds, once.
ANSWER_SECONDS = 3.0
START_SECONDS = 15.0

# What an error of a call says of the driver as a whole; any other only says that this GPU has no such reading.
_GONE = (1, 4, 6, 9, 15, 18, 999)  # uninitialized, no permission, not found, not loaded, lost, mismatch, unknown
_SLOWDOWN = 1  # nvmlTemperatureThresholds_t
_CORE = 0  # nvmlTemperatureSensors_t

# The name comes last: it may hold a comma.
_FIELDS = (
    "index",
    "uuid",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "power.draw",
    "enforced.power.limit",
    "temperature.gpu",
    "clocks_throttle_reasons.active",
)


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
        self._source: NvmlSession | SmiSession | None = None
        self._note: Note | None = None
        self._asked_at: float | None = None
        self._pending: _Call | None = None
        self._thread: _Caller | None = None

    def read(self) -> GpuReading:
        """The GPUs now. Never raises for what the driver does, and never waits longer than it was told to."""
        if sources.hides_all(self._environ):
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
        if host.sees_host_processes(self._root):
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

    def _opened(self) -> "NvmlSession | SmiSession":
        try:
            return NvmlSession(self._root, self._environ)
        except Unanswered as unanswered:
            first = unanswered.note
        # Another copy of the library, which nvidia-smi may have, helps where ours is missing or of another version.
        if first in ("driver_not_loaded", "no_device", "gpus_hidden", "visible_devices_invalid"):
            raise Unanswered(first)
        session = smi_session(self._root, self._environ)
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
        if isinstance(late, NvmlSession | SmiSession):
            self._source = late
        else:
            self._asked_at = None

    def _named(self, process: GpuProcess) -> GpuProcess:
        name = host.read_text(os.path.join(self._root, "proc", str(process.pid), "comm"))
        return process._replace(name=name.strip()) if name else process

    def _notes(self, source: "NvmlSession | SmiSession", states: tuple[GpuState, ...]) -> tuple[Note, ...]:
        notes = list(source.notes)
        processes = [process for state in states for process in state.processes]
        if processes and not host.sees_host_processes(self._root):
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


class NvmlSession:
    """NVML, started, with a handle of each visible GPU and slice.

    Raises:
        Unanswered: there is no driver, no library, no GPU, or ``CUDA_VISIBLE_DEVICES`` leaves none.
    """

    def __init__(self, root: str, environ: Mapping[str, str]) -> None:
        self._pynvml = nvml.wrapper(root)
        try:
            handles, notes = nvml.opened(self._pynvml)
            by_reported = {id(handle.reported): handle for handle in handles}
            seen, more = _visible([handle.reported for handle in handles], environ)
        except Unanswered:
            self.close()
            raise
        self._handles = [by_reported[id(reported)] for reported in seen]
        self._limits = [self._fixed(handle) for handle in self._handles]
        changes = sources.changes_of([reported.gpu for reported in seen], root, watched=True)
        self.notes: tuple[Note, ...] = (*notes, *more, *changes)

    def _fixed(self, handle: nvml.Handle) -> tuple[float | None, float | None]:
        """Power limit (W) and the temperature (°C) at which the driver slows down; they do not change as it runs."""
        ask, pynvml = nvml.ask, self._pynvml
        limit = ask(pynvml, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle.gpu)
        slowdown = ask(pynvml, pynvml.nvmlDeviceGetTemperatureThreshold, handle.gpu, _SLOWDOWN)
        return None if limit is None else limit / 1000, slowdown

    def read(self) -> tuple[GpuState, ...]:
        """Every GPU now.

        Raises:
            Unanswered: the driver went away, or every GPU did.
        """
        states: list[GpuState] = []
        reason: Note | None = None
        for at in range(len(self._handles)):
            try:
                states.append(self._state(at))
            except self._pynvml.NVMLError as error:
                reason = nvml.note_of(error)
        if reason is not None and not states:
            raise Unanswered(reason)
        return tuple(states)

    def close(self) -> None:
        nvml.ask(self._pynvml, self._pynvml.nvmlShutdown)

    def _state(self, at: int) -> GpuState:
        handle, (power_limit, slowdown) = self._handles[at], self._limits[at]
        gpu, pynvml, ask = handle.reported.gpu, self._pynvml, nvml.ask
        used, total = self._memory(handle.device)
        share = ask(pynvml, pynvml.nvmlDeviceGetUtilizationRates, handle.device)
        power = ask(pynvml, pynvml.nvmlDeviceGetPowerUsage, handle.gpu)
        instance = handle.reported.instance
        return GpuState(
            key=f"{gpu.number}.{instance if instance is not None else at}" if gpu.mig else str(gpu.number),
            name=gpu.name,
            uuid=gpu.uuid or "",
            used_bytes=used,
            total_bytes=total,
            utilisation=None if share is None else share.gpu / 100,
            power_watts=None if power is None else power / 1000,
            power_limit_watts=power_limit,
            temperature_celsius=ask(pynvml, pynvml.nvmlDeviceGetTemperature, handle.gpu, _CORE),
            slowdown_celsius=slowdown,
            throttle=throttle_reasons(self._reasons(handle.gpu) or 0),
            processes=tuple(GpuProcess(*found) for found in nvml.processes_on(pynvml, handle.device)),
        )

    def _memory(self, device: Any) -> tuple[int, int]:
        """Used and total bytes; what the driver keeps for itself is not in use, as nvidia-smi counts.

        Raises:
            NVMLError: the driver or the GPU went away.
        """
        pynvml = self._pynvml
        version = getattr(pynvml, "nvmlMemory_v2", None)
        mismatch = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
        try:
            if version is not None:
                info = pynvml.nvmlDeviceGetMemoryInfo(device, version)
                return info.used, info.total
        except (pynvml.NVMLError, mismatch) as error:
            if getattr(error, "value", 0) in _GONE:
                raise
        info = pynvml.nvmlDeviceGetMemoryInfo(device)
        return info.used, info.total

    def _reasons(self, gpu: Any) -> int | None:
        """Named anew in R535; older wrappers and drivers know the first name only."""
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            call = getattr(self._pynvml, name, None)
            found: int | None = nvml.ask(self._pynvml, call, gpu) if call else None
            if found is not None:
                return found
        return None


class SmiSession:
    """nvidia-smi's file, and which of its GPUs are watched."""

    def __init__(self, program: str, devices: tuple[Reported, ...], notes: tuple[Note, ...]) -> None:
        self._program, self.notes = program, notes
        self._names = {str(device.gpu.number): device.gpu.name for device in devices}
        self._order = list(self._names)

    def read(self) -> tuple[GpuState, ...]:
        """Every GPU now; the memory of single processes is not asked.

        Raises:
            Unanswered: it failed or hung.
        """
        code, output = nvidia_smi.query(self._program, _FIELDS)
        if code != 0:
            raise Unanswered(nvml.NOTES.get(code, "nvidia_smi_failed"))
        found = {row.state.key: row.state for row in read_gpu_csv(output, _FIELDS)}
        if not found:
            raise Unanswered("nvidia_smi_failed")
        return tuple(found[key]._replace(name=self._names[key]) for key in self._order if key in found)

    def close(self) -> None:
        """Nothing is held."""


def smi_session(root: str, environ: Mapping[str, str]) -> SmiSession | None:
    """A session where nvidia-smi is found; None where it is not.

    Raises:
        Unanswered: it failed, hung, or shows no GPU.
    """
    program = nvidia_smi.find(root, environ.get("PATH", ""))
    if program is None:
        return None
    reading = nvidia_smi.read(program)
    seen, notes = _visible(reading.devices, environ)
    changes = sources.changes_of([reported.gpu for reported in seen], root, watched=True)
    return SmiSession(program, seen, (*reading.notes, *notes, *changes))


def _visible(devices: Sequence[Reported], environ: Mapping[str, str]) -> tuple[tuple[Reported, ...], tuple[Note, ...]]:
    """The devices that are watched, and what to say of them.

    Raises:
        Unanswered: ``CUDA_VISIBLE_DEVICES`` leaves none.
    """
    seen, notes = sources.visible(devices, environ)
    if not seen:
        raise Unanswered("visible_devices_invalid" if "visible_devices_invalid" in notes else "gpus_hidden")
    return seen, notes
