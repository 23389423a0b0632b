"""Values of a Python file: of assignments and calls, and the lengths that a tokenizer is given."""

import ast
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from kb.config.python.arithmetic import Symbol, UnknownValueError
from kb.config.python.expressions import COMPUTED, MAX_DEPTH, Expressions, Pairs
from kb.config.python.held import CommandLine, GivenConfig, Loaded, NoSources, Read, Shared, Sources
from kb.config.python.names import Names, Where
from kb.config.python.syntax import Module
from kb.config.text.json_nodes import Place
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node
from kb.config.text.source import Source
from kb.core.document import Setting
from kb.core.expression import Unknown, is_unknown

FIRST = Place(0, 0, 0)
WRITTEN = "py"  # the style of a scalar that is no text in quotes


class Values:
    """Reads the expressions of one module.

    Args:
        constants: dotted names, and the texts they stand for.
        path: where the module lies.
        sources: the project's files around it; None: there are none.
        given: the config or the flags that the program is started with. Everything then stands where these say it, or
            at the beginning: it is a reading of their file.
    """

    def __init__(
        self,
        module: Module,
        names: Names,
        constants: Mapping[str, str],
        path: str = "",
        sources: Sources | None = None,
        given: GivenConfig | CommandLine | None = None,
    ) -> None:
        self._module, self._names, self.of_config = module, names, given is not None
        self.expressions = Expressions(names, constants, module.text, path, Shared(sources or NoSources(), given))
        self.by_default: set[int] = set()  # the nodes whose value a caller or a command line may give otherwise

    def of(self, other: Expressions) -> "Values":
        """The values of another module of the same program."""
        made = copy(self)
        made._module, made._names, made.expressions = Module(Source(other.text)), other.names, other
        return made

    def node(self, expression: ast.expr, at: Where) -> Node:
        """The expression as a config's value; of a name, that of its one assignment, with the place of that."""
        shared = self.expressions.shared
        shared.by_default = False
        try:
            read = self.expressions.read(expression, at)
            if read.at is not None and isinstance(read.place, ast.Dict | ast.Call):
                return self._mapping(read, read.at)
            if read.origin is not None:
                node = self._placed(read.data, read.origin.node, expression)
            else:
                node = self._data_node(read.data, expression if read.shared else read.place)
        except (UnknownValueError, RecursionError):
            return self.unknown(expression)
        if read.of_file and node.kind == SCALAR:
            node.style = ""  # as the file's own parser gives it: 2e-5 of YAML is text there, too
        node.alias = read.shared
        if shared.by_default:
            self.by_default.add(id(node))
        return node

    def unknown(self, expression: ast.expr) -> Node:
        """The expression as a value that only a run can tell."""
        return self._scalar(expression, Unknown(frozenset(), COMPUTED))

    def pairs(self, expression: ast.expr, at: Where) -> tuple[Pairs, bool, Where] | None:
        """Key, its text and value of a dictionary that is written out, perhaps behind a name; None of any other.

        Then whether other code uses the dictionary too, and the place that its values are read at.
        """
        shared = False
        for _ in range(MAX_DEPTH):
            if not isinstance(expression, ast.Name):
                break
            binding = self.expressions.bound(expression.id, at)
            if binding is None or binding.value is None:
                return None
            shared = shared or self._names.uses.get(expression.id, 0) > 1
            expression, at = binding.value, binding.where.told(at)
        found = _entries_of(expression)
        return None if found is None else (found, shared, at)

    def loaded(self, expression: ast.expr, at: Where) -> list[tuple[str, Node]] | None:
        """The entries of a mapping that a file says: ``**config["training"]``; None of anything else."""
        try:
            found = self.expressions.references.follow(expression, at)
        except (UnknownValueError, RecursionError):
            return None
        if not isinstance(found, Loaded) or not isinstance(found.data, Mapping):
            return None
        rows: list[tuple[str, Node]] = []
        for key in found.data:
            held = found.entry(key)
            of_config = held.origin.node if held.origin is not None else None
            rows.append(
                (
                    str(key),
                    self._placed(held.data, of_config, expression)
                    if of_config
                    else self._held_node(held.data, expression),
                )
            )
        return rows

    def _placed(self, data: Any, of_config: Node, place: ast.expr) -> Node:
        """What a config says, at its place there."""
        if of_config.kind != SCALAR:
            return of_config.aliased(of_config.start, of_config.end or of_config.start)
        node = self._scalar(place, data)
        node.start, node.end = of_config.start, of_config.end
        return node

    def _held_node(self, data: Any, place: ast.expr) -> Node:
        if not isinstance(data, Mapping):
            return self._data_node(data, place)
        node = self._at(MAPPING, [], "", place)
        extent = self._module.extent(place)
        node.value = [(self.key(extent, str(key)), self._held_node(value, place)) for key, value in data.items()]
        return node

    def scalar_of(self, expression: ast.expr, at: Where) -> Any:
        """The plain value of an expression; Unknown where it cannot be told."""
        try:
            return self.expressions.read(expression, at).data
        except (UnknownValueError, RecursionError):
            return Unknown(frozenset(), COMPUTED)

    def key(self, extent: tuple[int, int], name: str, style: str = "") -> Node:
        """The node of a key that stands at these offsets."""
        start, end = (FIRST, FIRST) if self.of_config else [self._module.place(offset) for offset in extent]
        return Node(SCALAR, name, None, style, start, end)

    def _mapping(self, read: Read, at: Where) -> Node:
        node = self._at(MAPPING, [], "", read.place)
        for key, name, value in _entries_of(read.place) or ():
            inner = self.node(value, at)
            inner.alias = inner.alias or read.shared
            node.value.append((self.key(self._module.extent(key), name, key_style(key)), inner))
        return node

    def _data_node(self, data: Any, place: ast.expr) -> Node:
        self.expressions.count()
        if isinstance(data, list | tuple):
            node = self._at(SEQUENCE, [], "", place)
            items = place.elts if isinstance(place, ast.List | ast.Tuple | ast.Set) else []
            whole = len(items) == len(data)
            node.value = [self._data_node(each, items[n] if whole else place) for n, each in enumerate(data)]
            return node
        if isinstance(data, dict):  # one of several that a choice or a list holds: it has no place of its own
            data = Unknown(frozenset(), COMPUTED)
        return self._scalar(place, data)

    def _scalar(self, place: ast.expr, data: Any) -> Node:
        data = str(data) if isinstance(data, Symbol) else data
        quoted = isinstance(data, str)
        text = data if quoted else str(data).lower() if isinstance(data, bool) else repr(data)
        node = self._at(SCALAR, text, '"' if quoted and isinstance(place, ast.Constant) else WRITTEN, place)
        node.data = data
        return node

    def _at(self, kind: int, value: Any, style: str, place: ast.expr) -> Node:
        if self.of_config:
            return Node(kind, value, None, style, FIRST, FIRST)
        start, end = self._module.extent(place)
        return Node(kind, value, None, style, self._module.place(start), self._module.place(end))


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


