"""One setup, one architecture, one machine → one :class:`MemoryReport`, by the memory engine or by closed forms."""

from collections.abc import Mapping
from typing import Any

from kb.core.hardware import Gpu
from kb.core.memory_report import MemoryReport
from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.closed_form import closed_report
from kb.memory.config_fields import UnsupportedArchitectureError
from kb.memory.host import host_ledger
from kb.memory.loads import loads_of
from kb.memory.process import context_of

Capability = tuple[int, int] | None
FAMILIES = ("t5", "bart", "decoder", "encoder")


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
    """GPU memory by phase and host memory, with a verdict against the GPU: by the memory engine, and of a run that it
    does not follow by a closed form (level 0).

    Args:
        constants: the figures of ``rules/constants.yaml`` by name, sizes in bytes.
        gpu: the catalogued GPU; ``gpu_memory_bytes`` and ``compute_capability``, as found, win over it.
        host_limit_bytes: the container's limit, or the host's memory.
        checkpoint_bytes: the model's files; by default its parameters as loaded.
        among: the GPU is one of many: what the run takes without a limit answers for each, where it decides.
        rough: by the closed form, where there is one that answers well: some hundred times as quick, in wide bands.

    Raises:
        UnsupportedArchitectureError: the engine does not follow the run, and there is no closed form for it.
        KeyError: a constant is missing.
    """
    if architecture.family not in FAMILIES:
        raise UnsupportedArchitectureError(
            f"no closed form for the {architecture.family} family ({architecture.model_type}) yet"
        )
    capability = compute_capability or (gpu.compute_capability if gpu else None)
    memory = gpu_memory_bytes if gpu_memory_bytes is not None else (gpu.memory_total if gpu else None)
    context = context_of(constants, capability, gpu)
    report = None
    if engine_answers(setup, architecture, rough=rough):
        try:
            report = _engine().report_of(setup, architecture, constants, context, memory, capability, among)
        except UnsupportedArchitectureError:
            if not has_closed_form(setup, architecture):
                raise
    if report is None:
        report = closed_report(setup, architecture, constants, context, memory, capability)
    loads = loads_of(setup, architecture, checkpoint_bytes)
    return report._replace(host=host_ledger(setup, loads, constants=constants, limit_bytes=host_limit_bytes))


def has_closed_form(setup: TrainingSetup, architecture: Architecture) -> bool:
    """Whether a closed form describes the run; what has none, the memory engine alone answers."""
    return not (architecture.engine or setup.post)


def engine_answers(setup: TrainingSetup, architecture: Architecture, *, rough: bool = False) -> bool:
    """Whether :func:`predict` follows the run by the memory engine, which takes tens of milliseconds; ``rough``: even
    where no more than a rough answer is asked for, since there is no closed form or it is far off.
    """
    if not has_closed_form(setup, architecture):
        return True
    if rough and not _is_followed_better(setup, architecture):
        return False
    return _engine().why_not(setup, architecture) is None


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
    step: the weights alone are too much. False says nothing, and so it is of a closed form, which is quick enough.
    """
    if not (setup.do_train and engine_answers(setup, architecture, rough=rough)):
        return False
    capability = compute_capability or (gpu.compute_capability if gpu else None)
    context = context_of(constants, capability, gpu)
    from kb.memory.engine.at_rest import over_at_rest  # as the engine's reports below

    return over_at_rest(setup, architecture, constants, context, memory, capability)


def _is_followed_better(setup: TrainingSetup, architecture: Architecture) -> bool:
    """An output layer in fp32 that trains beside adapters (LLaMA-Factory), and DoRA, which asks the base layer again
    beside a dropout: closed forms are up to 7 % too low there. FSDP: they are 30 % too low where gradients accumulate,
    which stay whole until the last pass, and up to 90 % too high with offloading. ZeRO-3: up to 13 % too low, and
    what is reserved 25 %, beside what DeepSpeed's own code takes. 8 bits: they are up to 39 % too low, as each layer
    keeps its input whatever is checkpointed. Weights in one 16-bit type that compute in the other: what comes of both
    is fp32, and closed forms are up to 18 % too low. DeBERTa: closed forms are 11 % off in what
    training reserves and 40 % in evaluation, on average.
    """
    own_head = setup.trained_type == "fp32" and setup.modules_to_save
    adapted = bool(setup.method != "full" and (own_head or setup.use_dora))
    shards = setup.do_train and (setup.fsdp or setup.zero_stage == 3)
    eight = setup.load_in_8bit and not setup.load_in_4bit
    halves = _computes_in_the_other_half(setup)
    return adapted or shards or eight or halves or architecture.model_type == "deberta-v2"


def _computes_in_the_other_half(setup: TrainingSetup) -> bool:
    """Weights in fp16 under autocast in bf16, or the reverse; what PEFT prepares for k bits is fp32 beforehand."""
    prepared = setup.prepare_for_kbit and setup.method != "full" and (setup.load_in_4bit or setup.load_in_8bit)
    computes = "bf16" if setup.bf16 else "fp16" if setup.fp16 else setup.weights
    return setup.do_train and not prepared and setup.weights != "fp32" and setup.weights != computes
