"""The code cells of a notebook as one Python text, in which every place is known as one in the notebook file.

Of the notebook's JSON the source strings of its cells are read, each where it stands; outputs are passed over.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

from kb.config.files import MAX_BYTES, MAX_NOTEBOOK_BYTES, ConfigError
from kb.config.python.syntax import parsed
from kb.config.text.nodes import Place
from kb.config.text.source import BYTE_ORDER_MARK, Source
from kb.core.finding import Span
from kb.core.record import NamedTuple

MAX_DEPTH = 1000
_STRING = re.compile(r'"([^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+)"')
_CLOSING = {"{": "}", "[": "]"}
_BLANK = re.compile(r"[ \t\n\r]*+")
_ATOM = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+|true|false|null|NaN|-?Infinity")
# What stands between two brackets: texts in quotes, and lists and objects of at most two levels, are passed over whole.
_PLAIN = r"""[^"\[\]{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"\[\]{}]*+)*+"""
_LEAVES = rf"{_PLAIN}(?:(?:\[{_PLAIN}\]|\{{{_PLAIN}\}}){_PLAIN})*+"
_TO_BRACKET = re.compile(rf"{_LEAVES}(?:(?:\[{_LEAVES}\]|\{{{_LEAVES}\}}){_LEAVES})*+", re.DOTALL)


class Cell(NamedTuple):
    """A code cell: its number among all cells, from 1, and its source as raw JSON strings, with their offsets."""

    number: int
    strings: tuple[tuple[int, int], ...]  # from after the opening quote to before the closing one
    listed: bool  # given as a list of strings, one for each line


def code_cells(text: str) -> list[Cell]:
    """The code cells of a notebook of nbformat 3 or 4.

    Raises:
        ConfigError: it is no JSON, or no notebook; with the place.
    """
    scan = _Scan(text)
    scan.blank()
    if text[scan.at : scan.at + 1] != "{":
        raise scan.fault("config.not-notebook")
    cells: list[Cell] = []
    seen = False
    for key in scan.members():
        if key == "cells":
            seen = True
            cells += scan.cells(0)
        elif key == "worksheets":  # nbformat 3
            seen = True
            for _ in scan.items():
                for inner in scan.members():
                    if inner == "cells":
                        cells += scan.cells(scan.counted)
                    else:
                        scan.skip()
        else:
            scan.skip()
    scan.blank()
    if scan.at < len(text):
        raise scan.fault("config.json-after-end", found=text[scan.at : scan.at + 40])
    if not seen:
        raise ConfigError("config.not-notebook", 1, 1)
    return cells


class _Scan:
    """A cursor in a JSON text."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.counted = text, 0, 0

    def blank(self) -> None:
        found = _BLANK.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def fault(self, key: str, **values: object) -> ConfigError:
        line = self.text.count("\n", 0, self.at)
        mark = Place(self.at, line, self.at - self.text.rfind("\n", 0, self.at) - 1)
        if self.at >= len(self.text):
            key, values = "config.json-ends-early", {}
        return ConfigError(key, mark.line + 1, mark.column + 1, **values)

    def members(self) -> Iterator[str]:
        """The keys of the object at the cursor; whoever asks reads or skips each value."""
        self._open("{")
        while not self._closed("}"):
            start, end = self.string()
            key = self.text[start:end]
            self.blank()
            if self.text[self.at : self.at + 1] != ":":
                raise self.fault("config.json-colon", found=self._found())
            self.at += 1
            self.blank()
            yield key
            self._comma("}")

    def items(self) -> Iterator[int]:
        """One turn for each item of the array at the cursor; whoever asks reads or skips it."""
        self._open("[")
        while not self._closed("]"):
            yield self.at
            self._comma("]")

    def cells(self, before: int) -> list[Cell]:
        """The code cells of the array at the cursor, counted on from ``before``."""
        found: list[Cell] = []
        self.counted = before
        for _ in self.items():
            self.counted += 1
            kind, listed = "", False
            source: tuple[tuple[int, int], ...] = ()
            for key in self.members():
                if key == "cell_type" and self._is('"'):
                    start, end = self.string()
                    kind = self.text[start:end]
                elif key in ("source", "input"):
                    listed = self._is("[")
                    source = self._strings()
                else:
                    self.skip()
            if kind == "code" and source:
                found.append(Cell(self.counted, source, listed))
        return found

    def string(self) -> tuple[int, int]:
        found = _STRING.match(self.text, self.at)
        if found is None:
            key = "config.json-string" if self._is('"') else "config.json-key"
            raise self.fault(key, found=self._found())
        self.at = found.end()
        return found.span(1)

    def skip(self) -> None:
        """Pass over the value at the cursor."""
        if self._is('"'):
            self.string()
            return
        if not self._is("{") and not self._is("["):
            found = _ATOM.match(self.text, self.at)
            if found is None:
                raise self.fault("config.json-value", found=self._found())
            self.at = found.end()
            return
        opened = [_CLOSING[self.text[self.at]]]
        self.at += 1
        while opened:
            found = _TO_BRACKET.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            bracket = self.text[self.at : self.at + 1]
            if bracket not in ("{", "[", "}", "]"):
                raise self.fault("config.json-string")
            if bracket in "{[":
                opened.append(_CLOSING[bracket])
                if len(opened) > MAX_DEPTH:
                    raise self.fault("config.too-deep", limit=MAX_DEPTH)
            elif bracket != opened.pop():
                raise self.fault("config.json-comma", found=bracket)
            self.at += 1

    def _strings(self) -> tuple[tuple[int, int], ...]:
        if self._is('"'):
            return (self.string(),)
        if not self._is("["):
            self.skip()
            return ()
        return tuple(self.string() for _ in self.items())

    def _is(self, character: str) -> bool:
        return self.text.startswith(character, self.at)

    def _open(self, bracket: str) -> None:
        if not self._is(bracket):
            raise self.fault("config.json-value", found=self._found())
        self.at += 1
        self.blank()

    def _closed(self, bracket: str) -> bool:
        if self._is(bracket):
            self.at += 1
            return True
        return False

    def _comma(self, closing: str) -> None:
        self.blank()
        if self._is(","):
            self.at += 1
            self.blank()
            if self._is(closing):
                raise self.fault("config.json-trailing-comma")
        elif not self._is(closing):
            raise self.fault("config.json-comma", found=self._found())

    def _found(self) -> str:
        return self.text[self.at : self.at + 40].split("\n")[0]


