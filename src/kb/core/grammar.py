"""Expressions as text: Python's own grammar cut down to a whitelist, with types and names checked before any use.

Only what is named here gets through; limits on length, nodes, depth and literals bound the work that any text can
cause. Used when rules are compiled; evaluating needs only :mod:`kb.core.expression`.
"""

import ast
import warnings
from collections.abc import Collection, Mapping
from typing import NoReturn

from kb.core.expression import FUNCTIONS, Tree
from kb.core.release import parse_version
from kb.core.surface import KOREAN, MAX_DEPTH, NO_OPERATOR, TOO_DEEP, read_surface, unknown_facts
from kb.core.surface import ExpressionError as ExpressionError
from kb.core.text import nearest

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
        said = f"the expression is a {kind}; a {want} is needed here"
        korean = f"식의 값은 {KOREAN[kind]}인데 여기에는 {KOREAN[want]} 자료형이 필요합니다"
        raise ExpressionError(said, korean, source, 1)
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
            korean = f"{where}: {KOREAN[want]} 자료형이 필요한데 {KOREAN[kind]} 값입니다"
            self.fail(node, f"{where} needs a {want}, this is a {kind}", korean)
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
        self.fail(
            node,
            f"{value!r} is not part of the language; a missing fact is unknown, not None",
            f"{value!r} 값은 식에 쓸 수 없습니다. 없는 사실은 None이 아니라 모르는 값입니다",
        )

    def on_name(self, node: ast.Name | ast.Attribute, depth: int) -> tuple[Tree, str]:
        name = _dotted(node)
        if name is None:
            self.fail(node, "a dot only joins the parts of a fact's name", "점은 사실 이름의 부분을 잇는 데만 씁니다")
        if name.strip("_") == "" and self.column(node) in self.sizes:
            return self.dimensions.literal(self.sizes[self.column(node)]), "number"
        if name not in self.names:
            self.fail(node, *unknown_facts(name, self.source, self.names))
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
        self.fail(node, *NO_OPERATOR)

    def on_binop(self, node: ast.BinOp, depth: int) -> tuple[Tree, str]:
        sign = _BINARY.get(type(node.op))
        if sign is None:
            self.fail(node, *NO_OPERATOR)
        if sign == "**" and not (isinstance(node.right, ast.Constant) and node.right.value in EXPONENTS):
            self.fail(node.right, "an exponent must be 2, 3 or 0.5", "지수는 2, 3, 0.5 가운데 하나입니다")
        left = self.need(node.left, depth, "number", f"'{sign}'")
        right = self.need(node.right, depth, "number", f"'{sign}'")
        self.alike(sign, node, left, right)
        return [sign, left, right], "number"

    def on_ifexp(self, node: ast.IfExp, depth: int) -> tuple[Tree, str]:
        test = self.need(node.test, depth, "bool", "'if'")
        body, kind = self.check(node.body, depth)
        otherwise, other_kind = self.check(node.orelse, depth)
        if kind != other_kind:
            said = f"both branches must have one type; these are a {kind} and a {other_kind}"
            self.fail(node, said, f"두 갈래의 자료형이 같아야 합니다: {KOREAN[kind]}, {KOREAN[other_kind]}")
        if kind == "number":
            self.alike("if", node, body, otherwise)
        return ["if", test, body, otherwise], kind

    def on_call(self, node: ast.Call, depth: int) -> tuple[Tree, str]:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords:
            known = ", ".join(sorted(FUNCTIONS))
            self.fail(node, f"only {known} can be called", f"부를 수 있는 함수: {known}")
        name = node.func.id
        count = len(node.args)
        if name in ("min", "max") and count < 2:
            self.fail(node, f"{name} takes two values or more", f"{name}: 값을 둘 이상 받습니다")
        if name not in ("min", "max") and count != 1:
            self.fail(node, f"{name} takes one value", f"{name}: 값을 하나만 받습니다")
        arguments = [self.need(argument, depth, "number", name) for argument in node.args]
        self.alike(name, node, *arguments)
        return ["call", name, *arguments], "number"

    def on_compare(self, node: ast.Compare, depth: int) -> tuple[Tree, str]:
        signs = [_COMPARE.get(type(operator)) for operator in node.ops]
        if None in signs:
            korean = "'is'는 식에 쓸 수 없습니다. ==로 비교하십시오"
            self.fail(node, "'is' is not part of the language; compare with ==", korean)
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
            self.fail(
                node,
                f"'{sign}' looks for a text or number in a list; these are a {kinds[0]} and a {kinds[1]}",
                f"'{sign}': 목록에서 문자열이나 수를 찾습니다. 지금은 {KOREAN[kinds[0]]}, {KOREAN[kinds[1]]} 값입니다",
            )
        if kinds[0] != kinds[1]:
            korean = f"'{sign}': 자료형이 다른 값을 비교합니다: {KOREAN[kinds[0]]}, {KOREAN[kinds[1]]}"
            self.fail(node, f"'{sign}' compares a {kinds[0]} with a {kinds[1]}", korean)
        if kinds[0] == "number":
            self.alike(sign, node, left[0], right[0])
        if sign not in ("==", "!=") and kinds[0] not in ("number", "version"):
            korean = f"'{sign}': 수나 판의 순서를 비교합니다. 지금은 {KOREAN[kinds[0]]} 값입니다"
            self.fail(node, f"'{sign}' orders numbers or versions, not a {kinds[0]}", korean)

    def check_value(self, fact: Tree, other: Tree, node: ast.expr) -> None:
        """Every text that a fact of a closed set is compared with is one of the set."""
        known = self.values.get(fact[1]) if fact[0] == "fact" else None
        if known is None:
            return
        for text in _texts(other):
            if text not in known:
                guess, listed = nearest(text, known), ", ".join(sorted(known))
                hint = f"did you mean {guess[0]!r}?" if guess else f"its values: {listed}"
                hint_ko = f"{guess[0]!r} 아닙니까?" if guess else f"쓸 수 있는 값: {listed}"
                korean = f"{fact[1]}: {text!r} 값이 될 수 없습니다. {hint_ko}"
                self.fail(node, f"{fact[1]} is never {text!r}; {hint}", korean)


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
