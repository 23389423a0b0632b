"""Imports only go down: shells → surfaces → adapters → advice → memory → core."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "kb"
FLOORS = {
    "core": 0,
    "memory": 1,
    "advice": 2,
    "knowledge": 3,
    "config": 3,
    "machine": 3,
    "repository": 3,
    "hub": 3,
    "simulation": 3,
    "measurement": 3,
    "report": 4,
    "linting": 5,
    "monitoring": 6,
    "guide": 6,
    "editor": 6,
    "transformers": 7,
}
SHELL = 7
PURE = ("core", "memory", "advice")
ADAPTERS = ("knowledge", "config", "machine", "repository", "hub", "simulation", "measurement")
# Rooms that are themselves imported only where they are used, and may say at the top what they stand on.
LATE = ("simulation", "measurement", "guide", "monitoring", "transformers", "editor")
# What the pure floor may use of the standard library: nothing that reads, writes, waits or prints.
PURE_LIBRARY = {
    "__future__", "ast", "bisect", "collections", "contextlib", "dataclasses", "difflib", "enum", "functools",
    "itertools", "math", "operator", "packaging", "re", "types", "typing", "warnings",
}  # fmt: skip


def imports_of(path: Path) -> list[tuple[str, int, bool]]:
    """(module, line, at module level) of every import."""
    tree = ast.parse(path.read_text("utf-8"))
    top = {id(node) for node in tree.body}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.append((node.module or "", node.lineno, id(node) in top))
    return found


MODULES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_only_go_down(path: Path) -> None:
    parts = path.relative_to(SOURCE).parts
    room = parts[0] if len(parts) > 1 else None
    floor = FLOORS[room] if room else SHELL
    for module, line, _ in imports_of(path):
        if not module.startswith("kb."):
            continue
        target = module.split(".")[1]
        if target == room:
            continue
        where = f"{path}:{line}: {room or 'a shell'} imports {target}"
        assert target in FLOORS or floor == SHELL, where
        assert FLOORS.get(target, SHELL) <= floor, where
        assert not (room in ADAPTERS and target in ADAPTERS), f"{where}: adapters do not know one another"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_pure_floor_does_no_input_or_output(path: Path) -> None:
    parts = path.relative_to(SOURCE).parts
    if len(parts) < 2 or parts[0] not in PURE:
        return
    for module, line, _ in imports_of(path):
        root = module.split(".")[0]
        assert root == "kb" or root in PURE_LIBRARY, f"{path}:{line}: {module} on the pure floor"
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"print", "open", "eval", "exec", "input", "compile", "__import__"}, path


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_heavy_packages_are_imported_only_where_they_are_used(path: Path) -> None:
    heavy = {"torch", "jsonschema", "pynvml", "rich", "psutil", "transformers", "subprocess", "concurrent", "difflib"}
    room = path.relative_to(SOURCE).parts[0]
    for module, line, top in imports_of(path):
        where = f"{path}:{line}: {module} at module level"
        assert not (top and module.split(".")[0] in heavy) or room in LATE, where
        assert not (top and module.startswith(tuple(f"kb.{late}" for late in LATE))) or room in LATE, where


def test_every_room_of_the_tree_has_a_floor() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert rooms <= FLOORS.keys()


def test_checking_a_config_starts_without_heavy_packages() -> None:
    import subprocess

    code = (
        "import sys, runpy; sys.argv = ['kb.check', '--help']\n"
        "try: runpy.run_module('kb.check', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'rich', 'jsonschema', 'pynvml', 'psutil', 'subprocess', 'concurrent.futures', 'difflib'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert run.stderr.strip().splitlines()[-1] == "[]", run.stderr
