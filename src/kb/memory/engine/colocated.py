"""vLLM in the training process: the phases of a run with what its share of the GPU takes."""

from kb.core.memory_report import Phase, Term
from kb.core.model import Architecture
from kb.core.setup import Colocated
from kb.memory.config_fields import UnsupportedArchitectureError
from kb.memory.serving.setup import ServingSetup
from kb.memory.serving.shape import served_model
from kb.memory.serving.weights import weights_bytes


def beside_vllm(
    phases: tuple[Phase, ...], vllm: Colocated, architecture: Architecture, memory: int
) -> tuple[Phase, ...]:
    """The phases with what vLLM takes in the same process: a share of the GPU, and all of it while it generates.

    Its weights and KV cache fill ``gpu_memory_utilization`` of the card's memory beyond what the process held before
    (vllm/v1/worker/gpu_worker.py, ``determine_available_memory``). Asleep it holds neither (level 2); then it is there
    beside what training leaves: weights, reference and optimizer's states.

    Args:
        memory: bytes of the GPU in all, of which the share is taken.
    """
    taken = round(vllm.share * memory)
    weights = min(_weights(vllm, architecture), taken)
    terms = tuple(term for term in (Term("vllm_weights", weights), Term("vllm", taken - weights)) if term.bytes)
    kept = next((phase for phase in phases if phase.name == "save"), phases[-1])
    training = [phase if vllm.sleeps else _with(phase, terms) for phase in phases]
    generating = _with(kept, terms)._replace(name="generate", moment="decoding", use="vllm")
    at = next((number for number, phase in enumerate(training) if phase.name == "save"), len(training))
    return (*training[:at], generating, *training[at:])


def _weights(vllm: Colocated, architecture: Architecture) -> int:
    """Bytes of vLLM's own copy of the weights in 16 bits, or packed; 0 where they are not known."""
    setup = ServingSetup(
        engine="vllm",
        release=(),
        gpu_bytes=0,
        tensor_parallel=vllm.ranks,
        quantization="bitsandbytes" if vllm.packed else None,
    )
    try:
        return weights_bytes(served_model("", architecture, None), setup) or 0
    except UnsupportedArchitectureError:
        return 0


def _with(phase: Phase, terms: tuple[Term, ...]) -> Phase:
    taken = sum(term.bytes for term in terms)
    return phase._replace(
        terms=tuple(sorted((*phase.terms, *terms), key=lambda term: -term.bytes)),
        **{
            name: getattr(phase, name) + taken
            for name in ("peak_allocated_bytes", "peak_reserved_bytes", "process_used_bytes", "low_bytes", "high_bytes")
        },
    )
