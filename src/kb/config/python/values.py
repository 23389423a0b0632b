"""An expression → the node of the value that it has for certain; one that only a run can tell is unknown."""

import ast
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kb.config.python.arithmetic import UnknownValueError, bounded, is_number, operate
from kb.config.python.names import Binding, Names, Where
from kb.config.python.syntax import Module, dotted_name
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node
from kb.core.expression import Unknown
from kb.core.pending import NATIVE_BF16, NATIVE_BF16_IF_TRUE, negated

MAX_DEPTH = 24  # of names that stand for names, and of expressions
WRITTEN = "py"  # the style of a scalar that is no text in quotes
_COMPUTED = "known only when the program runs"

Pairs = list[tuple[ast.expr | ast.keyword, str, ast.expr]]


# What these say is known once the GPU is; of older GPUs newer versions of torch say yes too, so a no is not certain.
_ASKED = {"is_bfloat16_supported": NATIVE_BF16, "is_bf16_supported": NATIVE_BF16_IF_TRUE}


class Read(NamedTuple):
    """What an expression says: ``data``, where it is written (``place``), and whether other code depends on it there.

    ``shared``: it stands in an assignment that is used in more places than one, or is computed from names, so that
    no other value can be put in its place.
    """

    data: Any
    place: ast.expr
    shared: bool = False


