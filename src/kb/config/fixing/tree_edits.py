"""The edits of a fix → splices in a YAML or JSON text, and what they must change in its data."""

import re
from typing import Any

from kb.config.dialect.dialects import CompiledDialect
from kb.config.dialect.values import is_filled_in
from kb.config.fixing.changes import (
    GONE,
    CannotEditError,
    Change,
    Lines,
    Path,
    Splice,
    in_words_of_key,
    refuse_unresolved,
    spellings,
)
from kb.config.fixing.written import as_json, as_yaml
from kb.config.text.json_nodes import JsonPlace
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node
from kb.config.text.parsing import Parsed
from kb.config.text.source import Source
from kb.config.text.toml_nodes import TomlPlace
from kb.core.document import KEY, Setting, Unit
from kb.core.finding import Edit, Span

_COMMENT = re.compile(r"(?:^|\s)#")


class Editor:
    """Makes splices for one text; ``source`` maps the nodes' marks to its offsets."""

    def __init__(self, source: Source, root: Node) -> None:
        self.text = source.text
        self._source = source
        self._json = isinstance(root.start, JsonPlace)
        self._toml = isinstance(root.start, TomlPlace)
        self._lines = Lines(source.text)

    def extent(self, node: Node) -> tuple[int, int]:
        """Offsets of a node's own text."""
        span = self._source.span(node)
        if node.kind == SCALAR or node.flow:
            return span.start, span.end
        # What ends in a block of text ends, to the parser, on the line after it.
        return span.start, span.start + len(self.text[span.start : span.end].rstrip())

    def set_value(self, node: Node, value: Any) -> list[Splice]:
        """Put ``value`` where the value ``node`` stands."""
        if node.alias:
            raise CannotEditError("config.fix.alias")
        if is_filled_in(node):
            raise CannotEditError("config.fix.unresolved")
        start, end = self.extent(node)
        if node.kind == MAPPING:
            raise CannotEditError("config.fix.group")
        if node.kind == SEQUENCE and not node.flow and isinstance(value, list | tuple):
            return self._set_items(node, list(value))
        old = self.text[start:end]
        if node.kind == SEQUENCE and (not node.flow or _COMMENT.search(old)):
            raise CannotEditError("config.fix.comment-inside")
        written = self._write(value, old)
        # A key with nothing after it: `fp16:`
        return [Splice(start, end, written if start < end or self.text[start - 1 : start] != ":" else " " + written)]

    def rename(self, key: Node, name: str) -> list[Splice]:
        start, end = self.extent(key)
        return [Splice(start, end, name if self._toml else self._write(name, self.text[start:end]))]

    def insert(self, mapping: Node, after: int, name: str, value: Any) -> list[Splice]:
        """A new entry after entry number ``after`` of ``mapping``; -1 where it has none."""
        if after < 0:
            start, _ = self.extent(mapping)
            if not mapping.flow:
                raise CannotEditError("config.fix.no-place")
            return [Splice(start + 1, start + 1, self._entry(name, value))]
        key, node = mapping.value[after]
        if self._toml and (isinstance(value, dict) or (node.kind == MAPPING and not node.flow)):
            raise CannotEditError("config.fix.no-place")  # what stands behind a table's header is that table's
        if mapping.flow:
            start, end = self.extent(key)[0], self._end_of(key, node)
            return self._lines.entry_after(start, end, self._entry(name, value), self._indent(key))
        if isinstance(value, dict):
            inner = "".join(f"{self._lines.newline}{self._indent(key)}  {self._entry(n, v)}" for n, v in value.items())
            return [self._line_after(key, node, f"{self._write(name)}:{inner}")]
        return [self._line_after(key, node, self._entry(name, value))]

    def remove(self, mapping: Node, index: int) -> list[Splice]:
        """Take entry number ``index`` out of ``mapping``, with its line if it has one of its own."""
        if len(mapping.value) == 1:
            raise CannotEditError("config.fix.only-entry")
        key, node = mapping.value[index]
        start, end = self.extent(key)[0], self._end_of(key, node)
        if not mapping.flow:
            if not self._lines.begins_at(start):
                raise CannotEditError("config.fix.shared-line")
            return [self._whole_lines(start, end)]
        comma = self._lines.comma(end)
        if comma is not None and self._lines.begins_at(start) and self._lines.is_blank_from(comma + 1):
            return [self._whole_lines(start, end)]
        if index + 1 < len(mapping.value):
            return [self._checked(Splice(start, self.extent(mapping.value[index + 1][0])[0], ""))]
        return [self._checked(Splice(self._end_of(*mapping.value[index - 1]), end, ""))]

    def _line_after(self, key: Node, node: Node, entry: str) -> Splice:
        at = self._lines.end(self._end_of(key, node))
        return Splice(at, at, f"{self._lines.newline}{self._indent(key)}{entry}")

    def _entry(self, name: str, value: Any) -> str:
        if isinstance(value, dict):
            inner = ", ".join(self._entry(n, v) for n, v in value.items())
            return f"{self._write(name)}: {{{inner}}}"
        if self._toml:
            return f"{name} = {self._write(value)}"
        return f"{self._write(name)}: {self._write(value)}"

    def _write(self, value: Any, old: str = "") -> str:
        try:
            return as_json(value) if self._json else as_yaml(value, old)
        except (TypeError, ValueError) as error:
            raise CannotEditError("config.fix.value") from error

    def _set_items(self, node: Node, values: list[Any]) -> list[Splice]:
        """A block list to other values: items that stay keep their lines and comments."""
        import difflib

        items: list[Node] = node.value
        if not items or not values or any(item.kind != SCALAR for item in items):
            raise CannotEditError("config.fix.list")
        old = [repr(item.scalar()) for item in items]
        new = [repr(value) for value in values]
        splices: list[Splice] = []
        for kind, i, i_end, j, j_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if kind == "equal":
                continue
            both = min(i_end - i, j_end - j)
            for item, value in zip(items[i : i + both], values[j : j + both], strict=True):
                splices += self.set_value(item, value)
            splices += [self._item_lines(item) for item in items[i + both : i_end]]
            if j + both < j_end:
                splices.append(self._new_items(items[max(i + both - 1, 0)], values[j + both : j_end], i + both == 0))
        return splices

    def _item_lines(self, item: Node) -> Splice:
        start, end = self.extent(item)
        if self.text[self._lines.start(start) : start].strip(" \t") != "-":
            raise CannotEditError("config.fix.list")
        return self._whole_lines(start, end)

    def _new_items(self, beside: Node, values: list[Any], before: bool) -> Splice:
        start, end = self.extent(beside)
        prefix = self.text[self._lines.start(start) : start]
        if prefix.strip(" \t") != "-":
            raise CannotEditError("config.fix.list")
        quote = beside.style if beside.style in ("'", '"') else ""
        lines = [prefix + self._write(value, quote) for value in values]
        if before:
            at = self._lines.start(start)
            return Splice(at, at, "".join(line + self._lines.newline for line in lines))
        at = self._lines.end(end)
        return Splice(at, at, "".join(self._lines.newline + line for line in lines))

    def _end_of(self, key: Node, node: Node) -> int:
        """Where the entry ends; one that a merge brought in does not stand here."""
        key_end, (start, end) = self.extent(key)[1], self.extent(node)
        if start < key_end:
            raise CannotEditError("config.fix.alias")
        return end

    def _indent(self, key: Node) -> str:
        """What stands before the key on its line, a list's dash as a blank."""
        start = self.extent(key)[0]
        return re.sub(r"[^\t]", " ", self.text[self._lines.start(start) : start])

    def _whole_lines(self, start: int, end: int) -> Splice:
        first, newline = self._lines.start(start), self.text.find("\n", end)
        if newline >= 0:
            return Splice(first, newline + 1, "")
        # The last line goes with the line end before it, so that the file still ends as it did.
        first -= 2 if self.text[first - 2 : first] == "\r\n" else int(first > 0)
        return Splice(first, len(self.text), "")

    def _checked(self, splice: Splice) -> Splice:
        if _COMMENT.search(self.text[splice.start : splice.end]):
            raise CannotEditError("config.fix.comment-inside")
        return splice


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
        # a group file of Hydra's holds what stands below its package
        package = self._unit.package
        spelt = [tuple(path.split(".")) for path in spellings(self._dialect, name)]
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
