"""Ways to make training fit a GPU, the cheapest first: what each needs at batch 1, and the batch it allows."""

from collections.abc import Mapping
from typing import Any, Literal

from kb.advice.batches import Ceiling
from kb.advice.estimator import Estimator, on_gpu
from kb.advice.no_prediction import unfollowed
from kb.advice.preparation import WRITTEN
from kb.advice.question import Loads
from kb.advice.trainer_run import LEAST_BATCH, with_reference
from kb.core.hardware import Gpu
from kb.core.memory_report import Phase
from kb.core.record import NamedTuple
from kb.core.setup import Method, TrainingSetup, WeightType
from kb.memory import UnsupportedArchitectureError, targets_for

MethodChoice = Literal["full", "lora", "qlora", "auto"]

_CHECKPOINTING: Mapping[str, Any] = {"gradient_checkpointing": True}
_LORA: Mapping[str, Any] = {"method": "lora", "prepare_for_kbit": False}
_QLORA: Mapping[str, Any] = {
    "method": "qlora",
    "load_in_4bit": True,
    "bnb_4bit_use_double_quant": True,
    "prepare_for_kbit": True,
}
_OFFLOAD: Mapping[str, Any] = {"zero_stage": 2, "offload_optimizer": True}
# In the order in which they are tried; each is a key of i18n under `attempt.`.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "full_checkpointing": _CHECKPOINTING,
    "full_checkpointing_8bit": {**_CHECKPOINTING, "optim": "adamw_bnb_8bit"},
    "lora": _LORA,
    "lora_checkpointing": {**_LORA, **_CHECKPOINTING},
    "qlora": _QLORA,
    "qlora_checkpointing": {**_QLORA, **_CHECKPOINTING},
    "full_offload": {**_CHECKPOINTING, **_OFFLOAD},
}
NEAR = 0.75  # a GPU of less than this part of what a rough answer needs does not hold a run
OFFERED_ONLY = ("full_offload",)  # needs a DeepSpeed file beside the config, so it is named and not chosen


