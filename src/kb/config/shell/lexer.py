"""Shell text into commands of words and their pieces, each with its place. Nothing is run or expanded here."""

import re
from dataclasses import dataclass, field
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
    before: tuple[str, ...] = ()  # operators between the command above and this one, ``&&``; none: a new line
    after: str = ""  # the operator right behind it


_PLAIN = re.compile(r"[^ \t\r\n'\"\\$`;&|()<>]+")  # to a shell a no-break space is a letter like any other
_BRACES = re.compile(r"\{(?:[^{},.]|\.(?!\.))*(?:,|\.\.)[^{}]*\}")  # `{q,v}_proj`, `{1..3}`: several words
_BETWEEN_ITEMS = re.compile(r"(?:[ \t\r\n]|\\\r?\n|#[^\r\n]*)+")
_BLANK = re.compile(r"[ \t]+")
_CONTINUATION = re.compile(r"\\(?:\r?\n|\Z)")
_FAULT = re.compile(r"\\([ \t]+)(#[^\r\n]*)?(?=\r?\n|\Z)")
_COMMENT = re.compile(r"#[^\r\n]*")
_COMMENT_LINES = re.compile(r"(?:[ \t]*#[^\n]*\n)+(?=[ \t]*-)")
_REDIRECTION = re.compile(r"(?:\d*|&)(?:<<<|>>|>\||[<>]&?)[ \t]*")
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w./-]*>(?=[ \t]*(?:[\\#-]|\r?\n|\Z))")  # `<OUTPUT_DIR> \`: to be filled in
_HEREDOC = re.compile(r"\d*<<-?[ \t]*(['\"]?)([A-Za-z0-9_.-]+)\1")
_ARITHMETIC = frozenset(("if", "elif", "while", "until", "for", "then", "else", "do", "{", "!"))  # before ``((…))``
_OPERATOR = re.compile(r";;&?|;&|&&|\|\|?&?|[;&()]")
_EXPR = re.compile(r"\s*expr\s((?:[\w\s${}+/%-]|\\\*)+)")  # of whole numbers, as ``$(expr 16 / $processes)``
_OWN_FOLDER = re.compile(r"\$\(\s*dirname\s+(?:--\s+)?\"?\$(?:0|\{?BASH_SOURCE[^}\s\"]*\}?)\"?\s*\)")
OWN_FOLDER = "dirname"  # what the piece is called that stands for the folder of the script
_SIMPLE_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*|[1-9])")
_NAME = re.compile(r"[A-Za-z_]\w*\+?=")
_EVERY = re.compile(r"\$(?:[@*]|\{[@*]\})")
_BRACED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[1-9])(?:(\[[@*]\])|:?[-=](.*))?\Z", re.S)
_DOUBLE_PLAIN = re.compile(r"[^\"\\$`]+")
_SIMPLE_DEFAULT = re.compile(r"[^\s'\"\\$`{}*?]*\Z")
_QUOTED_DEFAULT = re.compile(r"(?:\"([^'\"\\$`{}*?]*)\"|'([^'\"\\$`{}*?]*)')\Z")


@dataclass(slots=True)
class _State:
    words: list[Word] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    heredocs: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    line_start: int = 0


def split_commands(text: str) -> tuple[Command, ...]:
    """The simple commands of a shell text, in order. A faulty continuation is read as the continuation it was meant as.

    Keywords (``if``, ``do``) are words like any other. Bodies of here-documents and the insides of ``$(…)`` are left
    out. Text that is no shell gives some commands or none, never an error.
    """
    return tuple(_Lexer(text).commands())


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.state = _State()
        self.done: list[Command] = []
        self.open_until = 0

    def commands(self) -> list[Command]:
        while self.at < len(self.text):
            self._step()
        self._finish()
        return self.done

    def _step(self) -> None:
        text, at = self.text, self.at
        character = text[at]
        if character == "\n" or text.startswith("\r\n", at):
            self._newline()
        elif blank := _BLANK.match(text, at):
            self.at = blank.end()
        elif character == "\\" and (found := _CONTINUATION.match(text, at)):
            self.at = found.end()
            self._comment_below()
        elif character == "\\" and (found := _FAULT.match(text, at)):
            self.state.faults.append(Fault(at + 1, found.end(), found[2] or ""))
            self.at = min(found.end() + (2 if text.startswith("\r\n", found.end()) else 1), len(text))
            self._comment_below()
        elif character == "#" and (found := _COMMENT.match(text, at)):
            self.at = found.end()
        elif found := _PLACEHOLDER.match(text, at):
            self.at = found.end()
            self.state.words.append(Word((Piece("unknown", found[0], at, False),), at, self.at))
        elif found := _HEREDOC.match(text, at):
            self.state.heredocs.append(found[2])
            self.at = found.end()
        elif found := _REDIRECTION.match(text, at):
            self.at = found.end()
            self._word()  # its target is no argument
        elif text.startswith("((", at) and self._arithmetic():
            pass
        elif found := _OPERATOR.match(text, at):
            if self.state.words:
                self._finish()
                self.done[-1] = self.done[-1]._replace(after=found[0])
            self.state.before.append(found[0])
            self.at = found.end()
        elif word := self._word():
            self.state.words.append(word)
        else:
            self.at += 1

    def _arithmetic(self) -> bool:
        """``((…))`` where a command may stand is ``let "…"``; the cursor goes behind it."""
        words, inner = self.state.words, self.at + 2
        if self.at < self.open_until or (words and words[-1].literal not in _ARITHMETIC):
            return False
        end = _closing(self.text, inner, "(", ")")
        if not self.text.startswith(")", end):
            self.open_until = end  # as far as that there is no use in looking again
            return False
        self._finish()
        let = Word((Piece("literal", "let", self.at, True),), self.at, self.at + 2)
        sum_ = Piece("literal", self.text[inner : end - 1], inner, True)
        self.state.words += (let, Word((sum_,), inner, end - 1))
        self.at = end + 1
        return True

    def _comment_below(self) -> None:
        """A whole-line comment between continued lines ends the command, though a flag follows below it."""
        if self.state.words and (found := _COMMENT_LINES.match(self.text, self.at)):
            comment = "\n".join(line.strip() for line in found[0].splitlines())
            self.state.faults.append(Fault(found.start(), found.end(), comment))
            self.at = found.end()

    def _newline(self) -> None:
        self._finish()
        self.at = self.text.index("\n", self.at) + 1
        for delimiter in self.state.heredocs:
            end = re.compile(rf"^\t*{re.escape(delimiter)}\r?$", re.M).search(self.text, self.at)
            if self.done:
                self.done[-1] = self.done[-1]._replace(heredoc=(self.at, end.start() if end else len(self.text)))
            self.at = end.end() if end else len(self.text)
        self.state.heredocs.clear()
        self.state.line_start = self.at

    def _finish(self) -> None:
        state = self.state
        if state.words:
            first, last = state.words[0], state.words[-1]
            self.done.append(
                Command(
                    words=tuple(state.words),
                    start=first.start,
                    end=last.end,
                    line_start=state.line_start,
                    faults=tuple(state.faults),
                    before=tuple(state.before),
                )
            )
            state.before.clear()
        state.words.clear()
        state.faults.clear()

    def _word(self, *, may_be_array: bool = True) -> Word | None:
        """The word at the cursor, or None where there is none. A continuation right after it is no part of it."""
        text, start = self.text, self.at
        end = start
        pieces: list[Piece] = []
        items = None
        while self.at < len(text):
            character = text[self.at]
            if found := _PLAIN.match(text, self.at):
                kind: PieceKind = "unknown" if self._in_braces(found[0], start) else "literal"
                pieces.append(Piece(kind, found[0], self.at, False))
                self.at = found.end()
            elif character == "'":
                end = _or_end(text, text.find("'", self.at + 1))
                pieces.append(Piece("literal", text[self.at + 1 : end], self.at + 1, True))
                self.at = end + 1
            elif character == '"':
                pieces += self._double_quoted()
            elif character in "$`":
                pieces.append(self._expansion(quoted=False))
            elif character == "\\" and (found := _CONTINUATION.match(text, self.at)):
                self.at = found.end()
                continue
            elif character == "\\" and not _FAULT.match(text, self.at):
                pieces.append(Piece("literal", text[self.at + 1 : self.at + 2], self.at + 1, True))
                self.at += 2
            elif character == "(" and may_be_array and pieces and pieces[-1].text.endswith("="):
                items = self._array()
                end = self.at
                break
            else:
                break
            end = self.at
        self.at = min(self.at, len(text))
        return Word(tuple(pieces), start, min(end, len(text)), items) if self.at > start else None

    def _in_braces(self, text: str, start: int) -> bool:
        """Whether a part of the word that begins at ``start`` becomes several; what is assigned does not."""
        return "}" in text and _BRACES.search(text) is not None and _NAME.match(self.text, start) is None

    def _array(self) -> tuple[Word, ...]:
        self.at += 1
        items: list[Word] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            if found := _BETWEEN_ITEMS.match(self.text, self.at):
                self.at = found.end()
            elif word := self._word(may_be_array=False):
                items.append(word)
            else:
                self.at += 1
        self.at += 1
        return tuple(items)

    def _double_quoted(self) -> list[Piece]:
        text = self.text
        pieces = [Piece("literal", "", self.at + 1, True)]
        self.at += 1
        while self.at < len(text) and text[self.at] != '"':
            if found := _DOUBLE_PLAIN.match(text, self.at):
                pieces.append(Piece("literal", found[0], self.at, True))
                self.at = found.end()
            elif text[self.at] == "\\":
                if found := _CONTINUATION.match(text, self.at):
                    self.at = found.end()
                    continue
                kept = text[self.at + 1 : self.at + 2]
                escaped = kept in ('"', "\\", "$", "`")
                pieces.append(Piece("literal", kept if escaped else "\\" + kept, self.at + int(escaped), True))
                self.at += 2
            else:
                pieces.append(self._expansion(quoted=True))
        self.at += 1
        return pieces

    def _expansion(self, *, quoted: bool) -> Piece:
        """The ``$…`` or backquoted part at the cursor."""
        text, start = self.text, self.at
        if every := _EVERY.match(text, start):
            self.at = every.end()
            return (
                Piece("unknown", "*", start, quoted)
                if quoted and "*" in every[0]
                else Piece("array", "@", start, quoted)
            )
        if found := _SIMPLE_VARIABLE.match(text, start):
            self.at = found.end()
            return Piece("variable", found[1], start, quoted)
        if text.startswith("${", start):
            self.at = _closing(text, start + 2, "{", "}")
            inner = _BRACED.match(text[start + 2 : self.at - 1])
            if inner is None or (inner[2] == "[*]" and quoted):
                return Piece("unknown", "*" if text.startswith("${@:", start) else "", start, quoted)
            if inner[2]:
                return Piece("array", inner[1], start, quoted)
            default = None if inner[3] is None else _default(inner[3], quoted)
            if inner[3] is not None and default is None:
                return Piece("unknown", inner[1], start, quoted)
            return Piece("variable", inner[1], start, quoted, default)
        if own := _OWN_FOLDER.match(text, start):
            self.at = own.end()
            return Piece("unknown", OWN_FOLDER, start, quoted)
        if text.startswith("$(", start):
            self.at = _closing(text, start + 2, "(", ")")
            if text.startswith("$((", start) and text[self.at - 2 : self.at] == "))":
                return Piece("sum", text[start + 3 : self.at - 2], start, quoted)
            if (program := _EXPR.fullmatch(text, start + 2, self.at - 1)) is not None:
                return Piece("sum", program[1].replace("\\*", "*"), start, quoted)
        elif text[start] == "`":
            self.at = _or_end(text, text.find("`", start + 1)) + 1
        elif text.startswith("$'", start):
            end = _or_end(text, text.find("'", start + 2))
            self.at = end + 1
            if "\\" not in text[start:end]:
                return Piece("literal", text[start + 2 : end], start + 2, True)
        else:
            self.at = start + 2
        return Piece("unknown", text[start + 1 : start + 2], start, quoted)


def _closing(text: str, at: int, opening: str, closing: str) -> int:
    """The offset after the bracket that closes the one before ``at``; quoted ones do not count."""
    depth = 1
    while at < len(text) and depth:
        character = text[at]
        if character == "\\":
            at += 1
        elif character == "'" and opening == "(":
            at = _or_end(text, text.find("'", at + 1))
        elif character == opening:
            depth += 1
        elif character == closing:
            depth -= 1
        at += 1
    return min(at, len(text))


def _or_end(text: str, found: int) -> int:
    return len(text) if found < 0 else found


def _default(text: str, inside_quotes: bool) -> str | None:
    """The default of ``${NAME:-text}``, without the quotes around it; None where it is not plain text. Between double
    quotes a single one is a character like any other."""
    if _SIMPLE_DEFAULT.match(text):
        return text
    quoted = _QUOTED_DEFAULT.match(text)
    if quoted is None or (inside_quotes and quoted[2] is not None):
        return None
    return quoted[1] or quoted[2] or ""
