"""kb's commands as their users run them: a process for each, with this checkout's kb."""

import subprocess
from pathlib import Path

from warm_runs import ENVIRON as ENVIRON
from warm_runs import run_module

ROOT = Path(__file__).parent.parent


def run_kb(*arguments: object, module: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """``python -m MODULE ARGUMENTS``, which ends as it will, but never with a traceback."""
    run = run_module(module, arguments, stdin=None if stdin is None else stdin.encode())
    done = subprocess.CompletedProcess(run.args, run.returncode, run.stdout.decode(), run.stderr.decode())
    assert "Traceback" not in done.stderr
    return done
