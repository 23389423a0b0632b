"""What a dialect makes of a written value before its type counts: ``quantization_bit: 4`` is ``load_in_4bit: true``."""

import re
from typing import Any

from kb.config.dialect.dialects import Entries
from kb.config.dialect.targets import ANY, Target
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node
from kb.core.document import NO_SUCH_RUN
from kb.core.expression import Unknown

SAYS_NOTHING: Any = object()
AS_WRITTEN: Any = object()
MAX_REFERENCES = 8  # a reference to a reference to …; a ring of them is left as it is written
MAX_MATCHED = 500  # characters of a text that is matched; names are shorter
_REFERENCE = r"\$\{([A-Za-z0-9_.]+)\}\Z"


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
    if target.skip is not None and (written in target.skip or _holds_only(node, target.skip)):
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


def _holds_only(node: Node, names: frozenset[str]) -> bool:
    """Whether a group has no other keys than these."""
    return bool(names) and node.kind == MAPPING and names.issuperset(node.entries())


def _matched(target: Target, node: Node) -> Any:
    """What a pattern makes of the text, or of the first item of a list that one matches; None where none does."""
    items = node.value if node.kind == SEQUENCE else (node,)
    texts = (item.value for item in items if item.kind == SCALAR)
    return next((value for text in texts if (value := _by_pattern(target, text)) is not None), None)


def _by_pattern(target: Target, written: str) -> Any:
    """What the first pattern that matches the whole text makes of it; None where none does."""
    for pattern, meant in target.patterns:
        match = re.fullmatch(pattern, written[:MAX_MATCHED])
        if match is not None:
            return match.expand(meant) if isinstance(meant, str) else meant
    return None


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _parts(target: Target, texts: list[str]) -> tuple[str, ...]:
    stripped = [text.strip() for text in texts]
    return tuple(str(target.items.get(text, text)) for text in stripped if text)


def reference(node: Node, entries: Entries) -> Node:
    """The node that ``${path}`` stands for; the node itself where it is no reference, or leads nowhere."""
    found = node
    for _ in range(MAX_REFERENCES):
        match = re.match(_REFERENCE, found.value) if found.kind == SCALAR else None
        if match is None:
            return found
        entry = entries.get(match[1])
        if entry is None:
            return node
        found = entry[2]
    return node