class Values:
    """Reads the expressions of one module. ``constants``: dotted names, and the texts they stand for."""

    def __init__(self, module: Module, names: Names, constants: Mapping[str, str]) -> None:
        self._module, self._names, self._constants = module, names, constants

    def node(self, expression: ast.expr, at: Where) -> Node:
        """The expression as a config's value; of a name, that of its one assignment, with the place of that."""
        try:
            read = self._read(expression, at, 0)
        except (UnknownValueError, RecursionError):
            return self._scalar(expression, Unknown(frozenset(), _COMPUTED))
        if isinstance(read.place, ast.Dict | ast.Call) and isinstance(read.data, dict):
            return self._mapping(read, at)
        place = expression if read.shared else read.place
        node = self._data_node(read.data, place, at)
        node.alias = read.shared
        return node

    def pairs(self, expression: ast.expr, at: Where) -> tuple[Pairs, bool] | None:
        """Key, its text and value of a dictionary that is written out, perhaps behind a name; None of any other.

        The second of the two: whether other code uses the dictionary too.
        """
        shared = False
        for _ in range(MAX_DEPTH):
            if not isinstance(expression, ast.Name):
                break
            binding = self._names.look_up(expression.id, at)
            if binding is None or binding.value is None:
                return None
            shared = shared or self._names.uses.get(expression.id, 0) > 1
            expression, at = binding.value, binding.where
        found = _entries_of(expression)
        return None if found is None else (found, shared)

    def scalar_of(self, expression: ast.expr, at: Where) -> Any:
        """The plain value of an expression; Unknown where it cannot be told."""
        try:
            return self._read(expression, at, 0).data
        except (UnknownValueError, RecursionError):
            return Unknown(frozenset(), _COMPUTED)

    def key(self, extent: tuple[int, int], name: str, style: str = "") -> Node:
        """The node of a key that stands at these offsets."""
        start, end = (self._module.place(offset) for offset in extent)
        return Node(SCALAR, name, None, style, start, end)

    def _mapping(self, read: Read, at: Where) -> Node:
        node = self._at(MAPPING, [], "", read.place)
        for key, name, value in _entries_of(read.place) or ():
            inner = self.node(value, at)
            inner.alias = inner.alias or read.shared
            node.value.append((self.key(self._module.extent(key), name, key_style(key)), inner))
        return node

    def _data_node(self, data: Any, place: ast.expr, at: Where) -> Node:
        if isinstance(data, list | tuple):
            node = self._at(SEQUENCE, [], "", place)
            items = place.elts if isinstance(place, ast.List | ast.Tuple | ast.Set) else []
            whole = len(items) == len(data)
            node.value = [self._data_node(each, items[n] if whole else place, at) for n, each in enumerate(data)]
            return node
        return self._scalar(place, data)

    def _scalar(self, place: ast.expr, data: Any) -> Node:
        quoted = isinstance(data, str)
        text = data if quoted else str(data).lower() if isinstance(data, bool) else repr(data)
        node = self._at(SCALAR, text, '"' if quoted and isinstance(place, ast.Constant) else WRITTEN, place)
        node.data = data
        return node

    def _at(self, kind: int, value: Any, style: str, place: ast.expr) -> Node:
        start, end = self._module.extent(place)
        return Node(kind, value, None, style, self._module.place(start), self._module.place(end))

    def _read(self, node: ast.expr, at: Where, depth: int) -> Read:
        if depth > MAX_DEPTH:
            raise UnknownValueError
        if isinstance(node, ast.Constant):
            if isinstance(node.value, int | float | str | bool | None):
                return Read(node.value, node)
            raise UnknownValueError
        if isinstance(node, ast.Name | ast.Attribute):
            return self._named(node, at, depth)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            items = [self._read(each, at, depth + 1) for each in node.elts]
            return Read(
                [each.data for each in items],
                node,
                any(_elsewhere(each, of) for each, of in zip(items, node.elts, strict=True)),
            )
        if isinstance(node, ast.Dict):
            return self._read_dict(node, at, depth)
        if isinstance(node, ast.JoinedStr):
            return self._joined(node, at, depth)
        if isinstance(node, ast.UnaryOp | ast.BinOp):
            return self._computed(node, at, depth)
        if isinstance(node, ast.Subscript):
            return self._item(node, at, depth)
        if isinstance(node, ast.IfExp):
            test = self._read(node.test, at, depth + 1)
            chosen = self._read(node.body if test.data else node.orelse, at, depth + 1)
            return Read(chosen.data, node, True)
        if isinstance(node, ast.Call):
            return self._called(node, at, depth)
        raise UnknownValueError

    def _named(self, node: ast.Name | ast.Attribute, at: Where, depth: int) -> Read:
        name = dotted_name(node)
        if name is None:
            raise UnknownValueError
        for pattern, meant in self._constants.items():
            if pattern == name or name.endswith("." + pattern):
                return Read(meant, node)
            if pattern.endswith(".*") and name.split(".")[-2:-1] == pattern[:-2].split(".")[-1:]:
                return Read(name.rpartition(".")[2], node)
        binding = self._binding(node, at)
        if binding is None or binding.value is None:
            raise UnknownValueError
        read = self._read(binding.value, binding.where, depth + 1)
        return read if self._names.uses.get(name, 0) <= 1 else read._replace(shared=True)

    def _binding(self, node: ast.Name | ast.Attribute, at: Where) -> Binding | None:
        if isinstance(node, ast.Name):
            return self._names.look_up(node.id, at)
        return self._names.member(node.value.id, node.attr, at) if isinstance(node.value, ast.Name) else None

    def _read_dict(self, node: ast.Dict, at: Where, depth: int) -> Read:
        data: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                raise UnknownValueError
            try:
                data[key.value] = self._read(value, at, depth + 1).data
            except UnknownValueError:
                data[key.value] = Unknown(frozenset(), _COMPUTED)
        return Read(data, node)

    def _joined(self, node: ast.JoinedStr, at: Where, depth: int) -> Read:
        text = ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if part.conversion != -1 or part.format_spec is not None:
                    raise UnknownValueError
                text += str(self._read(part.value, at, depth + 1).data)
            elif isinstance(part, ast.Constant):
                text += str(part.value)
        return Read(bounded(text), node, any(isinstance(part, ast.FormattedValue) for part in node.values))

    def _computed(self, node: ast.UnaryOp | ast.BinOp, at: Where, depth: int) -> Read:
        if isinstance(node, ast.UnaryOp):
            inner = self._read(node.operand, at, depth + 1)
            named = _elsewhere(inner, node.operand)
            if isinstance(node.op, ast.Not) and isinstance(inner.data, Unknown):
                return Read(negated(inner.data), node)
            if isinstance(node.op, ast.Not):
                return Read(not inner.data, node, named)
            if not is_number(inner.data) or not isinstance(node.op, ast.USub | ast.UAdd):
                raise UnknownValueError
            return Read(-inner.data if isinstance(node.op, ast.USub) else inner.data, node, named)
        left, right = (self._read(side, at, depth + 1) for side in (node.left, node.right))
        named = _elsewhere(left, node.left) or _elsewhere(right, node.right)
        return Read(operate(node.op, left.data, right.data), node, named)

    def _item(self, node: ast.Subscript, at: Where, depth: int) -> Read:
        """``config["batch"]`` of a dictionary that is written out and never changed."""
        holder = node.value
        if not isinstance(holder, ast.Name) or not isinstance(node.slice, ast.Constant):
            raise UnknownValueError
        binding = self._names.look_up(holder.id, at)
        if binding is None or not isinstance(binding.value, ast.Dict):
            raise UnknownValueError
        for key, value in zip(binding.value.keys, binding.value.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == node.slice.value:
                return self._read(value, binding.where, depth + 1)._replace(shared=True)
        raise UnknownValueError

    def _called(self, node: ast.Call, at: Where, depth: int) -> Read:
        """``int(…)``, ``float(…)``, ``str(…)`` of something known; ``dict(a=1)``; ``getattr(torch, "bfloat16")``."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "dict" and not node.args and all(each.arg for each in node.keywords):
            data = {str(each.arg): self.scalar_of(each.value, at) for each in node.keywords}
            return Read(data, node)
        if name == "getattr" and len(node.args) == 2:
            attribute = self._read(node.args[1], at, depth + 1).data
            meant = self._constants.get(f"{dotted_name(node.args[0])}.{attribute}")
            if meant is not None:
                return Read(meant, node, True)
        last = (dotted_name(node.func) or "").rpartition(".")[2]
        if last in _ASKED and not node.args and not node.keywords:
            return Read(_ASKED[last], node)
        kinds: Mapping[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str}
        if name not in kinds or len(node.args) != 1 or node.keywords:
            raise UnknownValueError
        inner = self._read(node.args[0], at, depth + 1)
        try:
            return Read(kinds[name](inner.data), node, _elsewhere(inner, node.args[0]))
        except (TypeError, ValueError, OverflowError):
            raise UnknownValueError from None


def _entries_of(expression: ast.expr) -> Pairs | None:
    """Of ``{"a": 1}`` and ``dict(a=1)``."""
    if isinstance(expression, ast.Dict):
        pairs: Pairs = []
        for key, value in zip(expression.keys, expression.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                return None
            pairs.append((key, key.value, value))
        return pairs
    called = isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id == "dict"
    if not called or not isinstance(expression, ast.Call) or expression.args:
        return None
    return [(each, each.arg, each.value) for each in expression.keywords if each.arg is not None]


def key_style(key: ast.expr | ast.keyword) -> str:
    """The quote of a dictionary's key; none of a keyword."""
    return '"' if isinstance(key, ast.Constant) else ""


def _elsewhere(read: Read, written: ast.expr) -> bool:
    """Whether what is read stands somewhere else than where it is used."""
    return read.shared or read.place is not written