_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)")
_MAGIC = re.compile(r"^([ \t]*)(?:(?:[%!]|pip3? install |conda install ).*|\?{1,2}\w.*|[\w.]+\?{1,2}[ \t]*)$", re.M)
_ASSIGNED_MAGIC = re.compile(r"^([ \t]*[\w, \t]+=[ \t]*)([%!].*)$", re.M)
# Cell magics under which the rest is still Python.
_PYTHON_MAGICS = frozenset(("time", "timeit", "capture", "prun", "debug", "memit", "snakeviz", "pdb", "skip", "wandb"))
_SHELL_MAGICS = frozenset(("bash", "sh", "script", "shell"))
_SHELL_LINE = re.compile(r"^[ \t]*!+((?:\\\r?\n|[^\r\n])*)", re.M)


class CellText(NamedTuple):
    """One code cell in the joined text: from ``start`` to ``end``, its source as decoded."""

    number: int
    start: int
    end: int
    text: str


class NotebookSource(Source):
    """The notebook as it is on disk, read as the Python of its cells: marks count in that."""

    def __init__(self, notebook: str, python: str, shifts: list[tuple[int, int]]) -> None:
        super().__init__(notebook, shifts)
        self.python, self.pairs = python, shifts

    def comment_after(self, offset: int) -> str:
        return Source(self.python).comment_after(self.back(offset))

    def excerpt(self, span: Span, limit: int = 60) -> str:
        inside = span._replace(start=self.back(span.start), end=self.back(span.end))
        return Source(self.python).excerpt(inside, limit)

    def forth(self, offset: int) -> int:
        """The offset in the notebook of one in the joined text."""
        return self._offset(offset)

    def back(self, offset: int) -> int:
        """The offset in the joined text of one in the notebook; the nearest before it where it is in none."""
        at = max(bisect_right(self.pairs, offset, key=lambda pair: pair[1]) - 1, 0)
        joined, original = self.pairs[at]
        following = self.pairs[at + 1][0] if at + 1 < len(self.pairs) else len(self.python)
        return min(max(joined + offset - original, joined), following)


