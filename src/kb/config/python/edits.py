"""Edits of Python source: arguments of a call changed, added, removed; and what a text says, to tell what changed."""

import ast
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from kb.config.fixing.changes import (
    GONE,
    AsItStands,
    CannotEditError,
    Change,
    Lines,
    Path,
    Region,
    Splice,
    form,
    meet,
    refuse_unresolved,
    spellings,
)
from kb.config.python.calls import Call
from kb.config.python.hidden import OWN
from kb.config.python.own_loop import LOOP
from kb.config.python.reader import DIALECT, Analysis, PythonReader
from kb.config.python.runs import Run, runs_of
from kb.config.python.syntax import Module, dotted_name
from kb.config.python.values import Given
from kb.config.text.nodes import MAPPING
from kb.config.text.source import Source
from kb.core.document import KEY, Setting, Unit
from kb.core.expression import is_unknown
from kb.core.finding import Edit
from kb.core.record import NamedTuple


class PythonData:
    """All that the recognised calls of a module say, by the call's number and the names within; and the other code.

    Raises:
        ConfigError: it cannot be read.
    """

    def __init__(self, source: Source, text: str, reader: PythonReader) -> None:
        self.module = Module(source, text)
        self.analysis = reader.analyse(self.module)
        self.data: dict[Path, str] = {}
        places: set[tuple[int, int]] = set()
        for given in _all(self.analysis):
            if given.value.kind != MAPPING:
                self.data[(*given.path,)] = value_form(given, self.module)
            elif not given.value.value:
                self.data[(*given.path,)] = form({})
            places.add((given.value.start.index, given.value.end.index if given.value.end else -1))
        self.data[("code",)] = _code(self.analysis, places)

    def run_of(self, unit: Unit) -> Run:
        """The run that a unit was made of.

        Raises:
            CannotEditError: none.
        """
        for run in runs_of(self.analysis.calls):
            call = run.own or next(iter((*run.certain, *run.doubtful)), None)
            if call is not None and self.analysis.span(call).start == unit.span.start:
                return run
        raise CannotEditError("config.fix.command-in-cell" if unit.program else "config.fix.by-name")

    def paths_at(self, regions: Sequence[Region]) -> set[Path]:
        found: set[Path] = set()
        for given in _all(self.analysis):
            spans = [self.module.source.span(node) for node in (given.key, given.value) if node.kind != MAPPING]
            if meet(spans, regions):
                found.add((*given.path,))
        return found


def _all(analysis: Analysis) -> list[Given]:
    return [given for call in analysis.calls for given in analysis.given[call.number].known]


def value_form(given: Given, module: Module) -> str:
    """The value; of one that cannot be told, the text of the expression."""
    value = given.value.plain()
    if is_unknown(value) and given.value.end is not None:
        return "code " + module.text[given.value.start.index : given.value.end.index]
    return form(value)


def _code(analysis: Analysis, places: set[tuple[int, int]]) -> str:
    """The tree of everything but the settings: what is called, in what order, with what else."""
    calls: Mapping[int, Call] = {id(call.node): call for call in analysis.calls}
    out: list[str] = []
    stack: list[Any] = [analysis.module.tree]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            out.append(f"[{len(node)}")
            stack += reversed(node)
        elif not isinstance(node, ast.AST):
            out.append(repr(node))
        elif isinstance(node, ast.expr) and _is_place(node, places, analysis.module):
            out.append("value")
        else:
            out.append(type(node).__name__)
            own = calls.get(id(node))
            fields = [(name, value) for name, value in ast.iter_fields(node) if name != "ctx"]
            if own is not None:  # its keywords are told apart as settings; what it unpacks is not
                fields = [(name, value) for name, value in fields if name != "keywords"]
                fields.append(("more", [each.value for each in own.node.keywords if each.arg is None]))
            elif isinstance(node, ast.Dict) or (isinstance(node, ast.Call) and dotted_name(node.func) == "dict"):
                fields = _without_settings(node, places, analysis.module)
            stack += [value for _, value in reversed(fields)]
    return "\n".join(out)


def _is_place(node: ast.expr, places: set[tuple[int, int]], module: Module) -> bool:
    return module.extent(node) in places if hasattr(node, "lineno") else False


def _without_settings(node: ast.AST, places: set[tuple[int, int]], module: Module) -> list[tuple[str, Any]]:
    """The entries of a dictionary that are no settings of a call."""
    if isinstance(node, ast.Dict):
        pairs = list(zip(node.keys, node.values, strict=True))
        return [
            ("rest", [each for key, value in pairs if not _is_place(value, places, module) for each in (key, value)])
        ]
    assert isinstance(node, ast.Call)
    return [
        ("args", node.args),
        ("rest", [each for each in node.keywords if not _is_place(each.value, places, module)]),
    ]


_GROUPS = {"lora.": "lora", "quantization.": "quantization", "model.": "model"}


def _is_given(setting: Setting) -> bool:
    """Whether a call is given a setting, by its name there."""
    return len(setting.path) > 1 and str(setting.path[0]).isdecimal()


