"""kb as its users get it: built, and called with nothing of this environment's Python in it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
# Of a folder that all workers build from: another of them may be writing these while it is copied.
BEING_WRITTEN = shutil.ignore_patterns("__pycache__", ".bundle")

# pip as the tests call it: the versions that are tested, and modules compiled where they are imported, which few are.
# (To pip's environment, "no" to "no compile" is what turns compiling off.)
CONSTRAINED = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_NO_COMPILE": "no"}


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


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder of this run of the tests, filled by whichever of pytest's workers comes first, for all of them."""
    base = factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / f"shared-{name}"
    with FileLock(f"{folder}.lock"):
        done = folder / ".done"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed on the way
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def build(source: Path, target: Path, kind: str) -> Path:
    call([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", target], source)
    (built,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built
