"""Runs one command and leaves nothing of it behind, whatever happens to the process that asked for it.

    python keeper.py COMMAND …          started by kb.measurement.running, with a pipe as standard input

The pipe is the leash: it closes when the asking process ends in any way, SIGKILL too, and then every process that the
command started is killed. Standard library only; it is run as a file, so that it starts in a few milliseconds.
"""

import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CANNOT_START = 127  # as a shell says it
POLL_SECONDS = 0.02
GRACE_SECONDS = 5.0


def main(command):  # type: ignore[no-untyped-def]
    """The command's exit code, or 128 plus the signal that ended it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # who asked decides when it ends
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # what its command leaves behind comes here
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_before)
    except OSError as error:
        print(f"kb-cannot-start: {error.strerror or error}", file=sys.stderr, flush=True)
        return CANNOT_START
    try:
        while child.poll() is None:
            ready, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
            if ready and not os.read(0, 1):
                break
    finally:
        _end(child)
    code = child.returncode
    return 128 - code if code < 0 else code


def _before():  # type: ignore[no-untyped-def]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option, value):  # type: ignore[no-untyped-def]
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end(child):  # type: ignore[no-untyped-def]
    """Kill the command's process group, and those of its descendants that left the group."""
    stop = time.monotonic() + GRACE_SECONDS
    while True:
        _kill(lambda: os.killpg(child.pid, signal.SIGKILL))
        strays = _descendants(os.getpid())
        for stray in strays:
            _kill(lambda stray=stray: os.kill(stray, signal.SIGKILL))
        child.poll()
        _reap()
        if (child.returncode is not None and not _descendants(os.getpid())) or time.monotonic() > stop:
            return
        time.sleep(POLL_SECONDS)


def _kill(call):  # type: ignore[no-untyped-def]
    try:
        call()
    except (ProcessLookupError, PermissionError):
        pass


def _reap():  # type: ignore[no-untyped-def]
    """Collect adopted processes that ended."""
    for pid in _descendants(os.getpid()):
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def _descendants(root):  # type: ignore[no-untyped-def]
    """Every living process below ``root``, from /proc; none where there is no /proc."""
    parents = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stream:
                    fields = stream.read().rpartition(b")")[2].split()
            except OSError:
                continue
            parents[int(name)] = (int(fields[1]), fields[0])
    below, found = {root}, []
    grown = True
    while grown:
        grown = False
        for pid, (parent, state) in parents.items():
            if parent in below and pid not in below:
                below.add(pid)
                grown = True
                if state != b"Z" or parent == root:
                    found.append(pid)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
