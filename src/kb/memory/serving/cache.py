"""The KV cache: bytes of a token, and of a request, on one rank."""

import math

from kb.memory.serving.setup import ServingSetup
from kb.memory.serving.shape import ServedModel


def heads_of_rank(model: ServedModel, ranks: int) -> int:
    """KV heads on one of so many tensor-parallel ranks: at least one, so they are repeated where there are too few."""
    return max(1, model.kv_heads // ranks)


def bytes_of_layer(model: ServedModel, setup: ServingSetup) -> float:
    """Bytes that one token takes in one attention layer of a rank.

    Formula: 2 × KV heads × head size × width; MLA keeps one latent vector, which no rank shares out.
    """
    if model.latent:
        return model.latent * setup.cache_bytes
    return heads_of_rank(model, setup.tensor_parallel) * (model.head_size + model.value_size) * setup.cache_bytes


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
