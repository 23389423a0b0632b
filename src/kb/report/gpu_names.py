"""GPUs by the names that people say."""

from kb.core.hardware import Gpu

_DROPPED_WORDS = ("NVIDIA", "GeForce", "Tesla", "Quadro", "Generation", "HBM2", "HBM2e", "HBM3", "HBM3e")


def short_name(gpu: Gpu) -> str:
    """The name people say: ``RTX 4090``, ``V100 16GB``; the vendor's words and the kind of memory are left out.

    Where the id names a size, so does the name: the same GPU exists with another.
    """
    name = " ".join(word for word in gpu.name.split() if word not in _DROPPED_WORDS)
    last = gpu.id.rpartition("-")[2].upper()
    return f"{name} {last}" if last.endswith("GB") and last not in name else name
