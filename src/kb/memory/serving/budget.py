"""How an engine divides a GPU, on one rank: weights, what runs beside them, and what is left for the KV cache.

Each engine divides it in its own way; :func:`beside_vllm` is vLLM in the process that trains.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from kb.core.memory_report import Phase
from kb.core.memory_report import Term as PhaseTerm
from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.release import parse_version
from kb.core.setup import Colocated
from kb.core.units import MIB, parse_bytes
from kb.memory import engine
from kb.memory.config_fields import UnsupportedArchitectureError
from kb.memory.serving.setup import (
    FLOATS,
    PACKS_EXPERTS,
    PACKS_TABLES,
    ServedModel,
    ServingSetup,
    prefill_graphs,
    served_model,
)

Status = Literal["exact", "modelled", "measured", "given", "unknown"]
CHUNKS_FROM = 32_768  # vLLM before V1 spreads prompts over steps by itself above this length
NO_CHUNKS_BELOW = (0, 8)
GRAPHS_BY_PHASE_FROM = (0, 5, 14)  # of SGLang: cuda_graph_max_bs_decode and _prefill


def heads_of_rank(model: ServedModel, ranks: int) -> int:
    """KV heads on one of so many tensor-parallel ranks: at least one, so they are repeated where there are too few."""
    return max(1, model.kv_heads // ranks)


def bytes_of_layer(model: ServedModel, setup: ServingSetup) -> float:
    """Bytes that one token takes in one attention layer of a rank.

    Formula: 2 × KV heads × head size × width; MLA keeps one latent vector, which no rank shares out.
    """
    if model.latent:
        return model.latent * setup.cache_bytes
    return heads_of_rank(model, setup.tensor_parallel) * 2 * model.head_size * setup.cache_bytes


def layers_of_rank(model: ServedModel, setup: ServingSetup, stage: int) -> tuple[int, int]:
    """Full and windowed attention layers of one pipeline stage; what does not divide goes to the last stages."""
    found = []
    for layers in (model.full_layers, model.windowed_layers):
        share, over = divmod(layers, setup.pipeline_parallel)
        found.append(share + (stage >= setup.pipeline_parallel - over))
    return found[0], found[1]


def bytes_of_token(model: ServedModel, setup: ServingSetup, stage: int = 0) -> float:
    """Bytes of one more token of a short request on one rank: every attention layer keeps it."""
    return sum(layers_of_rank(model, setup, stage)) * bytes_of_layer(model, setup)


def bytes_of_request(
    model: ServedModel, setup: ServingSetup, length: int, in_flight: int, block: int, stage: int = 0
) -> float:
    """Bytes that a request of ``length`` tokens takes on one rank.

    A windowed layer keeps ``window − 1`` tokens and those being computed (``in_flight``), and one block more, as vLLM
    reserves them (v1/kv_cache_interface.py); never more than a full layer.
    """
    full, windowed = layers_of_rank(model, setup, stage)
    whole = math.ceil(length / block)
    kept = whole
    if windowed:
        kept = min(whole, math.ceil(min(model.window - 1 + in_flight, length) / block) + 1)
    return (full * whole + windowed * kept) * block * bytes_of_layer(model, setup)


# To what multiples vLLM widens a rank's experts and their inputs, which MXFP4 packs, by the kernels that it finds
# (quantization/mxfp4.py): Triton's, Marlin's (GPUs other than 9.0 to 10.3), and FlashInfer's of 10.0.
FEWEST, MARLIN, MOST = (64, 1), (128, 256), (256, 256)


def weights_bytes(model: ServedModel, setup: ServingSetup, padding: tuple[int, int] = MARLIN) -> int | None:
    """Bytes of the weights on the fullest rank; None where the model's parameters are not known, or what the engine
    makes of packed experts.

    Linear layers, embeddings and the output layer are split over the tensor-parallel ranks, K and V by their heads;
    norms are on each. vLLM and SGLang keep a table of rotary positions: positions × turned dimensions. Pipeline stages
    share the layers; the first or last holds the embeddings too."""
    held = model.weights
    if setup.measured.weights is not None:
        return setup.measured.weights
    if held is None:
        return None
    wide, ranks, stages = FLOATS[setup.dtype], setup.tensor_parallel, setup.pipeline_parallel
    packed = setup.packed_bytes
    shared, experts = held.linear / ranks, held.experts / ranks
    if setup.quantization in PACKS_EXPERTS:
        if setup.engine != "vllm" or not experts:
            return None
        width = model.expert_feed_forward / ranks
        experts *= packed / wide * _up(width, padding[0]) / width * _up(model.hidden, padding[1]) / model.hidden
        packed = wide
    shared += experts + held.towers / ranks
    if model.kv_heads:
        shared += held.keys_values * heads_of_rank(model, ranks) / model.kv_heads
    largest = -(-model.layers // stages) / model.layers
    tables = held.embedding * (packed if setup.quantization in PACKS_TABLES else wide) / ranks
    found = shared * largest * packed + held.whole * largest * wide + tables
    found += held.apart / ranks * wide
    if setup.engine in ("vllm", "sglang") and model.positions:
        found += model.positions * model.rotary * wide
    if setup.engine in ("vllm", "sglang") and setup.quantization is None:
        found += unsplit_bytes(model, setup) * largest
    return round(found) - min(setup.offload_bytes, round(shared * largest * packed))


def _up(size: float, multiple: int) -> int:
    return math.ceil(size / multiple) * multiple


def unsplit_bytes(model: ServedModel, setup: ServingSetup) -> int:
    """What PyTorch keeps of the blocks in which the weights of a dense model lie on one rank, with the tables: q, k and
    v are one tensor, gate and up another. A block is a multiple of 2 MiB, and a rest of up to 1 MiB is not split off.

    Logs of vLLM agree to 0.02 %: 14.2488 GiB for Qwen2-7B, 7.1217 on each of two ranks, 30.7098 for Qwen2.5-32B on two.
    """
    held, ranks = model.weights, setup.tensor_parallel
    width = model.heads * model.head_size
    if held is None or model.active_experts or not model.layers or not model.kv_heads:
        return 0
    feed = ((held.linear + held.towers) / model.layers - 2 * model.hidden * width) / (
        model.hidden * (model.feed_forward or 1)
    )
    if round(feed, 3) not in (2, 3):  # another shape than gate, up and down, or up and down
        return 0
    heads = model.heads // ranks + 2 * heads_of_rank(model, ranks)
    up = (round(feed) - 1) * model.feed_forward
    rows = [heads * model.head_size * ranks, width, up, model.feed_forward]
    tables = round(held.embedding / (model.vocabulary * model.hidden))
    wide = FLOATS[setup.dtype]
    sizes = [(model.layers, round(each * model.hidden * wide / ranks)) for each in rows]
    sizes.append((tables, round(model.vocabulary * model.hidden * wide / ranks)))
    return sum(times * (engine.block_size(size) - size) for times, size in sizes)


def forward_bytes(model: ServedModel, setup: ServingSetup, tokens: int) -> int:
    """Bytes that a forward pass of ``tokens`` holds at most, beyond weights and cache.

    In the widest feed-forward stand gate and up, their product, and three tensors of the residual stream (five where
    ranks add their results); a mixture has the same for each expert that a token passes, and their outputs. Attention
    is computed in pieces and stays below. Derived from vLLM's layers; it meets the two lengths of vllm-10517.
    """
    wide, ranks = FLOATS[setup.dtype], setup.tensor_parallel
    streams = (3 if ranks == 1 else 5) * model.hidden
    elements = 3 * model.feed_forward / ranks
    if model.active_experts:
        eff = model.expert_feed_forward / ranks
        elements = max(elements, model.active_experts * (max(2 * eff, model.hidden) + eff))
    return round(tokens * (elements + streams) * wide)


def sampler_bytes(model: ServedModel, options: "Resolved", constants: Mapping[str, float]) -> tuple[int, int]:
    """Bytes of the sampler over the requests of one step, at least and at most: logits, their fp32 copy, sorted values
    and indices, or FlashInfer's probabilities.
    """
    low, high = options.logit_bytes
    low = constants["serving_sampler_low_bytes"] if low is None else low
    high = constants["serving_sampler_bytes"] if high is None else high
    logits = min(options.max_num_seqs, options.batched_tokens) * model.vocabulary
    return round(logits * low), round(logits * high)


def default_of(engine: Mapping[str, Any], option: str, setup: ServingSetup, model: ServedModel | None = None) -> Any:
    """The value of the first row that holds for this release, GPU, entry point and model; None where no row does."""
    rows = engine["options"].get(option, {}).get("defaults", ())
    return next((row["value"] for row in rows if _holds(row, engine, setup, model)), None)


def _holds(row: Mapping[str, Any], engine: Mapping[str, Any], setup: ServingSetup, model: ServedModel | None) -> bool:
    if not _holds_of_model(row, setup, model) or ("uses" in row and setup.uses.isdisjoint(row["uses"])):
        return False
    if "with" in row and not default_of(engine, row["with"], setup, model):
        return False
    if "from" in row and setup.release < parse_version(row["from"]):
        return False
    if "below" in row and setup.release >= parse_version(row["below"]):
        return False
    if "memory_from" in row and setup.gpu_bytes < parse_bytes(row["memory_from"]):
        return False
    if "memory_below" in row and setup.gpu_bytes >= parse_bytes(row["memory_below"]):
        return False
    if any(setup.gpu_id.startswith(begin) for begin in row.get("except_gpus", ())):
        return False
    return "called" not in row or row["called"] == setup.called


def _holds_of_model(row: Mapping[str, Any], setup: ServingSetup, model: ServedModel | None) -> bool:
    if "models" in row and (model is None or model.active_experts or model.recurrent_layers):
        return False
    if "model_types" in row and (model is None or model.model_type not in row["model_types"]):
        return False
    return "packed" not in row or bool(row["packed"]) == (setup.quantization is not None)


class Term(NamedTuple):
    """``low`` and ``high`` are as ``bytes`` where no band is known. ``inside``: it comes out of the cache's share."""

    name: str
    bytes: int
    low: int
    high: int
    status: Status
    inside: bool = True


