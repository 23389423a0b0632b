"""Python text → its syntax tree, with every place in characters of the text; or where and why it is no Python."""

import ast
import re
import sys
from collections.abc import Callable

from kb.config.files import ConfigError
from kb.config.text.nodes import Place
from kb.config.text.source import BYTE_ORDER_MARK, Source
from kb.core.finding import Span

MAX_BRACKETS = 200  # where Python itself stops
_LINE_END = re.compile(r"\r\n|\r|\n")
_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-_.a-zA-Z0-9]+)")


class Module:
    """A parsed text. ``mark`` turns a place of the tree, counted in bytes of a line, into one in characters.

    Args:
        changes: the tree is for the caller alone, who changes it; others of the same text share one.

    Raises:
        ConfigError: it is no Python, or over a bound; at its line and column.
    """

    def __init__(self, source: Source, text: str | None = None, *, changes: bool = False) -> None:
        self.source = source
        self.text = source.text if text is None else text
        marked = self.text.startswith(BYTE_ORDER_MARK)
        self._first = int(marked)
        body = self.text[1:] if marked else self.text
        self._starts = [0, *(found.end() for found in _LINE_END.finditer(body))]
        self._body = body
        self.tree = self._parse(body, _tree_of if changes else _TREES.of)

    def _parse(self, body: str, parse: Callable[[str], ast.Module]) -> ast.Module:
        try:
            return parse(body)
        except SyntaxError as error:
            raise self._fault(error.lineno or 1, error.offset or 1, error.msg) from None
        except (RecursionError, MemoryError):
            raise ConfigError("config.python-too-deep", *self._deepest(), limit=MAX_BRACKETS) from None
        except ValueError:  # before Python 3.12
            zero = max(body.find("\x00"), 0)
            raise ConfigError("config.binary", *self.at(zero), offset=zero) from None

    def _fault(self, line: int, column: int, reason: str) -> ConfigError:
        """At Python's own place; what it counts beyond the line's end is its end."""
        line = min(max(line, 1), len(self._starts))
        start = self._starts[line - 1]
        end = self._starts[line] if line < len(self._starts) else len(self._body)
        if "nested" in reason:
            return ConfigError("config.python-too-deep", *self.at(start), limit=MAX_BRACKETS)
        place = self.at(min(start + max(column, 1) - 1, end))
        said = f"{reason} (Python {sys.version_info[0]}.{sys.version_info[1]})"  # a newer one may take it
        return ConfigError("config.python-syntax", *place, reason=said)

    def _deepest(self) -> tuple[int, int]:
        """The place of the most deeply nested bracket: a rough one, strings are not told apart."""
        depth = most = where = 0
        for found in re.finditer(r"[\[({\])}]", self._body):
            depth += 1 if found[0] in "[({" else -1
            if depth > most:
                most, where = depth, found.start()
        return self.at(where)

    def at(self, offset: int) -> tuple[int, int]:
        """Line and column, from 1, of an offset in the parsed text."""
        return self.source.place(Place(offset + self._first, *self._line_and_column(offset)))

    def at_offset(self, offset: int) -> tuple[int, int]:
        """Line and column, from 1, of an offset in :attr:`text`."""
        return self.source.place(self.place(offset))

    def _line_and_column(self, offset: int) -> tuple[int, int]:
        from bisect import bisect_right

        line = bisect_right(self._starts, offset) - 1
        return line, offset - self._starts[line] + (self._first if line == 0 else 0)

    def offset(self, line: int, byte_column: int) -> int:
        """The offset in :attr:`text` of a place as the tree counts it: line from 1, column in bytes of UTF-8."""
        start = self._starts[line - 1]
        end = self._starts[line] if line < len(self._starts) else len(self._body)
        piece = self._body[start : min(start + byte_column, end)]
        if not piece.isascii():
            piece = self._body[start:end].encode("utf-8", "surrogatepass")[:byte_column].decode("utf-8", "ignore")
        return start + len(piece) + self._first

    def mark(self, line: int, byte_column: int) -> Place:
        return self.place(self.offset(line, byte_column))

    def place(self, offset: int) -> Place:
        """The mark of an offset in :attr:`text`."""
        return Place(offset, *self._line_and_column(max(offset - self._first, 0)))

    def extent(self, node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> tuple[int, int]:
        """Offsets of a node's own text."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def span(self, node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> Span:
        """Where a node's own text stands in the source."""
        start, end = self.extent(node)
        return self.source.between(self.place(start), self.place(end))


def _tree_of(text: str) -> ast.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "\d" in a text is for the program's author to hear of
        return ast.parse(text)


class _Trees:
    """Trees of texts, those asked for last: the scripts of a folder start programs that import the same modules."""

    MOST_TEXT = 4 << 20  # characters; a tree takes some 37 bytes for each

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], ast.Module] = {}
        self._size = 0

    def of(self, text: str, path: str = "") -> ast.Module:
        """The tree of a text; two modules of one program that are copies of each other have a tree each."""
        tree = self._kept.pop((path, text), None)
        if tree is None:
            tree = _tree_of(text)
            self._size += len(text)
        self._kept[path, text] = tree  # now the last
        while self._size > self.MOST_TEXT:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._size -= len(oldest[1])
        return tree