class _List(NamedTuple):
    """The elements of a call or a dictionary, as extents in order; ``opening`` is after its bracket."""

    elements: list[tuple[int, int]]
    opening: int


class PythonEdits:
    """Plans edits on one run of a text. Offsets of the splices count in the text that Python reads."""

    def __init__(self, data: PythonData, unit: Unit, reader: PythonReader, constants: Mapping[str, str]) -> None:
        self._module, self._analysis = data.module, data.analysis
        self._text = data.module.text
        self._lines = Lines(self._text)
        self._unit, self._reader, self._constants = unit, reader, constants
        self._data = data
        self._holders: dict[int, tuple[_List, int]] | None = None

    def plan(self, edits: tuple[Edit, ...], at: int) -> Change:
        """The splices of all the edits but ``replace``. ``at``: the finding's offset; a new keyword goes after it.

        Raises:
            CannotEditError: one of them cannot be made safely.
        """
        change = Change()
        for edit in edits:
            setting = self._unit.setting(edit.name)
            own = None if setting is None else self._given(setting.path)
            if own is None and self._unit.dialect == LOOP:
                raise CannotEditError("config.fix.in-loop", name=edit.name.rpartition(".")[2])
            if own is None and setting is not None and setting.alias and _is_given(setting):
                raise CannotEditError(
                    "config.fix.by-name"
                )  # in a file that the program loads: Config(**loaded["train"])
            if edit.op == "set":
                if setting is not None:
                    refuse_unresolved(setting)
                if own is not None:
                    self._set(own, edit, change)
                else:
                    self._insert(edit, at, change)
            elif own is None:  # written, as the finding says, but as what only a run tells
                raise CannotEditError("config.fix.by-name")
            elif edit.op == "remove":
                self._remove(own, change)
            else:
                self._rename(own, edit, change)
        return change

    @cached_property
    def _run(self) -> Run:
        """The run that the unit is of: what another edit needs than those that change what stands there."""
        return self._data.run_of(self._unit)

    def _given(self, path: tuple[str | int, ...]) -> Given | None:
        calls = self._analysis.given.get(int(path[0])) if path and str(path[0]).isdecimal() else None
        return next((each for each in calls.known if each.path == path), None) if calls else None

    def _set(self, own: Given, edit: Edit, change: Change) -> None:
        if own.value.alias:
            raise CannotEditError("config.fix.by-name")
        if own.value.kind == MAPPING or own.value.end is None:
            raise CannotEditError("config.fix.group")
        start, end = own.value.start.index, own.value.end.index
        old = self._text[start:end]
        if "#" in old and "\n" in old:
            raise CannotEditError("config.fix.comment-inside")
        change.splices.append(Splice(start, end, as_python(edit.value, old, self._constants)))
        change.after[own.path] = edit.value

    def _rename(self, own: Given, edit: Edit, change: Change) -> None:
        name = str(edit.value).rpartition(".")[2]
        if self._given((*own.path[:-1], name)) is not None:
            raise CannotEditError("config.fix.name-taken", name=name)
        start, end = own.key.start.index, own.key.end.index if own.key.end else -1
        written = self._text[start:end]
        if written.strip("'\"") != own.path[-1]:
            raise CannotEditError("config.fix.no-place")
        quote = written[:1] if written[:1] in ("'", '"') else ""
        change.splices.append(Splice(start, end, f"{quote}{name}{quote}"))
        path = own.path
        value = own.value.plain()
        kept = AsItStands(value_form(own, self._module)) if is_unknown(value) else value
        change.after[(*path[:-1], name)] = change.after.get(path, kept)
        change.after[path] = GONE

    def _remove(self, own: Given, change: Change) -> None:
        holder, number = self._holder(own)
        change.splices.append(self._without(holder, number))
        change.after[own.path] = GONE

    def _insert(self, edit: Edit, at: int, change: Change) -> None:
        call, steps = self._place_for(edit.name)
        path = (str(call.number), *steps)
        written = self._given(path)
        if written is not None:  # as None, say
            self._set(written, edit, change)
            return
        if len(steps) > 1 and (group := self._given(path[:-1])) is not None:
            if group.value.kind != MAPPING or group.value.alias:
                raise CannotEditError("config.fix.name-taken", name=steps[0])
            holder = self._dictionary(group)
            entry = f"{as_python(steps[-1])}: {as_python(edit.value)}"
        else:
            holder = self._elements(call.node)
            value: Any = edit.value
            for step in reversed(steps[1:]):
                value = {step: value}
            entry = f"{steps[0]}={as_python(value)}"
        change.splices += self._entry(holder, entry, at)
        change.after[path] = edit.value

    def _place_for(self, name: str) -> tuple[Call, list[str]]:
        """The call that takes a setting, and the names that lead to it there.

        Raises:
            CannotEditError: the run has none.
        """
        own = self._run.own
        if own is not None and name.startswith(KEY):
            return own, name.removeprefix(KEY).split(".")
        if own is not None and own.kind.dialect is not None and name.startswith(OWN):
            return own, self._spelling(own.kind.dialect, name, "")
        group = next((group for prefix, group in _GROUPS.items() if name.startswith(prefix)), None)
        call = next((call for call in self._run.certain if group is not None and call.kind.group == group), None)
        if call is None or group is None:
            raise CannotEditError("config.fix.no-place")
        return call, self._spelling(DIALECT, name, group + ".")

    def _spelling(self, dialect: str, name: str, prefix: str) -> list[str]:
        found = [path for path in spellings(self._reader.compiled(dialect), name) if path.startswith(prefix)]
        if not found:
            raise CannotEditError("config.fix.no-place")
        return found[0].removeprefix(prefix).split(".")

    def _entry(self, holder: _List, entry: str, at: int) -> list[Splice]:
        """A new element after the one that the finding is at, else after the last."""
        if not holder.elements:
            return [Splice(holder.opening, holder.opening, entry)]
        beside = next((each for each in holder.elements if each[0] <= at < each[1]), holder.elements[-1])
        start, end = beside
        lines = self._lines
        last = beside == holder.elements[-1]
        if not last and lines.comma(end) is None and lines.begins_at(start) and lines.is_blank_from(end):
            raise CannotEditError("config.fix.no-place")  # its comma stands on another line
        return lines.entry_after(start, end, entry, self._text[lines.start(start) : start])

    def _without(self, holder: _List, number: int) -> Splice:
        start, end = holder.elements[number]
        lines, text = self._lines, self._text
        comma = lines.comma(end)
        stop = end if comma is None else comma + 1
        line_end = lines.end(stop)
        if lines.begins_at(start) and lines.is_blank_from(stop) and line_end < len(text):
            return Splice(lines.start(start), text.index("\n", line_end) + 1, "")
        if number + 1 < len(holder.elements):
            cut = Splice(start, holder.elements[number + 1][0], "")
        elif number:
            cut = Splice(holder.elements[number - 1][1], end, "")
        else:
            cut = Splice(start, stop, "")
        if "#" in self._text[cut.start : cut.end]:
            raise CannotEditError("config.fix.comment-inside")
        return cut

    def _holder(self, own: Given) -> tuple[_List, int]:
        """The call or dictionary that an entry stands in, and its place there."""
        if self._holders is None:
            self._holders = {}
            for node in ast.walk(self._module.tree):
                if isinstance(node, ast.Call | ast.Dict):
                    found = self._elements(node)
                    self._holders |= {start: (found, n) for n, (start, _) in enumerate(found.elements)}
        holder = self._holders.get(own.key.start.index)
        if holder is None:
            raise CannotEditError("config.fix.no-place")
        return holder

    def _dictionary(self, group: Given) -> _List:
        start = group.value.start.index
        for node in ast.walk(self._module.tree):
            if isinstance(node, ast.Dict) and self._module.extent(node)[0] == start:
                return self._elements(node)
        raise CannotEditError("config.fix.no-place")

    def _elements(self, node: ast.Call | ast.Dict) -> _List:
        extent = self._module.extent
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            spans = [(extent(key or value)[0], extent(value)[1]) for key, value in pairs]
            return _List(spans, extent(node)[0] + 1)
        spans = sorted([*(extent(each) for each in node.args), *(extent(each) for each in node.keywords)])
        opening = self._text.find("(", extent(node.func)[1]) + 1
        return _List(spans, opening)


