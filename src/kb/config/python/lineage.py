"""What the project's classes are built on, through its own modules, to a class of a library's or to none."""

import ast
from collections.abc import Mapping
from functools import lru_cache

from kb.config.python.calls import CallTable, Kind
from kb.config.python.declared import nodes_of
from kb.config.python.held import Sources
from kb.config.python.places import Imported
from kb.config.python.syntax import dotted_name
from kb.config.text.source import BYTE_ORDER_MARK
from kb.core.record import NamedTuple

LIBRARIES = frozenset(("trl", "transformers", "axolotl", "vllm", "sentence_transformers", "unsloth"))
_MOST_STEPS = 8  # from a class to what it is built on, or to the module that it is imported from
_ALL = "*"


class _Read(NamedTuple):
    """The classes at the top of a text, each with its bases and the fields that it declares; and what it imports.

    An import is under the name that it binds: its module with the dots before it counted, and the name in it.
    """

    classes: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    imports: Mapping[str, list[Imported]]


@lru_cache(64)
def _read(text: str) -> _Read | None:
    """None of what is no Python."""
    nodes = nodes_of(text.removeprefix(BYTE_ORDER_MARK))
    if not nodes or not isinstance(nodes[0], ast.Module):
        return None
    classes = {
        node.name: (
            tuple(dotted_name(base) or "" for base in node.bases),
            tuple(
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            ),
        )
        for node in nodes[0].body
        if isinstance(node, ast.ClassDef)
    }
    imports: dict[str, list[Imported]] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                brought = Imported(node.module or "", node.level, alias.name)
                imports.setdefault(alias.asname or alias.name, []).append(brought)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                imports.setdefault(alias.asname or first, []).append(
                    Imported(alias.name if alias.asname else first, 0, None)
                )
    return _Read(classes, imports)


def may_define(name: str, text: str) -> bool:
    """Whether a text defines a class at its top, or imports it for others to take; one that is no Python may."""
    read = _read(text)
    return read is None or name in read.classes or name in read.imports or _ALL in read.imports


class Lineage:
    """What a class of the project's is built on. Each class is gone through once, however they name each other.

    ``fields``: the names that it and the project's classes below it declare.
    """

    def __init__(self, path: str, sources: Sources, table: CallTable) -> None:
        self._path, self._sources, self._table = path, sources, table
        self._known: dict[tuple[str, str], Kind | None] = {}
        self.fields: set[str] = set()

    def kind_of(self, name: str, path: str, text: str, steps: int = _MOST_STEPS) -> Kind | None:
        """What calls of a class mean that a text defines or imports: what those of its first base do that means
        anything. None where that is no library's, or cannot be told.
        """
        at = path, name
        read = _read(text)
        if at in self._known or not steps or read is None:
            return self._known.get(at)
        self._known[at] = None
        if name in read.classes:
            bases, fields = read.classes[name]
            self.fields.update(fields)
            kinds = [
                self.kind_of(base, path, text, steps - 1)
                if base != name and base in read.classes
                else self._brought(base, path, read, steps)
                for base in bases
            ]
            kinds = [kind for kind in kinds if kind is not None and (kind.dialect is not None or kind.sets)]
            self._known[at] = kinds[0] if kinds else None
        else:
            self._known[at] = self._brought(name, path, read, steps)
        return self._known[at]

    def _brought(self, written: str, path: str, read: _Read, steps: int) -> Kind | None:
        """What a text means by the name of a class that it does not define."""
        imports = read.imports.get(written.partition(".")[0])
        if imports:
            kind, *others = (self._imported(written, each, path, steps) for each in imports)
            return kind if all(other == kind for other in others) else None
        alls = read.imports.get(_ALL, [])
        for each in alls:
            found = self._sources.module(path, each)
            there = _read(found[1]) if found is not None else None
            if found is not None and there is not None and (written in there.classes or written in there.imports):
                return self.kind_of(written, *found, steps - 1)
        return self._table.kind_of(written) if written and (alls or path == self._path) else None

    def _imported(self, written: str, imported: Imported, path: str, steps: int) -> Kind | None:
        """What an import brings in under the name, or the first part of the name, that is written."""
        above, _, name = written.rpartition(".")
        if above:  # `import args`, `from project import args`: of the module's
            _, dot, below = above.partition(".")
            dots = "." if imported.module and imported.name else ""
            whole = f"{imported.module}{dots}{imported.name or ''}{dot}{below}"
            imported = Imported(whole, imported.level, name)
        if imported.name is None:
            return None
        found = None
        if imported.level or imported.module.partition(".")[0] not in LIBRARIES:  # a copy of the library is the library
            found = self._sources.module(path, imported)
        if found is None:
            return self._table.kind_of(imported.name)
        return self.kind_of(imported.name, *found, steps - 1)
