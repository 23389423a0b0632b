"""What a written value means to a setting: what the dialect makes of it,
as ``quantization_bit: 4`` is ``load_in_4bit: true``; else what is meant by the type that the
setting wants, and the trap that the text fell into.
"""

import re
from collections.abc import Sequence

from kb.config.dialect.dialects import ANY, Target
from kb.config.text.nodes import BOOLEANS, COMPOSED, MAPPING, SCALAR, SEQUENCE, Node, number_meant
from kb.config.text.source import Source
from kb.core.document import NO_SUCH_RUN, Event
from kb.core.expression import Unknown
from kb.core.finding import Edit
from kb.core.typed import Any

SAYS_NOTHING: Any = object()
AS_WRITTEN: Any = object()
MAX_MATCHED = 500  # characters of a text that is matched; names are shorter


def translated(target: Target, node: Node) -> Any:
    """The value that ``target`` gives for what is written; None where only the run can tell it.

    ``AS_WRITTEN`` where the dialect says nothing of this value, ``SAYS_NOTHING`` where the value says nothing of the
    setting.
    """
    written = node.value if node.kind == SCALAR else None
    if written is not None and written in target.values:
        return _listed(target.values[written])
    matched = _matched(target, node) if target.patterns else None
    if matched is not None:
        return matched
    if target.skip is not None:
        # a group that has no other keys than these says nothing either
        only = bool(target.skip) and node.kind == MAPPING and target.skip.issuperset(node.entries())
        if written in target.skip or only:
            return SAYS_NOTHING
    empty = node.kind == SCALAR and node.scalar() is None
    if not empty and (target.unknown is None or written in target.unknown):
        return Unknown(frozenset((target.fact.name,)), NO_SUCH_RUN)
    if ANY in target.values and not empty:
        return _listed(target.values[ANY])
    if target.skip is None:
        return SAYS_NOTHING
    if written is not None and target.split and isinstance(node.scalar(), str):
        return _parts(target, written.split(target.split))
    if target.items and node.kind == SEQUENCE:
        return _parts(target, [str(item.value) for item in node.value if item.kind == SCALAR])
    return AS_WRITTEN


def has_item(node: Node, pattern: str) -> bool:
    """Whether the pattern matches the whole of a text, or of an item of a list."""
    return any(item.kind == SCALAR and re.fullmatch(pattern, item.value[:MAX_MATCHED]) for item in _items(node))


def _items(node: Node) -> Sequence[Node]:
    return node.value if node.kind == SEQUENCE else (node,)


def _matched(target: Target, node: Node) -> Any:
    """What a pattern makes of the text, or of the first item of a list that one matches; None where none does."""
    for item in _items(node):
        for pattern, meant in target.patterns if item.kind == SCALAR else ():
            match = re.fullmatch(pattern, item.value[:MAX_MATCHED])
            if match is not None:
                return match.expand(meant) if isinstance(meant, str) else meant
    return None


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _parts(target: Target, texts: list[str]) -> tuple[str, ...]:
    stripped = [text.strip() for text in texts]
    return tuple(str(target.items.get(text, text)) for text in stripped if text)


NUMERIC = ("integer", "number", "bytes")
# OmegaConf and envsubst, Jinja and Helm; a bare $NAME only where it is all there is: a text may hold one by chance. And
# what a script puts a value in the place of: __BATCH__, @BATCH@.
_FILLED_IN = r"(?s:\$\{[^}]|\{\{.*\}\}|\$[A-Za-z_][A-Za-z0-9_]*\Z|\A(?:__[A-Z][A-Z0-9_]*__|@[A-Z][A-Z0-9_]*@)\Z)"


def is_filled_in(node: Node) -> bool:
    """Whether a value is filled in before the program reads it: ``${BATCH}``."""
    return node.kind == SCALAR and isinstance(node.value, str) and _is_filled_in(node.value)


def _is_filled_in(text: str) -> bool:
    signs = "$" in text or "{{" in text or text[:1] in ("_", "@")  # the pattern is compiled where a text has them
    return signs and re.search(_FILLED_IN, text) is not None


class Trap:
    """What is wrong with one value: the kind of event, its own values, and the text that says what is meant.

    ``node`` is the part of the value that is at fault, where it is not all of it.
    """

    __slots__ = ("kind", "mended", "node", "values")

    def __init__(self, kind: str, mended: str | None = None, node: Node | None = None, **values: str) -> None:
        self.kind, self.mended, self.node, self.values = kind, mended, node, values


