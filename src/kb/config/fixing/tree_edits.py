"""The edits of a fix → splices in a YAML or JSON text, and what they must change in its data."""

from collections.abc import Iterable
from typing import Any

from kb.config.dialect.dialects import CompiledDialect
from kb.config.dialect.spelling import in_words_of
from kb.config.fixing.entries import CannotEditError, Editor
from kb.config.text.nodes import MAPPING, Node
from kb.config.text.parsing import Parsed
from kb.config.text.splices import Splice
from kb.core.document import KEY, Setting, Unit
from kb.core.expression import is_unknown
from kb.core.finding import Edit, Span

Path = tuple[str | int, ...]
GONE: Any = object()


class Change:
    """Splices, and the data they are to lead to: the value of each path, or GONE."""

    __slots__ = ("after", "splices", "touched")

    def __init__(self) -> None:
        self.splices: list[Splice] = []
        self.after: dict[Path, Any] = {}
        self.touched: list[Span] = []  # of `replace`: what stands there may change

    @classmethod
    def of_text(cls, edits: Iterable[Edit]) -> "Change":
        """The change of edits that replace text as such."""
        change = cls()
        for edit in edits:
            change.replace(edit)
        return change

    def replace(self, edit: Edit) -> None:
        assert edit.span is not None
        self.splices.append(Splice(edit.span.start, edit.span.end, str(edit.value)))
        self.touched.append(edit.span)


def refuse_unresolved(setting: Setting) -> None:
    """A value that something else fills in is not written over: that something may well give the wanted one.

    Raises:
        CannotEditError: this is such a value.
    """
    if is_unknown(setting.value):
        raise CannotEditError("config.fix.unresolved")


def in_words_of_key(dialect: CompiledDialect | None, steps: tuple[str, ...], edit: Edit) -> Any:
    """The value as the key that says the setting writes it: ``bf16-mixed`` for bf16. ``steps``: the key's path, which
    may begin with a section.

    Raises:
        CannotEditError: no value of the key means it.
    """
    for start in range(len(steps) if dialect is not None else 0):
        for target in dialect.targets.get(".".join(steps[start:]), ()) if dialect is not None else ():
            if target.fact.name == edit.name:
                found = in_words_of(target, edit.value)
                if found is None:
                    raise CannotEditError("config.fix.value")
                return found[0]
    return edit.value


