"""What Windows or macOS lack is asked for only where the code has seen that it is there; and CI runs on all three."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from packages import call

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "kb"
TYPESHED = Path(str(find_spec("mypy").origin)).parent / "typeshed" / "stdlib"  # type: ignore[union-attr]
# Which of Python's modules lack names somewhere, and what makes a call of subprocess fail there.
PARTLY = {"os": "os/__init__.pyi", "signal": "signal.pyi", "select": "select.pyi", "time": "time.pyi"}
REFUSED_KEYWORDS = {"preexec_fn", "pass_fds"}
# `kb probe` says on Windows that it does not run there; its modules may use what they like inside their functions.
PROBE = {"kb.commands.probe.serve", "kb.torch_runs.probe.keeper", "kb.torch_runs.probe.fake_worker"}
# Reached only where the kernel's own table of mounts has been read, which is Linux alone.
MOUNTED = {("kb.machine.host", "os.statvfs"), ("kb.machine.host", "os.statvfs")}


SYSTEMS = ("linux", "darwin", "win32")


def names_on(system: str, body: Iterable[ast.stmt]) -> Iterator[str]:
    """What a stub defines on a system, for the oldest Python that kb runs on."""
    known = {"sys": SimpleNamespace(platform=system, version_info=(3, 11, 0))}
    for node in body:
        if isinstance(node, ast.If):
            test = eval(compile(ast.Expression(node.test), "", "eval"), {**known, "TYPE_CHECKING": True})
            yield from names_on(system, node.body if test else node.orelse)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.AnnAssign, ast.Assign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (ast.unparse(target) for target in targets)


def defined(stub: Path) -> list[set[str]]:
    """The public names of a stub on each of the systems."""
    body = ast.parse(stub.read_text("utf-8")).body
    return [{name for name in names_on(system, body) if not name.startswith("_")} for system in SYSTEMS]


@cache
def lacking_names() -> set[str]:
    found = set()
    for module, stub in PARTLY.items():
        linux, darwin, windows = defined(TYPESHED / stub)
        found |= {f"{module}.{name}" for name in linux - (darwin & windows)}
    return found


@cache
def lacking_modules() -> set[str]:
    """Modules that have nothing in them on one of the systems."""
    found = {stub.stem: defined(stub) for stub in TYPESHED.glob("*.pyi")}
    return {name for name, on in found.items() if any(on) and not all(on)}


def asks(node: ast.AST, name: str) -> bool:
    """Whether code looks for the platform, or for the name itself."""
    text, (module, _, attribute) = ast.unparse(node), name.partition(".")
    if attribute.endswith("xattr"):  # three that are there together
        attribute = "listxattr"
    return any(each in text for each in ("sys.platform", "os.name", f"hasattr({module}, {attribute!r})"))


def uses(tree: ast.AST, above: tuple[ast.AST, ...] = ()) -> Iterator[tuple[str, int, tuple[ast.AST, ...]]]:
    """What a system may lack, its line, and the nodes around it."""
    for node in ast.iter_child_nodes(tree):
        around = (*above, tree)
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, around) for alias in node.names if alias.name in lacking_modules())
        elif isinstance(node, ast.ImportFrom):
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            whole = node.module in lacking_modules()
            yield from ((name, node.lineno, around) for name in full if whole or name in lacking_names())
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (name := f"{node.value.id}.{node.attr}") in lacking_names():
                yield name, node.lineno, around
        elif isinstance(node, ast.keyword) and node.arg in REFUSED_KEYWORDS:
            yield node.arg, node.lineno, around
        yield from uses(node, around)


def guarded(name: str, above: tuple[ast.AST, ...]) -> bool:
    functions = [node for node in above if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if any(asks(function, name) for function in functions[-1:]):
        return True
    caught = [ast.unparse(handler) for node in above if isinstance(node, ast.Try) for handler in node.handlers]
    return any("ImportError" in text or "AttributeError" in text for text in caught)


@cache
def may_use() -> re.Pattern[str]:
    """A word of a module that uses any of it: most need not be parsed."""
    words = {name.rpartition(".")[2] for name in lacking_names()} | lacking_modules() | REFUSED_KEYWORDS
    return re.compile(rf"\b(?:{'|'.join(sorted(words))})\b")


def unguarded(source: str, module: str) -> list[str]:
    if not may_use().search(source):
        return []
    wrong = []
    for name, line, above in uses(ast.parse(source)):
        inside = any(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for node in above)
        if not (guarded(name, above) or (module, name) in MOUNTED or (module in PROBE and inside)):
            wrong.append(f"{module}:{line}: {name}")
    return wrong


def test_what_a_system_lacks_is_known() -> None:
    names, modules = lacking_names(), lacking_modules()
    assert {"os.killpg", "os.pread", "os.fchown", "os.sched_getaffinity", "signal.SIGKILL", "signal.SIGHUP"} <= names
    assert {"fcntl", "resource", "pwd", "termios"} <= modules
    assert not {"os.open", "os.replace", "os.getpid", "signal.SIGINT", "signal.SIGTERM", "time.monotonic"} & names
    assert not {"os", "json", "subprocess", "tempfile", "sys"} & modules


def test_what_a_system_may_lack_is_asked_for_first() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(("kb", *path.relative_to(SOURCE).with_suffix("").parts))
        wrong += unguarded(path.read_text("utf-8"), module)
    assert wrong == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os\ndef f(): os.killpg(1, 9)", True),
        ("import os\ndef f():\n    if hasattr(os, 'killpg'): os.killpg(1, 9)", False),
        ("import sys, os\ndef f():\n    if sys.platform != 'win32': os.killpg(1, 9)", False),
        ("import fcntl", True),
        ("try:\n    import fcntl\nexcept ImportError:\n    fcntl = None", False),
        ("from signal import SIGKILL", True),
        ("import subprocess\ndef f(): subprocess.Popen([], preexec_fn=f)", True),
        ("import os\ndef f(): os.replace('a', 'b')", False),
    ],
)
def test_a_use_is_found_unless_it_is_guarded(source: str, found: bool) -> None:
    assert bool(unguarded(source, "kb.any")) is found


def test_a_probe_says_that_windows_is_no_place_for_it() -> None:
    """As there: signals and calls are missing before anything of kb is loaded."""
    code = (
        "import os, signal, subprocess, tempfile, shutil, select\n"
        "del signal.SIGHUP, signal.SIGKILL, os.killpg, os.fchown, os.pread, os.sched_getaffinity\n"
        "from kb.commands import probe\n"
        "probe.os = type(os)('os'); probe.os.__dict__.update(os.__dict__, name='nt')\n"
        "raise SystemExit(probe.main(['{}', '--lang', 'en', 'c.yaml']))"
    )
    for kind in ("smoke", "serve"):
        run = subprocess.run(
            [sys.executable, "-c", code.format(kind)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        assert run.returncode == 2 and "Windows" in run.stderr and "Traceback" not in run.stderr, run.stderr


def test_ci_tries_every_system_and_python() -> None:
    jobs: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text("utf-8"))["jobs"]
    job = jobs["systems"]
    systems = job["strategy"]["matrix"]
    assert {"ubuntu-latest", "macos-latest", "windows-latest"} == set(systems["system"])
    assert {"3.11", "3.12", "3.13", "3.14"} == set(systems["python"])
    assert job["runs-on"] == "${{ matrix.system }}" and job["defaults"]["run"]["shell"] == "bash"
    assert job["steps"][-1]["run"] == ".ci/try"


@pytest.mark.exhaustive  # each system's own job runs it; an installed kb is tried by test_packaging.py too
def test_what_ci_tries_on_every_system_works_here(installed: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(installed), os.environ["PATH"]])
    said = call([ROOT / ".ci" / "try"], tmp_path, env={"PATH": path, "XDG_CACHE_HOME": str(tmp_path)})
    assert said.startswith("kb works on ")