class Notebook(NamedTuple):
    """``joined`` is what Python would run, magics and cells that are no Python blanked, each place kept."""

    source: NotebookSource
    joined: str
    cells: tuple[CellText, ...]
    shell: str  # the commands of ``!`` lines and of shell cells in their places, all else blanked
    broken: tuple[tuple[CellText, ConfigError], ...]
    listed: bool

    def cell_at(self, offset: int) -> CellText | None:
        """The cell that holds an offset of the joined text."""
        at = bisect_right(self.cells, offset, key=lambda cell: cell.start) - 1
        return self.cells[at] if at >= 0 else None


@lru_cache(maxsize=1)  # reading, suppressions and the report ask for the same one
def read_notebook(text: str) -> Notebook:
    """The code of a notebook.

    Raises:
        ConfigError: it is no JSON, no notebook, or has more code than any.
    """
    if len(text) > MAX_NOTEBOOK_BYTES:
        raise ConfigError("config.too-large", size=len(text), limit=MAX_NOTEBOOK_BYTES)
    marked = text.startswith(BYTE_ORDER_MARK)
    found = code_cells(text[1:] if marked else text)
    if marked:
        found = [cell._replace(strings=tuple((a + 1, b + 1) for a, b in cell.strings)) for cell in found]
    size = sum(end - start for cell in found for start, end in cell.strings)
    if size > MAX_BYTES:
        raise ConfigError("config.too-large", size=size, limit=MAX_BYTES)
    pieces: list[str] = []
    shifts: list[tuple[int, int]] = []
    cells: list[CellText] = []
    at = 0
    for cell in found:
        start = at
        for piece, own in _decoded(cell, text):
            shifts += [(at + joined, original) for joined, original in own]
            pieces.append(piece)
            at += len(piece)
        cells.append(CellText(cell.number, start, at, ""))
        shifts.append((at, cell.strings[-1][1]))
        pieces.append("\n")
        at += 1
    raw = "".join(pieces)
    cells = [cell._replace(text=raw[cell.start : cell.end]) for cell in cells]
    source = NotebookSource(text, raw, shifts or [(0, 0)])
    return _masked(source, raw, tuple(cells), any(cell.listed for cell in found))


def _decoded(cell: Cell, text: str) -> list[tuple[str, list[tuple[int, int]]]]:
    """Each string of a cell as decoded, with the pairs of offsets from which on both run alike."""
    pieces = []
    for start, end in cell.strings:
        raw = text[start:end]
        shifts = [(0, start)]
        if "\\" not in raw:
            pieces.append((raw, shifts))
            continue
        decoded, done, length = [], 0, 0
        for found in _ESCAPE.finditer(raw):
            plain = raw[done : found.start()]
            character = json.loads(f'"{found[0]}"')
            decoded += [plain, character]
            length += len(plain) + len(character)
            done = found.end()
            shifts.append((length, start + done))
        pieces.append(("".join((*decoded, raw[done:])), shifts))
    return pieces


