"""The machine as named on the command line (``--gpu``, ``--gpus``, ``--host-memory``, ``--cpus``) and, where nothing is
named, as found; and which row of ``rules/hardware`` a user's name, or a driver's, means: names first, then memory.

With everything named nothing is asked: neither pynvml, subprocess nor ctypes is imported.
"""

import os
import re
from collections.abc import Iterable, Mapping

from kb.core.hardware import DetectedGpu, Gpu, Machine
from kb.core.record import NamedTuple
from kb.core.text import UserError, nearest
from kb.core.typed import Any, Literal
from kb.core.units import LEAST_BYTES, MOST_BYTES, read_size
from kb.machine.reading import NO_DRIVER, Note

GpuSource = Literal["named", "nvml", "nvidia-smi", "torch", "none"]
AUTO, NONE = "auto", "none"
MOST_GPUS, MOST_CPUS = 65536, 65536
_CARD = r"(\d{1,4}(?:\.\d{1,3})?) ?gi?b(?:[ ,:@]+(\d{1,2}\.\d))?"

# Reasons that say little of the driver itself: what NVML or nvidia-smi says of it is told first.
_VAGUE = (*NO_DRIVER, "library_not_found", "pynvml_missing", "torch_failed", "torch_sees_none")

# The vendor's and the brand's words say nothing that the model number does not; drivers drop and add them.
_BRAND = r"nvidia|geforce|tesla|quadro|generation|graphics|\((?:r|tm)\)"
_SEPARATORS = r"[^a-z0-9]+"
_MEMORY_SIZE = r"\b\d+ ?gi?b\b"
_FORM_FACTOR = r"\b(?:sxm\d?|pci-?e|hbm\d?e?|dgxs|fhhl)\b"
_MIG_PROFILE = r"\s+mig\s+\S+$"

# ECC on a GDDR card takes 1/16 of its memory, and drivers before R515 hid up to 2 % (24268 of 24576 MiB).
# The nearest two cards of one name are further apart: 10 and 12 GB.
_MEMORY_TOLERANCE = 0.08


class FoundGpus(NamedTuple):
    """GPUs, which source gave them, why there are none, and what else is worth saying."""

    gpus: tuple[DetectedGpu, ...] = ()
    source: GpuSource = "none"
    note: Note | None = None
    notes: tuple[Note, ...] = ()


def detect(
    gpus: Mapping[str, Gpu],
    *,
    gpu: str | None = None,
    gpu_count: int | None = None,
    host_memory: str | None = None,
    cpus: str | None = None,
    root: str = "/",
    environ: Mapping[str, str] | None = None,
) -> Machine:
    """The machine a run is to happen on.

    Args:
        gpus: the catalogue, by id.
        gpu: an id, alias or name; None or ``auto`` detects; ``none`` is a machine without one.
        gpu_count: how many; None is those found, or one of the GPU named.
        host_memory: a size; None or ``auto`` detects; ``none`` leaves it (and /dev/shm) unknown, unasked.
        cpus: a number; None, ``auto`` and ``none`` likewise.
        root: where the file system begins; another one than ``/`` serves tests and images.
        environ: PATH, CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read from it; None is the process's own.

    Raises:
        UnknownGpu, UserError: a name, size or number cannot be used.
    """
    if gpu_count is not None and not 1 <= gpu_count <= MOST_GPUS:
        raise UserError("machine.bad_gpu_count", text=str(gpu_count), most=str(MOST_GPUS))
    found = _gpus(gpus, gpu, gpu_count, root, os.environ if environ is None else environ)
    return Machine(
        gpus=found.gpus,
        gpu_source=found.source,
        gpu_note=found.note,
        notes=found.notes,
        gpu_count=gpu_count,
        **_host(_wish(host_memory), _wish(cpus), root),
    )


def _wish(text: str | None) -> str:
    folded = AUTO if text is None else text.strip().casefold()
    return folded if folded in (AUTO, NONE) else text or ""


def _host(host_memory: str, cpus: str, root: str) -> dict[str, Any]:
    """The host's fields of :class:`Machine`. A named memory means another machine: this one's /dev/shm is not its."""
    fields: dict[str, Any] = {}
    if host_memory not in (AUTO, NONE):
        fields |= {"host_memory_bytes": read_host_memory(host_memory), "host_memory_source": "named"}
    if cpus not in (AUTO, NONE):
        fields |= {"cpus": read_cpus(cpus), "cpu_source": "named"}
    if AUTO not in (host_memory, cpus):
        return fields
    from kb.machine import host  # a machine that is given is not looked at

    mounted = host.mounts(root)
    if host_memory == AUTO:
        memory = host.host_memory(root, mounted)
        fields |= {"host_memory_bytes": memory.limit_bytes, "host_memory_source": memory.source}
        fields |= {"host_memory_used_bytes": memory.used_bytes, "shm_bytes": host.shm_bytes(root, mounted)}
    if cpus == AUTO:
        found = host.cpus(root, mounted)
        fields |= {"cpus": found.whole, "cpu_source": found.source}
    return fields


