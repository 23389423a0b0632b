"""Sizes in bytes, as people write and read them. MiB and GiB are powers of two, MB and GB powers of ten."""

from kb.core.text import UserError

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
MIB, GIB = 2**20, 2**30

GPU_UNIT, HOST_UNIT = "GiB", "GB"
"""What texts show sizes in: a GPU's memory as its driver counts it, a host's as the limits of containers are named."""

_MOST_DIGITS, _MOST_DECIMALS = 15, 6  # of the number of a size
LEAST_BYTES, MOST_BYTES = 2**20, 2**50  # of a memory


class NoUnitError(ValueError):
    """A number alone; ``meant`` is the size that it most likely stands for."""

    def __init__(self, number: str) -> None:
        super().__init__(f"{number} has no unit")
        self.meant = _likely(number)


def parse_bytes(text: str) -> int:
    """Bytes of a size such as ``60GB``, ``59.5 GiB`` or ``512 B``.

    ``60G`` is 60GB and ``60Gi`` is 60GiB, as Kubernetes writes them; capitals do not count.

    Raises:
        NoUnitError: the text is a number alone.
        ValueError: it is no size.
    """
    size = text.strip()
    letters = size.lstrip("0123456789.")  # no pattern: it would be compiled for one size
    number, unit = size.removesuffix(letters), letters.strip().upper()
    whole, point, decimals = number.partition(".")
    per_unit = BYTES_PER_UNIT.get(unit if unit.endswith("B") else f"{unit}B")
    if per_unit is None or "." in decimals or bool(point) != bool(decimals):
        raise ValueError(f"{text!r} is not a size")
    if not 0 < len(whole) <= _MOST_DIGITS or len(decimals) > _MOST_DECIMALS:
        raise ValueError(f"{text!r} is not a size")
    if not unit:
        raise NoUnitError(number)
    return round(float(number) * per_unit)


def read_size(name: str, value: object) -> int:
    """Bytes of a size that a user gave: of an option, a setting of ``kb.toml``, a row of measurements.

    Args:
        name: how the user named it, for the fault: ``--host-memory``.

    Raises:
        UserError: a number without a unit, no size, or one that no memory has.
    """
    text = str(value)[:100]
    try:
        if isinstance(value, bool):
            raise ValueError(text)
        size = parse_bytes(str(value))
    except NoUnitError as error:
        raise UserError("size.no_unit", name=name, text=text, meant=error.meant) from None
    except ValueError:
        raise UserError("size.not_a_size", name=name, text=text) from None
    if not LEAST_BYTES <= size <= MOST_BYTES:
        least, most = format_bytes(LEAST_BYTES, "MiB"), format_bytes(MOST_BYTES, "TiB")
        raise UserError("size.out_of_range", name=name, text=text, least=least, most=most)
    return size


def _likely(number: str) -> str:
    """``60`` is meant as 60GB, ``61440`` as MiB, ``64424509440`` as bytes."""
    value = float(number)
    unit = "GB" if value < 10_000 else "MiB" if value < 100_000_000 else "B"
    return f"{number}{unit}"


def rounded_down(count: float, unit: str = "GiB") -> int:
    """Bytes rounded down to a tenth of the unit: the low end of a range, so that "at least" stays true."""
    return int(count * 10 // BYTES_PER_UNIT[unit.upper()]) * BYTES_PER_UNIT[unit.upper()] // 10


def rounded_up(count: float, unit: str = "GiB") -> int:
    """Bytes rounded up to a tenth of the unit: the high end of a range."""
    return -(-BYTES_PER_UNIT[unit.upper()] * int(-(-count * 10 // BYTES_PER_UNIT[unit.upper()])) // 10)


def tenths(count: float) -> int:
    """How many tenths of a GiB a report shows: two sizes that look the same count as the same."""
    return int(f"{count * 10 / GIB:.0f}")


def format_bytes(count: float, unit: str = "GiB") -> str:
    """A byte count in one unit: ``format_bytes(3 * GIB) == "3.0 GiB"``; MiB and smaller without decimals."""
    scaled = count / BYTES_PER_UNIT[unit.upper()]
    return f"{scaled:,.1f} {unit}" if unit[0] in "GT" else f"{scaled:,.0f} {unit}"
