"""kb's commands as their users run them: in a process of their own, with this checkout's kb."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "LC_ALL": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ""}


def run_kb(*arguments: object, module: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """``python -m MODULE ARGUMENTS``, which ends as it will, but never with a traceback."""
    run = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        env=ENVIRON,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in run.stderr
    return run
