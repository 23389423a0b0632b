"""Weights of one rank, and what runs beside them: a forward pass, the sampler."""

from kb.memory.serving.cache import heads_of_rank
from kb.memory.serving.setup import FLOATS, PACKS_TABLES, ServingSetup
from kb.memory.serving.shape import ServedModel


def weights_bytes(model: ServedModel, setup: ServingSetup) -> int | None:
    """Bytes of the weights on the fullest rank; None where the model's parameters are not known.

    Linear layers, embeddings and the output layer are split over the tensor-parallel ranks, K and V by their heads;
    norms are on each. vLLM and SGLang keep a table of rotary positions beside them: positions × turned dimensions.
    Pipeline stages share the layers; the first or last holds the embeddings too.
    """
    held = model.weights
    if setup.measured.weights is not None:
        return setup.measured.weights
    if held is None:
        return None
    wide, ranks, stages = FLOATS[setup.dtype], setup.tensor_parallel, setup.pipeline_parallel
    packed = setup.packed_bytes
    shared = held.linear / ranks
    if model.kv_heads:
        shared += held.keys_values * heads_of_rank(model, ranks) / model.kv_heads
    largest = -(-model.layers // stages) / model.layers
    tables = held.embedding * (packed if setup.quantization in PACKS_TABLES else wide) / ranks
    found = shared * largest * packed + held.whole * largest * wide + tables
    if setup.engine in ("vllm", "sglang") and model.positions:
        found += model.positions * model.rotary * wide
    return round(found) - min(setup.offload_bytes, round(shared * largest * packed))


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


def sampler_bytes(model: ServedModel, requests: int, bytes_of_logit: float) -> int:
    """Bytes of the sampler over so many requests: logits, their fp32 copy, sorted values and indices, probabilities."""
    return round(requests * model.vocabulary * bytes_of_logit)
