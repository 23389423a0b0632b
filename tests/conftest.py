"""What a test needs, and what is made once for all tests: the wheel, and an environment that holds it."""

import gc
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.python import importtestmodule
from filelock import FileLock
from hypothesis import HealthCheck, settings

from checkout_kept import FOUND, KEPT
from kb.knowledge import load_catalog
from kb.knowledge.locations import shipped
from kb.knowledge.readings import lend
from kb.memory import answers
from packages import CONSTRAINED, ROOT, build, call, made_once, missing

# The tests start Python hundreds of times: without what was compiled before, each start takes three times as long.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# What is asked for by its path is imported, with its conftest.py, before pytest_configure.
if "--exhaustive" in sys.argv:
    os.environ["KB_EXHAUSTIVE"] = "1"
# Nothing here compiles by torch.compile; without this, importing bitsandbytes (which PEFT does) loads its compilers.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
# The models that really run here are tiny: torch's second thread only waits, in a loop that takes a processor.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where it is installed, jsonschema builds grammars of addresses at import, for seconds; no schema here needs them.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

# No test asserts a time, and a machine may be busy: Hypothesis would take slow examples for a fault.
settings.register_profile("kb", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kb")

# Where nothing counts that the memory engine found for another test: rooms and modules.
TESTS_OF_THE_ENGINE = {"memory", "simulation", "test_memory.py", "test_allocator.py"}

# What a test needs beside kb itself, by what its module says; `make quick` runs the tests that need nothing of it.
_HELPERS = "packages|probe_sample|command_runs|estimate_sample|warm_runs"
_STARTS_PROCESSES = re.compile(rf"\bsubprocess\b|^from (?:{_HELPERS}) import|\bkb_json\(", re.MULTILINE)
_NEEDS_TORCH = re.compile(r"^(?:from|import) (?:torch|transformers|simulation_needs|trainer_runs)\b", re.MULTILINE)
# What a module says of itself that asks about every family or reads all rules anew, for a second and more each time.
_LONG = re.compile(r"^pytestmark = pytest\.mark\.long$", re.MULTILINE)
# In the order in which they are run: what takes long first, so that no worker of pytest is left with it at the end.
MARKERS = ("site", "torch", "wheel", "process", "long")
_BUILT = {"wheel", "installed", "sdist_source"}
# Python in a page: a Chromium that has started it once does so in half the time.
_PYTHON_IN_PAGES = {"test_chooser_in_browser.py", "test_forms_in_browser.py", "test_playground_in_browser.py"}


@cache
def needs(module: Path) -> frozenset[str]:
    """The markers of every test of a module: ``site``, ``torch``, ``process``, ``long``."""
    text, folder = module.read_text("utf-8"), module.parent.name
    said = {
        "site": folder == "site",
        "torch": folder == "simulation" or bool(_NEEDS_TORCH.search(text)),
        "process": bool(_STARTS_PROCESSES.search(text)),
        "long": bool(_LONG.search(text)),
    }
    return frozenset(name for name, holds in said.items() if holds)


@pytest.fixture(autouse=True)
def kept_answers(request: pytest.FixtureRequest) -> None:
    """What the memory engine found for another test counts, but where the engine is what is tested."""
    rooms = request.path.relative_to(ROOT / "tests").parts
    answers._Kept.store = None if TESTS_OF_THE_ENGINE & set(rooms) else FOUND


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="only tests that need no torch, site, wheel or process, and are not long"
    )
    parser.addoption("--exhaustive", action="store_true", help="also what is marked so, and more examples of the rest")


