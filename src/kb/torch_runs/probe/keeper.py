"""Runs one command and leaves nothing of it behind, whatever happens to the process that asked for it.

    python keeper.py FOLDER COMMAND …          started by kb.torch_runs.probe.running, with a pipe as standard input

The pipe is the leash. A byte on it ends the command; where it closes the asking process is gone, SIGKILL too, and the
folder goes as well. Either way every process that the command started is killed. Standard library only; it is run as a
file, so that it starts in a few milliseconds.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CANNOT_START = 127  # as a shell says it
PEAK_FILE = "peak"  # in the folder: the resident memory in bytes that the largest process ever held
COULD_NOT_START = "kb: cannot start: "  # before the reason, on standard error
POLL_SECONDS = 0.02
GRACE_SECONDS = 5.0
HEEDED_ELSEWHERE = tuple(  # by name: Windows, which has not all, loads this module for what it is called
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


def main(folder: str, command: Sequence[str]) -> int:
    """The command's exit code, or 128 plus the signal that ended it."""
    for number in HEEDED_ELSEWHERE:  # who asked decides when it ends
        signal.signal(number, signal.SIG_IGN)
    _control(PR_SET_CHILD_SUBREAPER, 1)  # what its command leaves behind comes here
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_ready)
    except OSError as error:
        print(f"{COULD_NOT_START}{error.strerror or error}", file=sys.stderr, flush=True)
        return CANNOT_START
    abandoned = False
    try:
        while child.poll() is None:
            ready, _, _ = select.select([0], [], [], POLL_SECONDS)
            if ready:
                abandoned = not os.read(0, 1)
                break
    finally:
        _end(child)
    if abandoned:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    else:
        # what the kernel itself remembers: a command may end before anybody has looked at it
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        with contextlib.suppress(OSError), open(os.path.join(folder, PEAK_FILE), "w", encoding="ascii") as stream:
            stream.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit))
    code = child.returncode or 0
    return 128 - code if code < 0 else code


def _ready() -> None:
    """In the command's own process, just before it becomes the command."""
    for number in HEEDED_ELSEWHERE:
        signal.signal(number, signal.SIG_DFL)
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Kill the command's process group, and those of its descendants that left the group, until none is left."""
    stop = time.monotonic() + GRACE_SECONDS
    while True:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        for stray in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(stray, signal.SIGKILL)
        child.poll()
        for adopted in _descendants(os.getpid()):
            if adopted != child.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(adopted, os.WNOHANG)
        if (child.returncode is not None and not _descendants(os.getpid())) or time.monotonic() > stop:
            return
        time.sleep(POLL_SECONDS)


def _descendants(root: int) -> list[int]:
    """Every process below ``root``, from /proc; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stream:
                parent = int(stream.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
