"""What an engine leaves for its KV cache on one rank, term by term. Each engine divides a GPU in its own way."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from kb.core.record import NamedTuple
from kb.core.units import MIB
from kb.memory.serving.defaults import default_of
from kb.memory.serving.setup import FLOATS, ServingSetup
from kb.memory.serving.shape import ServedModel
from kb.memory.serving.weights import forward_bytes, sampler_bytes, weights_bytes

Status = Literal["exact", "modelled", "measured", "given", "unknown"]
CHUNKS_FROM = 32_768  # vLLM before V1 spreads prompts over steps by itself above this length
NO_CHUNKS_BELOW = (0, 8)


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


class Resolved(NamedTuple):
    """Options as they count: given, or the engine's default."""

    utilization: float
    max_model_len: int
    max_num_seqs: int
    batched_tokens: int
    block: int
    counts_graphs: bool
    defaults: tuple[str, ...]  # names of those that nobody gave


def resolve(model: ServedModel, setup: ServingSetup, engine: Mapping[str, Any]) -> Resolved:
    """Every option of a server. ``engine`` is the engine's data of ``rules/serving``."""
    names = OPTION_NAMES[setup.engine]
    missing = [
        names[field]
        for field in ("utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
        if getattr(setup, field) is None and field in names
    ]
    length = setup.max_model_len or model.positions or 2048
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
        counts_graphs=bool(default_of(engine, "counts_cuda_graphs", setup)),
        defaults=tuple(missing),
    )


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
    """The budget of the fullest rank; None where the weights are not known."""
    held = weights_bytes(model, setup)
    if held is None:
        return None
    options = resolve(model, setup, engine)
    given: Status = "given" if setup.measured.weights is not None else "exact"
    weights = Term("weights", held, held, held, given)
    share = _SHARES[setup.engine](weights, setup, options, engine)
    activations = _activations(model, setup, options, constants)
    terms = (weights, _non_torch(setup, constants), activations, _graphs(setup, options, constants))
    if setup.engine == "sglang":  # activations and graphs are what the share leaves
        terms = (terms[0], terms[1], terms[2]._replace(inside=False), terms[3]._replace(inside=False))
    if setup.kv_cache_bytes is not None:
        over = sum(term.bytes for term in terms) + setup.kv_cache_bytes - setup.gpu_bytes
        size = setup.kv_cache_bytes
        return Budget(setup.gpu_bytes, terms, size, size, size, "given", max(over, 0))
    inside = [term for term in terms if term.inside]
    kv = share - sum(term.bytes for term in inside)
    outside = sum(term.bytes for term in terms if not term.inside)
    return Budget(
        share=share,
        terms=terms,
        kv=kv,
        kv_low=share - sum(term.high for term in inside),
        kv_high=share - sum(term.low for term in inside),
        status="exact" if all(term.status in ("given", "exact") for term in inside) else "modelled",
        overrun=max(share + outside - setup.gpu_bytes, 0),
    )


def _share_of_whole(weights: Term, setup: ServingSetup, options: Resolved, engine: Mapping[str, Any]) -> int:
    return math.ceil(setup.gpu_bytes * options.utilization)


def _share_of_tgi(weights: Term, setup: ServingSetup, options: Resolved, engine: Mapping[str, Any]) -> int:
    wiggle: float = default_of(engine, "wiggle_room", setup)
    return math.floor(setup.gpu_bytes * options.utilization * wiggle)


def _share_of_sglang(weights: Term, setup: ServingSetup, options: Resolved, engine: Mapping[str, Any]) -> int:
    """SGLang's own default where no share is given (arg_groups/memory_hook.py): what is to be left, taken from all."""
    if setup.utilization is not None:
        return math.floor(setup.gpu_bytes * setup.utilization)
    reserved = default_of(engine, "reserved_base", setup) + 1.5 * max(options.batched_tokens, 2048)
    reserved += setup.tensor_parallel * setup.pipeline_parallel / 8 * 1024 + 2 * options.max_num_seqs
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
        requests = min(options.max_num_seqs, options.batched_tokens)
        low = max(forward, sampler_bytes(model, requests, constants["serving_sampler_low_bytes"]))
        high = max(forward, sampler_bytes(model, requests, constants["serving_sampler_bytes"]))
        return Term("activations", (low + high) // 2, low, high, "modelled")
    else:
        size = max(forward, round(model.vocabulary * (4 + FLOATS[setup.dtype])))
    return Term("activations", size, size, size, "modelled")


def _longest_pass(setup: ServingSetup, options: Resolved) -> int:
    """Tokens of one pass: a server packs requests, so only a job of one row is bound by its length."""
    return options.max_model_len if setup.engine == "transformers" else options.batched_tokens


def _graphs(setup: ServingSetup, options: Resolved, constants: Mapping[str, float]) -> Term:
    if setup.eager or setup.engine in ("llama.cpp", "transformers"):
        return Term("cuda_graphs", 0, 0, 0, "exact")
    inside = options.counts_graphs if setup.engine == "vllm" else setup.engine == "sglang"
    if setup.measured.graphs is not None:
        size = setup.measured.graphs
        return Term("cuda_graphs", size, size, size, "given", inside)
    low, high = round(constants["serving_graphs_low_bytes"]), round(constants["serving_graphs_high_bytes"])
    return Term("cuda_graphs", (low + high) // 2, low, high, "measured", inside)