class Budget(NamedTuple):
    """One rank. ``share`` is what the engine may use; ``kv_*`` what is left of it, below 0 where it is not enough."""

    share: int
    terms: tuple[Term, ...]
    kv: int
    kv_low: int
    kv_high: int
    status: Status
    overrun: int = 0  # bytes that the whole GPU lacks, of engines that leave terms outside their share
    overrun_low: int = 0  # the same with the least that terms were measured to take


class Resolved(NamedTuple):
    """Options as they count: given, or the engine's default."""

    utilization: float
    max_model_len: int
    max_num_seqs: int
    batched_tokens: int
    block: int
    counts_graphs: bool
    logit_bytes: tuple[float | None, float | None]  # of the sampler, least and most; None: as logs say
    defaults: tuple[str, ...]  # names of those that nobody gave


def resolve(model: ServedModel, setup: ServingSetup, engine: Mapping[str, Any]) -> Resolved:
    """Every option of a server. ``engine`` is the engine's data of ``rules/serving``."""
    names = OPTION_NAMES[setup.engine]
    missing = [name for field, name in names.items() if getattr(setup, field) is None]
    length = setup.max_model_len or model.longest or 2048
    seqs = setup.max_num_seqs or default_of(engine, names.get("max_num_seqs", ""), setup) or 1
    tokens = setup.max_num_batched_tokens or default_of(engine, names.get("max_num_batched_tokens", ""), setup)
    if setup.engine == "sglang" and setup.tensor_parallel >= 4 and setup.max_num_seqs is None:
        seqs = default_of(engine, "cuda_graph_max_bs_tp4", setup)
    if setup.engine == "vllm":
        whole = setup.release < NO_CHUNKS_BELOW and length <= CHUNKS_FROM
        tokens = max(tokens or 2048, length) if whole else max(tokens or 2048, seqs)
    if setup.engine == "llama.cpp" and setup.max_model_len:
        padding = default_of(engine, "context_padding", setup)
        length = math.ceil(length / padding) * padding
    block = setup.block_size or default_of(engine, "block_size", setup) or default_of(engine, "page_size", setup) or 1
    share = setup.utilization
    if share is None:
        share = default_of(engine, names.get("utilization", ""), setup) or 1.0
    return Resolved(
        utilization=share,
        max_model_len=length,
        max_num_seqs=int(seqs),
        batched_tokens=int(tokens or length),
        block=int(block),
        counts_graphs=bool(default_of(engine, "counts_cuda_graphs", setup, model)),
        logit_bytes=_bytes_of_logit(model, setup, engine),
        defaults=tuple(missing),
    )


