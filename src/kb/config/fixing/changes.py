"""A change to a text: pieces replaced by offset, what it is to change in the data, and whether it changed just that."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from kb.config.dialect.dialects import CompiledDialect
from kb.config.dialect.spelling import in_words_of
from kb.config.program_files import shell_alone
from kb.config.programs import DOCUMENTS
from kb.config.shell.command import CommandReader, read_shell
from kb.config.text.nodes import MAPPING, Node
from kb.config.text.parsing import parse
from kb.core.document import Setting, Unit
from kb.core.expression import is_unknown
from kb.core.finding import Edit, Span
from kb.core.record import NamedTuple


class Splice(NamedTuple):
    """``text`` in place of what stands from ``start`` to ``end`` (exclusive)."""

    start: int
    end: int
    text: str


def overlaps(new: Iterable[Splice], accepted: Iterable[Splice]) -> bool:
    """Whether any of ``new`` touches text that an accepted one replaces. Two insertions at one place do not clash."""
    taken = list(accepted)
    return any(_clash(splice, other) for splice in new for other in taken)


def _clash(one: Splice, other: Splice) -> bool:
    if one.start == one.end or other.start == other.end:
        inner, outer = (one, other) if one.start == one.end else (other, one)
        return outer.start < inner.start < outer.end
    return one.start < other.end and other.start < one.end


def splice(text: str, splices: Sequence[Splice]) -> tuple[str, list[tuple[int, int]]]:
    """The text with all splices made, and where each new piece then stands. Those at one place keep their order."""
    pieces: list[str] = []
    regions: list[tuple[int, int]] = []
    done = length = 0
    for one in sorted(splices, key=lambda one: (one.start, one.end)):
        pieces += [text[done : one.start], one.text]
        length += one.start - done
        regions.append((length, length + len(one.text)))
        length += len(one.text)
        done = one.end
    pieces.append(text[done:])
    return "".join(pieces), regions


class Lines:
    """The lines around places of a text that is edited."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"

    def start(self, offset: int) -> int:
        return self.text.rfind("\n", 0, offset) + 1

    def end(self, offset: int) -> int:
        """Where the line's text ends: before ``\\r\\n`` or ``\\n``; the text's end where there is neither."""
        end = self.text.find("\n", offset)
        if end < 0:
            return len(self.text)
        return end - 1 if end > offset and self.text[end - 1] == "\r" else end

    def begins_at(self, start: int) -> bool:
        """Whether nothing stands before this place on its line."""
        return not self.text[self.start(start) : start].strip(" \t")

    def is_blank_from(self, offset: int) -> bool:
        """Whether nothing but a comment follows on the line."""
        rest = self.text[offset : self.end(offset)].lstrip(" \t")
        return not rest or rest.startswith("#")

    def comma(self, end: int) -> int | None:
        """The offset of the comma after what ends at ``end``, if it stands on the same line."""
        at = end
        while self.text[at : at + 1] in (" ", "\t"):
            at += 1
        return at if self.text[at : at + 1] == "," else None

    def entry_after(self, start: int, end: int, entry: str, indent: str) -> list[Splice]:
        """A new entry after the one that stands from ``start`` to ``end`` within brackets: on a line of its own where
        that one has its own.
        """
        if not self.begins_at(start):
            return [Splice(end, end, f", {entry}")]
        line = f"{self.newline}{indent}{entry}"
        comma, line_end = self.comma(end), self.end(end)
        if not self.is_blank_from(end if comma is None else comma + 1):
            return [Splice(end, end, f",{line}")]
        if comma is not None:
            return [Splice(line_end, line_end, line + ",")]
        return [Splice(end, end, ","), Splice(line_end, line_end, line)]


class CannotEditError(ValueError):
    """No safe edit is known; ``key`` says why (i18n)."""

    def __init__(self, key: str, **values: object) -> None:
        super().__init__(key)
        self.key, self.values = key, values


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
    """Refuse to write over a value that something else fills in: that something may well give the wanted one."""
    if is_unknown(setting.value):
        raise CannotEditError("config.fix.unresolved")


def spellings(dialect: CompiledDialect | None, name: str, *, plain: bool = True) -> list[str]:
    """The paths that mean a setting in a dialect, the preferred one first.

    Args:
        plain: only those whose values are the setting's own, in no words of the dialect's.
    """
    targets = dialect.targets.items() if dialect is not None else ()
    found = (
        (target.rank, path)
        for path, listed in targets
        for target in listed
        if target.fact.name == name and (target.plain or not plain)
    )
    return [path for _, path in sorted(found)]


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


