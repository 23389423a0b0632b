"""What is made once for all tests: the wheel, and an environment that holds it."""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from packages import ROOT, build, call, missing

# What a test needs beside kb itself, by what its module says; `make quick` runs the tests that need nothing of it.
_STARTS_PROCESSES = re.compile(r"\bsubprocess\b|^from (?:packages|probe_sample) import|\bkb_json\(", re.MULTILINE)
_NEEDS_TORCH = re.compile(r"^(?:from|import) (?:torch|transformers|simulation_needs|trainer_runs)\b", re.MULTILINE)
_BUILT = {"wheel", "installed", "sdist_source"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test: ``site``, ``torch``, ``wheel``, ``process``."""
    texts: dict[Path, str] = {}
    for item in items:
        if item.path not in texts:
            texts[item.path] = item.path.read_text("utf-8")
        text, folder = texts[item.path], item.path.parent.name
        if folder == "site":
            item.add_marker("site")
        if folder == "simulation" or _NEEDS_TORCH.search(text):
            item.add_marker("torch")
        if _BUILT & set(getattr(item, "fixturenames", ())):
            item.add_marker("wheel")
        if _STARTS_PROCESSES.search(text):
            item.add_marker("process")


@pytest.fixture(scope="session")
def sdist_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, built and unpacked."""
    try:
        import hatchling  # noqa: F401
    except ImportError:
        missing("hatchling is not installed: make test installs it")
    folder = tmp_path_factory.mktemp("built")
    archive = build(ROOT, folder / "sdist", "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return source


@pytest.fixture(scope="session")
def wheel(sdist_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the sdist, the long way that a package index's users take."""
    return build(sdist_source, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of a fresh environment that holds the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("environment")
    call([sys.executable, "-m", "venv", folder / "venv"], folder)
    bin_folder = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    install = [bin_folder / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run = subprocess.run(
        [*map(str, install), "--constraint", str(ROOT / "constraints.txt"), str(wheel)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if run.returncode:
        missing(f"no package registry answers: {run.stderr.strip()[-500:]}")
    return bin_folder