def as_python(value: Any, old: str = "", constants: Mapping[str, str] = {}) -> str:
    """``value`` as a Python literal; ``torch.bfloat16`` where ``torch.float16`` stood.

    Raises:
        CannotEditError: the value has no literal.
    """
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int | float):
        if value != value or value in (float("inf"), float("-inf")):
            raise CannotEditError("config.fix.value")
        return repr(value)
    if isinstance(value, str):
        return _constant_beside(value, old, constants) or _quoted(value, _quote_in(old))
    if isinstance(value, list | tuple):
        items = [as_python(item, _quote_in(old)) for item in value]
        if old.startswith("("):
            return "(" + ", ".join(items) + ("," if len(items) == 1 else "") + ")"
        return "[" + ", ".join(items) + "]"
    if isinstance(value, dict):
        inner = (f"{_quoted(str(key), _quote_in(old))}: {as_python(item, old)}" for key, item in value.items())
        return "{" + ", ".join(inner) + "}"
    raise CannotEditError("config.fix.value")


def _constant_beside(value: str, old: str, constants: Mapping[str, str]) -> str | None:
    """The constant beside the old one that means the value."""
    holder, dot, _ = old.rpartition(".")
    if not dot or not holder.replace(".", "_").isidentifier():
        return None
    short = holder.rpartition(".")[2]
    for name, meant in constants.items():
        owner, _, last = name.rpartition(".")
        if owner == short and (meant == value or last == "*"):
            return f"{holder}.{value if last == '*' else last}"
    return None


def _quoted(value: str, quote: str) -> str:
    if not value.isprintable() or quote in value or "\\" in value:
        return repr(value)
    return f"{quote}{value}{quote}"


def _quote_in(old: str) -> str:
    """The first quote that the old text has; double ones where it has none."""
    return next((character for character in old if character in "'\""), '"')
