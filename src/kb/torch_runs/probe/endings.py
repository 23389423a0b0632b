"""How a trial's process ended, told from its exit and its last words: out of memory, or a crash.

Time limits and memory limits are the watch's own business (kb.torch_runs.probe.running); this is about the rest.
"""

import os
import re
import signal
from typing import Literal, NamedTuple

from kb.torch_runs.probe.keeper import CANNOT_START, COULD_NOT_START

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
