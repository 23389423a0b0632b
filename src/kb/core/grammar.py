"""Expressions as text: Python's own grammar cut down to a whitelist, with types and names checked before any use.

Only what is named here gets through; limits on length, nodes, depth and literals bound the work that any text can
cause. Used when rules are compiled; evaluating needs only :mod:`kb.core.expression`.
"""

import ast
import warnings
from collections.abc import Collection, Mapping
from typing import NoReturn

from kb.core import surface
from kb.core.expression import FUNCTIONS, Tree
from kb.core.release import parse_version
from kb.core.surface import MAX_DEPTH, TOO_DEEP, read_surface
from kb.core.surface import ExpressionError as ExpressionError

MAX_NODES, MAX_LITERAL = 200, 10**15
EXPONENTS = (2, 3, 0.5)

SIZE, COUNT, OPEN = "size", "count", "open"
OF_TYPES = {"bytes": SIZE, "integer": COUNT}  # of a fact; any other number is open

# The type names that vocabulary.yaml uses, as expressions see them.
EXPRESSION_TYPES = {
    "bool": "bool",
    "integer": "number",
    "number": "number",
    "bytes": "number",
    "text": "text",
    "list": "list",
    "version": "version",
}

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}

# Everything that stands between values, for whoever shows the language.
SIGNS = (*_BINARY.values(), *_COMPARE.values(), "and", "or", "not", "if")


def parse(
    source: str, names: Mapping[str, str], want: str | None = None, values: Mapping[str, Collection[str]] = {}
) -> Tree:
    """The checked tree of ``source``.

    Args:
        source: the expression.
        names: every fact's type, as in ``vocabulary.yaml`` (a key of :data:`EXPRESSION_TYPES`).
        want: the type the expression must have (``bool`` for a ``when``), or any.
        values: the texts that a fact can have, where they are a closed set.

    Raises:
        ExpressionError: it is too large, is not in the language, has an unknown name, a type fault, or compares a fact
            with a text that it can never be.
    """
    source = source.strip().replace("\n", " ")
    spelt, sizes = read_surface(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)  # `1and 2` warns on standard error; here it is a fault
            body = ast.parse(spelt, mode="eval").body
    except SyntaxError as error:
        column = max(error.offset or 1, 1)
        raise ExpressionError(f"syntax: {error.msg}", f"식의 문법: {error.msg}", source, column) from None
    except (RecursionError, MemoryError, ValueError):
        raise ExpressionError(*TOO_DEEP, source, 1) from None
    tree, kind = _Checker(source, names, values, sizes).check(body, 0)
    if want is not None and kind != want:
        raise ExpressionError(*surface.another_type(kind, want), source, 1)
    return tree