_TREES = _Trees()


def parsed(text: str, path: str = "") -> ast.Module | None:
    """The tree of a text, which all share who ask for it by this path; None of one that is no Python."""
    try:
        return _TREES.of(text, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def entries_of(expression: ast.expr) -> list[tuple[ast.expr | ast.keyword, str, ast.expr]] | None:
    """Of ``{"a": 1}`` and ``dict(a=1)``."""
    if isinstance(expression, ast.Dict):
        pairs: list[tuple[ast.expr | ast.keyword, str, ast.expr]] = []
        for key, value in zip(expression.keys, expression.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                return None
            pairs.append((key, key.value, value))
        return pairs
    called = isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id == "dict"
    if not called or not isinstance(expression, ast.Call) or expression.args:
        return None
    return [(each, each.arg, each.value) for each in expression.keywords if each.arg is not None]


def string_extents(text: str) -> list[tuple[int, int]]:
    """Where the texts in quotes stand: a ``#`` inside one begins no comment."""
    try:
        module = Module(Source(text))
    except ConfigError:
        return []
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
            if isinstance(node, ast.Constant) and node.end_col_offset is None:
                continue
            found.append(module.extent(node))
    return found


def declared_encoding(raw: bytes) -> str | None:
    """The encoding that a comment in the first two lines names (PEP 263); None where none is named or known."""
    for line in raw.split(b"\n", 2)[:2]:
        found = _COOKIE.match(line)
        if found:
            import codecs

            try:
                return codecs.lookup(found[1].decode("ascii")).name
            except LookupError:
                return None
        if line.strip() and not line.lstrip().startswith(b"#"):
            return None
    return None


def dotted_name(node: ast.expr) -> str | None:
    """``a.b.c`` as written; None where it is more than names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return parts[0] if parts and isinstance(node, ast.Call) else None
    return ".".join(reversed([*parts, node.id]))


def called_name(node: ast.AST) -> str:
    """The last name of what is called: ``run`` of ``subprocess.run``; empty of what is no call, or calls no name."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else str(getattr(node.func, "id", ""))


def words_of(name: str) -> frozenset[str]:
    """``apply``, ``lora`` of ``applyLora``."""
    return frozenset(re.split(r"[_\W]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).casefold()))


def root_name(node: ast.expr) -> str | None:
    """The name that ``a.b["c"].get("d")``, ``vars(a)`` and ``a`` begin with."""
    while True:
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            node = node.value
        elif isinstance(node, ast.Call):
            called = node.func
            holds = isinstance(called, ast.Attribute) and called.attr in ("get", "setdefault")
            of_object = isinstance(called, ast.Name) and called.id in ("vars", "type") and node.args
            node = node.args[0] if of_object else called if holds else ast.Constant(None)
        else:
            return None


def inside_self(attribute: str) -> str:
    """Under which name it is kept that what ``self.attribute`` holds is changed: what else the object has, stays."""
    return f"self.{attribute}[]"


def holder_of(node: ast.expr) -> str | None:
    """What holds that which an expression reaches into: its first name, of ``self.config["train"]`` that attribute."""
    first = root_name(node)
    if first != "self":
        return first
    inner = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
    of_self = next((each.attr for each in inner if isinstance(each.value, ast.Name) and each.value.id == "self"), None)
    return first if of_self is None else inside_self(of_self)


def dotted_or_none(node: ast.expr) -> str | None:
    """The name that a call's result is assigned to: ``args``, or ``self.args``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def captured(node: ast.Try | ast.TryStar | ast.Match) -> list[str]:
    """The names that ``except … as`` and the patterns of ``case`` give a value."""
    if not isinstance(node, ast.Match):
        return [each.name for each in node.handlers if each.name]
    parts = (part for case in node.cases for part in ast.walk(case.pattern))
    return [name for part in parts if (name := getattr(part, "name", None) or getattr(part, "rest", None))]


def arguments_of(given: ast.arguments) -> list[ast.arg]:
    """All arguments of a function."""
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [argument for argument in every if argument is not None]
