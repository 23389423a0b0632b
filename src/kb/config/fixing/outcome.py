"""What a text says, flat, to tell whether a change changed only what it was to change."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from kb.config.fixing.entries import CannotEditError
from kb.config.fixing.tree_edits import GONE, Path
from kb.config.shell.command import CommandReader
from kb.config.shell.script import read_shell
from kb.config.text.nodes import MAPPING, Node
from kb.config.text.parsing import parse
from kb.core.document import Unit
from kb.core.finding import Span
from kb.core.record import NamedTuple

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
