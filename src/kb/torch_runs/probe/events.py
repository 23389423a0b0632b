"""What a trial's process tells while it runs, and how it ended, told from its exit and its last words.

Each thing told is a line of JSON, so that a killed process has told its part. Time limits and memory limits are the
watch's own business (kb.torch_runs.probe.running).
"""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Mapping
from typing import Any, Literal

from kb.core.record import NamedTuple
from kb.torch_runs.probe.keeper import CANNOT_START, COULD_NOT_START


class Teller:
    """The trial's side: appends to a file, each line at once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.phase: str | None = None

    def begin(self, phase: str) -> None:
        """A phase begins."""
        self.phase = phase
        self.tell("begin", phase=phase)

    def sizes(self, phase: str, sizes: Mapping[str, int]) -> None:
        """A phase's peaks, in bytes."""
        self.tell("sizes", phase=phase, sizes=dict(sizes))

    def fact(self, **values: Any) -> None:
        """Fields of the outcome."""
        self.tell("fact", **values)

    def fault(self, status: str, reason: str, resource: str | None = None) -> None:
        """Why there is nothing more to tell."""
        self.tell("fault", status=status, reason=reason, resource=resource, phase=self.phase)

    def done(self) -> None:
        self.tell("done")

    def tell(self, event: str, **values: Any) -> None:
        line = json.dumps({"event": event, "time": time.monotonic(), **values}, ensure_ascii=False)
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(line + "\n")


class Told:
    """The asking side: what was told until now."""

    def __init__(self) -> None:
        self.phases: dict[str, dict[str, int]] = {}
        self.spans: dict[str, tuple[float, float | None]] = {}
        self.facts: dict[str, Any] = {}
        self.fault: Mapping[str, Any] | None = None
        self.finished = False
        self.phase: str | None = None

    def span(self, phase: str, now: float) -> tuple[float, float] | None:
        """When a phase began and ended, by the monotonic clock."""
        if phase not in self.spans:
            return None
        begun, ended = self.spans[phase]
        return begun, now if ended is None else ended


def read_events(path: str) -> Told:
    """What a trial's process told; nothing where it never came so far."""
    told = Told()
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return told
    for line in lines:
        with contextlib.suppress(ValueError, KeyError):
            _hear(told, json.loads(line))
    return told


def _hear(told: Told, event: dict[str, Any]) -> None:
    kind = event.pop("event")
    at = event.pop("time")
    if kind in ("begin", "fault", "done") and told.phase in told.spans:
        begun, ended = told.spans[told.phase]
        told.spans[told.phase] = (begun, at if ended is None else ended)
    if kind == "begin":
        told.phase = event["phase"]
        told.spans[event["phase"]] = (at, None)
    elif kind == "sizes":
        told.phases[event["phase"]] = event["sizes"]
    elif kind == "fact":
        told.facts.update(event)
    elif kind == "fault":
        told.fault = event
    elif kind == "done":
        told.finished = True


TAIL_BYTES = 64 << 10
REASON_CHARACTERS = 300
# What libraries print when memory runs out; the GPU's first, for a failed pinned allocation names both.
GPU_WORDS = re.compile(
    r"CUDA out of memory|OutOfMemoryError|HIP out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_NOT_INITIALIZED.*memory"
    r"|cuDNN error: CUDNN_STATUS_NOT_SUPPORTED|NCCL.*out of memory|RESOURCE_EXHAUSTED"
)
HOST_WORDS = re.compile(
    r"DefaultCPUAllocator: can't allocate memory|DefaultCPUAllocator: not enough memory|^MemoryError\b"
    r"|Cannot allocate memory|std::bad_alloc|killed by signal: Killed|Unable to allocate .* for an array"
    r"|Unable to mmap|No space left on device.*shm|Bus error.*shared memory",
    re.MULTILINE,
)
_RATE = re.compile(r"train_samples_per_second['\"]?\s*[:=]\s*['\"]?(\d+(?:\.\d+)?)")
_TOLD = re.compile(r"^(?:\[rank\d+\]:\s*)?[\w.]*(?:Error|Exception|Interrupt|Exit)\b.*", re.MULTILINE)


class Ending(NamedTuple):
    """Why a process ended without a result."""

    status: Literal["oom", "crash"]
    resource: Literal["gpu", "host"] | None
    reason: str
    signal: str | None = None


def ending_of(code: int, output: str, host_kills: int = 0) -> Ending:
    """Read from an exit code that is not 0.

    Args:
        code: the keeper's: over 128 it names a signal.
        output: the end of what was printed.
        host_kills: how many processes the kernel killed for memory in this control group meanwhile.
    """
    name = _signal_name(code)
    if match := _last(GPU_WORDS, output):
        return Ending("oom", "gpu", _line_of(output, match.start()), name)
    if match := _last(HOST_WORDS, output):
        return Ending("oom", "host", _line_of(output, match.start()), name)
    if host_kills and name == "SIGKILL":
        return Ending("oom", "host", name, name)
    return Ending("crash", None, _last_words(output) or name or f"exit {code}", name)


def could_not_start(code: int, output: str) -> str | None:
    """Why the command was never started; None where it was."""
    last = output.strip().rpartition("\n")[2]
    return last.removeprefix(COULD_NOT_START) if code == CANNOT_START and last.startswith(COULD_NOT_START) else None


def rate_of(output: str) -> float | None:
    """Samples a second as the Trainer prints it at the end of training; None where it does not."""
    match = _last(_RATE, output)
    return float(match[1]) if match else None


def tail_of(path: str) -> str:
    """The end of a file of output; what a progress bar overwrote is gone, as on a terminal."""
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(stream.tell() - TAIL_BYTES, 0))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").split("\n"))


def out_of_memory_kills() -> int:
    """How often the kernel has killed for memory in this process's control group; 0 where that is not told."""
    try:
        with open("/proc/self/cgroup", encoding="ascii", errors="replace") as stream:
            group = next((line.strip()[3:] for line in stream if line.startswith("0::")), "/")
        for folder in (f"/sys/fs/cgroup{group}", "/sys/fs/cgroup"):
            path = os.path.join(folder, "memory.events")
            if os.path.exists(path):
                with open(path, encoding="ascii") as stream:
                    return sum(int(line.split()[1]) for line in stream if line.startswith("oom_kill "))
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _signal_name(code: int) -> str | None:
    if code <= 128:
        return None
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return None


def _last(words: re.Pattern[str], output: str) -> re.Match[str] | None:
    """The last place that says so: a traceback's own line comes after the source lines that it quotes."""
    return max(words.finditer(output), key=lambda match: match.start(), default=None)


def _line_of(output: str, at: int) -> str:
    start = output.rfind("\n", 0, at) + 1
    end = output.find("\n", at)
    return output[start : end if end >= 0 else None].strip()[:REASON_CHARACTERS]


def _last_words(output: str) -> str:
    """The last line that names an error, else the last line."""
    errors = _TOLD.findall(output)
    lines = [line for line in output.splitlines() if line.strip()]
    return (errors[-1] if errors else lines[-1] if lines else "").strip()[:REASON_CHARACTERS]
