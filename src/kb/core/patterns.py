"""A regular expression that someone wrote into a config, matched in time that grows with the text and not faster.

Python's own matcher tries one way after another, and some patterns have more ways than there is time for. This one
follows all of them at once (Thompson's construction), on what :mod:`re` itself parsed. What goes beyond it (looking
ahead or behind, back references, flags) is refused: its outcome is not known.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

MOST_STATES = 2000
MOST_STEPS = 1_000_000
LONGEST = 2000
MOST_REPEATING = 100  # keys of PEFT's rank_pattern that repeat something; one for each layer needs no repetition
_REPEATING = r"[*+?{]"
_FLAGS = re.UNICODE | re.VERBOSE | re.DOTALL

Test = Callable[[str], bool]
Edge = tuple[str, Any, int]  # "": no condition; "char": a test; "at": a place in the text → the state it leads to


class PatternError(ValueError):
    """The pattern is none, or one whose outcome is not known."""


class Pattern:
    """One compiled pattern.

    Args:
        steps: how much work it may be for all texts together.

    Raises:
        PatternError: it is no regular expression, or goes beyond what is followed here.
    """

    def __init__(self, pattern: str, steps: int = MOST_STEPS) -> None:
        if len(pattern) > LONGEST:
            raise PatternError("the pattern is too long")
        try:
            tree = _parser.parse(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(str(error)) from None
        if tree.state.flags & ~_FLAGS:
            raise PatternError("the pattern has flags")
        self._any: Test = (lambda each: True) if tree.state.flags & re.DOTALL else "\n".__ne__
        self._edges: list[list[Edge]] = [[]]
        self._placed = False  # whether a place in the text decides anything
        self._steps = steps
        try:
            self._end = self._sequence(tree, 0)
        except RecursionError:
            raise PatternError("the pattern is too deep") from None
        self._closed: dict[tuple[frozenset[int], Any], frozenset[int]] = {}
        self._next: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def fullmatch(self, text: str) -> bool:
        """Whether the whole text matches.

        Raises:
            PatternError: finding out takes more steps than it may.
        """
        states = frozenset((0,))
        for at in range(len(text)):
            states = self._after(self._closure(states, text, at), text[at])
            if not states:
                return False
        return self._end in self._closure(states, text, len(text))

    def search(self, text: str) -> bool:
        """Whether any part of the text matches.

        Raises:
            PatternError: finding out takes more steps than it may.
        """
        states = frozenset[int]()
        for at in range(len(text) + 1):
            states = self._closure(states | {0}, text, at)
            if self._end in states:
                return True
            if at < len(text):
                states = self._after(states, text[at])
        return False

    def _count(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise PatternError("the pattern takes too long")

    def _after(self, states: frozenset[int], character: str) -> frozenset[int]:
        found = self._next.get((states, character))
        if found is None:
            self._count(len(states))
            edges = (edge for state in states for edge in self._edges[state])
            found = frozenset(to for kind, test, to in edges if kind == "char" and test(character))
            self._next[(states, character)] = found
        return found

    def _closure(self, states: frozenset[int], text: str, at: int) -> frozenset[int]:
        """The states with all that follow from them without a character."""
        place = _place(text, at) if self._placed else None
        found = self._closed.get((states, place))
        if found is None:
            reached, pending = set(states), list(states)
            while pending:
                self._count(1)
                for kind, test, to in self._edges[pending.pop()]:
                    if to not in reached and (kind == "" or (kind == "at" and _holds(test, place))):
                        reached.add(to)
                        pending.append(to)
            found = frozenset(reached)
            self._closed[(states, place)] = found
        return found

    def _state(self) -> int:
        if len(self._edges) >= MOST_STATES:
            raise PatternError("the pattern is too large")
        self._edges.append([])
        return len(self._edges) - 1

    def _edge(self, start: int, kind: str = "", test: Any = None, to: int | None = None) -> int:
        to = self._state() if to is None else to
        self._edges[start].append((kind, test, to))
        return to

    def _sequence(self, tree: Any, start: int) -> int:
        """Add what a parsed sequence matches, from a state on; the state that it ends in."""
        for code, value in tree:
            start = self._one(code, value, start)
        return start

    def _one(self, code: Any, value: Any, start: int) -> int:
        if code is op.LITERAL:
            return self._edge(start, "char", chr(value).__eq__)
        if code is op.NOT_LITERAL:
            return self._edge(start, "char", chr(value).__ne__)
        if code is op.ANY:
            return self._edge(start, "char", self._any)
        if code is op.IN:
            return self._edge(start, "char", _one_of(value))
        if code is op.AT:
            self._placed = True
            return self._edge(start, "at", value)
        if code is op.SUBPATTERN:
            _, added, removed, inner = value
            if added or removed:
                raise PatternError("the pattern has flags")
            return self._sequence(inner, start)
        if code is op.BRANCH:
            end = self._state()
            for inner in value[1]:
                self._edge(self._sequence(inner, self._edge(start)), to=end)
            return end
        if code in (op.MAX_REPEAT, op.MIN_REPEAT):
            least, most, inner = value
            return self._repeat(least, most, inner, start)
        raise PatternError("the pattern looks around itself, or back")

    def _repeat(self, least: int, most: Any, inner: Any, start: int) -> int:
        for _ in range(least):
            start = self._sequence(inner, self._edge(start))
        if most is op.MAXREPEAT:
            hub = self._edge(start)
            self._edge(self._sequence(inner, self._edge(hub)), to=hub)
            return self._edge(hub)
        end = self._state()
        self._edge(start, to=end)
        for _ in range(most - least):
            start = self._sequence(inner, self._edge(start))
            self._edge(start, to=end)
        return end


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Pattern:
    """The pattern, ready to be asked; one that took too long once takes no time again.

    Raises:
        PatternError: as :class:`Pattern`.
    """
    return Pattern(pattern)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CATEGORIES: dict[Any, Test] = {
    op.CATEGORY_DIGIT: str.isdecimal,
    op.CATEGORY_NOT_DIGIT: lambda each: not each.isdecimal(),
    op.CATEGORY_SPACE: str.isspace,
    op.CATEGORY_NOT_SPACE: lambda each: not each.isspace(),
    op.CATEGORY_WORD: _is_word,
    op.CATEGORY_NOT_WORD: lambda each: not _is_word(each),
}


def _one_of(items: Any) -> Test:
    negated = bool(items) and items[0][0] is op.NEGATE
    singles: set[int] = set()
    tests: list[Test] = []
    ranges: list[tuple[int, int]] = []
    for code, value in items:
        if code is op.LITERAL:
            singles.add(value)
        elif code is op.RANGE:
            ranges.append(value)
        elif code is op.CATEGORY:
            tests.append(_CATEGORIES[value])

    def test(character: str) -> bool:
        number = ord(character)
        hit = number in singles or any(low <= number <= high for low, high in ranges)
        return (hit or any(each(character) for each in tests)) != negated

    return test


def _place(text: str, at: int) -> tuple[bool, bool, bool, bool]:
    """Whether it is the text's start, its end, just before a line end that ends it, and a word's edge."""
    before, after = text[at - 1 : at] if at else "", text[at : at + 1]
    edge = (bool(before) and _is_word(before)) != (bool(after) and _is_word(after))
    return at == 0, at == len(text), at == len(text) - 1 and after == "\n", edge


def _holds(wanted: Any, place: tuple[bool, bool, bool, bool] | None) -> bool:
    assert place is not None
    start, end, before_last, edge = place
    if wanted in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
        return start
    if wanted is op.AT_END:
        return end or before_last
    if wanted is op.AT_END_STRING:
        return end
    return edge if wanted is op.AT_BOUNDARY else not edge


def unmatched(keys: list[str], paths: list[str]) -> tuple[str, ...]:
    r"""The keys that no path ends with, as ``re.match(rf"(.*\.)?({key})$", path)`` has it.

    Raises:
        PatternError: a key is no regular expression, or one whose outcome is not known.
    """
    repeating = [key for key in keys if re.search(_REPEATING, key)]
    if len(repeating) > MOST_REPEATING:
        raise PatternError("too many patterns")
    missing = []
    for key in keys:
        whole = rf"(.*\.)?({key})$"
        try:
            # without repetitions there is one way to match: Python's own matcher is the faster
            match = (
                Pattern(whole, MOST_STEPS // len(repeating)).fullmatch if key in repeating else re.compile(whole).match
            )
        except re.error as error:
            raise PatternError(str(error)) from None
        if not any(map(match, paths)):
            missing.append(key)
    return tuple(missing)