def interpret(node: Node, want: str, name: str) -> tuple[Any, Trap | None]:
    """The value of the setting ``name`` that is meant, and the trap if there is one.

    Where no one meaning is clear the value stays what the program will read, so that a fact of another type is
    unknown rather than the library's default. One that is filled in before the program reads it (``${BATCH}``) is
    unknown itself.
    """
    if node.kind != SCALAR:
        return _of_collection(node, want, name)
    value = node.scalar()
    if value is None:
        return None, None
    if isinstance(value, Unknown):  # of Python: what only a run can tell
        return Unknown(value.needs or frozenset((name,)), value.reason), None
    composed = node.style == COMPOSED and want != "text"  # a text, whatever it looks like: what takes it may convert it
    if composed or (isinstance(value, str) and _is_filled_in(value)):
        return filled_in_value(name), None if want == "text" else Trap("unresolved-value")
    if want == "bool":
        return _as_bool(node, value)
    if want in NUMERIC:
        return _as_number(node, value, whole=want != "number")
    if want == "text":
        return _as_text(node, value)
    return value, Trap("wrong-type", want=want) if isinstance(value, bool) else None


def filled_in_value(name: str) -> Unknown:
    return Unknown(frozenset((name,)), "filled in before the program reads the file")


def event_of(trap: Trap, key: Node, node: Node, name: str, source: Source) -> Event:
    """The event for a trap that the value of ``key`` fell into, with the edit that mends it."""
    at = trap.node or node
    span = source.span(at)
    elsewhere = at.alias and at.kind == SCALAR and trap.kind != "unresolved-value"
    raw = str(at.value) if elsewhere else source.excerpt(span)
    values = {"key": key.value, "raw": raw, **trap.values}
    edits = () if trap.mended is None or at.alias else (Edit("replace", name, trap.mended, span),)
    return Event(kind=trap.kind, span=span, values=values, edits=edits)


def _of_collection(node: Node, want: str, name: str) -> tuple[Any, Trap | None]:
    value = node.plain()
    if node.kind == SEQUENCE:
        if want == "list":
            return _as_list(node, value, name)
        if name == "model.name":  # no loader takes several, and which of them is meant is not said
            return Unknown(frozenset((name,)), "a list, not a name"), None
        if want == "text" and value and all(isinstance(item, str) for item in value):
            return " ".join(value), None  # `fsdp: [full_shard, auto_wrap]` is `fsdp: full_shard auto_wrap`
        value = tuple(value)
    if want == "bool" or want in NUMERIC:
        return value, Trap("wrong-type", want=want)
    return value, None


def _as_list(node: Node, value: list[Any], name: str) -> tuple[Any, Trap | None]:
    """A list of texts, or of numbers in lists of any depth (token ids); of other items the first is named."""
    if any(isinstance(item, str) and _is_filled_in(item) for item in value):
        return filled_in_value(name), Trap("unresolved-value")
    if all(isinstance(item, str) for item in value) or all(_is_numeric(item) for item in value):
        return tuple(value), None
    odd = next((item for item, read in zip(node.value, value, strict=True) if not isinstance(read, str)), None)
    return tuple(value), Trap("wrong-type", node=odd, want="text")


def _is_numeric(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_is_numeric(item) for item in value)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_bool(node: Node, value: Any) -> tuple[Any, Trap | None]:
    if isinstance(value, bool):
        return value, None
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value), None
    meant = BOOLEANS.get(value.strip().lower()) if isinstance(value, str) else None
    if meant is None or not node.style:
        return value, Trap("wrong-type", want="bool")
    return meant, None if meant else Trap("quoted-boolean", mended="false")  # text counts as true, which "true" means


def _as_number(node: Node, value: Any, *, whole: bool) -> tuple[Any, Trap | None]:
    wrong = Trap("wrong-type", want="integer" if whole else "number")
    if isinstance(value, bool):
        return value, wrong
    if isinstance(value, int | float):
        trap = _odd_base(node, value)
        if whole and isinstance(value, float):
            return (int(value), trap) if value.is_integer() else (value, wrong)
        return value, trap
    meant = number_meant(value) if isinstance(value, str) else None
    if meant is None:
        return value, wrong
    number, written = meant
    if whole:
        if number != number or not float(number).is_integer():
            return value, wrong
        number, written = int(number), str(int(number))
    if node.style:
        return number, Trap("quoted-number", mended=written)
    return number, Trap("number-as-text", mended=written, meant=written)


def _as_text(node: Node, value: Any) -> tuple[Any, Trap | None]:
    if isinstance(value, str) or node.style:
        return value, None
    quoted = f'"{node.value}"'
    if isinstance(value, bool):
        if node.value.lower() in ("true", "false"):
            return value, None  # some text settings take a plain boolean too
        return node.value, Trap("word-as-boolean", mended=quoted, read="true" if value else "false")
    if isinstance(value, int | float):
        trap = _odd_base(node, value)
        if trap is None:
            return value, None
        trap.mended = quoted
        return node.value, trap
    return node.value, None


def _odd_base(node: Node, value: float) -> Trap | None:
    """The trap of a plain number that YAML 1.1 does not read in base ten."""
    if node.style or node.tag is not None:
        return None
    digits = node.value.lstrip("+-")
    if ":" in digits:
        return Trap("sexagesimal-number", read=f"{value:g}" if isinstance(value, float) else str(value))
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        # A zero before a number is padding more often than base eight; which one is for a person to say.
        sign = "-" if node.value[0] == "-" else ""
        return Trap("octal-number", mended=sign + (digits.lstrip("0") or "0"), read=str(value))
    return None
