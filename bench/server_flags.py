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
from typing import NamedTuple

from trainer_arguments import Release, release_of, text

# Where each library declares flags, and the classes whose fields are flags.
DECLARED = {
    "vllm": (r"vllm/(?:engine/\w+|scripts|entrypoints/(?!.*benchmark).*)\.py", r"\w*FrontendArgs"),
    "sglang": (r"sglang/(?:launch_server|srt/(?:server_args|arg_groups/.*|entrypoints/\w+))\.py", r"\w*Args"),
}
PAIRED = "EnableDisableAction"  # since vLLM 0.33 a flag `--enable-x` is taken as `--disable-x` too, and the reverse


class Flags(NamedTuple):
    """The long flags of a wheel, with underscores: those that it declares for sure, and more rather than fewer of those
    that it takes: whatever text of the modules has the form of one, as in a loop over flags that are on their way out.
    """

    declared: set[str]
    taken: set[str]


def flags_in(wheel: Path, library: str) -> Flags:
    modules, classes = DECLARED[library]
    found, taken = set[str](), set[str]()
    with zipfile.ZipFile(wheel) as archive:
        paired = any(PAIRED.encode() in archive.read(name) for name in archive.namelist() if "argparse_utils" in name)
        for name in archive.namelist():
            if re.fullmatch(modules, name):
                tree = ast.parse(archive.read(name))
                found |= set(declared(tree, classes, PurePosixPath(name).parts))
                taken |= set(long_flags(ast.walk(tree)))
    taken |= found
    turns = (("enable_", "disable_"), ("disable_", "enable_")) if paired else ()
    return Flags(found, taken | {b + each.removeprefix(a) for a, b in turns for each in found if each.startswith(a)})


def declared(tree: ast.Module, classes: str, parts: tuple[str, ...]) -> Iterator[str]:
    """What a module hands to ``add_argument``, and the fields of classes that flags are made from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            yield from long_flags(node.args)
        elif isinstance(node, ast.ClassDef) and (re.fullmatch(classes, node.name) or "fields" in parts):
            fields = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
            yield from (each.id for each in fields if isinstance(each, ast.Name))


def long_flags(nodes: Iterable[ast.AST]) -> Iterator[str]:
    texts = (str(each.value) for each in nodes if isinstance(each, ast.Constant))
    return (each[2:].replace("-", "_") for each in texts if re.fullmatch(r"--[a-z][\w-]*", each))


def spans(has: dict[Release, Flags]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each flag that some release lacks, with the releases that have it; argparse takes the beginning of a longer one.

    One that went and came back and went again is left out: what is said of it would be no span.
    """
    releases = sorted(has)
    for flag in sorted({each for flags in has.values() for each in flags.declared if each[0] != "_"}):
        taken = [any(each.startswith(flag) for each in has[release].taken) for release in releases]
        turns = [at for at in range(1, len(releases)) if taken[at] != taken[at - 1]]
        keys = ("before", "again") if taken[0] else ("since", "before", "again")
        if 0 < len(turns) <= len(keys):
            yield flag, {key: text(releases[at]) or "" for key, at in zip(keys, turns, strict=False)}


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[2] not in DECLARED:
        print(__doc__)
        return 2
    library, has = sys.argv[2], dict[Release, Flags]()
    for wheel in sorted(Path(sys.argv[1]).glob(f"{library}-*.whl")):
        of_release, flags = has.setdefault(release_of(wheel), Flags(set(), set())), flags_in(wheel, library)
        of_release.declared.update(flags.declared)
        of_release.taken.update(flags.taken)
    for flag, span in spans(has):
        said = ", ".join(f'{key}: "{release}"' for key, release in span.items())
        print(f"      {flag}: {{{said}}}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
