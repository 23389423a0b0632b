"""The surface of an expression's text, before Python's parser sees it: length, characters, brackets, sizes."""

import re

from kb.core.dimensions import UnitError, read_size_literal

MAX_CHARACTERS, MAX_DEPTH = 1000, 24
TOO_DEEP = "too deeply nested", "너무 깊이 겹쳐 있습니다"

_TOKEN = re.compile(
    r"""\s+ | [A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)* | \d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?
      | "[^"\\\n]*" | '[^'\\\n]*' | == | != | <= | >= | // | \*\* | [-+*/%<>()\[\],]""",
    re.VERBOSE,
)


class ExpressionError(ValueError):
    """An expression that cannot be used: the reason, and the column (from 1) where it lies. ``korean``: in Korean."""

    def __init__(self, reason: str, korean: str, source: str, column: int) -> None:
        self.reason = reason
        self.source = source
        self.column = column
        shown = source if len(source) <= 160 else source[:157] + "…"
        below = f"\n  {shown}\n  {' ' * min(column - 1, 160)}^"
        self.korean = f"{column}번째 글자: {korean}{below}"
        super().__init__(f"column {column}: {reason}{below}")


def read_surface(source: str) -> tuple[str, dict[int, int]]:
    """Reject by length, characters and bracket depth before Python's parser sees the text.

    Returns:
        The text with each size as a name of as many underscores, since Python knows no ``48 GB``, and the bytes of
        each by its column.
    """
    if not source:
        raise ExpressionError("empty expression", "식이 비어 있습니다", source, 1)
    if len(source) > MAX_CHARACTERS:
        raise ExpressionError(f"longer than {MAX_CHARACTERS} characters", f"{MAX_CHARACTERS}자보다 깁니다", source, 1)
    position, stack, spelt, sizes = 0, list[tuple[str, int]](), source, dict[int, int]()
    while position < len(source):
        try:
            size = read_size_literal(source, position)
        except UnitError as error:
            raise ExpressionError(str(error), error.korean, source, position + 1) from None
        if size is not None:
            sizes[position], end = size
            spelt = spelt[:position] + "_" * (end - position) + spelt[end:]
            position = end
            continue
        token = _TOKEN.match(source, position)
        if token is None:
            sign = source[position]
            raise ExpressionError(
                f"{sign!r} is not part of the language", f"{sign!r} 글자는 식에 쓸 수 없습니다", source, position + 1
            )
        if token[0] in "([":
            stack.append((token[0], position))
            if len(stack) > MAX_DEPTH:
                raise ExpressionError(*TOO_DEEP, source, position + 1)
        elif token[0] in ")]" and (not stack or stack.pop()[0] + token[0] not in ("()", "[]")):
            raise ExpressionError(
                f"{token[0]!r} closes nothing", f"{token[0]!r}: 여는 괄호가 없습니다", source, position + 1
            )
        position = token.end()
    if stack:
        sign, at = stack[-1]
        raise ExpressionError(f"{sign!r} is never closed", f"{sign!r}: 닫는 괄호가 없습니다", source, at + 1)
    return spelt, sizes
