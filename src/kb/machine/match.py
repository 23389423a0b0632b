"""Which row of ``rules/hardware`` a driver's name, or a user's, means. Names first, then memory."""

import re
from collections.abc import Iterable, Mapping

from kb.core.hardware import Gpu

# The vendor's and the brand's words say nothing that the model number does not; drivers drop and add them.
_BRAND = r"nvidia|geforce|tesla|quadro|generation|graphics|\((?:r|tm)\)"
_SEPARATORS = r"[^a-z0-9]+"
_MEMORY_SIZE = r"\b\d+ ?gi?b\b"
_FORM_FACTOR = r"\b(?:sxm\d?|pci-?e|hbm\d?e?|dgxs|fhhl)\b"
_MIG_PROFILE = r"\s+mig\s+\S+$"

# ECC on a GDDR card takes 1/16 of its memory, and drivers before R515 hid up to 2 % (24268 of 24576 MiB).
# The nearest two cards of one name are further apart: 10 and 12 GB.
_MEMORY_TOLERANCE = 0.08


def match_gpu(name: str, memory_total: int, gpus: Mapping[str, Gpu]) -> Gpu | None:
    """The row for a GPU that a driver calls ``name`` and that has ``memory_total`` bytes.

    A name that equals a row's name or alias wins; else one that does so without memory size and form factor. Memory
    then decides, within 8 %. None where no row matches or two match alike: a laptop's or a virtual GPU is another GPU.
    """
    near = [
        gpu for gpu in gpus.values() if abs(memory_total - gpu.memory_total) <= _MEMORY_TOLERANCE * gpu.memory_total
    ]
    for fold in (fold_name, model_name):
        wanted = fold(name)
        same = [gpu for gpu in near if wanted in {fold(known) for known in names_of(gpu)}]
        if same:
            return _nearest(memory_total, same)
    return None


def without_mig(name: str) -> str:
    """The whole GPU's name from a slice's: ``NVIDIA A100-SXM4-40GB MIG 3g.20gb`` → ``NVIDIA A100-SXM4-40GB``."""
    return re.sub(_MIG_PROFILE, "", name, flags=re.IGNORECASE)


def names_of(gpu: Gpu) -> Iterable[str]:
    return (gpu.id, gpu.name, *gpu.aliases)


def fold_name(name: str) -> str:
    """A name without case, brand and separators: ``NVIDIA GeForce RTX 3090`` and ``rtx-3090`` are both ``rtx3090``."""
    return re.sub(_SEPARATORS, "", re.sub(_BRAND, " ", name.casefold()))


def model_name(name: str) -> str:
    """The folded name, also without memory size and form factor: ``Tesla V100-SXM2-16GB`` is ``v100``."""
    return fold_name(re.sub(_FORM_FACTOR, " ", re.sub(_MEMORY_SIZE, " ", name.casefold())))


def _nearest(memory_total: int, same: list[Gpu]) -> Gpu | None:
    distance = [abs(memory_total - gpu.memory_total) for gpu in same]
    best = min(distance)
    return same[distance.index(best)] if distance.count(best) == 1 else None
