"""What modelling files of transformers do otherwise in a release: ``python bench/release_code.py OLD NEW [TYPE …]``.

OLD and NEW are wheels (``pip download --no-deps transformers==5.24.0``). Compared is the code alone: docstrings, types,
imports, what stands at functions of which nothing is run, and names of the cache, which 5.24 changed, count for
nothing. Without types those of rules/models are compared. Nothing of a wheel is run.
"""

import ast
import difflib
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
# Names of one thing: what a cache was called, and is.
CACHE = re.compile(r"\b(?:(?:curr|current)_)?(?:past_key_values?|cache_params|layer_past|cache)(?=\b|_length\b)")
SAID_ONLY = ("deprecate_kwarg", "auto_docstring", "no_grad")  # decorators that change no result


def modelling_files(wheel: Path) -> dict[str, str]:
    """By path the text of each ``modeling_*.py`` and ``configuration_*.py``."""
    with zipfile.ZipFile(wheel) as archive:
        wanted = re.compile(r"transformers/models/\w+/(?:modeling|configuration)_\w+\.py")
        return {name: archive.read(name).decode() for name in archive.namelist() if wanted.fullmatch(name)}


def placed(node: ast.stmt) -> bool:
    """Whether a line only says which arguments stay on their device."""
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_skip_keys_device_placement"


def plain(text: str) -> list[str]:
    """The lines of a module without what counts for nothing."""
    tree = ast.parse(CACHE.sub("cache", text))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            kept = [
                each for each in node.body if not isinstance(each, ast.Import | ast.ImportFrom) and not placed(each)
            ]
            node.body = (kept[1:] if ast.get_docstring(node) is not None else kept) or [ast.Pass()]
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            node.decorator_list = [
                each for each in node.decorator_list if not any(word in ast.unparse(each) for word in SAID_ONLY)
            ]
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.Call):
            node.keywords = [each for each in node.keywords if each.arg != "kwargs"]
    return ast.unparse(tree).splitlines()


def folders(types: list[str]) -> set[str]:
    """The folders of types, those of the rules where none is named."""
    if not types:
        entries = (yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / "rules" / "models").glob("*.yaml"))
        types = [entry["architecture"]["model_type"] for entry in entries if "architecture" in entry]
    return {each.removesuffix("_text").replace("-", "_") for each in types}


def differences(old: Path, new: Path, types: list[str]) -> Iterator[str]:
    """A unified diff of each file that is not the same."""
    before, after, wanted = modelling_files(old), modelling_files(new), folders(types)
    for path, text in sorted(after.items()):
        if path.split("/")[2] not in wanted:
            continue
        if path not in before:
            yield f"{path} is new"
            continue
        yield from difflib.unified_diff(plain(before[path]), plain(text), f"{old.name} {path}", new.name, "", "", 1, "")


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    lines = list(differences(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
    print("\n".join(lines) or "Nothing is done otherwise.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