def _masked(source: NotebookSource, raw: str, cells: tuple[CellText, ...], listed: bool) -> Notebook:
    """The notebook with what is no Python blanked, line breaks kept."""
    python: list[str] = []
    shell: list[str] = []
    broken: list[tuple[CellText, ConfigError]] = []
    done = 0
    for cell in cells:
        own, commands, fault = _cell(cell)
        if fault is not None:
            broken.append((cell, fault))
        gap = raw[done : cell.start]
        python += [gap, own]
        shell += [gap, commands]
        done = cell.end
    python.append(raw[done:])
    shell.append(raw[done:])
    return Notebook(source, "".join(python), cells, "".join(shell), tuple(broken), listed)


def _cell(cell: CellText) -> tuple[str, str, ConfigError | None]:
    """A cell's Python, its shell commands, and why it is no Python."""
    text = cell.text
    first = text.lstrip()
    if first.startswith("%%"):
        line, _, rest = first.partition("\n")
        magic = (line[2:].split() or [""])[0]
        if magic not in _PYTHON_MAGICS:
            commands = blank(text[: len(text) - len(rest)]) + rest if magic in _SHELL_MAGICS and rest else blank(text)
            return blank(text), commands, None
    if parsed(text) is not None:
        return text, blank(text), None
    own = _ASSIGNED_MAGIC.sub(lambda found: found[1] + "0".ljust(len(found[2])), text)
    own = _MAGIC.sub(lambda found: found[1] + _filled(found[0][len(found[1]) :]), _without_continued(own))
    fault = None if parsed(own) is not None else ConfigError("config.python-syntax", reason="")
    return (own if fault is None else blank(text)), _commands(text), fault


def _without_continued(text: str) -> str:
    """``!`` lines with their continuation lines blanked: only the first of them begins with the mark."""

    def rest_blank(found: re.Match[str]) -> str:
        head, newline, tail = found[0].partition("\n")
        return head.rstrip("\\ \t").ljust(len(head)) + newline + blank(tail)

    return _SHELL_LINE.sub(rest_blank, text)


def _filled(magic: str) -> str:
    """A statement of the length of a magic."""
    return "pass".ljust(len(magic)) if len(magic) >= 4 else "0".ljust(len(magic))


def _commands(text: str) -> str:
    """The commands after ``!``, everything else blanked."""
    commands, done = [], 0
    for found in _SHELL_LINE.finditer(text):
        commands += [blank(text[done : found.start(1)]), found[1]]
        done = found.end()
    return "".join((*commands, blank(text[done:])))


def blank(text: str) -> str:
    """The text with a space for each character but line breaks."""
    return re.sub(r"[^\r\n]", " ", text)


class CellPlace(NamedTuple):
    """A place in a cell: the cell's number and the line in it, both from 1, the line's text, and the span in it."""

    cell: int
    row: int
    line: str
    span: Span


class CellPlaces:
    """The cells of one notebook, read when the first place is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._notebook: Notebook | None = None

    def place(self, span: Span) -> CellPlace | None:
        """The cell and the line that hold the start of a span; None of a place in no cell's source."""
        if self._notebook is None:
            try:
                self._notebook = read_notebook(self._text)
            except ConfigError:
                return None
        source = self._notebook.source
        if span.start < 0:
            return None
        offset = source.back(span.start)
        cell = self._notebook.cell_at(offset)
        if cell is None or not source.forth(cell.start) <= span.start <= source.forth(cell.end):
            return None
        start = max(source.python.rfind("\n", 0, offset) + 1, cell.start)
        row = source.python.count("\n", cell.start, offset) + 1
        end = source.python.find("\n", offset, cell.end)
        line = source.python[start : cell.end if end < 0 else end].rstrip("\r")
        width = min(source.back(span.end) - offset, len(line) - (offset - start))
        column = offset - start + 1
        return CellPlace(cell.number, row, line, Span(row, column, row, column + max(width, 0)))
