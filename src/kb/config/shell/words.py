"""The parts of a shell text: words, the pieces that they are put together from, commands, faults of joining lines."""

from typing import Literal

from kb.core.record import NamedTuple

PieceKind = Literal["literal", "variable", "array", "sum", "unknown"]


class Piece(NamedTuple):
    """Part of a word. ``text`` is the literal text, a variable's name, or what stands in ``$((…))``; ``default`` that
    of ``${NAME:-default}``."""

    kind: PieceKind
    text: str
    start: int
    quoted: bool
    default: str | None = None


class Word(NamedTuple):
    """A word as written, quotes and all, from ``start`` to ``end``; ``items`` are those of ``NAME=(…)``."""

    pieces: tuple[Piece, ...]
    start: int
    end: int
    items: tuple["Word", ...] | None = None

    @property
    def literal(self) -> str | None:
        """The word's text, where no part of it depends on anything."""
        return "".join(p.text for p in self.pieces) if all(p.kind == "literal" for p in self.pieces) else None


class Fault(NamedTuple):
    """A line continuation that does not continue: blanks, perhaps with a comment, stand after or below the backslash.

    ``start`` to ``end`` is what has to go from there; ``comment`` the text of the comment lines, ``""`` for none.
    """

    start: int
    end: int
    comment: str


class Command(NamedTuple):
    """A simple command; ``line_start`` is where its first physical line begins, in which nothing else is open."""

    words: tuple[Word, ...]
    start: int
    end: int
    line_start: int
    faults: tuple[Fault, ...] = ()
    heredoc: tuple[int, int] | None = None  # where the body of its here-document lies