class _Checker:
    def __init__(
        self, source: str, names: Mapping[str, str], values: Mapping[str, Collection[str]], sizes: Mapping[int, int]
    ) -> None:
        self.source = source
        self.names = names
        self.values = values
        self.sizes = sizes
        self.dimensions = Dimensions(names)
        self.nodes = 0

    def fail(self, node: ast.AST, reason: str, korean: str) -> NoReturn:
        raise ExpressionError(reason, korean, self.source, self.column(node) + 1)

    def column(self, node: ast.AST) -> int:
        """From 0, in characters; ast counts in bytes of UTF-8."""
        return len(self.source.encode()[: getattr(node, "col_offset", 0)].decode(errors="ignore"))

    def alike(self, sign: str, node: ast.AST, *parts: Tree) -> None:
        """Sizes and plain numbers do not stand together."""
        fault = self.dimensions.fault(sign, *parts)
        if fault is not None:
            self.fail(node, *fault)

    def check(self, node: ast.expr, depth: int) -> tuple[Tree, str]:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self.fail(node, f"more than {MAX_NODES} parts", f"{MAX_NODES}개보다 많은 부분으로 되어 있습니다")
        if depth > MAX_DEPTH:
            self.fail(node, *TOO_DEEP)
        method = getattr(self, f"on_{type(node).__name__.lower()}", None)
        if method is None:
            kind = type(node).__name__
            self.fail(node, f"{kind} is not part of the language", f"{kind}: 식에 쓸 수 없는 문법입니다")
        tree: Tree
        tree, kind = method(node, depth + 1)
        return tree, kind

    def need(self, node: ast.expr, depth: int, want: str, where: str) -> Tree:
        tree, kind = self.check(node, depth)
        if kind != want:
            self.fail(node, *surface.needs(where, want, kind))
        return tree

    def on_constant(self, node: ast.Constant, depth: int) -> tuple[Tree, str]:
        value = node.value
        if isinstance(value, bool):
            return ["lit", value], "bool"
        if isinstance(value, int | float):
            if not abs(value) <= MAX_LITERAL:
                self.fail(node, "number too large", "수가 너무 큽니다")
            return ["lit", value], "number"
        if isinstance(value, str):
            return ["lit", value], "text"
        self.fail(node, *surface.no_value(value))

    def on_name(self, node: ast.Name | ast.Attribute, depth: int) -> tuple[Tree, str]:
        name = _dotted(node)
        if name is None:
            self.fail(node, *surface.NO_DOT)
        if name.strip("_") == "" and self.column(node) in self.sizes:
            return self.dimensions.literal(self.sizes[self.column(node)]), "number"
        if name not in self.names:
            self.fail(node, *surface.unknown(name, self.source, self.names))
        return ["fact", name], EXPRESSION_TYPES[self.names[name]]

    on_attribute = on_name

    def on_list(self, node: ast.List, depth: int) -> tuple[Tree, str]:
        items = [self.check(item, depth)[0] for item in node.elts]
        if all(item[0] == "lit" for item in items):
            return ["lit", [item[1] for item in items]], "list"  # the usual case: one constant, made once
        return ["list", *items], "list"

    def on_boolop(self, node: ast.BoolOp, depth: int) -> tuple[Tree, str]:
        word = "and" if isinstance(node.op, ast.And) else "or"
        return [word, *(self.need(value, depth, "bool", f"'{word}'") for value in node.values)], "bool"

    def on_unaryop(self, node: ast.UnaryOp, depth: int) -> tuple[Tree, str]:
        if isinstance(node.op, ast.Not):
            return ["not", self.need(node.operand, depth, "bool", "'not'")], "bool"
        if isinstance(node.op, ast.USub):
            return ["neg", self.need(node.operand, depth, "number", "'-'")], "number"
        self.fail(node, *surface.NO_OPERATOR)

    def on_binop(self, node: ast.BinOp, depth: int) -> tuple[Tree, str]:
        sign = _BINARY.get(type(node.op))
        if sign is None:
            self.fail(node, *surface.NO_OPERATOR)
        if sign == "**" and not (isinstance(node.right, ast.Constant) and node.right.value in EXPONENTS):
            self.fail(node.right, *surface.NO_EXPONENT)
        left = self.need(node.left, depth, "number", f"'{sign}'")
        right = self.need(node.right, depth, "number", f"'{sign}'")
        self.alike(sign, node, left, right)
        return [sign, left, right], "number"

    def on_ifexp(self, node: ast.IfExp, depth: int) -> tuple[Tree, str]:
        test = self.need(node.test, depth, "bool", "'if'")
        body, kind = self.check(node.body, depth)
        otherwise, other_kind = self.check(node.orelse, depth)
        if kind != other_kind:
            self.fail(node, *surface.two_types(kind, other_kind))
        if kind == "number":
            self.alike("if", node, body, otherwise)
        return ["if", test, body, otherwise], kind

    def on_call(self, node: ast.Call, depth: int) -> tuple[Tree, str]:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords:
            known = ", ".join(sorted(FUNCTIONS))
            self.fail(node, f"only {known} can be called", f"부를 수 있는 함수: {known}")
        name = node.func.id
        count = len(node.args)
        if (count < 2) if name in ("min", "max") else (count != 1):
            self.fail(node, *surface.takes(name, name in ("min", "max")))
        arguments = [self.need(argument, depth, "number", name) for argument in node.args]
        self.alike(name, node, *arguments)
        return ["call", name, *arguments], "number"

    def on_compare(self, node: ast.Compare, depth: int) -> tuple[Tree, str]:
        signs = [_COMPARE.get(type(operator)) for operator in node.ops]
        if None in signs:
            self.fail(node, *surface.NO_IS)
        operands = [node.left, *node.comparators]
        checked = [self.check(operand, depth) for operand in operands]
        if any(kind == "version" for _, kind in checked):
            checked = [self.as_version(*pair, operand) for pair, operand in zip(checked, operands, strict=True)]
        for index, sign in enumerate(signs):
            self.check_pair(str(sign), checked[index], checked[index + 1], operands[index + 1])
        return ["compare", signs, *(tree for tree, _ in checked)], "bool"

    def as_version(self, tree: Tree, kind: str, node: ast.expr) -> tuple[Tree, str]:
        if kind == "text" and tree[0] == "lit":
            try:
                return ["lit", list(parse_version(tree[1]))], "version"
            except ValueError as error:
                self.fail(node, str(error), f"{tree[1]!r}: 판 번호가 아닙니다")
        return tree, kind

    def check_pair(self, sign: str, left: tuple[Tree, str], right: tuple[Tree, str], node: ast.expr) -> None:
        kinds = left[1], right[1]
        part_of_text = sign in ("in", "not in") and kinds == ("text", "text")
        if not part_of_text:
            self.check_value(left[0], right[0], node)
            self.check_value(right[0], left[0], node)
        if sign in ("in", "not in"):
            if kinds == ("text", "text") or (kinds[1] == "list" and kinds[0] in ("text", "number")):
                return
            self.fail(node, *surface.looks_for(sign, *kinds))
        if kinds[0] != kinds[1]:
            self.fail(node, *surface.compares(sign, *kinds))
        if kinds[0] == "number":
            self.alike(sign, node, left[0], right[0])
        if sign not in ("==", "!=") and kinds[0] not in ("number", "version"):
            self.fail(node, *surface.orders(sign, kinds[0]))

    def check_value(self, fact: Tree, other: Tree, node: ast.expr) -> None:
        """Every text that a fact of a closed set is compared with is one of the set."""
        known = self.values.get(fact[1]) if fact[0] == "fact" else None
        if known is None:
            return
        for text in _texts(other):
            if text not in known:
                self.fail(node, *surface.never(fact[1], text, known))


