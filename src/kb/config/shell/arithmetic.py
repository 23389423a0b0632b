"""``$((1024 * 2))``: sums of whole numbers and of the script's own variables, as a shell reckons them."""

import ast
import re
from collections.abc import Callable

LONGEST = 200  # characters; and no number of more digits than a shell's has
_LARGEST = 2**63
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_NUMBER = re.compile(r"\s*([+-]?\d+)\s*\Z")


def reckoned(text: str, look_up: Callable[[str], str | None]) -> int | None:
    """The value of what stands between ``$((`` and ``))``; None where it cannot be known, or is no plain sum.

    Args:
        look_up: the text of a variable, None where it is not known.
    """
    if len(text) > LONGEST:
        return None
    try:
        tree = ast.parse(_VARIABLE.sub(r"\1\2", text.strip()), mode="eval")  # numbers with a leading zero are no Python
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return _value(tree.body, look_up)


def _value(node: ast.expr, look_up: Callable[[str], str | None]) -> int | None:
    found: int | None = None
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found = node.value
    elif isinstance(node, ast.Name):
        written = _NUMBER.match(look_up(node.id) or "")
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
