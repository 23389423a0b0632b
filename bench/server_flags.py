"""The flags of inference servers by release, read from wheels: ``python bench/server_flags.py FOLDER LIBRARY``.

Prints the ``has`` of rules/tables/LIBRARY-flags.yaml: those that not every release takes. FOLDER holds wheels of the
library (``pip download --no-deps vllm==0.33.0``), best of every release. Nothing of a wheel is run.
"""

import ast
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from trainer_arguments import Release, release_of, text

# Where each library declares flags, and the classes whose fields are flags.
DECLARED = {
    "vllm": (r"vllm/(?:engine/\w+|scripts|entrypoints/(?!.*benchmark).*)\.py", r"\w*FrontendArgs"),
    "sglang": (r"sglang/(?:launch_server|srt/(?:server_args|arg_groups/.*|entrypoints/\w+))\.py", r"\w*Args"),
}
PAIRED = "EnableDisableAction"  # since vLLM 0.33 a flag `--enable-x` is taken as `--disable-x` too, and the reverse


def flags_in(wheel: Path, library: str) -> set[str]:
    """The long flags that a wheel declares, with underscores; more rather than fewer."""
    modules, classes = DECLARED[library]
    found: set[str] = set()
    with zipfile.ZipFile(wheel) as archive:
        paired = any(PAIRED.encode() in archive.read(name) for name in archive.namelist() if "argparse_utils" in name)
        for name in archive.namelist():
            if re.fullmatch(modules, name):
                found |= set(declared(ast.parse(archive.read(name)), classes, PurePosixPath(name).parts))
    turns = (("enable_", "disable_"), ("disable_", "enable_")) if paired else ()
    return found | {b + each.removeprefix(a) for a, b in turns for each in found if each.startswith(a)}


def declared(tree: ast.Module, classes: str, parts: tuple[str, ...]) -> Iterator[str]:
    """What a module hands to ``add_argument``, and the fields of classes that flags are made from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            yield from long_flags(node.args)
        elif isinstance(node, ast.ClassDef) and (re.fullmatch(classes, node.name) or "arg_groups" in parts):
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    yield from (each.target.id, *long_flags(ast.walk(each.annotation)))


def long_flags(nodes: Iterable[ast.AST]) -> Iterator[str]:
    texts = (str(each.value) for each in nodes if isinstance(each, ast.Constant))
    return (each[2:].replace("-", "_") for each in texts if re.fullmatch(r"--[a-z][\w-]*", each))


def spans(has: dict[Release, set[str]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each flag that some release lacks, with the releases that have it; argparse takes the beginning of a longer one.

    One that went and came back and went again is left out: what is said of it would be no span.
    """
    releases = sorted(has)
    for flag in sorted(set().union(*has.values())):
        taken = [any(each.startswith(flag) for each in has[release]) for release in releases]
        turns = [at for at in range(1, len(releases)) if taken[at] != taken[at - 1]]
        keys = ("before", "again") if taken[0] else ("since", "before", "again")
        if 0 < len(turns) <= len(keys):
            yield flag, {key: text(releases[at]) or "" for key, at in zip(keys, turns, strict=False)}


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[2] not in DECLARED:
        print(__doc__)
        return 2
    library, has = sys.argv[2], dict[Release, set[str]]()
    for wheel in sorted(Path(sys.argv[1]).glob(f"{library}-*.whl")):
        has.setdefault(release_of(wheel), set()).update(flags_in(wheel, library))
    for flag, span in spans(has):
        said = ", ".join(f'{key}: "{release}"' for key, release in span.items())
        print(f"      {flag}: {{{said}}}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