class Attempt(NamedTuple):
    """One way: its setup, what training needs at batch 1, and the largest batches that fit; 0 where not even 1 does.

    ``evaluation`` is roughly the largest evaluation batch beside this way's optimizer, after training at batch 1; that
    1 fits is sure.
    """

    name: str
    setup: TrainingSetup
    method: Method
    train: Phase  # at batch 1, without accumulation
    ceiling: Ceiling
    evaluation: int
    rough: bool = False  # from a model of few layers: it was not needed to choose

    def steps(self, effective: int, world: int) -> int:
        """The fewest passes for one update with which a batch that fits comes to ``effective``."""
        if self.ceiling.single * world >= effective:
            return 1
        return -(-effective // (self.ceiling.accumulated * world))

    def fits(self, effective: int, world: int) -> bool:
        """Whether training fits at some batch that its trainer takes, and evaluation beside it where there is one."""
        post = self.setup.post
        least = LEAST_BATCH.get(post.kind, 1) if post is not None else 1
        enough = self.ceiling.accumulated >= least or self.ceiling.single * world >= effective
        return self.ceiling.reaches(effective, world) and enough and (self.evaluation >= 1 or not self.setup.do_eval)


class Sought(NamedTuple):
    """What a way must allow: training by ``method``, an effective batch, on so many GPUs."""

    method: str  # or `auto`
    effective: int
    world: int


def attempts_of(
    base: TrainingSetup,
    estimator: Estimator,
    sought: Sought,
    loads: Loads = "usual",
    share: int | None = None,
    *,
    all_ways: bool = True,
) -> tuple[Attempt, ...]:
    """Every way, in order. ``base`` is full training without options; ``share`` are the samples that one GPU takes for
    one optimizer step, of one of TRL's trainers.

    Weights that adapters leave as they are are loaded in bf16 where the run computes in it, since it has the range of
    fp32, and in fp16 where the checkpoint stores them so. What ``loads`` says changes that. One of TRL's trainers has
    no way that shares its states out: the memory engine follows one GPU.

    No more are asked than it takes to :func:`choose` for what is ``sought``; the others, to be shown beside these with
    ``all_ways``, are answered roughly.
    """
    base = base._replace(lora_target_modules=targets_for(estimator.model.architecture))
    stored, half = estimator.model.weights_dtype, loads == "half"
    frozen: WeightType | None = stored if loads == "stored" else "bf16" if base.bf16 else None
    if base.fp16 and (half or stored == "fp16"):
        frozen = "fp16"
    weights: dict[Method, WeightType | None] = {"lora": frozen, "full": "bf16" if half and base.bf16 else None}
    ways = [name for name in WAYS if share is None or name not in OFFERED_ONLY]
    setups = [(name, with_reference(base._replace(**WAYS[name]))) for name in ways]
    if loads in WRITTEN:
        trained: dict[str, Any] = {"trained_type": "fp32"} if loads == "stored" else {}
        rest = frozen or ("fp16" if base.fp16 else "bf16" if base.bf16 else "fp32")  # what is not packed stays so
        quantized = {**WRITTEN[loads]._asdict(), "weights": rest}
        types: dict[Method, dict[str, Any]] = {"qlora": quantized, "lora": trained, "full": {}}
        setups = [(name, setup._replace(**types[setup.method])) for name, setup in setups]
    setups = [
        (name, setup._replace(weights=weights.get(setup.method) or setup.weights))
        for name, setup in setups
        if name not in OFFERED_ONLY or is_predicted(setup, estimator)
    ]
    refused = [way for _, way in setups if way.method == sought.method]
    setups = [way for way in setups if is_predicted(way[1], estimator)] or setups  # none: the first says why
    if sought.method != "auto" and all(setup.method != sought.method for _, setup in setups):
        what = next(filter(None, (unfollowed(way, estimator.model.architecture) for way in refused)), None)
        raise UnsupportedArchitectureError(f"{estimator.model.architecture.model_type}: {what}")
    attempts: list[Attempt] = []
    found = False
    for name, setup in setups:
        found = found or _is_settled(tuple(attempts), setup.method, sought)
        if found and not all_ways:
            break
        asked = not found and name not in OFFERED_ONLY and sought.method in ("auto", setup.method)
        attempts.append(_attempt(name, setup, estimator if asked else estimator.roughly(), share))
    return tuple(attempts)


def _is_settled(attempts: tuple[Attempt, ...], following: Method, sought: Sought) -> bool:
    """Whether what is tried after these can no more be chosen: another method is next, or one pass is enough."""
    chosen = choose(attempts, *sought)
    if chosen is None:
        return False
    return following != attempts[-1].method or chosen.steps(sought.effective, sought.world) == 1


def is_predicted(setup: TrainingSetup, estimator: Estimator) -> bool:
    """Whether a prediction can be made: the memory engine does not follow every way of a type that kb does not know."""
    architecture = estimator.model.architecture
    return not architecture.engine or unfollowed(setup, architecture) is None


def _attempt(name: str, setup: TrainingSetup, estimator: Estimator, share: int | None) -> Attempt:
    """What a way allows."""
    alone = setup._replace(do_train=True, do_eval=False, do_predict=False, per_device_train_batch_size=1)
    train = estimator.predict(alone._replace(gradient_accumulation_steps=1)).phase("train")
    assert train is not None  # it trains
    if share is not None:
        return Attempt(name, setup, setup.method, train, _ceiling_of_share(alone, estimator, share), 0)
    once = alone._replace(gradient_accumulation_steps=1, do_eval=setup.do_eval)  # a rough look answers of both
    single = estimator.largest(once, "per_device_train_batch_size")
    twice = alone._replace(gradient_accumulation_steps=2)
    accumulated = single and estimator.largest(twice, "per_device_train_batch_size", first=single)
    least = setup._replace(per_device_train_batch_size=1)  # what training leaves in the cache grows with its batch
    evaluation = 0
    if setup.do_eval and (single or accumulated):
        evaluation = estimator.largest(least, "per_device_eval_batch_size", most=1)
    if evaluation:
        evaluation = max(estimator.roughly().largest(least, "per_device_eval_batch_size"), 1)
    return Attempt(name, setup, setup.method, train, Ceiling(single, accumulated), evaluation, estimator.rough)


def _ceiling_of_share(alone: TrainingSetup, estimator: Estimator, share: int) -> Ceiling:
    """Of ``share`` samples for one step: all at once where they fit, else the largest part of them that does.

    Each batch takes a run of the memory engine, so that no other is tried.
    """
    whole = alone._replace(per_device_train_batch_size=share, gradient_accumulation_steps=1)
    usable = estimator.usable_bytes
    if usable is None or estimator.surely_over(whole):
        return Ceiling(0, 0)
    train = estimator.predict(whole).phase("train")
    if train is not None and train.high_bytes <= usable:
        return Ceiling(share, share)
    part = estimator.largest_share(alone._replace(gradient_accumulation_steps=share)) if share > 1 else 0
    return Ceiling(part, part)


def choose(attempts: tuple[Attempt, ...], method: str, effective: int, world: int) -> Attempt | None:
    """Of the first method that fits the way of the fewest passes for an update, the cheapest of equals; None where
    nothing fits.

    So checkpointing comes before a smaller batch. An optimizer of fewer bits changes the updates: it is taken only
    where nothing of the method fits without it.
    """
    wanted = [one for one in attempts if one.name not in OFFERED_ONLY and method in ("auto", one.method)]
    fitting = [one for one in wanted if one.fits(effective, world)]
    if not fitting:
        return None
    first = fitting[0]
    alike = [one for one in fitting if one.method == first.method and one.setup.optim == first.setup.optim]
    return min(alike, key=lambda one: one.steps(effective, world))


def smallest_gpu(setup: TrainingSetup, estimator: Estimator, gpus: Mapping[str, Gpu]) -> Gpu | None:
    """The known GPU of least memory on which all of ``setup`` fits with its whole band; None where it fits on none.

    GPUs on which the run takes kernels that the memory engine does not follow are left out. A rough answer says where
    to look: GPUs of much less memory are not asked.
    """
    ordered = sorted(gpus.values(), key=lambda gpu: (gpu.memory_total, gpu.id))

    def fits(gpu: Gpu, *, rough: bool) -> bool:
        there = Estimator(estimator.model, on_gpu(gpu), estimator.constants, rough=rough)
        try:
            phases = [] if there.surely_over(setup) else there.predict(setup, among=True).phases
        except UnsupportedArchitectureError:
            return False
        return bool(phases) and there.fits(phase for phase in phases if phase.name != "load")

    roughly = next((gpu for gpu in ordered if fits(gpu, rough=True)), None)
    if estimator.rough:
        return roughly
    least = NEAR * (roughly or ordered[-1]).memory_total if ordered else 0
    return next((gpu for gpu in ordered if gpu.memory_total >= least and fits(gpu, rough=False)), None)
