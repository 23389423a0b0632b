"""What the command line asks of a probe, checked where that needs nothing but the arguments."""

from typing import Any, NamedTuple

from kb.advice.flags import Flags
from kb.core.errors import UserError
from kb.core.units import parse_bytes

LARGEST_SIZE = 2**50  # bytes
LARGEST_NUMBER = 1_000_000
PHASES = ("train", "evaluate", "generate")


class Asked(NamedTuple):
    """One call of ``kb.probe``. None leaves it to the config, the machine or the procedure. Sizes in bytes."""

    kind: str
    flags: Flags = Flags()
    backend: str | None = None
    config: str | None = None
    section: str | None = None
    dialect: str | None = None
    model_config: str | None = None
    command: tuple[str, ...] = ()
    batch_flag: str | None = None
    steps_flag: str | None = None
    workers_flag: str | None = None
    phases: tuple[str, ...] | None = None
    steps: int | None = None
    most: int | None = None
    effective_batch: int | None = None
    workers: tuple[int, ...] | None = None
    gpu: str | None = None
    device: str | None = None
    force: bool = False
    seconds: float = 600
    host_bytes: int | None = None
    fake_limit: int | None = None
    fake_script: str | None = None
    rules: str | None = None


def read_phases(text: str | None) -> tuple[str, ...] | None:
    """``train,generate`` as phases in the order in which they run.

    Raises:
        UserError: there is no such phase.
    """
    if text is None:
        return None
    named = [name.strip() for name in text.split(",") if name.strip()]
    wrong = next((name for name in named if name not in PHASES), None)
    if wrong is not None or not named:
        raise UserError("probe.bad_phases", value=(wrong or text)[:100], known=", ".join(PHASES))
    return tuple(phase for phase in PHASES if phase in named)


def read_counts(text: str | None) -> tuple[int, ...] | None:
    """``0,1,2,4`` as worker counts.

    Raises:
        UserError: something else than whole numbers from 0.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) <= 1024 for part in parts):
        raise UserError("probe.bad_workers", value=text[:100])
    return tuple(dict.fromkeys(map(int, parts)))


def read_size(option: str, text: str | None) -> int | None:
    """A size in bytes.

    Raises:
        UserError: it is no size, or none that a machine can have.
    """
    if text is None:
        return None
    try:
        size = parse_bytes(text)
    except ValueError:
        size = 0
    if not 0 < size <= LARGEST_SIZE:
        raise UserError("estimate.bad_size", option=option, value=text[:100])
    return size


def check_numbers(values: dict[str, Any]) -> None:
    """Raises: UserError: an option's number is under 1 or absurdly large."""
    for option, value in values.items():
        if value is not None and not 1 <= value <= LARGEST_NUMBER:
            raise UserError("recommend.bad_number", option=option, value=f"{value:g}", most=LARGEST_NUMBER)
