"""kb's commands as their users run them: a process for each, with this checkout's kb."""

import json
import subprocess
from pathlib import Path
from typing import Any

from warm_runs import ENVIRON as ENVIRON
from warm_runs import run_module

ROOT = Path(__file__).parent.parent


def run_kb(*arguments: object, module: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """``python -m MODULE ARGUMENTS``, which ends as it will, but never with a traceback."""
    run = run_module(module, arguments, stdin=None if stdin is None else stdin.encode())
    done = subprocess.CompletedProcess(run.args, run.returncode, run.stdout.decode(), run.stderr.decode())
    assert "Traceback" not in done.stderr
    return done


def checked_file(path: Path, *options: str) -> dict[str, Any]:
    """What the JSON of ``kb check`` says of a file with one run."""
    done = run_kb(path, *options, "--format", "json", "--no-cache", module="kb.check")
    (found,) = json.loads(done.stdout)["files"]
    return dict(found)
