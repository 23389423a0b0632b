"""GPUs through an installed PyTorch: the last resort, since importing it takes a second."""

import sys
from typing import Any

from kb.core.hardware import DetectedGpu
from kb.machine.reading import Reading, Reported, Unanswered


def installed() -> bool:
    """Whether torch is there to be imported, without importing it."""
    if "torch" in sys.modules:
        return True
    import importlib.util

    return importlib.util.find_spec("torch") is not None


def read() -> Reading:
    """The GPUs that torch sees, ``CUDA_VISIBLE_DEVICES`` already applied.

    Free memory is not asked: it would start CUDA.

    Raises:
        Unanswered: torch cannot be imported, has no CUDA, or sees no GPU.
    """
    import importlib

    try:
        cuda: Any = importlib.import_module("torch").cuda
        count = cuda.device_count() if cuda.is_available() else 0
        found = [cuda.get_device_properties(index) for index in range(count)]
    except (ImportError, OSError, RuntimeError):
        raise Unanswered("torch_failed") from None
    if not found:
        raise Unanswered("torch_sees_none")
    return Reading(devices=tuple(Reported(gpu=_gpu(index, properties)) for index, properties in enumerate(found)))


def _gpu(index: int, properties: Any) -> DetectedGpu:
    uuid, mig = getattr(properties, "uuid", None), " MIG " in properties.name
    return DetectedGpu(
        number=index,
        name=properties.name,
        memory_total=properties.total_memory,
        compute_capability=(properties.major, properties.minor),
        uuid=f"{'MIG' if mig else 'GPU'}-{uuid}" if uuid else None,
        mig=mig,
    )
