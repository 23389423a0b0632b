"""What a script or a notebook says of itself: PEP 723's block, cells and calls that install."""

import ast
import os
import re
from collections.abc import Mapping

from kb.config.files import ConfigError
from kb.config.notebook.cells import read_notebook
from kb.config.program_files import task_alone
from kb.config.python.syntax import called_name, parsed
from kb.config.releases.commands import installs, read_command, read_image, read_shell
from kb.config.releases.project_files import parse_toml
from kb.config.releases.requirement import read_requirement
from kb.config.releases.statements import MAIN, Folder

_RUNNERS = re.compile(
    "run|call|check_call|check_output|[Pp]open|system|getoutput|getstatusoutput|run_(?:line|cell)_magic"
)
_OF_IMAGE = re.compile(r"(?:uv_)?pip_install(_from_requirements)?")  # of Modal's, in which the file's functions run
_LINE = re.compile(r"^[ \t]*(?:[!%]|pip3? install |conda install )")
_SHELL_CELL = re.compile(r"\s*%%(?:bash|sh|script|shell|!)")


def read_own(path: str, root: str, text: str, kind: str) -> Folder:
    """What the text of a ``shell``, ``python``, ``notebook`` or ``image`` file says, or of a task of SkyPilot's."""
    own = Folder(os.path.dirname(os.path.abspath(path)), root)
    if kind in ("shell", "config"):
        for part in (text,) if kind == "shell" else (task_alone(text, "setup"), task_alone(text, "run")):
            read_shell(own, path, part, MAIN, script=True)
    elif kind == "image":
        read_image(own, path, text, MAIN)
    elif kind == "python":
        read_script(own, path, text)
    else:
        read_cells(own, path, text)
    return own


def read_script(folder: Folder, path: str, text: str) -> None:
    """A Python file: its own block of dependencies, and calls that start pip."""
    if "# /// script" in text:
        _read_block(folder, path, text)
    if installs(text) and ("pip" in text or "conda" in text):
        _read_calls(folder, path, parsed(text))


def _read_block(folder: Folder, path: str, text: str) -> None:
    """PEP 723: TOML in comments, between ``# /// script`` and ``# ///``."""
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.rstrip() == "# /// script"), None)
    if start is None:
        return
    end = next(
        (at for at in range(start + 1, len(lines)) if not lines[at].startswith("#") or lines[at].rstrip() == "# ///"),
        len(lines),
    )
    try:
        data = parse_toml("\n".join(line[2:] for line in lines[start + 1 : end]))
    except ValueError as error:
        folder.report("not_toml", path, start + 1, error=str(error))
        return
    dependencies = data.get("dependencies")
    for each in dependencies if isinstance(dependencies, list) else ():
        if isinstance(each, str):
            line = next((at for at in range(start, end) if each in lines[at]), start)
            folder.say(read_requirement(each), path, line + 1, MAIN)


def _read_calls(folder: Folder, path: str, tree: ast.Module | None) -> None:
    """``subprocess.run([sys.executable, "-m", "pip", "install", …])``, ``os.system("pip install …")``, and of an image
    ``image.pip_install("vllm==0.19.0")``."""
    nodes = list(ast.walk(tree)) if tree is not None else []
    lists = _lists_of(nodes)
    for node in nodes:
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name, first = called_name(node), node.args[0]
        if image := _OF_IMAGE.fullmatch(name):
            given = [word for each in node.args for word in _words(each, lists)]
            read_command(folder, path, ["pip", "install", *(["-r"] if image[1] else []), *given], node.lineno, MAIN)
        if not _RUNNERS.fullmatch(name):
            continue
        if name.endswith("magic"):
            first = node.args[-1]
        if isinstance(first, ast.List | ast.Tuple):
            words = _words(first, lists)
            if "pip" in words:
                read_command(folder, path, words[words.index("pip") :], node.lineno, MAIN)
        elif isinstance(first, ast.Constant) and isinstance(first.value, str):
            text = first.value.strip().replace("\n", " ")
            read_shell(folder, path, f"pip {text}" if text.startswith("install ") else text, MAIN, lines=[node.lineno])


def _lists_of(nodes: list[ast.AST]) -> dict[str, list[str]]:
    """The names that stand for one list of words, and those that go through one: ``for each in PACKAGES``."""
    found: dict[str, list[list[str]]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Tuple):
            for name in (each.id for each in node.targets if isinstance(each, ast.Name)):
                found.setdefault(name, []).append(_words(node.value, {}))
    lists = {name: every[0] for name, every in found.items() if len(every) == 1}
    loops = (node for node in nodes if isinstance(node, ast.For) and isinstance(node.target, ast.Name))
    named = {ast.unparse(loop.target): lists.get(ast.unparse(loop.iter)) for loop in loops}
    return lists | {name: words for name, words in named.items() if words is not None}


def _words(node: ast.expr, lists: Mapping[str, list[str]]) -> list[str]:
    """The texts of a list, or of one argument; ``$`` for one that is not written out."""
    if isinstance(node, ast.List | ast.Tuple):
        return [word for each in node.elts for word in _words(each, lists)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    named = node.value if isinstance(node, ast.Starred) else node
    return lists.get(named.id, ["$"]) if isinstance(named, ast.Name) else ["$"]


def read_cells(folder: Folder, path: str, text: str) -> None:
    """A notebook: its ``!pip`` and ``%pip`` lines and shell cells, and calls that start pip."""
    if not installs(text):
        return
    try:
        notebook = read_notebook(text)
    except ConfigError:
        return  # the check of the file itself says it
    source = notebook.source
    for cell in notebook.cells:
        if not installs(cell.text):
            continue
        starts = [cell.start, *(cell.start + found.end() for found in re.finditer("\n", cell.text))]
        lines = [source.places().span(source.forth(start), source.forth(start)).line for start in starts]
        script = _SHELL_CELL.match(cell.text) is not None
        shell = cell.text if script else _magics(cell.text)
        read_shell(folder, path, shell, MAIN, lines=lines, script=script)
    if "subprocess" in notebook.joined or "os.system" in notebook.joined:
        _read_calls(folder, path, parsed(notebook.joined))


def _magics(text: str) -> str:
    """The lines that are commands, with those they go on in; the rest is blank."""
    kept, goes_on = [], False
    for line in text.split("\n"):
        goes_on = goes_on or _LINE.match(line) is not None
        kept.append(line if goes_on else "")
        goes_on = goes_on and line.endswith("\\")
    return "\n".join(kept)
