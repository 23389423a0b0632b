"""What the command line says of the machine: ``--gpu``, ``--gpus``, ``--host-memory``, ``--cpus``."""

import re
from collections.abc import Mapping

from kb.core.hardware import DetectedGpu, Gpu
from kb.core.text import UserError, nearest
from kb.core.units import LEAST_BYTES, MOST_BYTES, read_size
from kb.machine.match import fold_name, model_name, names_of

AUTO, NONE = "auto", "none"
MOST_GPUS, MOST_CPUS = 65536, 65536
_CARD = r"(\d{1,4}(?:\.\d{1,3})?) ?gi?b(?:[ ,:@]+(\d{1,2}\.\d))?"


class UnknownGpu(UserError):  # noqa: N818
    """A GPU that ``rules/hardware`` does not have. ``suggestions`` are the nearest ids, best first."""

    def __init__(self, name: str, suggestions: list[str]) -> None:
        key = "machine.unknown_gpu" if suggestions else "machine.unknown_gpu_no_suggestion"
        super().__init__(key, name=name[:100], suggestions=", ".join(suggestions))
        self.suggestions = tuple(suggestions)


def find_gpu(name: str, gpus: Mapping[str, Gpu]) -> Gpu:
    """The GPU of this id, name or alias; case, brand words and separators do not count.

    Raises:
        UnknownGpu: none has the name, or several have (``rtx 3080``: 10 or 12 GB); the suggestions say which.
    """
    if name in gpus:
        return gpus[name]
    said = name.strip().casefold()
    for gpu in gpus.values():
        if any(known.casefold() == said for known in names_of(gpu)):
            return gpu
    wanted = fold_name(name)
    # Both 3080 are the model `rtx3080`: a name that leaves the memory open means neither.
    for fold in (model_name, fold_name):
        same = [gpu for gpu in gpus.values() if wanted and any(fold(known) == wanted for known in names_of(gpu))]
        if len(same) == 1:
            return same[0]
        if same:
            break
    raise UnknownGpu(name, [gpu.id for gpu in same] or _suggestions(name, wanted, gpus))


def _suggestions(name: str, wanted: str, gpus: Mapping[str, Gpu]) -> list[str]:
    beginnings = [gpu.id for gpu in gpus.values() if len(wanted) >= 2 and fold_name(gpu.id).startswith(wanted)]
    if beginnings:
        return beginnings[:5]
    ids: dict[str, str] = {}
    for gpu in gpus.values():
        for known in names_of(gpu):
            ids.setdefault(fold_name(known), gpu.id)
    # another series is another card, however alike the names look: MI300X is no RTX 3090
    alike = [folded for folded in ids if _series(folded) == _series(wanted)]
    found = [ids[folded] for folded in nearest(wanted, alike, count=6)]
    return list(dict.fromkeys(found))[:3]


def _series(folded: str) -> str:
    """The letters that a name begins with: ``rtx`` of ``rtx4090``."""
    return folded[: next((place for place, letter in enumerate(folded) if letter.isdigit()), len(folded))]


def named_gpus(name: str, count: int | None, gpus: Mapping[str, Gpu]) -> tuple[DetectedGpu, ...]:
    """``count`` GPUs (1 if None) as the catalogue describes them, or as the name itself does (``16GB:8.9``); nothing
    of this machine is asked.

    Raises:
        UnknownGpu: see :func:`find_gpu`.
    """
    described = _described(name)
    if described is not None:
        return tuple(described._replace(number=index) for index in range(count or 1))
    gpu = find_gpu(name, gpus)
    return tuple(
        DetectedGpu(
            number=index,
            name=gpu.name,
            memory_total=gpu.memory_total,
            compute_capability=gpu.compute_capability,
            gpu=gpu,
        )
        for index in range(count or 1)
    )


def _described(text: str) -> DetectedGpu | None:
    """A card that no row has, by its memory as sold and its compute capability: ``16GB:8.9``; None of other texts."""
    begins = text.strip()[:1].isdigit()  # most are names: for those no pattern is compiled
    match = re.fullmatch(_CARD, text.strip(), re.IGNORECASE) if begins else None
    if match is None:
        return None
    size, capability = match[1], match[2]
    total = round(float(size) * 2**30)
    if not LEAST_BYTES <= total <= MOST_BYTES:
        return None
    major, _, minor = (capability or "").partition(".")
    known = (int(major), int(minor)) if capability else None
    name = f"{size} GB, compute capability {capability}" if capability else f"{size} GB"
    return DetectedGpu(number=0, name=name, memory_total=total, compute_capability=known)


def check_gpu_count(count: int | None) -> None:
    """Raises: UserError: not 1 … 65536."""
    if count is not None and not 1 <= count <= MOST_GPUS:
        raise UserError("machine.bad_gpu_count", text=str(count), most=str(MOST_GPUS))


def read_host_memory(text: str) -> int:
    """Bytes of ``--host-memory``. Raises: UserError: not a size with its unit, zero, or over 1 PiB."""
    return read_size("--host-memory", text)


def read_cpus(text: str) -> int:
    """The number of ``--cpus``. Raises: UserError: not a whole number of 1 … 65536."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 9 and 1 <= int(digits) <= MOST_CPUS):
        raise UserError("machine.bad_cpus", text=text[:100], most=str(MOST_CPUS))
    return int(digits)
