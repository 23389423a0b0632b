"""kb as its users get it: built, and called with nothing of this environment's Python in it."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def missing(what: str) -> None:
    """Skip where something is missing; where CI is set, that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def call(
    command: Sequence[str | Path],
    folder: Path,
    *,
    codes: Sequence[int] = (0,),
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command with nothing of this environment's Python in it; its standard output."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "COLUMNS")}
    run = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**kept, **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode in codes, f"{command}: exit {run.returncode}\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
    return run.stdout


def build(source: Path, target: Path, kind: str) -> Path:
    call([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", target], source)
    (built,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built
