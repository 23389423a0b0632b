"""What trainers take, read from wheels, against the tables of rules/: ``python bench/trainer_arguments.py FOLDER``.

FOLDER holds wheels of trl and transformers (``pip download --no-deps trl==1.16.0``), best of every release. Prints each
argument of a call whose releases differ from those of the table, and each that ``classes`` of
rules/dialects/python.yaml lacks. Nothing of a wheel is run.
"""

import ast
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
MODULES = {"transformers": r"transformers/trainer(_seq2seq)?\.py", "trl": r"trl/(trainer|experimental)/.*\.py"}
Release = tuple[int, ...]


class Taken(NamedTuple):
    """The arguments of one trainer: by release those that are taken, by a name of today's or an older one."""

    by_release: dict[Release, set[str]]

    @property
    def names(self) -> set[str]:
        return set().union(*self.by_release.values())

    def since(self, name: str) -> Release | None:
        """The first release with the name, None where the first that was looked at has it."""
        have = min(release for release, names in self.by_release.items() if name in names)
        return None if have == min(self.by_release) else have

    def before(self, name: str) -> Release | None:
        """The first release that has it no longer, None where the newest has it."""
        last = max(release for release, names in self.by_release.items() if name in names)
        return min((release for release in self.by_release if release > last), default=None)

    def between(self, said: str, first: Release) -> bool:
        """Whether a release is the first that was looked at, or one after the last before it."""
        release = tuple(map(int, said.split(".")))
        return max(each for each in self.by_release if each < first) < release <= first


def release_of(wheel: Path) -> Release:
    return tuple(int(part) for part in wheel.name.split("-")[1].split(".") if part.isdecimal())


def trainers_in(wheel: Path, modules: str) -> Iterator[tuple[str, set[str]]]:
    """The trainers of a wheel with what they take; not those that hand all on to another of the same name."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if re.fullmatch(modules, name):
                for node in ast.walk(ast.parse(archive.read(name))):
                    if isinstance(node, ast.ClassDef) and node.name.endswith("Trainer"):
                        yield from ((node.name, taken) for each in node.body if (taken := signature(each)))


def signature(node: ast.stmt) -> set[str]:
    if not isinstance(node, ast.FunctionDef) or node.name != "__init__":
        return set()
    given = node.args
    names = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)} - {"self"}
    for decorator in node.decorator_list:
        names.update(re.findall(r"deprecate_kwarg\('(\w+)'", ast.unparse(decorator)))
    return set() if given.kwarg and len(names) < 3 else names


def read(folder: Path, library: str) -> dict[str, Taken]:
    found: dict[str, Taken] = {}
    for wheel in sorted(folder.glob(f"{library}-*.whl"), key=release_of):
        for name, names in trainers_in(wheel, MODULES[library]):
            found.setdefault(name, Taken({})).by_release.setdefault(release_of(wheel), set()).update(names)
    return found


def differences(folder: Path) -> Iterator[str]:
    classes = yaml.safe_load((ROOT / "rules" / "dialects" / "python.yaml").read_text("utf-8"))["classes"]
    for library in MODULES:
        table = yaml.safe_load((ROOT / "rules" / "tables" / f"{library}-arguments.yaml").read_text("utf-8"))
        read_now = read(folder, library)
        for trainer, group in table["names"].items():
            taken = read_now.get(trainer)
            if taken is None:
                yield f"{trainer}: in no wheel of {folder}"
                continue
            yield from (f"{trainer}: {name} is new" for name in sorted(taken.names - {*classes[trainer]["names"]}))
            for name in sorted(taken.names):
                said = group["has"].get(name, {})
                before, since = taken.before(name), taken.since(name)
                if text(before) != said.get("before"):
                    yield f"{trainer}: {name} before {text(before)}, the table says {said.get('before')}"
                if since is not None and "since" in said and not taken.between(said["since"], since):
                    yield f"{trainer}: {name} since {text(since)}, the table says {said['since']}"


def text(release: Release | None) -> str | None:
    return None if release is None else ".".join(map(str, release))


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    lines = list(differences(Path(sys.argv[1])))
    print("\n".join(lines) or "The tables agree with the wheels.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
