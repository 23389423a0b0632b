"""The surface of an expression's text, before Python's parser sees it: length, characters, brackets, sizes (``48 GB``);
and what is wrong with one, in English and Korean, for whoever writes a rule.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from kb.core.text import did_you_mean
from kb.core.units import BYTES_PER_UNIT

MAX_CHARACTERS, MAX_DEPTH = 1000, 24
TOO_DEEP = "too deeply nested", "너무 깊이 겹쳐 있습니다"
UNITS = ("B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")  # as expressions write them

_SIZE = re.compile(r"(\d+(?:\.\d+)?)( ?)([A-Za-z]+)(?![A-Za-z0-9_.(])")
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
            english, korean = f"{sign!r} is not part of the language", f"{sign!r} 글자는 식에 쓸 수 없습니다"
            if meant := INSTEAD.get(sign):
                english, korean = f"{english}; write {meant}", f"{korean}. 대신 쓸 것: {meant}"
            raise ExpressionError(english, korean, source, position + 1)
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


class UnitError(ValueError):
    """A size whose unit is not written as one: ``meant`` are the sizes that it may stand for."""

    def __init__(self, written: str, meant: Sequence[str]) -> None:
        super().__init__(f"{written!r} is no size; write {' or '.join(meant)}")
        self.korean = f"{written!r} 값은 크기가 아닙니다. {' 또는 '.join(meant)} 형태로 적으십시오"


def read_size_literal(source: str, position: int) -> tuple[int, int] | None:
    """The bytes of a size that begins at ``position``, and where it ends; None where none does.

    Raises:
        UnitError: a unit in other capitals, or without its B, which leaves open whether 10 or 2 is raised.
    """
    match = _SIZE.match(source, position)
    if match is None:
        return None
    number, _, unit = match.groups()
    if unit in UNITS:
        return round(float(number) * BYTES_PER_UNIT[unit.upper()]), match.end()
    meant = [known for known in UNITS if known.upper() in (unit.upper(), f"{unit.upper()}B")]
    meant += [known for known in UNITS if len(unit) == 1 and known.upper() == f"{unit.upper()}IB"]
    if not meant:
        return None
    raise UnitError(match[0], [f"{number} {known}" for known in meant])


Said = tuple[str, str]
# The types that expressions have, as Korean names them.
KOREAN: Mapping[str, str] = {"bool": "참·거짓", "number": "수", "text": "문자열", "list": "목록", "version": "판"}
INSTEAD = {"=": "==", "&": "and", "|": "or", "!": "not"}
NO_OPERATOR = "this operator is not part of the language", "식에 쓸 수 없는 연산자입니다"


def unknown_facts(first: str, source: str, known: Collection[str]) -> Said:
    """Every name in the expression that is no fact, ``first`` before the others, each with the one meant."""
    words = re.findall(r"[A-Za-z]\w*(?:\.[A-Za-z]\w*)+", re.sub(r"\"[^\"]*\"|'[^']*'", "", source))
    said, korean = [], []
    for name in dict.fromkeys([first, *words]):
        if name not in known:
            hint, hint_ko = did_you_mean(name, known)
            said.append(f"unknown fact {name!r}{hint}")
            korean.append(f"{name!r}: 없는 사실입니다{hint_ko}")
    return "; ".join(said).replace("?; ", "? "), "; ".join(korean).replace("?; ", "? ")