class Dimensions:
    """What the parts of one expression are, by the types of its facts and by which of its literals are sizes.

    A value is a *size* (bytes), a *count* (a whole number, a plain literal) or *open* (a fraction, an input of a
    formula, zero, a product: ``12 * model.parameters`` is twelve bytes for each): a size and a count are never of one
    kind, whatever is open goes with both.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._sizes: list[Tree] = []

    def literal(self, count: int) -> Tree:
        """The literal of a size, remembered as one."""
        tree: Tree = ["lit", count]
        self._sizes.append(tree)
        return tree

    def of(self, tree: Tree) -> str:
        """What a part of the expression is."""
        kind = tree[0]
        if kind == "lit":
            if any(tree is size for size in self._sizes):
                return SIZE
            return OPEN if tree[1] == 0 or not isinstance(tree[1], int) else COUNT
        if kind == "fact":
            return OF_TYPES.get(self._names[tree[1]], OPEN)
        if kind in ("*", "/", "//"):
            return self._of_product(kind, self.of(tree[1]), self.of(tree[2]))
        parts = tree[2:] if kind in ("call", "if") else tree[1:]
        return self._together([self.of(part) for part in parts if isinstance(part, list)])

    def fault(self, sign: str, *parts: Tree) -> tuple[str, str] | None:
        """Why these may not stand together under a sign, in English and Korean; None where they may."""
        found = [self.of(part) for part in parts]
        if sign in ("*", "**"):
            squared = found.count(SIZE) > 1 or (sign == "**" and found[0] == SIZE)
            said = f"'{sign}' makes bytes squared of sizes", f"'{sign}': 크기끼리 곱하면 바이트의 제곱이 됩니다"
            return said if squared else None
        if sign in ("/", "//"):
            said = f"'{sign}' divides a number by a size in bytes", f"'{sign}': 수를 바이트 크기로 나눕니다"
            return said if found == [COUNT, SIZE] else None
        if SIZE not in found or COUNT not in found:
            return None
        number = next((part[1] for part in parts if part[0] == "lit" and self.of(part) == COUNT), None)
        hint = hint_ko = ""
        if number is not None:
            hint = f"; write its unit, as in {number} GB or {number} GiB"
            hint_ko = f". {number} GB나 {number} GiB처럼 단위를 적으십시오"
        return (
            f"'{sign}' puts a size in bytes beside a plain number{hint}",
            f"'{sign}': 바이트 크기와 단위 없는 수를 함께 씁니다{hint_ko}",
        )

    def _of_product(self, sign: str, left: str, right: str) -> str:
        if SIZE in (left, right):
            other = right if left == SIZE else left
            return COUNT if other == SIZE else SIZE if other == COUNT or sign == "*" else OPEN
        return OPEN

    def _together(self, found: list[str]) -> str:
        return SIZE if SIZE in found else COUNT if found and set(found) == {COUNT} else OPEN


def _texts(tree: Tree) -> list[str]:
    """The texts of a literal, or of a list of literals."""
    found = tree[1] if tree[0] == "lit" else ()
    return [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, str)]


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])
