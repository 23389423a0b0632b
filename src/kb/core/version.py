"""Versions of libraries, as tuples that compare."""

import re

_NUMBERS = re.compile(r"\d{1,6}(?:\.\d{1,6})*")


def parse_version(text: str) -> tuple[int, ...]:
    """``"4.51"`` → ``(4, 51)``; what follows the numbers (``rc1``, ``.dev0``, ``+cu128``) does not count.

    Raises:
        ValueError: the text does not begin with a number.
    """
    match = _NUMBERS.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a version such as 4.51")
    return tuple(int(part) for part in match[0].split("."))