def pytest_configure(config: pytest.Config) -> None:
    """Modules ask for it where they are imported (``effort``), by every worker of pytest."""
    gc.disable()  # until all is collected, of which nothing is garbage
    if config.getoption("--exhaustive"):
        os.environ["KB_EXHAUSTIVE"] = "1"
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        load_catalog()  # what the rules are compiled to, before each worker would make it for itself


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each worker of pytest begins with a share of the modules, and finds what pytest makes of the others' share.

    Of a fresh clone, all would rewrite the asserts of the same module at the same time, one module after the other.
    """
    config = session.config
    if not hasattr(config, "workerinput"):
        return
    given = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    modules = [path for folder in given for path in sorted(folder.rglob("test_*.py"))]
    number, workers = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")), config.workerinput["workercount"]
    for path in modules[number::workers]:
        if not pytest_ignore_collect(path, config):
            with suppress(Exception, pytest.skip.Exception):  # said where it is collected
                importtestmodule(path, config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--quick`` a module that needs more is not even imported: torch alone takes seconds."""
    quick = config.getoption("--quick") and collection_path.suffix == ".py"
    return True if quick and needs(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark and sort the tests, then let others choose among them: one worker of pytest after the other.

    Hypothesis reads the constants of every module of this checkout here, and keeps what it found for the next to ask.
    """
    _mark_and_sort(config, items)
    KEPT.mkdir(parents=True, exist_ok=True)
    with FileLock(KEPT / "collected.lock"):
        yield


def _mark_and_sort(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test: ``site``, ``torch``, ``wheel``, ``process``, ``long``; a test may say so itself."""
    first: dict[Path, int] = {}
    left = {*MARKERS} if config.getoption("--quick") else set()
    left |= set() if config.getoption("--exhaustive") else {"exhaustive"}
    kept, more = [], []
    for item in items:
        for name in needs(item.path):
            item.add_marker(name)
        if _BUILT & set(getattr(item, "fixturenames", ())):
            item.add_marker("wheel")
        names = {mark.name for mark in item.iter_markers()}
        dear = next((number for number, name in enumerate(MARKERS) if name in names), len(MARKERS))
        first[item.path] = min(dear, first.get(item.path, dear))
        (more if names & left else kept).append(item)
    # One worker of pytest builds the site, for minutes; meanwhile the others have more to do than to wait for it.
    site = [path for path, dear in first.items() if MARKERS[dear : dear + 1] == ("site",)]
    built = MARKERS.index("process") + 0.5
    order = {path: built if path in site[1:] else dear for path, dear in first.items()}
    config.hook.pytest_deselected(items=more)
    items[:] = sorted(kept, key=lambda item: order[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests stay on one worker, and of all files that need torch: no other worker imports it; and of those
    that have Python in pages."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByNeed(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path: str = super()._split_scope(nodeid)
            if "torch" in needs(config.rootpath / path):
                return "torch"
            return "python in pages" if Path(path).name in _PYTHON_IN_PAGES else path

    return ByNeed(config, log)


def pytest_collection_finish() -> None:
    """What was collected stays: looking through it for what nobody holds any more took a third of many tests' time.

    What the tests make is looked through seldom: syntax trees and the tapes of runs live long, and are thousands.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


@pytest.fixture(scope="session")
def sdist_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, built and unpacked."""
    try:
        import hatchling  # noqa: F401
    except ImportError:
        missing("hatchling is not installed: make test installs it")

    def make(folder: Path) -> None:
        archive = build(ROOT, folder / "sdist", "sdist")
        with tarfile.open(archive) as tar:
            tar.extractall(folder / "source", filter="data")

    (source,) = (made_once(tmp_path_factory, "built", make) / "source").iterdir()
    return source


@pytest.fixture(scope="session")
def wheel(sdist_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the sdist, the long way that a package index's users take; but what this checkout's rules were
    found to hold is not found out again. With ``--exhaustive`` one is built from nothing, and has the same bytes."""
    rules = sdist_source / "rules"

    def make(folder: Path) -> None:
        lend(shipped(), shipped()._replace(rules=str(rules)))
        build(sdist_source, folder, "wheel")
        shutil.rmtree(rules / ".bundle", ignore_errors=True)

    (built,) = made_once(tmp_path_factory, "wheel", make).glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of a fresh environment that holds the wheel and what it needs."""
    bin_name = "Scripts" if os.name == "nt" else "bin"

    def make(folder: Path) -> None:
        call([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], folder)
        pip = [sys.executable, "-m", "pip", "--python", folder / "venv" / bin_name / "python"]
        run = subprocess.run(
            [*pip, "install", "--quiet", "--disable-pip-version-check", wheel],
            cwd=folder, env={**os.environ, **CONSTRAINED}, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        if run.returncode:
            missing(f"no package registry answers: {run.stderr.strip()[-500:]}")

    return made_once(tmp_path_factory, "environment", make) / "venv" / bin_name
