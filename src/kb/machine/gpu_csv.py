"""What ``nvidia-smi --query-gpu=… --format=csv`` printed or saved, so that no GPU is needed to judge a record. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kb.core.record import NamedTuple
from kb.core.snapshot import GpuState, Sample
from kb.core.units import MIB

_TELLING = ("memory.used", "utilization.gpu")
# The two spellings are those of drivers before and after R535.
_REASONS = ("clocks_throttle_reasons.active", "clocks_event_reasons.active")

# nvmlClocksEventReasons: the bits that hold clocks down. Idle (1) and a clock that the user set (2) are no trouble.
THROTTLE_BITS = {
    0x04: "power_cap",
    0x08: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}


class GpuLine(NamedTuple):
    """One GPU in one row of nvidia-smi's CSV; ``line`` from 1, ``gpu`` its index or bus id where the record has it."""

    line: int
    sample: Sample
    gpu: str | None = None
    time: str | None = None
    state: GpuState = GpuState("")


def read_gpu_csv(lines: str | Iterable[str], fields: Sequence[str] = ()) -> Iterator[GpuLine]:
    """The rows of nvidia-smi's CSV, in order; ``[N/A]`` is not known.

    Args:
        lines: a record with one header or several (each run of nvidia-smi writes one). Lines between that are no rows
            of the query, such as those of ``free``, are passed over.
        fields: the queried fields in their order, where it was written without a header.

    Raises:
        ValueError: no header in the text, and no ``fields``.
    """
    names = [name.strip() for name in fields]
    for number, line in enumerate(lines.splitlines() if isinstance(lines, str) else lines, 1):
        cells = [cell.strip() for cell in line.split(",")]
        header = header_of(line)
        if header:
            names = header
        elif len(cells) == len(names):
            row = dict(zip(names, cells, strict=True))
            made = _state(row)
            if made.used_bytes is not None or made.utilisation is not None:
                sample = Sample(made.used_bytes, made.total_bytes, made.utilisation)
                yield GpuLine(number, sample, made.key or None, row.get("timestamp"), made)
    if not names:
        raise ValueError("no header of nvidia-smi's CSV: query with --format=csv, or name the fields of the query")


def header_of(line: str) -> list[str]:
    """The fields that a header line names, without their units; empty where it is no header."""
    names = [cell.strip().partition(" [")[0] for cell in line.removeprefix("\ufeff").split(",")]
    return names if any(name in names for name in _TELLING) else []


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Why clocks are held down: names of i18n under ``monitor.throttle.``."""
    return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)


def _state(row: Mapping[str, str]) -> GpuState:
    share = _number(row.get("utilization.gpu"), "%")
    power = row.get("power.draw", row.get("power.draw.instant"))
    return GpuState(
        key=row.get("index", row.get("pci.bus_id", row.get("uuid", ""))),
        name=row.get("name", row.get("gpu_name", "")),
        uuid=row.get("uuid", row.get("gpu_uuid", "")),
        used_bytes=_mib(row.get("memory.used")),
        total_bytes=_mib(row.get("memory.total")),
        utilisation=None if share is None else share / 100,
        power_watts=_number(power, "W"),
        power_limit_watts=_number(row.get("enforced.power.limit", row.get("power.limit")), "W"),
        temperature_celsius=_number(row.get("temperature.gpu"), "C"),
        throttle=_reasons(row),
    )


def _reasons(row: Mapping[str, str]) -> tuple[str, ...]:
    cell = next((row[name] for name in _REASONS if name in row), "")
    try:
        return throttle_reasons(int(cell, 16))
    except ValueError:
        return ()


def _mib(cell: str | None) -> int | None:
    """nvidia-smi's CSV gives memory in MiB, with the unit or without it."""
    number = _number(cell, "MiB")
    return None if number is None else round(number * MIB)


def _number(cell: str | None, unit: str) -> float | None:
    text = (cell or "").removesuffix(unit).strip()
    return float(text) if text.isascii() and text.replace(".", "", 1).isdecimal() and len(text) <= 18 else None
