"""The arguments of a command as a program gets them, and the values of variables and sums that they are made of."""

import ast
import re
from collections.abc import Callable

from kb.core.record import NamedTuple

GPUS_OF_TASK = "SKYPILOT_NUM_GPUS_PER_NODE"  # a variable by which a task of SkyPilot's is told them
LONGEST_TEXT = 2**17  # bytes of one argument that Linux takes (MAX_ARG_STRLEN); a variable set to itself twice doubles
MOST_ARGUMENTS = 2**13
UNTOLD, UNTOLD_OPTIONS = "\0", "\1"  # stand in a text of several words for a part that nobody knows: a value, or flags
UNTOLD_PART = re.compile(r"[\0\1]")
_NOT_TOLD = re.compile(r"[\0\1]|[$`][^/]*")
_NAMED = re.compile(r"(?:--)?\+{0,2}[A-Za-z_][\w.-]*=")


class Argument(NamedTuple):
    """One argument as the program would get it. ``text`` is None where it cannot be known without running.

    ``start`` to ``end`` is what stands for it in the text; ``shared`` says that it stands in an assignment, which other
    commands may use too; ``options`` that an unknown one seems to stand for flags rather than for a value. ``begins``
    is how an unknown one begins, to its first = (``--nproc_per_node=$N``), ``ends`` how it ends (``$HOME/train.py``).
    ``by_default`` says that the environment may have another text: ``${NAME:-default}``.
    """

    text: str | None
    start: int
    end: int
    shared: bool = False
    from_variable: bool = False
    options: bool = False
    begins: str = ""
    by_default: bool = False
    ends: str = ""


class Held(NamedTuple):
    """A known value: its characters, each with its offset in the script; or the arguments of an array. ``defaults`` are
    those of the offsets at which the environment may have another text."""

    text: str
    offsets: tuple[int, ...]
    items: tuple[Argument, ...] | None = None
    defaults: frozenset[int] = frozenset()


ANY = Argument(None, 0, 0, shared=True, options=True)  # any number of words that nobody knows


def held_at(text: str, start: int, end: int) -> Held:
    """A text that stands from ``start`` to ``end``, quotes counted."""
    return Held(text, tuple(min(start + at, max(end - 1, start)) for at in range(len(text))))


def plain(value: Held | None) -> str | None:
    """The text of a value that is known as a whole."""
    known = value is not None and value.items is None and UNTOLD_PART.search(value.text) is None
    return value.text if value is not None and known else None


def join(before: Held | None, added: Held) -> Held | None:
    if before is None or (before.items is None) != (added.items is None):
        return None
    if before.items is not None and added.items is not None:
        return bounded(Held("", (), before.items + added.items))
    defaults = before.defaults | added.defaults
    return bounded(Held(before.text + added.text, before.offsets + added.offsets, defaults=defaults))


def open_ended(value: Held | None) -> Held | None:
    """The value with more flags behind it, perhaps; only a run can tell."""
    if value is None or (value.items or (None,))[-1] == ANY or value.text.endswith(UNTOLD_OPTIONS):
        return value
    if value.items is not None:
        return bounded(value._replace(items=(*value.items, ANY)))
    last = value.offsets[-1] if value.offsets else 0
    return bounded(value._replace(text=f"{value.text} {UNTOLD_OPTIONS}", offsets=(*value.offsets, last, last)))


def bounded(value: Held) -> Held | None:
    """The value; None of one that no shell could hand on, for its length."""
    return value if len(value.text) <= LONGEST_TEXT and len(value.items or ()) <= MOST_ARGUMENTS else None


class Frame(NamedTuple):
    """What is open, and what the variables were before it: of a branch and a loop they are not known behind it, of
    ``( … )`` they are as they were; of a function those that are its own.
    """

    kind: str
    before: dict[str, Held | None]
    touched: dict[str, bool]  # whether a name was set to anything else than what it held with more behind it
    own: set[str]


def behind(frame: Frame) -> dict[str, Held | None]:
    """What the names that were set hold behind a branch or a loop, which may not have happened."""
    others = ((name, replaced) for name, replaced in frame.touched.items() if name not in frame.own)
    return {name: None if replaced else open_ended(frame.before.get(name)) for name, replaced in others}


def share(argument: Argument) -> Argument:
    return argument._replace(shared=True)


def partly_told(text: str, argument: Argument) -> Argument:
    """The argument of which a text says all but what is marked in it, or stands for a variable."""
    named = _NAMED.match(text)
    return argument._replace(text=None, begins=named[0] if named else "", ends=_NOT_TOLD.split(text)[-1])


def split(value: Held) -> tuple[Argument, ...]:
    """The blank-separated parts of a value, each at its place; of one with a variable in it the text is not known."""
    found = list[Argument]()
    for match in re.finditer(r"\S+", value.text):
        places = value.offsets[match.start() : match.end()]
        whole = Argument(match[0], places[0], places[-1] + 1, shared=True, options=UNTOLD_OPTIONS in match[0])
        whole = whole._replace(by_default=not value.defaults.isdisjoint(places))
        found.append(whole if _NOT_TOLD.search(match[0]) is None else partly_told(match[0], whole))
    return tuple(found)


LONGEST_SUM = 200  # characters; and no number of more digits than a shell's has
_LARGEST = 2**63
_SUMMED = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_WHOLE = re.compile(r"\s*([+-]?\d{1,19})\s*\Z")


def reckoned(text: str, look_up: Callable[[str], str | None]) -> int | None:
    """The value of what stands between ``$((`` and ``))``; None where it cannot be known, or is no plain sum.

    Args:
        look_up: the text of a variable, None where it is not known.
    """
    if len(text) > LONGEST_SUM:
        return None
    try:
        tree = ast.parse(_SUMMED.sub(r"\1\2", text.strip()), mode="eval")  # numbers with a leading zero are no Python
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return _value(tree.body, look_up)


def _value(node: ast.expr, look_up: Callable[[str], str | None]) -> int | None:
    found: int | None = None
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found = node.value
    elif isinstance(node, ast.Name):
        written = _WHOLE.match(look_up(node.id) or "")
        found = int(written[1]) if written and str(int(written[1])) == written[1] else None
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        of = _value(node.operand, look_up)
        found = of if of is None or isinstance(node.op, ast.UAdd) else -of
    elif isinstance(node, ast.BinOp):
        left, right = _value(node.left, look_up), _value(node.right, look_up)
        found = None if left is None or right is None else _of_two(node.op, left, right)
    return found if found is not None and abs(found) < _LARGEST else None


def _of_two(operator: ast.operator, left: int, right: int) -> int | None:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Div | ast.Mod) and right:
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # a shell cuts toward zero
        return quotient if isinstance(operator, ast.Div) else left - quotient * right
    if isinstance(operator, ast.Pow) and 0 <= right < 64 and abs(left) < 2**16:
        return int(left**right)
    return None
