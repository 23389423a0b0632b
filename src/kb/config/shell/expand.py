"""From words to arguments: variables that the script itself sets to literal text are filled in, all else is unknown."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from kb.config.shell.arguments import (
    ANY,
    LONGEST_TEXT,
    UNTOLD,
    UNTOLD_OPTIONS,
    UNTOLD_PART,
    Argument,
    Frame,
    Held,
    behind,
    bounded,
    held_at,
    join,
    open_ended,
    partly_told,
    plain,
    reckoned,
    share,
    split,
)
from kb.config.shell.folders import ANY as ANY_FOLDER
from kb.config.shell.folders import FOLDER, OPTIONS, PUSHED, SUBMITTED, VERBS, stepped
from kb.config.shell.lexer import OWN_FOLDER, Command, Piece, Word
from kb.config.shell.order import (
    BEFORE_COMMANDS,
    CLOSING,
    DECLARATIONS,
    OPENING,
    READ,
    adds_flags,
    assigned,
    changed_by,
    may_set_anything,
    name_of,
    set_item,
)

_NEXT_BRANCH = frozenset(("else", "elif", ";;", ";&", ";;&"))
# Commands that end well where the script is to go on, so that what follows ``&&`` holds.
_STARTED = Held("", ())  # the folder that a script is started in
_SURE = frozenset(("cd", "pushd", "mkdir", "source", ".", "set", "true", ":", "echo", "module", "conda"))
_DEEPEST = 100
POSITIONS = tuple("@123456789")
_APART = frozenset(("|", "|&", "&"))  # behind a command: it runs in a shell of its own
_CONTINUED = re.compile(r"\\\r?\n")
_FLAGS = re.compile(r"(?:^|[\s=])--([A-Za-z][\w.-]*)")
_WHERE_STARTED = frozenset((("unknown", OWN_FOLDER), *(("variable", name) for name in SUBMITTED)))
_OPTIONS = re.compile(r"ARG(?!E|I|O)|OPT(?!IM)|FLAG|PARAM|EXTRA|^[@*]$", re.I)  # no target, no optimizer


@dataclass(slots=True)
class Environment:
    """What the script's variables hold at some point. A name maps to None where its value is not known."""

    script: str = ""  # the whole text, for here-documents
    variables: dict[str, Held | None] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    chosen: dict[str, frozenset[str]] = field(
        default_factory=dict
    )  # flags that a variable of a branch may hold, by name
    sure: bool = True  # the command runs where the one above it does: not behind ``||``, or ``&&`` and a test
    ends_well: bool = True  # the command above, where the script is to go on
    pattern: bool = False  # what comes next is a pattern of ``case``
    prefixes: tuple[Word, ...] = ()  # ``NAME=value`` before the command taken last
    changing: Set[str] = frozenset()  # names that a loop about to begin sets
    apart: bool = False  # the command runs in a shell of its own
    chained: bool = False  # it hangs on the one above by ``&&`` alone
    line: tuple[Held | None] | None = None  # the folder in which each line begins, where that has a shell of its own
    before_chain: Held | None = _STARTED  # the folder before the first of the commands that ``&&`` joins
    behind_chain: tuple[Held | None] | None = None  # the folder behind the last of them, where it is another
    exported: set[str] = field(default_factory=set)  # names whose values the programs that it starts get
    deeper: int = 0  # what is open beyond the deepest that is followed: nothing is known of what is set there

    @property
    def certain(self) -> bool:
        """Whether what stands here runs whenever the script comes to it, and what it sets holds afterwards."""
        return self.sure and not self.deeper and all(frame.kind in ("{", "function") for frame in self.frames)

    @property
    def certain_in_call(self) -> bool:
        """The same of a call, whether or not it happens."""
        opened = (at for at, frame in enumerate(self.frames) if frame.kind.startswith("function"))
        return self.sure and all(frame.kind == "{" for frame in self.frames[max(opened, default=-1) + 1 :])

    def take(self, command: Command, group: str = "") -> tuple[Argument, ...]:
        """The arguments of the command after keywords and ``NAME=value`` prefixes; assignments are remembered.
        ``group`` is what stands behind a group that begins with it.
        """
        self.follow(command.before)
        self.apart = command.after in _APART
        words = list(command.words)
        if self.pattern and words[0].literal != "esac":
            self.pattern = False
            return ()
        self.pattern = False
        while words and (literal := words[0].literal) is not None and literal in OPENING.keys() | BEFORE_COMMANDS:
            self._keyword(literal, group)
            if literal in ("for", "select", "case"):
                self.pattern = literal == "case" and len(words) < 4
                self._forget_names(changed_by(words))
                return ()
            words.pop(0)
        self.sure = self.sure and not self.apart
        of_variables = not words or words[0].literal in DECLARATIONS or all(map(assigned, words))
        self.ends_well = of_variables or words[0].literal in _SURE
        taken = self._taken(words, command.heredoc)
        if command.after == "&" and self.chained:  # all that hangs together runs in a shell of its own
            self.behind_chain = (self.before_chain,)
        return taken

    def _taken(self, words: list[Word], heredoc: tuple[int, int] | None) -> tuple[Argument, ...]:
        if words and words[0].literal in DECLARATIONS:
            self._declare(words)
            return ()
        prefixes = 0
        while prefixes < len(words) and assigned(words[prefixes]):
            prefixes += 1
        rest = words[prefixes:]
        self.prefixes = tuple(words[:prefixes])
        if not rest:
            self._assign(words)
            return ()
        if rest[0].literal == "shift" or (rest[0].literal == "set" and len(rest) > 1):
            self._renumber(rest)
        if rest[0].literal == "read" and heredoc is not None and self.certain:
            self._read_into(rest[1:], heredoc)
            return ()
        if rest[0].literal in READ or set_item(rest[0]):
            self._forget_names(changed_by(rest))
            return ()
        if rest[0].literal in VERBS:
            self._go(rest[0].literal or "", rest[1:])
        elif len(rest) > 1 and may_set_anything(rest, self._lookup, self.script):
            self._forget_all()
        return tuple(argument for word in rest for argument in self.expand(word))

    def _declare(self, words: Sequence[Word]) -> None:
        """``export``, ``local``; what ``-i``, ``-l`` or ``-u`` make of a value is not known."""
        options = {
            letter for word in words[1:] if (word.literal or "").startswith("-") for letter in word.literal or ""
        }
        named = [word for word in words[1:] if not (word.literal or "").startswith("-")]
        function = next((each for each in reversed(self.frames) if each.kind.startswith("function")), None)
        if function is not None and "g" not in options and words[0].literal in ("local", "declare", "typeset"):
            function.own.update(map(name_of, named))
        self._assign(named)
        if words[0].literal == "export" or "x" in options:
            self.exported.update(map(name_of, named))
        if any(word.pieces[0].text[:1] != "<" and word.literal is None and not assigned(word) for word in named):
            self._forget_all()
        if "n" in options and words[0].literal != "export":  # another name for a variable
            values = (self._value(word, len(name_of(word)) + 1) for word in named if assigned(word))
            self._forget_names(value.text for value in values if value is not None)
        if words[0].literal != "export" and options & {"i", "l", "u", "n"}:
            self._forget_names(map(name_of, named))

    def _forget_all(self) -> None:
        self._forget_names([name for name in self.variables if not name.startswith(("SLURM_", FOLDER))])

    @property
    def folder(self) -> str:
        """The folder that it is in, from the one that it was started in."""
        held = self.variables.get(FOLDER, _STARTED)
        return ANY_FOLDER if held is None else held.text

    def _go(self, verb: str, words: Sequence[Word]) -> None:
        """``cd``, ``pushd``, ``popd``. Behind ``&&`` and what may fail it holds for what hangs on it alone."""
        words = [word for word in words if word.literal not in OPTIONS]
        put_by = self.variables.get(PUSHED, _STARTED)
        target, started = self._target(words[0]) if len(words) == 1 else (None, False)
        folder, pushed = stepped(verb, target, started, self.folder, "" if put_by is None else put_by.text)
        stays = verb == "cd" and folder == self.folder and not folder.startswith(ANY_FOLDER)
        if self.apart or stays:
            return
        chained = not self.sure and self.chained
        self._set(FOLDER, None if folder == ANY_FOLDER or not (self.sure or chained) else Held(folder, ()))
        self._set(PUSHED, Held(pushed, ()) if self.sure else None)
        if chained:
            self.behind_chain = (None,)

    def _target(self, word: Word) -> tuple[str, bool]:
        """The folder that a word names, ``$`` for what nobody knows, and whether from where the script is started."""
        pieces = [piece for piece in word.pieces if piece.text or piece.kind != "literal"]
        started = bool(pieces) and (pieces[0].kind, pieces[0].text) in _WHERE_STARTED
        text = "." if started else ""
        for piece in pieces[started:]:
            known = self.known(piece)
            text += "$" if known is None else UNTOLD_PART.sub("$", known[0])
        return text, started

    def follow(self, operators: Sequence[str]) -> None:
        """The operators in front of a command: how it hangs on the one above."""
        self.chained = tuple(operators) == ("&&",)
        if not self.chained:
            self._end_chain(new_line=not operators)
        if not operators:
            self.sure = True
        for at, operator in enumerate(operators):
            self.sure = self.sure and self.ends_well if operator == "&&" else operator not in ("||", "|", "|&")
            if operator == "(" and operators[at + 1 : at + 2] != (")",):
                self.open("(")
            elif operator == ")" and operators[at - 1 : at] != ("(",):
                self.close("(")
            elif operator in _NEXT_BRANCH:
                self._next_branch()
                self.pattern = True

    def lines_apart(self, *, one_shell: bool) -> None:
        """Each line has a shell of its own, as in a Makefile; with ``one_shell`` several share one."""
        self.line = (None if one_shell else _STARTED,)
        self.behind_chain = self.line

    def _end_chain(self, new_line: bool) -> None:
        """The last of the commands that ``&&`` joins is done."""
        if new_line and self.line is not None and not self.frames:
            self.behind_chain = self.line
        if self.behind_chain is not None:
            self._set(FOLDER, self.behind_chain[0])
            self.behind_chain = None
        self.before_chain = self.variables.get(FOLDER, _STARTED)

    def _keyword(self, word: str, group: str) -> None:
        if word in OPENING:
            kind = OPENING[word]
            self.open(kind if kind != "{" else "(" if group in _APART else "{" if self.sure else "branch")
        elif word in CLOSING:
            self.close(CLOSING[word])
        elif word in _NEXT_BRANCH:
            self._next_branch()
        self.sure = self.sure or word not in ("!", "time")

    def open(self, kind: str) -> None:
        """Begin what ends with a closing word: ``}`` ends ``{``, a branch behind a test, and ``(`` before a pipe."""
        if len(self.frames) >= _DEEPEST and not kind.startswith("function"):
            self.deeper += 1
            return
        self.frames.append(Frame(kind, dict(self.variables), {}, set()))
        if kind == "loop":
            self.variables |= dict.fromkeys(self.changing)

    def close(self, kind: str) -> None:
        """End what :meth:`open` began."""
        if self.deeper:
            self.deeper -= 1
            return
        kinds = ("{", "branch", "(") if kind == "{" else (kind,)
        if not self.frames or self.frames[-1].kind not in kinds:
            return
        frame = self.frames.pop()
        if frame.kind in ("branch", "loop"):
            self.variables = frame.before | behind(frame)
        elif frame.kind == "(":
            self.variables = frame.before

    def _next_branch(self) -> None:
        if self.frames and self.frames[-1].kind == "branch":
            self.variables = dict(self.frames[-1].before)

    def prefixed(self) -> dict[str, Held | None]:
        """What ``NAME=value`` before the command taken last sets for it alone."""
        return {name_of(word): self._value(word, len(name_of(word)) + 1) for word in self.prefixes}

    def call(self, arguments: Sequence[Argument] | None) -> None:
        """A function begins, with these arguments, None unknown; :meth:`returned` ends it."""
        told = self.prefixed() if arguments is not None else {}
        self.open("function" if self.sure and arguments is not None else "function, perhaps")
        self.frames[-1].own.update(POSITIONS, told)
        self.variables |= told
        self._number((ANY,) if arguments is None else tuple(arguments))

    def _renumber(self, words: Sequence[Word]) -> None:
        """``shift``, ``set -- a b``: other arguments than before. Those of the script itself are not known anyway."""
        every = self.variables.get("@")
        if words[0].literal == "set":
            at = next((at for at, word in enumerate(words) if word.literal == "--"), 0)
            if at or not (words[1].literal or "").startswith(("-", "+")):
                self._number(tuple(each for word in words[at + 1 :] for each in self.expand(word)))
        elif "@" in self.variables:
            count = words[1].literal if len(words) > 1 else "1"
            if every is None or every.items is None or count is None or not count.isdigit():
                self._number((ANY,))
            else:
                self._number(every.items[int(count) :])

    def _number(self, words: tuple[Argument, ...]) -> None:
        """Make these ``$1``, ``$2``, ``$@``; more may stand in one that is not known."""
        several = next((at for at, each in enumerate(words) if each.text is None and each.options), len(words))
        held = [None if each.text is None else held_at(each.text, each.start, each.end) for each in words[:several]]
        known = several == len(words)
        rest = (Held("", ()) if known else None,) * 9
        for name, value in zip(POSITIONS[1:], (*held, *rest), strict=False):
            self._set(name, value)
        every = Held("", (), tuple(map(share, words))) if known else None
        self._set("@", every)

    def returned(self) -> None:
        """The function that began last ends: what it set stays, but for its own names."""
        while self.frames and not self.frames[-1].kind.startswith("function"):
            self.close(self.frames[-1].kind)
        if not self.frames:
            return
        frame = self.frames.pop()
        if frame.kind != "function":
            self.variables = frame.before | behind(frame)
        for name in frame.own:
            self.variables.pop(name, None)
            if name in frame.before:
                self.variables[name] = frame.before[name]

    def _read_into(self, words: list[Word], body: tuple[int, int]) -> None:
        """``read -r -d '' NAME <<EOF``: the whole body is the variable's text; without ``-d`` only a line would be."""
        self._forget_names(word.literal for word in words if word.literal is not None)
        names = [word.literal for word in words if (word.literal or "").isidentifier()]
        options = [word.literal or "" for word in words[:-1]]
        if len(names) != 1 or not any(word.startswith("-") and word.endswith("d") for word in options):
            return
        offsets = list(range(*body))
        for found in reversed(list(_CONTINUED.finditer(self.script, *body))):
            del offsets[found.start() - body[0] : found.end() - body[0]]
        self._set(names[0] or "", Held("".join(self.script[at] for at in offsets), tuple(offsets)))

    def chooses_gpus(self, command: Command) -> bool:
        """Whether the command, or the script before it, says which GPUs are to be seen."""
        here = (match[1] for word in command.words if (match := assigned(word)))
        return "CUDA_VISIBLE_DEVICES" in (*self.variables, *here)

    def told(self, command: Command, names: Collection[str]) -> dict[str, str | None]:
        """Those of ``names`` that the command's own assignments or the script before it set; None is not known."""
        found: dict[str, str | None] = {}
        for name in names:
            if name in self.variables:
                found[name] = plain(self.variables[name])
        for word in command.words:
            match = assigned(word)
            if match is not None and match[1] in names:
                found[match[1]] = plain(self._value(word, len(match[0])))
        return found

    def fixed(self, command: Command, names: Collection[str]) -> frozenset[str]:
        """Those of ``names`` that are set for the command, and to nothing that the environment may have otherwise."""
        set_here = {match[1]: self._value(word, len(match[0])) for word in command.words if (match := assigned(word))}
        held = {name: set_here.get(name, self.variables.get(name)) for name in names}
        return frozenset(
            name
            for name, value in held.items()
            if value is not None and plain(value) is not None and not value.defaults
            if name in set_here or name in self.exported
        )

    def know(self, variables: Mapping[str, str]) -> None:
        """Take these for set before the script begins."""
        self.exported.update(variables)
        for name, text in variables.items():
            self.variables.setdefault(name, Held(text, (0,) * len(text)))

    def _forget_names(self, names: Iterable[str]) -> None:
        for name in names:
            self._set(name, None)

    def _set(self, name: str, value: Held | None, *, grows: bool = False) -> None:
        self.variables[name] = value
        for frame in self.frames:
            frame.touched[name] = frame.touched.get(name, False) or not grows

    def _assign(self, words: list[Word]) -> None:
        for word in words:
            match = assigned(word)
            if match is None:
                continue
            name, added = match[1], bool(match[2])
            before = self.variables.get(name)
            grows = adds_flags(word, name, len(match[0]), added=added)
            self._note_flags(name, word, grows=grows)
            value = self._value(word, len(match[0]))
            if added and value is not None:
                value = join(before, value)
            grows = grows or (before == Held("", ()) and value is not None and value.text.startswith("-"))
            self._set(
                name, value if self.sure and not self.deeper else open_ended(before) if grows else None, grows=grows
            )

    def _note_flags(self, name: str, word: Word, *, grows: bool) -> None:
        """Which flags a variable may hold that a branch gives a value, or that is made of such a one."""
        found = self.may_say((word,))
        if grows or not self.certain:
            found |= self.chosen.get(name, frozenset())
        if not self.certain:
            before = self.variables.get(name)
            parts = () if before is None or grows else (before.text, *(each.text or "" for each in before.items or ()))
            texts = (
                piece.text for each in (word, *(word.items or ())) for piece in each.pieces if piece.kind == "literal"
            )
            found |= {flag.replace("-", "_") for text in (*parts, *texts) for flag in _FLAGS.findall(text)}
        self.chosen[name] = found

    def may_say(self, words: Sequence[Word]) -> frozenset[str]:
        """The flags that stand in variables of these words, and of which only a run can tell whether they are given."""
        pieces = (piece for word in words for each in (word, *(word.items or ())) for piece in each.pieces)
        named = (self.chosen.get(piece.text) for piece in pieces if piece.kind in ("variable", "array"))
        return frozenset().union(*filter(None, named))

    def tells_flags_of(self, argument: Argument, words: Sequence[Word]) -> bool:
        """Whether the script itself says which flags an argument that stands for a variable may hold."""
        here = (word for word in words if argument.shared or word.start == argument.start)
        return any(bool(self.may_say((word,))) for word in here)

    def _value(self, word: Word, skip: int) -> Held | None:
        if word.items is not None:
            items = tuple(argument for item in word.items for argument in self.expand(item))
            return bounded(Held("", (), tuple(share(argument) for argument in items)))
        first = word.pieces[0]
        pieces = (Piece("literal", first.text[skip:], first.start + skip, first.quoted), *word.pieces[1:])
        text, offsets, defaults = "", list[int](), set[int]()
        for piece in pieces:
            part = self._lookup(piece)
            if part is not None and part.items is not None:
                return None
            if part is None:
                part = Held(UNTOLD_OPTIONS if _seems_options(piece) else UNTOLD, (piece.start,))
            text += part.text
            offsets += part.offsets
            defaults |= part.defaults
            if len(text) > LONGEST_TEXT:
                return None
        told = not text or UNTOLD_PART.sub("", text) != ""
        return Held(text, tuple(offsets), defaults=frozenset(defaults)) if told else None

    def _lookup(self, piece: Piece) -> Held | None:
        """The value of one piece. ``${NAME:-default}`` of a name that the script never sets is its default."""
        if piece.kind == "literal":
            return Held(piece.text, tuple(range(piece.start, piece.start + len(piece.text))))
        if piece.kind == "unknown":
            return None
        if piece.kind == "sum":
            return self._reckoned(piece)
        if piece.text in self.variables:
            value = self.variables[piece.text]
            if value == Held("", ()) and piece.default is not None:
                return Held(piece.default, (piece.start,) * len(piece.default))
            return value if value is None or value.items is None or piece.kind == "array" else None
        if piece.default is None:
            return None
        return Held(piece.default, (piece.start,) * len(piece.default), defaults=frozenset((piece.start,)))

    def _reckoned(self, piece: Piece) -> Held | None:
        """The value of ``$((…))``, where the script's own variables give it; one that it never sets may be anything."""

        def look_up(name: str) -> str | None:
            return plain(self.variables.get(name))

        number = reckoned(piece.text, look_up)
        text = str(number)
        return None if number is None else Held(text, (piece.start,) * len(text))

    def known(self, piece: Piece) -> tuple[str, tuple[int, ...]] | None:
        """The text of a piece and where each character of it stands; None where it is not known, or an array.

        Parts of a text that are not known are marked: :data:`UNTOLD`.
        """
        value = self._lookup(piece)
        return None if value is None or value.items is not None else (value.text, value.offsets)

    def expand(self, word: Word) -> tuple[Argument, ...]:
        """The arguments that a word becomes: none, one, or several where a variable holds several."""
        if word.literal is not None:
            return (Argument(word.literal, word.start, word.end),)
        if len(word.pieces) == 1 or all(piece.kind == "array" or not piece.text for piece in word.pieces):
            piece = word.pieces[-1]
            value = self._lookup(piece)
            if value is None:
                return (Argument(None, word.start, word.end, options=_seems_options(piece)),)
            if value.items is not None:
                return value.items
            if not value.text and not piece.quoted:
                return ()  # without quotes around it nothing is handed on
            one = piece.quoted or (piece.default is not None and piece.text not in self.variables)  # "a b" of a default
            if not one and any(character.isspace() for character in value.text):
                return split(value)
        text, by_default = "", False
        for piece in word.pieces:
            part = self._lookup(piece)
            if part is None or part.items is not None:
                text += UNTOLD
                continue
            if piece.kind == "variable" and not piece.quoted and any(map(str.isspace, part.text)):
                return (Argument(None, word.start, word.end),)  # it is cut into several
            text += part.text
            by_default |= bool(part.defaults)
        found = Argument(text, word.start, word.end, from_variable=True, by_default=by_default)
        return (found if UNTOLD_PART.search(text) is None else partly_told(text, found),)


def _seems_options(piece: Piece) -> bool:
    return piece.kind != "sum" and _OPTIONS.search(piece.text) is not None