def _gpus(
    gpus: Mapping[str, Gpu], name: str | None, count: int | None, root: str, environ: Mapping[str, str]
) -> FoundGpus:
    wish = _wish(name)
    if wish == NONE:
        return FoundGpus(source="named", note="named_none")
    if wish != AUTO:
        return FoundGpus(gpus=named_gpus(wish, count, gpus), source="named")
    found = find_gpus(gpus, root=root, environ=environ)
    if count is None or not found.gpus:
        return found
    chosen = found.gpus[:count]
    if len(chosen) == count:
        return found._replace(gpus=chosen)
    # More than are here: planned ones like the first, of which nothing is known to be in use.
    first = chosen[0]._replace(memory_free=None, uuid=None, processes=())
    planned = tuple(first._replace(number=index) for index in range(len(chosen), count))
    return found._replace(gpus=chosen + planned, notes=(*found.notes, "more_gpus_than_found"))


def find_gpus(gpus: Mapping[str, Gpu], *, root: str = "/", environ: Mapping[str, str]) -> FoundGpus:
    """The GPUs that a CUDA process started here would see, each with its row of the catalogue where one matches."""
    from kb.machine import sources  # likewise

    if sources.hides_all(environ):
        return FoundGpus(note="gpus_hidden")
    source, reading, reasons = sources.ask(root, environ)
    if reading is None:
        first = next((reason for reason in reasons if reason not in _VAGUE), reasons[0])
        return FoundGpus(note=first, notes=tuple(reason for reason in reasons if reason != first))
    seen, notes = (reading.devices, ()) if source == "torch" else sources.visible(reading.devices, environ)
    notes = tuple(dict.fromkeys((*(reason for reason in reasons if reason not in NO_DRIVER), *reading.notes, *notes)))
    if not seen:
        hidden_by: Note = "visible_devices_invalid" if "visible_devices_invalid" in notes else "gpus_hidden"
        return FoundGpus(note=hidden_by, notes=tuple(note for note in notes if note != hidden_by))
    found = tuple(sources.with_row(device, gpus) for device in seen)
    return FoundGpus(gpus=found, source=source, notes=(*notes, *sources.changes_of(found, root)))


class UnknownGpu(UserError):  # noqa: N818
    """A GPU that ``rules/hardware`` does not have. ``suggestions`` are the nearest ids, best first."""

    def __init__(self, name: str, suggestions: list[str]) -> None:
        key = "machine.unknown_gpu" if suggestions else "machine.unknown_gpu_no_suggestion"
        super().__init__(key, name=name[:100], suggestions=", ".join(suggestions))
        self.suggestions = tuple(suggestions)


def named_gpus(name: str, count: int | None, gpus: Mapping[str, Gpu]) -> tuple[DetectedGpu, ...]:
    """``count`` GPUs (1 if None) as the catalogue describes them, or as the name itself does (``16GB:8.9``); nothing
    of this machine is asked.

    Raises:
        UnknownGpu: see :func:`find_gpu`.
    """
    gpu = _described(name)
    if gpu is None:
        row = find_gpu(name, gpus)
        gpu = DetectedGpu(0, row.name, row.memory_total, compute_capability=row.compute_capability, gpu=row)
    return tuple(gpu._replace(number=index) for index in range(count or 1))


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
    raise UnknownGpu(name, [gpu.id for gpu in same] or _suggestions(wanted, gpus))


def _suggestions(wanted: str, gpus: Mapping[str, Gpu]) -> list[str]:
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
            distance = [abs(memory_total - gpu.memory_total) for gpu in same]
            best = min(distance)
            return same[distance.index(best)] if distance.count(best) == 1 else None
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


def read_host_memory(text: str) -> int:
    """Bytes of ``--host-memory``. Raises: UserError: not a size with its unit, zero, or over 1 PiB."""
    return read_size("--host-memory", text)


def read_cpus(text: str) -> int:
    """The number of ``--cpus``. Raises: UserError: not a whole number of 1 … 65536."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 9 and 1 <= int(digits) <= MOST_CPUS):
        raise UserError("machine.bad_cpus", text=text[:100], most=str(MOST_CPUS))
    return int(digits)
