"""Runs ``machine_probe.py`` under a made-up system: a stand-in NVML, a PATH, an environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "src"
NO_TORCH = "raise ImportError('no torch in this test')\n"


def compiled(folder: Path, *options: str) -> Path:
    """``libnvidia-ml.so.1`` in ``folder``; skips where there is no C compiler, and fails there under CI."""
    import shutil

    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        missing = "Linux" if compiler else "a C compiler (gcc)"
        if os.environ.get("CI"):
            pytest.fail(f"{missing} is missing, which the NVML tests need")
        pytest.skip(f"{missing} is missing, which the NVML tests need")
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", *options]
    subprocess.run([compiler, *flags, "-o", library, HERE / "nvml.c"], check=True)
    return library


def detected(folder: Path, environment: dict[str, str], torch: str = NO_TORCH, **arguments: object) -> dict:
    """The machine as detected there. ``torch`` is the text of a module that stands for it."""
    modules = folder / "modules"
    modules.mkdir(exist_ok=True)
    (modules / "torch.py").write_text(torch)
    # A text file in the library's place ends the loader's search before it comes to this machine's own driver.
    blocked = folder / "no-driver"
    blocked.mkdir(exist_ok=True)
    (blocked / "libnvidia-ml.so.1").write_text("not a library")
    path = os.pathsep.join(map(str, (modules, SOURCES, HERE.parent)))
    done = subprocess.run(
        [sys.executable, HERE / "machine_probe.py", json.dumps(arguments)],
        env={"PATH": "", "PYTHONPATH": path, "LD_LIBRARY_PATH": str(blocked), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def script(folder: Path, text: str) -> Path:
    """An executable ``nvidia-smi`` in ``folder``."""
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + text)
    program.chmod(0o755)
    return program
