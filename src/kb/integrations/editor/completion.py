"""What may stand at the cursor: keys of the config's format, values of a setting, names of models and GPUs."""

import re
from collections.abc import Iterator

from lsprotocol import types

from kb.config.dialect.dialects import CompiledDialect
from kb.core.catalog import Catalog
from kb.core.facts import FactType
from kb.core.text import UserError
from kb.integrations.editor.session import Session

_LINE = re.compile(r"(?P<indent> *)(?:- )?(?:(?P<key>[\w.-]+): +)?(?P<begun>[^\s:#]*)\Z")
_KEY = re.compile(r"( *)([\w.-]+):\s*(?:#.*)?\Z")
_GPU = re.compile(r"gpu\s*=\s*\"?[\w-]*\Z")  # of kb.toml
SETTINGS = ("kb.toml", "pyproject.toml")
MODEL = "model.name"


class Completer:
    """Completions of one client's texts; each format's keys are spelt out once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._formats: dict[str, CompiledDialect] = {}

    def items(self, text: str, path: str, language: str, line: int, column: int) -> list[types.CompletionItem]:
        """What may stand at a place (kb's own: from 1, in characters); nothing in a text of no known format.

        Raises:
            UserError: the project's or the client's settings cannot be used.
        """
        lines = text.split("\n")
        before = lines[line - 1][: column - 1]
        catalog = self._session.checker(path).catalog
        if path.endswith(SETTINGS):
            return [_item(gpu.id, gpu.name) for gpu in catalog.gpus.values()] if _GPU.match(before) else []
        found = _LINE.match(before)
        others = "\n".join([*lines[: line - 1], "", *lines[line:]])  # half a line is often what cannot be read
        units = self._session.check(others, path, language).units()
        if found is None or not units:
            return []
        dialect = units[0].unit.dialect or ""
        parents = _parents(lines[: line - 1], len(found["indent"]))
        if found["key"]:
            return list(self._values(dialect, [*parents, found["key"]], catalog))
        return list(self._keys(dialect, parents, catalog))

    def _keys(self, dialect: str, parents: list[str], catalog: Catalog) -> Iterator[types.CompletionItem]:
        targets = self._format(dialect, catalog).targets
        for start in _prefixes(parents):
            names = {path[len(start) :].partition(".")[0]: path for path in sorted(targets) if path.startswith(start)}
            for name, path in names.items():
                yield _item(name, self._about(targets[path][0].fact), types.CompletionItemKind.Property, ": ")
            if names:
                return

    def _values(self, dialect: str, path: list[str], catalog: Catalog) -> Iterator[types.CompletionItem]:
        targets = self._format(dialect, catalog).targets
        fact = next((targets[each[:-1]][0].fact for each in _prefixes(path) if each[:-1] in targets), None)
        if fact is None:
            return
        if fact.name == MODEL:
            yield from (_item(model.name, model.id) for model in catalog.models.values())
        elif fact.type == "bool":
            yield from (_item(value, self._about(fact)) for value in ("true", "false"))
        else:
            for value in _listed(fact.name, dialect, catalog):
                yield _item(value, self._about(fact))

    def _format(self, dialect: str, catalog: Catalog) -> CompiledDialect:
        if dialect not in self._formats:
            self._formats[dialect] = CompiledDialect(catalog.dialects[dialect], catalog.facts)
        return self._formats[dialect]

    def _about(self, fact: FactType) -> str:
        return self._session.words.meaning(fact.name)


def complete(
    completer: Completer, text: str, path: str, language: str, place: tuple[int, int]
) -> types.CompletionList | None:
    """The answer to a client; None where the project's settings cannot be used, which its diagnostics say."""
    try:
        return types.CompletionList(is_incomplete=False, items=completer.items(text, path, language, *place))
    except UserError:
        return None


def _listed(name: str, dialect: str, catalog: Catalog) -> list[str]:
    """The values that libraries take for a setting in this format, of those that every table of it knows."""
    if dialect not in catalog.triggers:
        return []
    group = catalog.table(dialect)["values"].get(name)
    return sorted(group["takes"]) if group else []


def _parents(above: list[str], indent: int) -> list[str]:
    """The keys that a line of that indent stands under, the outermost first."""
    found: list[str] = []
    for line in reversed(above):
        match = _KEY.match(line)
        if match is not None and len(match[1]) < indent:
            found.append(match[2])
            indent = len(match[1])
    return found[::-1]


def _prefixes(path: list[str]) -> Iterator[str]:
    """The path as a format has it; below a section of any name, without that name."""
    for start in range(min(2, len(path) + 1)):
        yield "".join(f"{step}." for step in path[start:])


def _item(
    label: str, detail: str, kind: types.CompletionItemKind = types.CompletionItemKind.Value, after: str = ""
) -> types.CompletionItem:
    return types.CompletionItem(label=label, detail=detail, kind=kind, insert_text=f"{label}{after}")
