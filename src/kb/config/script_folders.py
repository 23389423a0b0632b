"""The folder that a shell script is in at a place of its text, as far as that is sure. Never run."""

import os
import re
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from kb.config.programs import written_out
from kb.core.record import NamedTuple

ANY: Final = "*"  # a folder that is not known; what stands behind it is how its path ends: */project/one
MAX_DEPTH = 64  # brackets, quotes and loops that are open at one place
_ENDS_TRIED = 4  # of a folder that is not known, of its last folders
_VERBS = r"(?:cd|pushd|popd)(?![\w./=-])"
_MOVES = rf"(?<![\w./$-]){_VERBS}"
_OPENS, _CLOSES = r"if|for|while|until|case|select", r"fi|done|esac"
# Of a shell's code, of text in double quotes, and of ${...}: what opens and closes there.
_CODE = (
    rf"(?s)\\.|(?<![^\s;&|()])#[^\n]*|<<<|<<-?[ \t]*\\?[\"']?(?P<mark>[A-Za-z_]\w*)[\"']?|(?P<single>'[^']*(?:'|\Z))"
    rf"|\$\{{|\$?\(|[\")`]|(?<![^\s;&|()])[{{}}](?![^\s;&|)])|(?P<verb>{_MOVES})"
    rf"|(?<![\w./$-])(?:(?P<opens>{_OPENS})|(?P<closes>{_CLOSES}))(?![\w./=-])"
)
_QUOTED = rf"(?s)\\.|\$\{{|\$\(|[\"`]|(?P<verb>{_MOVES})"
_VALUE = r"(?s)\\.|\$\{|\$\(|[\"`}]"
_IN_TEXT = rf"(?:\A'|[;&|({{\n])\s*{_VERBS}"
_AT_COMMAND = r"(?:\A|[\n;&|(){`!]|(?<![\w./$-])(?:then|do|else|elif|if|while|until|time))\Z"
MAX_LENGTH = 1 << 10  # of a folder's path; of the commands behind one that goes there
MAX_PUSHED = 16
_WINDOW = 256  # characters before a word that tell whether it is a command
_ITS_OWN = r"\$\(\s*dirname\s+(?:--\s+)?\"?\$(?:0|\{?BASH_SOURCE[^}\s\"]*\}?)\"?\s*\)"
_SUBMITTED = r"\$(?:\{(?:SLURM_SUBMIT_DIR|PBS_O_WORKDIR)\}|(?:SLURM_SUBMIT_DIR|PBS_O_WORKDIR)\b)"  # where it is started
_TARGET = (
    rf"[ \t]*((?:{_ITS_OWN}|\$\([^()\n]*\)|\$\{{[^}}\n]*\}}|[^\n;&|()<>])*+)"
    r"(?:&?>>?&?[ \t]*[^\s;&|()<>]+[ \t]*(?:\d(?=>))?)*+(?=[\n;)]|&&|\|\|[ \t]*(?:exit|return|die|\{))"
)
_BEHIND = r"(?<![&>])&(?![&>])"  # what stands before it goes on by itself


def folders_of(script: str, text: str) -> Callable[[int], str]:
    """The folder that a script is in at a place, from the one that it is started in: empty where it has gone to none,
    :data:`ANY` where that is not sure. In a Makefile each line has a shell of its own."""
    if re.search(_MOVES, text) is None:
        return lambda place: ""
    text = re.sub(r"\\\r?\n", lambda joined: " " * len(joined[0]), text)
    if not script.endswith("Makefile"):
        return _Walk(text).folder
    if ".ONESHELL" in text:
        return lambda place: ANY
    starts, lines, at = list[int](), list[Callable[[int], str]](), 0
    for line in text.splitlines(keepends=True):
        if re.search(_MOVES, line) is not None:
            prefix = len(line) - len(line.lstrip("\t @+-"))
            starts += (at, at + len(line))
            lines += (_Walk(" " * prefix + line[prefix:]).folder, lambda place: "")
        at += len(line)

    def folder(place: int) -> str:
        index = bisect_right(starts, place) - 1
        return lines[index](place - starts[index]) if index >= 0 else ""

    return folder


