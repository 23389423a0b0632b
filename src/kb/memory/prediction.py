"""One setup, one architecture, one machine → one :class:`MemoryReport`, by the memory engine."""

from collections.abc import Mapping
from typing import Any

from kb.core.hardware import Gpu
from kb.core.memory_report import MemoryReport
from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.host import host_ledger, loads_of
from kb.memory.process import context_of

Capability = tuple[int, int] | None


def predict(
    setup: TrainingSetup,
    architecture: Architecture,
    *,
    constants: Mapping[str, float],
    gpu: Gpu | None = None,
    gpu_memory_bytes: int | None = None,
    compute_capability: tuple[int, int] | None = None,
    host_limit_bytes: int | None = None,
    checkpoint_bytes: int | None = None,
    rough: bool = False,
    among: bool = False,
) -> MemoryReport:
    """GPU memory by phase and host memory, with a verdict against the GPU. Of a run that the memory engine does not
    follow in every part it is a rough answer, about the nearest run that it does follow.

    Args:
        constants: the figures of ``rules/constants.yaml`` by name, sizes in bytes.
        gpu: the catalogued GPU; ``gpu_memory_bytes`` and ``compute_capability``, as found, win over it.
        host_limit_bytes: the container's limit, or the host's memory.
        checkpoint_bytes: the model's files; by default its parameters as loaded.
        among: the GPU is one of many: what the run takes without a limit answers for each, where it decides.
        rough: from a model of few layers, in wide bands; several times as quick.

    Raises:
        UnsupportedArchitectureError: the engine follows neither the run nor any near it.
        KeyError: a constant is missing.
    """
    capability = compute_capability or (gpu.compute_capability if gpu else None)
    memory = gpu_memory_bytes if gpu_memory_bytes is not None else (gpu.memory_total if gpu else None)
    context = context_of(constants, capability, gpu)
    if rough or not is_followed(setup, architecture, capability):
        from kb.memory.engine.rough import rough_report  # most runs are followed

        report = rough_report(setup, architecture, constants, context, memory, capability)
    else:
        report = _engine().report_of(setup, architecture, constants, context, memory, capability, among)
    loads = loads_of(setup, architecture, checkpoint_bytes)
    return report._replace(host=host_ledger(setup, loads, constants=constants, limit_bytes=host_limit_bytes))


def is_followed(setup: TrainingSetup, architecture: Architecture, capability: Capability) -> bool:
    """Whether :func:`predict` follows all of the run, which takes tens of milliseconds; else its answer is rough."""
    return bool(_engine().follows(setup, architecture, capability))


def reservable_bytes(
    setup: TrainingSetup, *, constants: Mapping[str, float], memory: int, gpu: Gpu | None, capability: Capability
) -> int:
    """Bytes of a GPU of ``memory`` that PyTorch can surely reserve, by the error of what the engine finds reserved."""
    surely, _ = _engine().limits_of(setup, constants, context_of(constants, capability, gpu), memory)
    return int(surely)


def _engine() -> Any:
    """The memory engine's reports, imported when they are asked for: a rough answer does without."""
    from kb.memory.engine import report

    return report


def surely_out_of_memory(
    setup: TrainingSetup,
    architecture: Architecture,
    memory: int,
    *,
    constants: Mapping[str, float],
    gpu: Gpu | None = None,
    compute_capability: tuple[int, int] | None = None,
    rough: bool = False,
) -> bool:
    """Whether :func:`predict` would say of training that it is out of memory, where that is seen without following a
    step: the weights alone are too much. False says nothing, and so it is of a rough answer, which is quick enough.
    """
    capability = compute_capability or (gpu.compute_capability if gpu else None)
    if rough or not (setup.do_train and is_followed(setup, architecture, capability)):
        return False
    context = context_of(constants, capability, gpu)
    from kb.memory.engine.at_rest import over_at_rest  # as the engine's reports below

    return over_at_rest(setup, architecture, constants, context, memory, capability)
