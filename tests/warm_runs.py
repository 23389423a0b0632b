"""``python -m MODULE`` without Python's start and kb's imports: forked from one process that has done both.

A command takes 0.1 s of processor time so instead of 0.3. What Python itself reads while it starts (``PYTHON…``, the
locale) cannot be given to a process that has started: with another value of it, a command starts as its users start it.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from checkout_kept import KEPT
from kb.memory import answers

PARENT = Path(__file__).with_name("warm_process.py")
ENVIRON = {
    **os.environ,
    "PYTHONPATH": str(PARENT.parents[1] / "src"),
    "XDG_CACHE_HOME": str(KEPT),
    "LC_ALL": "C.UTF-8",
    "CUDA_VISIBLE_DEVICES": "",
}
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "TZ")


class WarmParent:
    """A process that has imported kb, and this process's end of its socket."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(PARENT), str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                env=ENVIRON, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        self._answers = self._socket.makefile("rb")

    def run(self, request: dict[str, object], files: Sequence[int], timeout: float) -> int:
        """The exit code of a child of it; one that takes longer is killed, with those of its session."""
        self._socket.settimeout(None)  # the first request waits for the imports
        socket.send_fds(self._socket, [json.dumps(request).encode()], list(files))
        child = self._answer()
        self._socket.settimeout(timeout)
        try:
            return self._answer()
        except TimeoutError:
            os.killpg(child, signal.SIGKILL)
            self.end()
            raise

    def _answer(self) -> int:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the parent of warm processes ended: exit {self.process.wait()}")
        return int(line)

    def end(self) -> None:
        """It ends where nobody can ask it any more; waited for, so that its processor time is this process's."""
        self._answers.close()
        self._socket.close()
        self.process.wait()


def at_start(environ: Mapping[str, str]) -> dict[str, str]:
    """What Python, or the C library, reads of the environment before any code of a command's runs."""
    return {name: value for name, value in environ.items() if name.startswith(READ_AT_START)}


_parents: list[WarmParent] = []


def _parent() -> WarmParent:
    """The one of this process, started by the first to ask and again where it has ended."""
    if _parents and _parents[0].process.poll() is not None:
        _parents.clear()
    if not _parents:
        _parents.append(WarmParent())
        atexit.register(_parents[0].end)
    return _parents[0]


def run_module(
    module: str,
    arguments: Sequence[object],
    *,
    environ: Mapping[str, str] = ENVIRON,
    cwd: Path | None = None,
    stdin: bytes | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[bytes]:
    """What ``python -m MODULE ARGUMENTS`` does, as :func:`subprocess.run` tells it."""
    words = [str(word) for word in arguments]
    command = [sys.executable, "-m", module, *words]
    if not hasattr(os, "fork") or at_start(environ) != at_start(ENVIRON):
        return subprocess.run(
            command, input=stdin or b"", capture_output=True, cwd=cwd, env=environ, timeout=timeout, check=False
        )
    # where this process takes what the engine found for other tests, the command does too, if it is told of the same
    among_tests, found = environ.get("XDG_CACHE_HOME") == str(KEPT), answers._Kept.store is not None
    request = {
        "module": module, "arguments": words, "cwd": os.path.abspath(cwd or os.curdir), "environ": dict(environ),
        "among_tests": among_tests, "found": found,
    }  # fmt: skip
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin or b"")
        given.seek(0)
        code = _parent().run(request, [each.fileno() for each in (given, out, err)], timeout)
        for each in (out, err):
            each.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def run_text(
    module: str,
    *arguments: object,
    environ: Mapping[str, str] = ENVIRON,
    cwd: Path | None = None,
    stdin: str = "",
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """:func:`run_module` with text in and out."""
    run = run_module(module, arguments, environ=environ, cwd=cwd, stdin=stdin.encode(), timeout=timeout)
    return subprocess.CompletedProcess(run.args, run.returncode, run.stdout.decode(), run.stderr.decode())