def names_from(folder: str, named: str) -> list[str]:
    """What a command may mean by a name in a folder, the surest first: with :data:`ANY` before it where that is only
    the end of a path."""
    known = not folder.startswith(ANY)
    parts = [] if known else folder.split("/")[1:][-_ENDS_TRIED:]
    ends = ["/".join((ANY, *parts[at:])) for at in range(len(parts) + 1)]
    if named.startswith("/"):
        return [named, f"{ANY}/{named}"]
    return [f"{each}/{named}" if each else named for each in ((folder, *ends) if known else ends)]


def end_of(name: str) -> str | None:
    """The end of the path that a name of :func:`names_from` is; None of one that is whole."""
    if not name.startswith(f"{ANY}/"):
        return None
    return written_out(os.path.normpath(name[len(ANY) + 1 :]).replace(os.sep, "/"))


class _State(NamedTuple):
    """The folder of a shell, those that it has put by, and where the first is sure no longer."""

    folder: str = ""
    pushed: tuple[str, ...] = ()
    until: int | None = None


class _Open(NamedTuple):
    """What is open at a place: a bracket, a quote, braces, a loop; with the state that a subshell leaves behind."""

    kind: str
    start: int
    state: _State


class _Walk:
    """Goes once through the text of a shell."""

    def __init__(self, text: str) -> None:
        self._text = f"{text}\n"
        self._code, self._quoted, self._value = map(re.compile, (_CODE, _QUOTED, _VALUE))
        self._state = _State()
        self._inside: list[_Open] = []
        self._changes: list[tuple[int, str]] = [(0, "")]
        self._bodies: list[tuple[int, int]] = []  # of functions and of here-documents: where they are run is not told
        self._skipped: tuple[int, int] | None = None  # the next body of a here-document
        self._moved = False
        if self._lost() or self._inside:  # it is not understood
            self._changes = [(0, ANY)]
        self._places = [place for place, _ in self._changes]
        bodies = sorted(self._bodies if self._moved else ())
        self._starts, self._ends = [start for start, _ in bodies], list[int]()
        for _, end in bodies:
            self._ends.append(max([end, *self._ends[-1:]]))

    def folder(self, place: int) -> str:
        """The folder at a place."""
        body = bisect_right(self._starts, place) - 1
        if body >= 0 and place < self._ends[body]:
            return ANY
        return self._changes[bisect_right(self._places, place) - 1][1]

    def _lost(self) -> bool:
        """Goes through it; whether that is given up."""
        at = 0
        while len(self._inside) <= MAX_DEPTH:
            kind = self._inside[-1].kind if self._inside else ""
            found = {'"': self._quoted, "${": self._value}.get(kind, self._code).search(self._text, at)
            place = len(self._text) if found is None else found.start()
            if self._skipped is not None and place >= self._skipped[0]:
                at, self._skipped = self._skipped[1], None
                continue
            if self._state.until is not None and place >= self._state.until:
                self._go(self._state.until, _State(ANY))
            if found is None:
                return False
            at = found.end()
            if not self._understands(found, kind):
                return True
        return True

    def _understands(self, found: re.Match[str], kind: str) -> bool:
        """Takes in one word or sign."""
        named, token, start = found.groupdict(), found[0], found.start()
        if named.get("mark"):
            return self._here(found)
        if named.get("single"):
            if re.search(_IN_TEXT, token):
                self._move(start, _State(ANY))
        elif named.get("verb"):
            self._verb(found, kind)
        elif named.get("opens") or named.get("closes"):
            return not self._at_command(start) or self._word(found, kind)
        elif (
            (token == kind and token in '"`')
            or (token == ")" and kind in ("(", "$("))
            or (token == "}" and kind in ("{", "${"))
        ):
            opened = self._inside.pop()
            if token == ")":
                self._go(found.end(), opened.state)
            elif opened.kind == "{":
                self._bodies.append((opened.start, found.end()))
        elif token in ("(", "$(", "${", "{", '"', "`"):
            self._inside.append(_Open(token, start, self._state))
        return True

    def _word(self, found: re.Match[str], kind: str) -> bool:
        if found["opens"]:
            self._inside.append(_Open("loop", found.start(), self._state))
        elif kind == "loop":
            self._inside.pop()
        return bool(found["opens"]) or kind == "loop"

    def _here(self, found: re.Match[str]) -> bool:
        """Passes over a here-document; whether it ends."""
        begin = self._skipped[1] if self._skipped else self._text.find("\n", found.end()) + 1
        mark = re.compile(rf"^[ \t]*{found['mark']}[ \t\r]*$", re.M)
        end = mark.search(self._text, begin) if begin else None
        if end is not None:
            self._skipped = self._skipped[0] if self._skipped else begin, end.end()
            self._bodies.append((begin, end.end()))
            self._moved = self._moved or re.search(_MOVES, self._text[begin : end.start()]) is not None
        return end is not None

    def _before(self, place: int) -> str:
        return self._text[max(0, place - _WINDOW) : place].rstrip(" \t")

    def _at_command(self, place: int) -> bool:
        return re.search(_AT_COMMAND, self._before(place)) is not None

    def _verb(self, found: re.Match[str], kind: str) -> None:
        start, before = found.start(), self._before(found.start())
        if kind == '"':
            if before.endswith('"') or self._at_command(start):
                self._move(start, _State(ANY))
            return
        if not self._at_command(start):
            return
        target = re.compile(_TARGET).match(self._text, found.end(), found.end() + MAX_LENGTH)
        if target is None or before.endswith("|"):
            self._move(start, _State(ANY))
            return
        named = target[1].strip()
        if self._text[target.end(1) : target.end(1) + 1] == ">":
            named = re.sub(r"(?:^|\s)\d$", "", named)
        folder, pushed = self._state.folder, self._state.pushed
        if found[0] == "popd":
            gone, pushed = (pushed[-1], pushed[:-1]) if pushed and not named else (ANY, ())
        else:
            gone = _gone(folder, named)
            pushed = (*pushed[1 - MAX_PUSHED :], folder) if found[0] == "pushd" else pushed
        last = target.end() + MAX_LENGTH
        ended = re.compile(r"[;\n]").search(self._text, target.end(), last)
        until = last if ended is None else ended.start()
        alone = (
            ended is not None
            and not before.endswith("&&")
            and re.search(_BEHIND, self._text[target.end() : until]) is None
        )
        self._move(start, _State(gone, pushed, None if alone else until))

    def _move(self, start: int, state: _State) -> None:
        """Goes to a folder, as far as that is done at all, and once: what is inside a function, a loop or a quote may
        be done before what stands above it, or never."""
        in_function = any(each.kind == "{" for each in self._inside)
        if state[:2] == self._state[:2] == ("", ()) and not in_function:  # it stays where it is
            return
        shells = [at for at, each in enumerate(self._inside) if each.kind in ("(", "$(")]
        unsure = self._inside[shells[-1] + 1 if shells else 0 :]
        if not shells or self._inside[shells[-1]].kind == "(":  # what a function does in $(...) is for its output
            self._moved = True
        if unsure:
            start = min(start, unsure[0].start)
            while self._changes and self._changes[-1][0] >= start:
                self._changes.pop()
        self._go(start, _State(ANY) if unsure or in_function else state)

    def _go(self, place: int, state: _State) -> None:
        self._state = state
        self._changes.append((place, state.folder))


def _gone(folder: str, target: str) -> str:
    """The folder after ``cd`` to a target: of one that a variable stands for what is written behind it."""
    target, own = re.subn(rf"^[\"']?(?:{_ITS_OWN}|{_SUBMITTED})[\"']?", ".", target.split(" #")[0].strip())
    target = re.sub(r"[\"']", "", target)
    if (
        len(folder) + len(target) > MAX_LENGTH
        or target[:1] in ("", "-")
        or re.search(r"[\s`*?\[\\]", re.sub(r"\$\([^()]*\)", "", target))
    ):
        return ANY
    if target[0] in "/~" or "$" in target:
        end = written_out(f"{target}/.").removesuffix(".").strip("/")
        return f"{ANY}/{end}" if end else ANY
    if own or not folder.startswith(ANY):
        return _plain(os.path.join("" if own else folder, target))
    end = _plain(os.path.join(folder[len(ANY) + 1 :], target))
    return ANY if not end or end.startswith("..") else f"{ANY}/{end}"


def _plain(folder: str) -> str:
    folder = os.path.normpath(folder).replace(os.sep, "/")
    return "" if folder == "." else folder
