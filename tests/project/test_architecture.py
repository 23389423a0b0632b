"""Imports only go down the floors, go in no circle, and heavy packages are imported only where they are used."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from catalog_sample import load_catalog

SOURCE = Path(__file__).parents[2] / "src" / "kb"
# A room may import what lies on a floor below its own. Rooms of one floor do not know each other.
FLOORS = (
    ("core",),
    ("memory",),
    ("config", "knowledge", "machine"),
    ("advice",),
    ("torch_runs",),
    ("report",),
    ("session",),
    ("integrations",),
    ("guide",),
    ("commands",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
TOP = len(FLOORS)  # kb itself: `__main__` and the modules behind `python -m kb.NAME`
# The page of the commands shows their own parsers.
UPWARD = (("kb.guide.reference", "kb.commands"),)
PURE = ("core", "memory", "advice")
# What the pure floors may use of the standard library: nothing that reads, writes, waits or prints.
PURE_LIBRARY = {
    "__future__", "annotationlib", "ast", "bisect", "collections", "contextlib", "dataclasses", "difflib",
    "enum", "functools", "heapq", "itertools", "math", "operator", "packaging", "re", "types", "typing", "warnings",
}  # fmt: skip
# Two modules of the memory engine use one function each: it counts references as PyTorch does, and follows one run at a
# time whatever thread asks.
PURE_BUT = {
    ("kb.memory.engine.tape", "sys"), ("kb.memory.engine.trace", "sys"), ("kb.memory.engine.world", "threading"),
    ("kb.memory.engine.world", "gc"),
    ("kb.core", "importlib"), ("kb.core", "sys"),  # for packages whose names are imported where they are asked for
    ("kb.memory.engine.families", "importlib"),  # a prediction pays for the one family that it is of
    ("kb.memory.parameters", "importlib"),  # and for what counts that one
    ("kb.core.typed", "sys"),  # whether typing is imported already
    ("kb.core.json_text", "_json"), ("kb.core.json_text", "json"),  # texts in memory
}  # fmt: skip
HEAVY = {"torch", "jsonschema", "pynvml", "rich", "psutil", "transformers", "subprocess", "concurrent", "difflib"}
# Packages that are themselves imported only where they are used, and may say at the top what they stand on.
LATE = (
    *(f"kb.commands.probe.{name}" for name in ("built_in", "campaign", "matrix", "own_command", "serve")),
    "kb.torch_runs", "kb.guide", "kb.commands.monitor", "kb.integrations.trainer", "kb.integrations.editor",
    "kb.integrations.git_files", "kb.commands.rules", "kb.commands.history", "kb.commands.lsp",
)  # fmt: skip


def name_of(path: Path) -> str:
    return ".".join(("kb", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def imports_of(path: Path) -> tuple[tuple[str, int, bool], ...]:
    """(module, line, at module level) of every import."""
    return tuple(_imports_of(path))


def _imports_of(path: Path) -> Iterator[tuple[str, int, bool]]:
    tree = tree_of(path)
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                whole = full in MODULES or full == "typing.NamedTuple"
                yield (full if whole else node.module or ""), node.lineno, id(node) in top


def room_of(module: str) -> str:
    return module.split(".")[1] if module.count(".") else ""


def test_imports_only_go_down() -> None:
    wrong = []
    for module, path in MODULES.items():
        room = room_of(module)
        for target, line, _ in imports_of(path):
            other = room_of(target)
            if not target.startswith("kb.") or other == room or room not in FLOOR:
                continue
            if FLOOR.get(other, TOP) >= FLOOR[room] and (module, target) not in UPWARD:
                wrong.append(f"{path}:{line}: {room} imports {target}")
    assert wrong == []


# These make named tuples past their own `__new__`.
BY_TYPING = {"kb.core.record", "kb.memory.engine.world"}


def test_records_are_those_that_cost_a_start_little() -> None:
    by_typing = {
        module for module, path in MODULES.items() for target, *_ in imports_of(path) if target == "typing.NamedTuple"
    }
    assert by_typing == BY_TYPING


def test_no_circle_of_imports() -> None:
    """Imports at the top of modules, `if TYPE_CHECKING` aside."""
    graph = {
        module: {target for target, _, top in imports_of(path) if top and target in MODULES and target != module}
        for module, path in MODULES.items()
    }
    left = dict(graph)
    while free := [module for module, targets in left.items() if not targets & left.keys()]:
        for module in free:
            del left[module]
    assert left == {}


def test_the_pure_floors_do_no_input_or_output() -> None:
    wrong = []
    for module, path in MODULES.items():
        if room_of(module) not in PURE:
            continue
        for target, line, _ in imports_of(path):
            root = target.split(".")[0]
            if root != "kb" and root not in PURE_LIBRARY and (module, root) not in PURE_BUT:
                wrong.append(f"{path}:{line}: {target}")
        for node in ast.walk(tree_of(path)):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if called in {"print", "open", "eval", "exec", "input", "compile", "__import__"}:
                wrong.append(f"{path}:{node.lineno}: {called}")
    assert wrong == []


def test_heavy_packages_are_imported_only_where_they_are_used() -> None:
    wrong = []
    for module, path in MODULES.items():
        if within(module, LATE) or module.count(".") < 2:
            continue
        for target, line, top in imports_of(path):
            if top and (target.split(".")[0] in HEAVY or within(target, LATE)):
                wrong.append(f"{path}:{line}: {target} at module level")
    assert wrong == []


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_every_room_of_the_tree_has_a_floor() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert rooms == FLOOR.keys()


def test_checking_a_config_starts_without_heavy_packages() -> None:
    load_catalog()  # where the rules have just changed, the first start compiles them
    code = (
        "import sys, runpy; sys.argv = ['kb.check', '--help']\n"
        "try: runpy.run_module('kb.check', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'rich', 'jsonschema', 'pynvml', 'psutil', 'subprocess', 'concurrent.futures', 'difflib'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert run.stderr.strip().splitlines()[-1] == "[]", run.stderr


# --- sizes: what is longer than the limits is named here, each with its reason --------------------------------------
LONGEST_FUNCTION, MOST_PARAMETERS = 60, 10
LONGEST_MODULE, SHORTEST_MODULE = 500, 40
EARNS_ITS_FILE = 100  # lines, of a module that one other imports
MOST_LATE_IMPORTS = 80  # of kb, in functions
MOST_PATTERNS = 12  # of kb's, compiled by a plain check of one file
# Of kb's modules, by the model that the file names: at first, once its predictions are kept, and of a file that is as
# it was. Of the second model nothing is predicted. Six of the first 152 spread a run over GPUs: to import them late, in
# nine functions, would spare less than 1 % of that run's time.
MOST_LOADED = {"csebuetnlp/mT5_multilingual_XLSum": (152, 108, 56), "data/of-nobody": (100, 100, 56)}
OVERLONG = {
    "kb.memory.engine.allocator._serve": "a step enters its loop tens of thousands of times: a call there is time",
    "kb.memory.engine.tape.run_back": "a step enters its loop thousands of times: a call there is time",
    "kb.advice.run.setup.setup_of": "a record of fifty fields, one a line",
}
MANY_PARAMETERS = {
    "kb.memory.engine.families.masks.causal_mask": "what create_causal_mask is given and asks of the model",
    "kb.memory.search.largest_batch": "what is searched, where, and how finely: each with its default",
    "kb.torch_runs.simulation.entry.simulate": "what level 1 is asked: each is a matter of its own",
    "kb.torch_runs.simulation.attention.flash_attend_packed": "flash-attn's own signature",
    "kb.torch_runs.simulation.kernels.gemm_4bit": "bitsandbytes' own signature",
    "kb.torch_runs.probe.rows.campaign_yaml": "what a file of rows says of itself, a key each",
}
SHORT_MODULES = {
    "kb.core.setup_json": "off the path of a check, which makes setups of settings",
    "kb.knowledge.problems": "every module of the room raises it",
    "kb.memory.engine.faults": "every family raises it, and most of the engine",
    "kb.torch_runs.simulation.torch_modules": "imports torch in the order that it needs",
}
OF_ONE_IMPORTER = {
    "kb.advice.run.generated_answers": "off the path of a check of what is no post-training",
    "kb.commands.rules.config_schemas": "a subject of its own; the command beside it is near the limit",
    "kb.integrations.over_time": "the page of a run over time loads it in the browser",
    "kb.integrations.own_tables": "the chapters' pages load it in the browser",
    "kb.knowledge.meaning": "knows the rules, on a floor below the command that asks",
}


def functions_of(module: str, path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{module}.{node.name}", node


def test_functions_are_short_and_take_few_parameters() -> None:
    long, many = set(), set()
    for module, path in MODULES.items():
        for name, node in functions_of(module, path):
            if (node.end_lineno or 0) - node.lineno + 1 > LONGEST_FUNCTION:
                long.add(name)
            given = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            if len([each for each in given if each not in ("self", "cls")]) > MOST_PARAMETERS:
                many.add(name)
    assert long == OVERLONG.keys()
    assert many == MANY_PARAMETERS.keys()


def test_modules_are_neither_long_nor_scraps() -> None:
    lines = {module: path.read_text("utf-8").count("\n") for module, path in MODULES.items()}
    shims = {module for module, path in MODULES.items() if path.name == "__init__.py" or path.parent == SOURCE}
    assert [module for module, count in lines.items() if count > LONGEST_MODULE] == []
    short = {module for module, count in lines.items() if count < SHORTEST_MODULE}
    assert short - shims == SHORT_MODULES.keys()


def test_a_module_earns_its_file() -> None:
    """By two importers, or by enough lines; a command is one of its own."""
    importers: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, path in MODULES.items():
        for target, *_ in imports_of(path):
            if target in importers and target != module:
                importers[target].add(module)
    scraps = {
        module
        for module, path in MODULES.items()
        if path.name != "__init__.py"
        and path.parent != SOURCE
        and len(importers[module]) == 1
        and not any(MODULES[each].parent == SOURCE for each in importers[module])
        and path.read_text("utf-8").count("\n") < EARNS_ITS_FILE
    }
    assert scraps == OF_ONE_IMPORTER.keys()


def test_imports_in_functions_stay_few_and_say_why() -> None:
    late = {
        (path, inner.lineno)
        for module, path in MODULES.items()
        for _, node in functions_of(module, path)
        for inner in ast.walk(node)
        if isinstance(inner, ast.ImportFrom) and (inner.module or "").split(".")[0] == "kb"
    }
    assert len(late) <= MOST_LATE_IMPORTS
    lines = {path: path.read_text("utf-8").splitlines() for path, _ in late}
    assert [f"{path}:{at}" for path, at in sorted(late) if "#" not in "".join(lines[path][at - 2 : at])] == []


COUNTED = """
import functools, re, sys
patterns, others, compiled = [], [], re._compiler.compile
def count(pattern, flags=0):
    caller = sys._getframe(1)
    while caller is not None and "/re/" in caller.f_code.co_filename:
        caller = caller.f_back
    ours = caller is not None and "/kb/" in caller.f_code.co_filename
    (patterns if ours else others).append(pattern)
    return compiled(pattern, flags)
