"""What lies on the GPU before the first step: enough to know that training cannot fit, without following a step."""

from collections.abc import Mapping
from functools import lru_cache

from kb.core.memory_report import Phase
from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.engine.allocator import CachingAllocator
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.follow import OF_EVALUATION, Found, beside, on_gpu, phase_found
from kb.memory.engine.predict import check_followed, loss_of, model_of
from kb.memory.engine.world import AMPERE, held, world
from kb.memory.process import Context, judged

# What only steps ask for: before the first one nothing of it is there.
OF_STEPS: Mapping[str, object] = {
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "optim": "none",
    "max_source_length": 512, "max_target_length": 128, "generation_max_length": 20, "inference_max_length": 20,
    "attn_implementation": "sdpa", "gradient_checkpointing": False, "use_reentrant": False,
}  # fmt: skip


def over_at_rest(
    setup: TrainingSetup,
    architecture: Architecture,
    constants: Mapping[str, float],
    context: Context,
    memory: int,
    capability: tuple[int, int] | None,
) -> bool:
    """Whether training is out of memory by what lies there before the first step alone.

    False says nothing, and so it is of what the engine does not follow.
    """
    try:
        check_followed(architecture, setup)
        resting = _resting_bytes(_at_rest(setup), architecture, capability or AMPERE)
    except NotFollowedError:
        return False
    band = constants["band_simulated"]
    phases: tuple[Phase, ...] = (phase_found("train", Found(resting, resting, (), ""), setup, context, band, band),)
    phases = beside(phases, setup, architecture, memory)
    return judged(phases, memory, constants)[1].status == "oom"


def _at_rest(setup: TrainingSetup) -> TrainingSetup:
    post = setup.post and setup.post._replace(completion=0, generated_rows=0, colocated=None)
    return on_gpu(setup)._replace(post=post, **{**OF_EVALUATION, **OF_STEPS})  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _resting_bytes(setup: TrainingSetup, architecture: Architecture, capability: tuple[int, int]) -> int:
    """Bytes allocated once the model, its adapters and its reference are there: no step of training takes less."""
    with held():
        recording = world.begin(capability)
        recording.begin("load")
        model = model_of(setup, architecture)
        loss = loss_of(model, setup) if setup.post is not None else None
        pool = CachingAllocator()
        recording.peaks(pool)
        del loss, model
        return pool.allocated