class TreeEdits:
    """Plans edits on one unit of a parsed text. Paths begin with the number of the document."""

    def __init__(self, parsed: Parsed, unit: Unit, dialect: CompiledDialect | None) -> None:
        self._unit = unit
        self._dialect = dialect
        self._number, self._root = _document(parsed, unit.span)
        self._editor = Editor(parsed.source, self._root)

    def plan(self, edits: tuple[Edit, ...], at: Span) -> Change:
        """The splices of all the edits. ``at`` is where the finding is: a new entry is put beside it.

        Raises:
            CannotEditError: one of them cannot be made safely.
        """
        change = Change()
        for edit in edits:
            if edit.op == "replace":
                change.replace(edit)
                continue
            setting = self._unit.setting(edit.name)
            if setting is not None and setting.joined:
                raise CannotEditError("config.fix.inherited", name=edit.name)
            if setting is not None and edit.op == "set":
                refuse_unresolved(setting)
            own = None if setting is None or setting.inherited else self._find(setting)
            if edit.op == "set":
                self._set(edit, own, at, edits, change)
            elif own is None:
                raise CannotEditError("config.fix.inherited" if setting else "config.fix.not-written", name=edit.name)
            elif edit.op == "remove":
                mapping, index, path = own
                change.splices += self._editor.remove(mapping, index)
                change.after[path] = GONE
            else:
                self._rename(edit, own, change)
        return change

    def _set(
        self, edit: Edit, own: tuple[Node, int, Path] | None, at: Span, edits: tuple[Edit, ...], change: Change
    ) -> None:
        if own is None:
            self._insert(edit, at, edits, change)
            return
        mapping, index, path = own
        _, node = mapping.value[index]
        value = in_words_of_key(self._dialect, (*self._unit.package, *map(str, path[1:])), edit)
        change.splices += self._editor.set_value(node, value)
        change.after[path] = value

    def _rename(self, edit: Edit, own: tuple[Node, int, Path], change: Change) -> None:
        mapping, index, path = own
        name = str(edit.value).rpartition(".")[2]
        if any(key.value == name for key, _ in mapping.pairs()):
            raise CannotEditError("config.fix.name-taken", name=name)
        key, node = mapping.value[index]
        change.splices += self._editor.rename(key, name)
        change.after[(*path[:-1], name)] = change.after.get(path, node.plain())  # the same fix may set the value too
        change.after[path] = GONE

    def _insert(self, edit: Edit, at: Span, edits: tuple[Edit, ...], change: Change) -> None:
        """A setting that its unit does not say itself goes into the group where the dialect wants it."""
        prefix = self._prefix()
        steps, mapping, depth = self._best_place(self._spellings(edit.name), prefix)
        path = (self._number, *prefix, *steps)
        for index, (key, node) in enumerate(mapping.value):
            if key.value == steps[depth]:  # written, but as null or as a word that says nothing: `auto`
                if depth < len(steps) - 1 or node.kind == MAPPING:
                    raise CannotEditError("config.fix.name-taken", name=steps[depth])
                self._set(edit, (mapping, index, path), at, edits, change)
                return
        value = edit.value if depth == len(steps) - 1 else {steps[-1]: edit.value}
        names = {other.name for other in edits}
        after = len(mapping.value) - 1 if isinstance(value, dict) else self._beside(mapping, at, names)
        change.splices += self._editor.insert(mapping, after, steps[depth], value)
        change.after[path] = edit.value

    def _best_place(self, spellings: list[tuple[str, ...]], prefix: Path) -> tuple[tuple[str, ...], Node, int]:
        """A spelling, the mapping to put it in, and how many of its steps lead there: all but one, or two."""
        for missing in (1, 2):
            for steps in spellings:
                depth = len(steps) - missing
                mapping = self._mapping((*prefix, *steps[:depth])) if depth >= 0 else None
                if mapping is not None:
                    return steps, mapping, depth
        raise CannotEditError("config.fix.no-place")

    def _beside(self, mapping: Node, at: Span, names: set[str]) -> int:
        """The entry to put a new one after: the finding's, else one that the same fix changes, else the last."""
        wanted = [at.start]
        wanted += [setting.key_span.start for name in sorted(names) if (setting := self._unit.setting(name))]
        for offset in wanted:
            for index, (key, node) in enumerate(mapping.value):
                if (
                    self._editor.extent(key)[0]
                    <= offset
                    < max(self._editor.extent(node)[1], self._editor.extent(key)[1])
                ):
                    return index
        return len(mapping.value) - 1

    def _spellings(self, name: str) -> list[tuple[str, ...]]:
        """The paths that mean a setting in the unit's dialect, the preferred one first."""
        if name.startswith(KEY):
            return [tuple(name.removeprefix(KEY).split("."))]
        if self._dialect is None:
            return []
        found = [
            (target.rank, path)
            for path, targets in self._dialect.targets.items()
            for target in targets
            if target.fact.name == name and target.plain
        ]
        # a group file of Hydra's holds what stands below its package
        package = self._unit.package
        spelt = [tuple(path.split(".")) for _, path in sorted(found)]
        return [steps[len(package) :] for steps in spelt if steps[: len(package)] == package]

    def _prefix(self) -> Path:
        """The path of the unit's section in its document; empty for the whole of it."""
        for name, setting in self._unit.settings.items():
            if setting.inherited:
                continue
            for steps in self._spellings(name):
                if setting.path[-len(steps) :] == steps:
                    return setting.path[: -len(steps)]
        if self._unit.section is not None:
            for key, _ in self._root.value if self._root.kind == MAPPING else ():
                if self._editor.extent(key)[0] == self._unit.span.start:
                    return (key.value,)
        return ()

    def _mapping(self, path: Path) -> Node | None:
        """The mapping at a path, written there itself."""
        node = self._root
        for step in path:
            found = [value for key, value in node.value if key.value == step] if node.kind == MAPPING else []
            if not found or found[-1].alias:
                return None
            node = found[-1]
        return node if node.kind == MAPPING else None

    def _find(self, setting: Setting) -> tuple[Node, int, Path] | None:
        """The mapping that holds a setting, the number of its entry, and the path with its document."""
        mapping = self._mapping(setting.path[:-1])
        if mapping is None:
            return None
        for index in reversed(range(len(mapping.value))):
            if mapping.value[index][0].value == setting.path[-1]:
                return mapping, index, (self._number, *setting.path)
        return None


def _document(parsed: Parsed, place: Span) -> tuple[int, Node]:
    """The document that a unit is of."""
    best: tuple[int, Node] | None = None
    for number, node in enumerate(parsed.documents):
        if node is not None and (best is None or parsed.source.span(node).start <= place.start):
            best = number, node
    if best is None:
        raise CannotEditError("config.fix.no-place")
    return best
