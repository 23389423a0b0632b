"""Python files that are configs: what their names at the top are assigned, as one document. Nothing is run.

So do mmengine's configs (``model = dict(type=…)``) and those whose classes hold settings
(``trainer = TrainerConfig(lr_cfg=…)``).
"""

import ast
from collections.abc import Mapping

from kb.config.python.names import Names
from kb.config.python.places import Where
from kb.config.python.syntax import Module, dotted_name
from kb.config.python.values import WRITTEN, Values, key_style
from kb.config.text import guard
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node
from kb.config.text.parsing import Parsed
from kb.config.text.source import Source

TYPE = "type"
HOLDERS = ("Config", "Cfg")  # how classes end that hold settings
MAX_NODES = 5_000


def parse_assigned(text: str, constants: Mapping[str, str]) -> Parsed:
    """The names at the top of a module as a document's keys, each with what it is assigned.

    A call ``dict(…)`` and one of a class of settings is a mapping, the class under ``type``. A name that is assigned
    more than once, or in a branch, is left out; ``x *= n`` counts.

    Args:
        constants: dotted names in values, and the texts they stand for.

    Raises:
        ConfigError: the text is no Python, or over a bound.
    """
    guard.check_size(text)
    source = Source(text)
    module = Module(source, changes=True)
    _multiply_out(module.tree)
    reader = _Reader(module, constants)
    return Parsed(source, [reader.document()], [])


def _multiply_out(tree: ast.Module) -> None:
    """``n = 16`` and ``n *= m`` as ``n = 16 * m``."""
    first: dict[str, ast.Assign] = {}
    for statement in list(tree.body):
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Name):
                first[target.id] = statement
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            assigned = first.get(statement.target.id)
            if assigned is not None and isinstance(statement.op, ast.Mult):
                product = ast.BinOp(assigned.value, statement.op, statement.value)
                assigned.value = ast.copy_location(product, assigned.value)
                tree.body.remove(statement)


class _Reader:
    """Reads the assignments of one module."""

    def __init__(self, module: Module, constants: Mapping[str, str]) -> None:
        self._module = module
        self._names = Names(module.tree)
        self._values = Values(module, self._names, constants)
        self._left = MAX_NODES

    def document(self) -> Node | None:
        start, end = self._module.place(0), self._module.place(len(self._module.text))
        root = Node(MAPPING, [], None, "", start, end)
        root.flow = False
        for name in self._names.at_top():
            found = self._names.only(name)
            if found is None:
                continue
            value, at = found
            begin = self._module.extent(self._target(value, name))[0]
            root.value.append((self._values.key((begin, begin + len(name)), name), self._node(value, at, 0)))
        return root if root.value else None

    def _target(self, value: ast.expr, name: str) -> ast.expr:
        """Where the name stands that the value is assigned to."""
        for statement in self._module.tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is value:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                return next((each for each in targets if isinstance(each, ast.Name) and each.id == name), value)
        return value

    def _node(self, expression: ast.expr, at: Where, depth: int) -> Node:
        self._left -= 1
        shared = False
        for _ in range(guard.MAX_DEPTH):
            binding = self._names.look_up(expression.id, at) if isinstance(expression, ast.Name) else None
            if binding is None or binding.value is None or depth >= guard.MAX_DEPTH or self._left < 0:
                break
            expression, at, shared = binding.value, binding.where, True
        if depth < guard.MAX_DEPTH and self._left >= 0:
            entries = _entries(expression)
            if entries is not None:
                node = self._mapping(expression, entries, at, depth)
                node.alias = shared
                return node
            if isinstance(expression, ast.List) and any(_entries(each) is not None for each in expression.elts):
                node = self._empty(SEQUENCE, expression)
                node.value, node.alias = [self._node(each, at, depth + 1) for each in expression.elts], shared
                return node
        node = self._values.node(expression, at)
        node.alias = node.alias or shared
        return node

    def _mapping(self, expression: ast.expr, entries: list["_Pair"], at: Where, depth: int) -> Node:
        node = self._empty(MAPPING, expression)
        named = dotted_name(expression.func) if isinstance(expression, ast.Call) else None
        if isinstance(expression, ast.Call) and named is not None and named != "dict":
            node.value.append((self._key(expression.func, TYPE), self._class(expression.func, named)))
        for key, name, value in entries:
            inner = dotted_name(value) if name == TYPE else None
            read = self._class(value, inner) if inner is not None else self._node(value, at, depth + 1)
            node.value.append((self._key(key, name), read))
        return node

    def _key(self, key: ast.expr | ast.keyword, name: str) -> Node:
        begin, end = self._module.extent(key)
        quote = key_style(key) if not isinstance(key, ast.keyword) else ""
        end = begin + len(name) if isinstance(key, ast.keyword) else end
        return self._values.key((begin, end), name, self._module.text[begin] if quote else "")

    def _class(self, place: ast.expr, named: str) -> Node:
        """A class by its name, as a text that no other value can replace."""
        node = self._empty(SCALAR, place)
        node.value = node.data = named
        node.alias = True
        return node

    def _empty(self, kind: int, place: ast.expr) -> Node:
        start, end = self._module.extent(place)
        style = WRITTEN if kind == SCALAR else ""
        return Node(kind, [], None, style, self._module.place(start), self._module.place(end))


_Pair = tuple[ast.expr | ast.keyword, str, ast.expr]


def _entries(expression: ast.expr) -> list[_Pair] | None:
    """Of ``{"a": 1}``, ``dict(a=1)`` and ``LRConfig(lr=1)``, what can be told; ``**more`` is passed over."""
    if isinstance(expression, ast.Dict):
        pairs = zip(expression.keys, expression.values, strict=True)
        return [(k, k.value, v) for k, v in pairs if isinstance(k, ast.Constant) and isinstance(k.value, str)]
    if not isinstance(expression, ast.Call) or expression.args:
        return None
    last = (dotted_name(expression.func) or "").rpartition(".")[2]
    if last != "dict" and not last.endswith(HOLDERS):
        return None
    return [(each, each.arg, each.value) for each in expression.keywords if each.arg is not None]
