"""What OmegaConf fills in: ``${a.b}`` is another value of the config, ``${oc.env:NAME,8}`` a variable or a default."""

import re
from collections.abc import Sequence

from kb.config.text.nodes import COMPOSED, MAPPING, SCALAR, SEQUENCE, Node, number_of_omegaconf

MAX_TEXT = 10_000
MAX_NODES = 20_000
MAX_CHAIN = 64  # values that name one another
_RESOLVER = r"(?s)\s*([A-Za-z_][\w.]*)\s*:(.*)\Z"
_STEP = r"[^.\[\]]+"

Path = tuple[str, ...]


def resolve(root: Node, *, defaults: bool = True) -> None:
    """Fill in what the mapping ``root`` says elsewhere, in place.

    ``${a.b}``, ``${.b}``, ``${a[0]}`` and ``${oc.select:a,1}`` take another entry's value; ``${oc.env:NAME,8}`` its
    default, as where the variable is not set. What leads nowhere, round in a circle, or to a resolver of the program's
    own is left alone: it is unknown. A value that was filled in is an alias: what it says is written elsewhere.

    Args:
        defaults: whether the default of a variable of the environment is taken for its value.
    """
    _Resolution(root, defaults).inside(root, ())


class _Resolution:
    def __init__(self, root: Node, defaults: bool) -> None:
        self._root, self._defaults = root, defaults
        self._busy: set[int] = set()
        self._done: set[int] = set()
        self._left = MAX_NODES

    def inside(self, node: Node, path: Path) -> None:
        """Resolve what stands below a value."""
        if node.kind == SCALAR or id(node.value) in self._done:
            return
        self._done.add(id(node.value))
        for at, name in enumerate(_names(node)):
            self._child(node, at, (*path, name))

    def _child(self, node: Node, at: int, path: Path) -> Node:
        """The value of one entry, resolved."""
        child = _child(node, at)
        if child.kind == SCALAR and "${" in child.value and not child.alias:
            if id(child) in self._busy or len(self._busy) >= MAX_CHAIN:
                return child  # a circle, or too long a chain
            self._busy.add(id(child))
            child = self._value(child, path)
            self._busy.discard(id(child))
            _put(node, at, child)
        self.inside(child, path)
        return child

    def _value(self, node: Node, path: Path) -> Node:
        text = node.value
        parts = _parts(text)
        if parts is None or node.end is None:
            return node
        if len(parts) == 1 and parts[0][0]:
            found = self._answer(parts[0][1], path)
            if found is None or (found.kind == SCALAR and "${" in found.value):
                return node
            self._left -= _count(found, self._left)
            return found.aliased(node.start, node.end) if self._left > 0 else node
        filled = ""
        for is_interpolation, part in parts:
            found = self._answer(part, path) if is_interpolation else None
            if is_interpolation and (found is None or found.kind != SCALAR or "${" in found.value):
                return node
            filled += part if found is None else found.value
            if len(filled) > MAX_TEXT:
                return node
        made = Node(SCALAR, filled, None, COMPOSED, node.start, node.end)
        made.alias = True
        return made

    def _answer(self, content: str, path: Path) -> Node | None:
        if "${" in content:  # an interpolation that names another one
            inner = self._value(Node(SCALAR, content, None, '"', self._root.start, self._root.start), path)
            if "${" in inner.value:
                return None
            content = inner.value
        resolver = re.match(_RESOLVER, content)
        if resolver is None:
            return self._at(content.strip(), path)
        key, comma, default = resolver[2].partition(",")
        if resolver[1] == "oc.select":
            found = self._at(key.strip(), path)
            return found if found is not None or not comma else _plain(default, self._root)
        told = resolver[1] == "oc.env" and comma and self._defaults
        return _plain(default, self._root) if told else None

    def _at(self, key: str, path: Path) -> Node | None:
        """The value that a key path leads to: from the top, or with dots before it from here."""
        dots = len(key) - len(key.lstrip("."))
        steps = [*(path[: len(path) - dots] if dots else ()), *re.findall(_STEP, key)]
        node = self._root
        here: Path = ()
        for step in steps:
            at = _position(node, step)
            if at is None:
                return None
            here = (*here, step)
            node = self._child(node, at, here)
        return node if steps else None


def _parts(text: str) -> list[tuple[bool, str]] | None:
    """A text as plain parts and the contents of its interpolations; None where a brace is not closed or escaped."""
    parts: list[tuple[bool, str]] = []
    at = 0
    while (start := text.find("${", at)) >= 0:
        if start and text[start - 1] == "\\":
            return None
        depth, end = 0, start
        while end < len(text):
            depth += text.startswith("${", end)
            depth -= text[end] == "}"
            end += 1
            if depth == 0 and end > start + 2:
                break
        if depth:
            return None
        parts += [(False, text[at:start])] if start > at else []
        parts.append((True, text[start + 2 : end - 1]))
        at = end
    return [*parts, (False, text[at:])] if at < len(text) else parts


def _names(node: Node) -> Sequence[str]:
    return [key.value for key, _ in node.value] if node.kind == MAPPING else [str(at) for at in range(len(node.value))]


def _child(node: Node, at: int) -> Node:
    child: Node = node.value[at][1] if node.kind == MAPPING else node.value[at]
    return child


def _put(node: Node, at: int, child: Node) -> None:
    node.value[at] = (node.value[at][0], child) if node.kind == MAPPING else child


def _position(node: Node, step: str) -> int | None:
    if node.kind == SEQUENCE:
        return int(step) if step.isdigit() and int(step) < len(node.value) else None
    found = [at for at, (key, _) in enumerate(node.value) if key.value == step] if node.kind == MAPPING else []
    return found[-1] if found else None


def _count(node: Node, limit: int) -> int:
    """How many values a value holds, itself among them; counting ends beyond ``limit``."""
    count, pending = 0, [node]
    while pending and count <= limit:
        count += 1
        one = pending.pop()
        if one.kind != SCALAR:
            pending += [_child(one, at) for at in range(len(one.value))]
    return count


def _plain(text: str, like: Node) -> Node:
    """What a resolver's default says: ``8``, ``null`` or ``'8'``."""
    text = text.strip()
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    node = Node(SCALAR, text[1:-1] if quoted else text, None, '"' if quoted else "", like.start, like.start)
    number = number_of_omegaconf(node)
    if number is not None:
        node.data = number
    return node
