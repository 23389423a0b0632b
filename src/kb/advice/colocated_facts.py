"""Facts of vLLM inside a training process: what its share of the GPU leaves for its KV cache. As those of a server."""

from collections.abc import Mapping
from typing import Any

from kb.advice.serving_facts import Lookup, ServingFacts
from kb.core.document import Unit
from kb.core.hardware import DetectedGpu
from kb.core.model import Model
from kb.core.setup import Colocated, TrainingSetup

PREFIX = "colocated."
# What is told of it, by the server's name for the same.
OF_SERVER = (
    "share", "weights", "activations", "kv_most", "kv_tokens", "length", "longest", "concurrency", "utilization_needed",
)  # fmt: skip
STEP_TOKENS = 4096  # max_num_batched_tokens of every release of TRL (`LLM(…)` of its trainers)


def server_options(vllm: Colocated, setup: TrainingSetup) -> Lookup:
    """The settings of a server that is started as TRL starts its own; others are None."""
    options: Mapping[str, Any] = {
        "serving.engine": "vllm",
        "model.name": setup.model_name,
        "serving.gpu_memory_utilization": vllm.share,
        "serving.max_model_len": vllm.length,
        "serving.max_num_seqs": vllm.requests,
        "serving.max_num_batched_tokens": STEP_TOKENS,
        "serving.tensor_parallel_size": vllm.ranks,
        "serving.pipeline_parallel_size": 1,
        "serving.quantization": "bitsandbytes" if vllm.packed else None,
    }
    return options.get


def server_facts(
    unit: Unit,
    setting: Lookup,
    inside: TrainingSetup | None,
    model: Model | None,
    gpu: DetectedGpu | None,
    **known: Any,
) -> dict[str, Lookup]:
    """Each computed fact by name: of the server that a unit starts, or of the one inside its training process.

    Args:
        setting: a setting's value, with the defaults of its format.
        inside: the run in whose process the server is; None where the unit starts a server.
        known: what else :class:`ServingFacts` takes.
    """
    vllm = inside.post.colocated if inside is not None and inside.post is not None else None
    if inside is None or vllm is None:
        return ServingFacts(unit, setting, model, gpu, **known).providers()
    found = ServingFacts(unit, server_options(vllm, inside), model, gpu, **known).providers()
    return {PREFIX + name: found[f"serving.{name}"] for name in OF_SERVER}
