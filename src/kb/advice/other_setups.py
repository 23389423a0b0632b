"""Runs as they would be, were an assumption of a prediction false. Pure."""

from collections.abc import Callable, Mapping

from kb.advice.grounds import PROCESSES, matter
from kb.core.setup import Assumption, TrainingSetup

SHORT_INPUT, SHORT_TARGET = 64, 16  # tokens: as short as the rows of a real data set are
MANY = 8  # GPUs of the usual larger machine


def _other_weights(setup: TrainingSetup) -> TrainingSetup:
    return setup._replace(weights="bf16" if setup.weights == "fp32" else "fp32")


def _short(setup: TrainingSetup) -> TrainingSetup:
    post = setup.post
    if post is not None:  # of a length the answer that is generated is a part
        post = post._replace(completion=min(post.completion, SHORT_TARGET))
    return setup._replace(
        post=post,
        max_source_length=min(setup.max_source_length, SHORT_INPUT),
        max_target_length=min(setup.max_target_length, SHORT_TARGET),
        generation_max_length=min(setup.generation_max_length, SHORT_TARGET),
    )


def _half(setup: TrainingSetup) -> TrainingSetup:
    """The longest row half as long as it may be; what post-training reads has other bounds beside that."""
    reads_rows = setup.post is None or setup.post.kind == "sft"
    return setup._replace(max_source_length=setup.max_source_length // 2) if reads_rows else setup


def _short_answers(setup: TrainingSetup) -> TrainingSetup:
    short = min(setup.max_target_length, SHORT_TARGET)
    return setup._replace(
        max_target_length=short,
        generation_max_length=min(setup.generation_max_length, SHORT_TARGET),
        inference_max_length=min(setup.inference_max_length, SHORT_TARGET),
    )


def _other_prompts(setup: TrainingSetup) -> TrainingSetup:
    """Short ones before answers that are generated; else all of a sample but a short answer."""
    post = setup.post
    if post is not None and post.completion:
        return setup._replace(max_source_length=min(setup.max_source_length, post.completion + SHORT_INPUT))
    return setup._replace(post=post and post._replace(scored=SHORT_TARGET))


def _sharded(setup: TrainingSetup) -> TrainingSetup:
    """Several GPUs, started by a launcher whose own file shards what training keeps: no config of the run says it."""
    spread = setup.spread._replace(deepspeed=True)
    shards = setup.method == "full" and not setup.fsdp  # an adapter's run has little to shard
    return setup._replace(world_size=MANY, zero_stage=3, spread=spread) if shards else setup


# What each assumption could be instead. One that has none here is a guess that nothing else can be put for.
OTHERWISE: Mapping[str, tuple[Callable[[TrainingSetup], TrainingSetup], ...]] = {
    "data.max_source_length": (_short,),
    "data.lengths": (_half,),
    "data.max_target_length": (_short_answers,),
    "inference.max_length": (_short_answers,),
    "model.torch_dtype": (_other_weights,),
    PROCESSES: (lambda setup: setup._replace(world_size=MANY), _sharded),
    "training.optim": (
        lambda setup: setup._replace(optim="adamw_torch"),
        lambda setup: setup._replace(optim="adamw_torch_fused"),
    ),
    "model.attn_implementation": (
        lambda setup: setup._replace(attn_implementation="sdpa"),
        lambda setup: setup._replace(attn_implementation="flash"),
        lambda setup: setup._replace(attn_implementation="eager"),
    ),
    "quantization.prepared": (
        lambda setup: setup._replace(prepare_for_kbit=True, half_tables=False, trained_type="peft"),
        lambda setup: setup._replace(prepare_for_kbit=True, half_tables=setup.bf16, trained_type="peft"),
        lambda setup: setup._replace(prepare_for_kbit=False, half_tables=False, trained_type="peft"),
    ),
    "training.gradient_checkpointing": (
        lambda setup: setup._replace(gradient_checkpointing=not setup.gradient_checkpointing),
    ),
    "training.bf16": (lambda setup: setup._replace(bf16=not setup.bf16),),
    "embedding.columns": (lambda setup: setup._replace(post=setup.post and setup.post._replace(columns=3)),),
    "trl.max_prompt_length": (_other_prompts,),
    "training.fused_loss": (_short,),  # logits counted whole: a run of few tokens has hardly any
    "model.logits_of_answers": (lambda setup: setup._replace(fused_loss=True, fused_evaluation=True),),  # of few tokens
}


def turned_by(
    setup: TrainingSetup,
    assumed: tuple[Assumption, ...],
    holds: Callable[[TrainingSetup], bool],
    *,
    over: bool = False,
) -> tuple[Assumption, ...]:
    """The assumptions of a prediction that would each turn a finding, were they false.

    Args:
        assumed: what the prediction assumed.
        holds: whether the finding still holds of another setup.
        over: it says that memory runs out, so that what takes less is likelier to turn it, and is asked first.
    """
    turning = []
    for each in matter(assumed):
        others = [change(setup) for change in OTHERWISE.get(each.name, ())]
        if over and each.name == PROCESSES:
            others.reverse()
        if not others or any(not holds(other) for other in others if other != setup):
            turning.append(each)
    return tuple(turning)