Region = tuple[int, int]


class Outcome(Protocol):
    """``data`` is path → the value's type and form, in which 1, 1.0 and true differ."""

    data: dict[Path, str]

    def paths_at(self, regions: Sequence[Region]) -> set[Path]:
        """The paths whose key or value stands in one of the regions."""


class TreeData:
    """All that a YAML or JSON text says, by the number of its document and the path in it. A list is one value.

    Raises:
        ConfigError: it cannot be read.
    """

    def __init__(self, text: str, path: str) -> None:
        self.parsed = parse(text, path)
        self.data: dict[Path, str] = {}
        for number, node in enumerate(self.parsed.documents):
            _flatten(self.data, (number,), None if node is None else node.plain())

    def paths_at(self, regions: Sequence[Region]) -> set[Path]:
        found: set[Path] = set()
        for number, root in enumerate(self.parsed.documents):
            stack: list[tuple[Path, Node]] = [] if root is None else [((number,), root)]
            while stack:
                path, node = stack.pop()
                for key, value in node.pairs() if node.kind == MAPPING else ():
                    inner = (*path, key.scalar())
                    spans = [self.parsed.source.span(part) for part in (key, value) if part.kind != MAPPING]
                    if meet(spans, regions):
                        found.add(inner)
                    stack.append((inner, value))
        return found


OF_THE_LAUNCHER = ("launch.num_processes", "launch.num_machines")  # counted from the whole command, not one flag's


class CommandData:
    """What the commands of a text set, by the number of the command and the flag."""

    def __init__(self, text: str, path: str, reader: CommandReader) -> None:
        if path.endswith(DOCUMENTS):
            text = shell_alone(text)
        units: Iterable[Unit | None] = read_shell(text, path, reader) or (reader.read(text, path),)
        self.units = [unit for unit in units if unit is not None]
        self.data: dict[Path, str] = {}
        for number, unit in enumerate(self.units):
            for name, setting in unit.settings.items():
                if name not in OF_THE_LAUNCHER:
                    self.data[(number, *setting.path)] = form(setting.value)

    def number_of(self, unit: Unit) -> int:
        """Which command of the text a unit is.

        Raises:
            CannotEditError: none of them.
        """
        for number, own in enumerate(self.units):
            if own.span.start == unit.span.start:
                return number
        raise CannotEditError("config.fix.no-place")

    def paths_at(self, regions: Sequence[Region]) -> set[Path]:
        return {
            (number, *setting.path)
            for number, unit in enumerate(self.units)
            for setting in unit.settings.values()
            if meet((setting.span, setting.key_span), regions)
        }


class AsItStands(NamedTuple):
    """A value that a fix leaves as it is under another name, where it is no plain value: its form."""

    form: str


def same_but_for(
    before: Outcome, found: Outcome, after: Mapping[Path, Any], touched: Sequence[Span], regions: Sequence[Region]
) -> bool:
    """Whether ``found`` says what ``before`` says, with the values of ``after`` (or GONE) in place of those there.

    Where text as such was replaced (``touched``, in the old text), what stands in ``regions`` of the new one is free.
    """
    expected = _expected(before.data, after)
    if found.data == expected:
        return True
    if not touched:
        return False
    allowed = before.paths_at([(span.start, span.end) for span in touched]) | found.paths_at(regions)
    paths = found.data.keys() | expected.keys()
    differing = [path for path in paths if found.data.get(path) != expected.get(path)]
    return all(any(path[:length] in allowed for length in range(1, len(path) + 1)) for path in differing)


def _expected(before: Mapping[Path, str], after: Mapping[Path, Any]) -> dict[Path, str]:
    flat = dict(before)
    for path, value in after.items():
        for known in [known for known in flat if known[: len(path)] == path or path[: len(known)] == known]:
            del flat[known]
        if value is not GONE:
            _flatten(flat, path, value)
    return flat


def _flatten(flat: dict[Path, str], path: Path, value: Any) -> None:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            _flatten(flat, (*path, key), inner)
    else:
        flat[path] = value.form if isinstance(value, AsItStands) else form(value)


def form(value: Any) -> str:
    """The value's type and form: 1, 1.0 and true differ, a list and a tuple do not."""
    return repr(list(value) if isinstance(value, tuple) else value)


def meet(spans: Iterable[Span], regions: Sequence[Region]) -> bool:
    """Whether one of the spans touches one of the regions."""
    return any(start <= span.end and span.start <= end for span in spans for start, end in regions)