re._compiler.compile = count
from kb.commands.check import main
main(sys.argv[1:])
# PyYAML's pattern over all of Unicode: its parser in C does without
wide = [each for each in (*patterns, *others) if "\U0010ffff" in str(each)]
assert not wide or not hasattr(sys.modules["yaml"], "CSafeLoader"), wide
modules = [name for name in sys.modules if name == "kb" or name.startswith("kb.")]
print(len(modules), len(patterns), "typing" in sys.modules, *sorted(modules), file=sys.stderr)
"""


@pytest.mark.parametrize("model", MOST_LOADED)
def test_a_plain_check_loads_and_compiles_no_more_than_it_did(tmp_path: Path, model: str) -> None:
    """What one file needs of kb: raise a limit only for what every check of a file needs."""
    load_catalog()
    example = (SOURCE.parents[1] / "examples" / "mt5-summary-team.yaml").read_text("utf-8")
    config = tmp_path / "config.yaml"
    text = example.replace("csebuetnlp/mT5_multilingual_XLSum", model)
    command = [sys.executable, "-c", COUNTED, str(config), "--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "16"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "XDG_CACHE_HOME": str(tmp_path)}
    for most, comment in zip(MOST_LOADED[model], ("", "# edited\n", "# edited\n"), strict=True):
        config.write_text(text + comment, "utf-8")
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
        loaded, patterns, typing, *names = run.stderr.split()
        assert int(loaded) <= most and int(patterns) <= MOST_PATTERNS, (loaded, patterns, names)
        assert typing == "False" or not comment, "what each check loads takes the names of annotations of kb.core.typed"
