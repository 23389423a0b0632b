"""Sizes in expressions: ``48 GB`` and ``24 GiB`` as literals, and what a size may be compared with and added to.

A value is a *size* (bytes), a *count* (a whole number, a plain literal) or *open* (a fraction, an input of a formula,
zero, a product: ``12 * model.parameters`` is twelve bytes for each): a size and a count are never of one kind, whatever
is open goes with both.
"""

import re
from collections.abc import Mapping, Sequence

from kb.core.expression import Tree
from kb.core.units import BYTES_PER_UNIT

SIZE, COUNT, OPEN = "size", "count", "open"
UNITS = ("B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")  # as expressions write them
OF_TYPES = {"bytes": SIZE, "integer": COUNT}  # of a fact; any other number is open
_SIZE = re.compile(r"(\d+(?:\.\d+)?)( ?)([A-Za-z]+)(?![A-Za-z0-9_.(])")


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


class Dimensions:
    """What the parts of one expression are, by the types of its facts and by which of its literals are sizes."""

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