def moved(node: Node, start: Place, end: Place) -> Node:
    """A value that stands in another module, at the place that leads to it; no other can be put in its place."""
    node.start, node.end, node.alias = start, end, True
    for child in node.value if node.kind != SCALAR else ():
        for each in child if isinstance(child, tuple) else (child,):
            moved(each, start, end)
    return node


SOURCE, TARGET = "data.max_source_length", "data.max_target_length"
# Names that programs give the length of a row, folded; texts are cut to one of the last two where they are grouped.
OF_ROWS = ("max_input_length", "max_source_length", "max_seq_length", "max_seq_len", "max_input_len", "max_source_len")
OF_ANSWERS = ("max_target_length", "max_target_len", "max_label_length")
CUT = "max_seq_length"
OF_GROUPS, GROUPING = ("block_size", "chunk_size"), "group_texts"
MOST = 1_000_000  # tokens; what is longer is a size of something else


def lengths_by_constants(module: Module, names: Names, values: Values) -> dict[str, Setting]:
    """The lengths that plain constants at the top of a module give, each where it is assigned and used once."""
    found: dict[str, Setting] = {}
    grouped = GROUPING in names.uses
    for setting, known in ((SOURCE, (*OF_ROWS, *(OF_GROUPS if grouped else ()))), (TARGET, OF_ANSWERS)):
        named = [name for name in names.at_top() if name.casefold() in known and name in names.uses]
        read = [(name, binding) for name in named if (binding := names.only(name)) is not None]
        given = [(name, value, length) for name, (value, at) in read if (length := _length(values, value, at))]
        if len({length for _, _, length in given}) == 1:
            name, value, length = given[0]
            start, end = module.extent(value)
            span = module.source.between(module.place(start), module.place(end))
            found[setting] = Setting(length, span, span, (name,), alias=True)
    if grouped and SOURCE not in found:
        found |= _length_of_groups(module)
    return found or _length_of_embedder(module, names)


def _length_of_groups(module: Module) -> dict[str, Setting]:
    """The length that texts joined together are cut to, where a function says it: ``block_size = 128``, or
    ``group_texts(rows, 128)``; none where several are said."""
    said: list[ast.expr] = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign):
            said += [node.value for each in node.targets if isinstance(each, ast.Name) and each.id in OF_GROUPS]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == GROUPING:
            said += node.args[1:2]
    known = {each.value for each in said if isinstance(each, ast.Constant) and type(each.value) is int}
    length = known.pop() if len(known) == 1 and all(isinstance(each, ast.Constant) for each in said) else None
    if not (isinstance(length, int) and 1 < length <= MOST):
        return {}
    start, end = module.extent(said[0])
    span = module.source.between(module.place(start), module.place(end))
    return {SOURCE: Setting(length, span, span, (OF_GROUPS[0],), alias=True)}


def _length_of_embedder(module: Module, names: Names) -> dict[str, Setting]:
    """The length that a model of sentence-transformers is set to after it is made: ``model.max_seq_length = 128``."""
    if CUT not in names.stored or not names.imports("sentence_transformers"):
        return {}
    found = [
        node.value for node in ast.walk(module.tree) if isinstance(node, ast.Assign)
        for each in node.targets if isinstance(each, ast.Attribute) and each.attr == CUT
    ]  # fmt: skip
    value = found[0] if len(found) == 1 else None
    if isinstance(value, ast.Name):
        known = names.only(value.id)
        value = known[0] if known is not None else None
    if not (isinstance(value, ast.Constant) and type(value.value) is int and 1 < value.value <= MOST):
        return {}
    start, end = module.extent(value)
    span = module.source.between(module.place(start), module.place(end))
    return {SOURCE: Setting(value.value, span, span, (CUT,), alias=True)}


def _length(values: Values, value: ast.expr, at: Where) -> int | None:
    length = values.scalar_of(value, at)
    whole = isinstance(length, int) and not isinstance(length, bool)
    return length if whole and 1 < length <= MOST else None


def alike(parts: Iterable[Mapping[str, Setting]]) -> dict[str, Setting]:
    """The settings that several calls give, of which any may be the one that counts, and all give alike."""
    each = list(parts)
    first = each[0] if each else {}
    return {
        name: setting
        for name, setting in first.items()
        if not is_unknown(setting.value)
        and all(name in other and other[name].value == setting.value for other in each)
        and not any(is_unknown(other[name].value) for other in each)
    }