def _bytes_of_logit(
    model: ServedModel, setup: ServingSetup, engine: Mapping[str, Any]
) -> tuple[float | None, float | None]:
    """What the sampler takes of each logit as the engine's release profiles it; of an unknown one at least nothing."""
    if setup.of_any_release:
        return 0.0, 0.0
    most = default_of(engine, "logit_bytes", setup, model)
    least = default_of(engine, "logit_bytes_least", setup, model)
    return most if least is None else least, most


OPTION_NAMES: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "utilization": "gpu_memory_utilization",
        "max_model_len": "max_model_len",
        "max_num_seqs": "max_num_seqs",
        "max_num_batched_tokens": "max_num_batched_tokens",
    },
    "sglang": {
        "utilization": "mem_fraction_static",
        "max_model_len": "context_length",
        "max_num_seqs": "cuda_graph_max_bs",
        "max_num_batched_tokens": "chunked_prefill_size",
    },
    "tgi": {
        "utilization": "cuda_memory_fraction",
        "max_model_len": "max_total_tokens",
        "max_num_seqs": "max_concurrent_requests",
        "max_num_batched_tokens": "max_batch_prefill_tokens",
    },
    "llama.cpp": {
        "max_model_len": "ctx_size",
        "max_num_seqs": "parallel",
        "max_num_batched_tokens": "ubatch_size",
    },
    "transformers": {"max_model_len": "max_length"},
}
"""What each engine calls an option of ours; one that is missing has no counterpart there."""


