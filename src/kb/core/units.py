"""Sizes in bytes, as people write and read them. MiB and GiB are powers of two, MB and GB powers of ten."""

import re

BYTES_PER_UNIT = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
KIB, MIB, GIB = 2**10, 2**20, 2**30

_SIZE = re.compile(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]?i?b?)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Bytes of a size such as ``60GB``, ``59.5 GiB`` or ``64424509440``.

    A bare ``60G`` is read as Docker and Kubernetes' ``Gi`` would be written in full: ``G`` alone means GB.

    Raises:
        ValueError: the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write it as 60GB, 59.5GiB or a number of bytes")
    number, unit = match[1], match[2].upper() or "B"
    if not unit.endswith("B"):
        unit += "B"
    return round(float(number) * BYTES_PER_UNIT[unit])


def rounded_down(count: float, unit: str = "GiB") -> int:
    """Bytes rounded down to a tenth of the unit: the low end of a range, so that "at least" stays true."""
    return int(count * 10 // BYTES_PER_UNIT[unit.upper()]) * BYTES_PER_UNIT[unit.upper()] // 10


def rounded_up(count: float, unit: str = "GiB") -> int:
    """Bytes rounded up to a tenth of the unit: the high end of a range."""
    return -(-BYTES_PER_UNIT[unit.upper()] * int(-(-count * 10 // BYTES_PER_UNIT[unit.upper()])) // 10)


def tenths(count: float, unit: str = "GiB") -> int:
    """How many tenths of the unit a report shows: two sizes that look the same count as the same."""
    return int(f"{count * 10 / BYTES_PER_UNIT[unit.upper()]:.0f}")


def format_bytes(count: float, unit: str = "GiB") -> str:
    """A byte count in one unit: ``format_bytes(3 * GIB) == "3.0 GiB"``; MiB and smaller without decimals."""
    scaled = count / BYTES_PER_UNIT[unit.upper()]
    return f"{scaled:,.1f} {unit}" if unit[0] in "GT" else f"{scaled:,.0f} {unit}"
