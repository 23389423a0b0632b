"""One setup, one architecture, one machine → one :class:`MemoryReport`, by the memory engine."""

from collections.abc import Mapping

from kb.core.hardware import Gpu
from kb.core.memory_report import HostLedger, MemoryReport, Phase, Term, Verdict
from kb.core.model import Architecture
from kb.core.setup import Assumption, TrainingSetup
from kb.core.typed import Any
from kb.memory import answers, engine
from kb.memory.host import host_ledger, loads_of
from kb.memory.process import context_of

Capability = tuple[int, int] | None
NO_LEDGER = HostLedger((), 0, 0, None)  # what the host takes is worked out each time


def predict(
    setup: TrainingSetup,
    architecture: Architecture,
    *,
    constants: Mapping[str, float],
    gpu: Gpu | None = None,
    gpu_memory_bytes: int | None = None,
    compute_capability: tuple[int, int] | None = None,
    host_limit_bytes: int | None = None,
    rough: bool = False,
    among: bool = False,
) -> MemoryReport:
    """GPU memory by phase and host memory, with a verdict against the GPU. Of a run that the memory engine does not
    follow in every part it is a rough answer, about the nearest run that it does follow.

    Args:
        constants: the figures of ``rules/constants.yaml`` by name, sizes in bytes.
        gpu: the catalogued GPU; ``gpu_memory_bytes`` and ``compute_capability``, as found, win over it.
        host_limit_bytes: the container's limit, or the host's memory.
        among: the GPU is one of many: what the run takes without a limit answers for each, where it decides.
        rough: from a model of few layers, in wide bands; several times as quick.

    Raises:
        UnsupportedArchitectureError: the engine follows neither the run nor any near it.
        KeyError: a constant is missing.
    """
    capability = compute_capability or (gpu.compute_capability if gpu else None)
    memory = gpu_memory_bytes if gpu_memory_bytes is not None else (gpu.memory_total if gpu else None)
    context = context_of(constants, capability, gpu)

    def answered() -> MemoryReport:
        if rough or not is_followed(setup, architecture, capability):
            return engine.rough_report(setup, architecture, constants, context, memory, capability)
        return engine.report_of(setup, architecture, constants, context, memory, capability, among)

    where = (context, memory, capability, rough, among)
    report = answers.known("report", (setup, architecture, constants, where), answered, _written, _read)
    loads = loads_of(setup, architecture)
    return report._replace(host=host_ledger(setup, loads, constants=constants, limit_bytes=host_limit_bytes))


def _written(report: MemoryReport) -> Any:
    return report.level, report.assumed, report.phases, report.verdict


def _read(value: Any) -> MemoryReport:
    level, assumed, phases, verdict = value
    known = tuple(Assumption(*each) for each in assumed)
    return MemoryReport(level, known, phases_read(phases), NO_LEDGER, Verdict(*verdict))


def phases_read(value: Any) -> tuple[Phase, ...]:
    """Phases as a JSON value has them."""
    return tuple(Phase(name, tuple(Term(*term) for term in terms), *rest) for name, terms, *rest in value)


def is_followed(setup: TrainingSetup, architecture: Architecture, capability: Capability) -> bool:
    """Whether :func:`predict` follows all of the run, which takes tens of milliseconds; else its answer is rough."""

    def answered() -> bool:
        return engine.follows(setup, architecture, capability)

    return answers.known("followed", (setup, architecture, capability), answered)


def reservable_bytes(
    setup: TrainingSetup, *, constants: Mapping[str, float], memory: int, gpu: Gpu | None, capability: Capability
) -> int:
    """Bytes of a GPU of ``memory`` that PyTorch can surely reserve, by the error of what the engine finds reserved."""
    return engine.limits_of(setup, constants, context_of(constants, capability, gpu), memory)[0]


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
    step: weights, gradients and states alone are too much. False says nothing, and so it is of a rough answer, which is
    quick enough.
    """
    capability = compute_capability or (gpu.compute_capability if gpu else None)
    if rough or not (setup.do_train and is_followed(setup, architecture, capability)):
        return False
    context = context_of(constants, capability, gpu)

    def answered() -> bool:
        return engine.over_at_rest(setup, architecture, constants, context, memory, capability, stepped=True)

    asked = (setup, architecture, constants, (context, memory, capability))
    return answers.known("over at rest", asked, answered)