def budget_of(
    model: ServedModel, setup: ServingSetup, engine: Mapping[str, Any], constants: Mapping[str, float]
) -> Budget | None:
    """The budget of the fullest rank; None where the weights are not known, or what the release takes by itself."""
    if (held := weights_bytes(model, setup)) is None:
        return None
    options = resolve(model, setup, engine)
    given: Status = "given" if setup.measured.weights is not None else "exact"
    weights = Term("weights", held, held, held, given)
    if setup.quantization in PACKS_EXPERTS and given == "exact":
        low, high = (weights_bytes(model, setup, padding) or held for padding in (FEWEST, MOST))
        weights = weights._replace(low=low, high=high, status="modelled")
    share = _SHARES[setup.engine](weights, setup, options, engine)
    sees = model.weights is not None and model.weights.towers + model.weights.apart > 0
    own = setup.engine == "sglang" and setup.utilization is None and not setup.of_any_release
    if share is None or (sees and own):  # SGLang lessens its own share by the size of what sees
        return None
    best = setup._replace(gpu_bytes=max(setup.gpu_bytes, setup.gpu_most))
    most = _SHARES[setup.engine](weights, best, options, engine) or share
    activations = _activations(model, setup, options, constants)
    terms: tuple[Term, ...] = (weights, _non_torch(setup, constants), activations, _graphs(setup, options, constants))
    if setup.engine == "sglang":  # activations and graphs are what the share leaves
        terms = (terms[0], terms[1], terms[2]._replace(inside=False), terms[3]._replace(inside=False))
    if (size := setup.kv_cache_bytes) is not None:
        return Budget(setup.gpu_bytes, terms, size, size, size, "given", *_overrun(terms, size, setup))
    inside = [term for term in terms if term.inside]
    aside = max(share - sum(term.bytes for term in inside), 0) * (1 - (default_of(engine, "cache_of_rest", setup) or 1))
    left = [Term("left_alone", round(aside), round(aside), round(aside), "modelled")] if aside else []
    terms, inside = (*terms, *left), inside + left
    kv = share - sum(term.bytes for term in inside)
    over, over_low = _overrun([term for term in terms if not term.inside], share, setup)
    return Budget(
        share=share,
        terms=terms,
        kv=kv,
        kv_low=share - sum(term.high for term in inside),
        kv_high=most - sum(term.low for term in inside),
        status="exact" if all(term.status in ("given", "exact") for term in inside) else "modelled",
        overrun=over,
        overrun_low=over_low,
    )


def _overrun(outside: Sequence[Term], share: int, setup: ServingSetup) -> tuple[int, int]:
    """Bytes that the GPU lacks for what lies outside a share, and at least. TGI goes without graphs that do not fit."""
    if setup.engine == "tgi":
        return 0, 0
    most = max(setup.gpu_bytes, setup.gpu_most)
    mean, low = sum(term.bytes for term in outside), sum(term.low for term in outside)
    return max(share + mean - setup.gpu_bytes, 0), max(share + low - most, 0)


def _share_of_whole(weights: Term, setup: ServingSetup, options: Resolved, engine: Mapping[str, Any]) -> int:
    return math.ceil(setup.gpu_bytes * options.utilization)


def _share_of_tgi(weights: Term, setup: ServingSetup, options: Resolved, engine: Mapping[str, Any]) -> int:
    wiggle: float = default_of(engine, "wiggle_room", setup)
    return math.floor(setup.gpu_bytes * options.utilization * wiggle)


def _share_of_sglang(weights: Term, setup: ServingSetup, options: Resolved, engine: Mapping[str, Any]) -> int | None:
    """SGLang's own default where no share is given (arg_groups/memory_hook.py): what is to be left, taken from all.
    None where the release has another rule; of an unknown one none takes more than all.
    """
    if setup.utilization is not None:
        return math.floor(setup.gpu_bytes * setup.utilization)
    if setup.of_any_release:
        return setup.gpu_bytes
    if (base := default_of(engine, "reserved_base", setup)) is None:
        return None
    reserved = base + 1.5 * max(options.batched_tokens, 2048) + setup.tensor_parallel * setup.pipeline_parallel * 128
    reserved += 0 if setup.eager and setup.release >= GRAPHS_BY_PHASE_FROM else 2 * options.max_num_seqs
    if not setup.eager and setup.pipeline_parallel == 1:
        reserved += default_of(engine, "reserved_for_prefill_graph", setup) * prefill_graphs(options.batched_tokens)
    reserved = max(reserved, default_of(engine, "reserved_least_of_large", setup))
    total = setup.gpu_bytes / MIB
    share: float = round((total - reserved) / total, 3)
    return math.floor(setup.gpu_bytes * share)


def _share_of_llama(weights: Term, setup: ServingSetup, options: Resolved, engine: Mapping[str, Any]) -> int:
    """All of the GPU; where no length is given, what ``--fit`` keeps free is left."""
    margin: int = 0 if setup.max_model_len else default_of(engine, "fit_margin", setup)
    return setup.gpu_bytes - margin * MIB


_SHARES = {
    "vllm": _share_of_whole,
    "sglang": _share_of_sglang,
    "tgi": _share_of_tgi,
    "llama.cpp": _share_of_llama,
    "transformers": _share_of_whole,
}


def _non_torch(setup: ServingSetup, constants: Mapping[str, float]) -> Term:
    if setup.measured.non_torch is not None:
        size = setup.measured.non_torch
        return Term("non_torch", size, size, size, "given")
    low, high = round(constants["serving_non_torch_low_bytes"]), round(constants["serving_non_torch_high_bytes"])
    return Term("non_torch", (low + high) // 2, low, high, "measured")


def _activations(model: ServedModel, setup: ServingSetup, options: Resolved, constants: Mapping[str, float]) -> Term:
    """The larger of a forward pass and of the sampler, which do not stand together."""
    if setup.measured.activations is not None:
        size = setup.measured.activations
        return Term("activations", size, size, size, "given")
    forward = forward_bytes(model, setup, min(options.batched_tokens, _longest_pass(setup, options)))
    if setup.engine == "llama.cpp":  # logits of a small batch in fp32, and its stream
        size = options.batched_tokens * (model.vocabulary + model.hidden) * 4
    elif setup.engine == "vllm":
        low, high = (max(forward, each) for each in sampler_bytes(model, options, constants))
        return Term("activations", (low + high) // 2, low, high, "modelled")
    else:
        size = max(forward, round(model.vocabulary * (4 + FLOATS[setup.dtype])))
    return Term("activations", size, size, size, "modelled")


def _longest_pass(setup: ServingSetup, options: Resolved) -> int:
    """Tokens of one pass: a server packs requests, so only a job of one row is bound by its length."""
    return options.max_model_len if setup.engine == "transformers" else options.batched_tokens


def _graphs(setup: ServingSetup, options: Resolved, constants: Mapping[str, float]) -> Term:
    if setup.eager or setup.of_any_release or setup.engine in ("llama.cpp", "transformers"):
        return Term("cuda_graphs", 0, 0, 0, "exact")
    inside = options.counts_graphs if setup.engine == "vllm" else setup.engine == "sglang"
    if setup.measured.graphs is not None:
        size = setup.measured.graphs
        return Term("cuda_graphs", size, size, size, "given", inside)
    low, high = round(constants["serving_graphs_low_bytes"]), round(constants["serving_graphs_high_bytes"])
    most = high if inside else round(constants["serving_graphs_kept_high_bytes"])  # no estimate, but what they took
    return Term("cuda_graphs", (low + high) // 2, low, most, "measured", inside)


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
    weights = min(_vllm_weights(vllm, architecture), taken)
    terms = tuple(
        term for term in (PhaseTerm("vllm_weights", weights), PhaseTerm("vllm", taken - weights)) if term.bytes
    )
    kept = next((phase for phase in phases if phase.name == "save"), phases[-1])
    training = [phase if vllm.sleeps else _phase_with(phase, terms) for phase in phases]
    generating = _phase_with(kept, terms)._replace(name="generate", moment="decoding", use="vllm")
    at = next((number for number, phase in enumerate(training) if phase.name == "save"), len(training))
    return (*training[:at], generating, *training[at:])


def _vllm_weights(vllm: Colocated, architecture: Architecture) -> int:
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


def _phase_with(phase: Phase, terms: tuple[PhaseTerm, ...]) -> Phase:
    taken = sum(term.bytes for term in terms)
    return phase._replace(
        terms=tuple(sorted((*phase.terms, *terms), key=lambda term: -term.bytes)),
        **{
            name: getattr(phase, name) + taken
            for name in ("peak_allocated_bytes", "peak_reserved_bytes", "process_used_bytes", "low_bytes", "high_bytes")
        },
    )
