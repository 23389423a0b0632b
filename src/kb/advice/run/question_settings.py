"""What a question says of a run, as settings: a run without a file, or a change to each of a file's. Pure.

The settings carry the vocabulary's names, so that what follows is the same as for a config that says them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kb.advice.question import ATTENTIONS, RunSettings
from kb.advice.run.no_prediction import KNOWN_OPTIMIZERS
from kb.core.document import Setting, Unit
from kb.core.finding import Span
from kb.core.setup import Assumption
from kb.core.text import UserError, nearest

# As the flags name them → as the Trainer does; the Trainer's own names are taken too.
OPTIMIZERS: Mapping[str, str] = {
    "adamw_torch_fused": "adamw_torch_fused",
    "adamw_torch": "adamw_torch",
    "adamw_8bit": "adamw_bnb_8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
    "lion": "lion_32bit",
    "none": "none",
}
ALONE = 1  # samples that a generation without a batch is for
_NOWHERE = Span(1, 1, 1, 1)


def optimizer_named(name: str | None) -> str | None:
    """The Trainer's name of an optimizer.

    Raises:
        UserError: there is no such optimizer; the nearest is suggested.
    """
    if name is None or name in OPTIMIZERS or name in KNOWN_OPTIMIZERS:
        return OPTIMIZERS.get(name, name) if name else None
    known = list(dict.fromkeys((*OPTIMIZERS, *KNOWN_OPTIMIZERS)))
    meant = nearest(name, known)
    key = "estimate.unknown_optimizer_meant" if meant else "estimate.unknown_optimizer"
    raise UserError(key, name=name[:100], meant=meant[0] if meant else "", known=", ".join(known))


def unit_of(flags: RunSettings) -> Unit:
    """A run that only flags describe."""
    unit = Unit(path="", section=None, dialect="command", settings={}, span=_NOWHERE)
    return with_flags(unit, flags._replace(task=flags.task or "train", precision=flags.precision or "fp32"))


def with_flags(unit: Unit, flags: RunSettings) -> Unit:
    """The unit with what the flags say in place of its own settings."""
    settings = dict(unit.settings)
    if flags.task is not None and flags.task != "generate":
        settings.pop("inference.batch_size", None)
    for name, value in _settings(flags, unit.settings):
        settings[name] = Setting(value, _NOWHERE, _NOWHERE, (name.rpartition(".")[2],))
    return unit._replace(settings=settings)


def assumed_of(flags: RunSettings, unit: Unit | None = None) -> tuple[Assumption, ...]:
    """What the flags, and the unit they change, leave open and the library has no default for."""
    loaded = Assumption("model.torch_dtype", "float32", "no_precision_given")
    precision = () if unit is not None or flags.precision is not None else (loaded,)
    said = flags.batch or flags.eval_batch or (unit is not None and "inference.batch_size" in unit.settings)
    if flags.task == "generate" and not said:
        return (*precision, Assumption("inference.batch_size", ALONE, "one_sample"))
    return precision


def _settings(flags: RunSettings, before: Mapping[str, Setting]) -> Iterator[tuple[str, Any]]:
    yield from _of_task(flags, before)
    yield from _of_method(flags)
    if flags.precision is not None:
        half = flags.precision.removeprefix("pure-")
        pure = half != flags.precision
        yield "training.fp16", half == "fp16" and not pure
        yield "training.bf16", half == "bf16" and not pure
        yield "model.torch_dtype", half if pure else "fp32"
    if flags.attention is not None:
        yield "model.attn_implementation", ATTENTIONS[flags.attention]
    if flags.gradient_checkpointing or flags.reentrant:
        yield "training.gradient_checkpointing", True
    if flags.reentrant:
        yield "training.gradient_checkpointing_kwargs.use_reentrant", True
    if flags.fsdp:
        yield "training.fsdp", "full_shard auto_wrap"  # without the second word releases before 5.12 wrap no layer
    for name, value in (
        ("model.name", flags.model),
        ("training.optim", flags.optimizer),
        ("training.gradient_accumulation_steps", flags.accumulation),
        ("data.max_source_length", flags.source_length),
        ("data.max_target_length", flags.target_length),
        ("deepspeed.zero_stage", flags.zero_stage),
    ):
        if value is not None:
            yield name, value


def _of_task(flags: RunSettings, before: Mapping[str, Setting]) -> Iterator[tuple[str, Any]]:
    """Batches, beams and generated length, where the task wants them."""
    if flags.task == "generate":
        if any(name.startswith("training.") for name in before):
            yield "training.do_train", False
            yield "training.do_eval", False
            yield "training.eval_strategy", "no"
        batch = flags.batch or flags.eval_batch
        if batch or "inference.batch_size" not in before:
            yield "inference.batch_size", batch or ALONE
        yield from _generation(flags, "inference.num_beams", "inference.max_length")
        if flags.target_length is None and flags.generation_length is not None:
            yield "data.max_target_length", flags.generation_length
        return
    if flags.task == "evaluate":
        yield "training.do_train", False
    elif flags.task == "train":
        yield "training.do_train", True
    alone = flags.task == "evaluate"
    if flags.batch is not None and not alone:
        yield "training.per_device_train_batch_size", flags.batch
    evaluation = flags.eval_batch or (flags.batch if alone else None)
    if evaluation is not None:
        yield "training.per_device_eval_batch_size", evaluation
    generates = flags.beams is not None or flags.generation_length is not None
    if alone or evaluation is not None or generates:
        yield "training.do_eval", True
    if generates:
        yield "training.predict_with_generate", True
        yield from _generation(flags, "training.generation_num_beams", "training.generation_max_length")
        yield from _generation(flags, "inference.num_beams", "inference.max_length")


def _generation(flags: RunSettings, beams: str, length: str) -> Iterator[tuple[str, Any]]:
    if flags.beams is not None:
        yield beams, flags.beams
    if flags.generation_length is not None:
        yield length, flags.generation_length


def _of_method(flags: RunSettings) -> Iterator[tuple[str, Any]]:
    if flags.method is not None:
        yield "lora.enabled", flags.method != "full"
        yield "lora.use_dora", flags.method == "dora"
        yield "quantization.load_in_4bit", flags.method == "qlora"
    if flags.lora_rank is not None:
        yield "lora.r", flags.lora_rank
    if flags.lora_targets is not None:
        yield "lora.target_modules", flags.lora_targets
    if flags.double_quant:
        yield "quantization.bnb_4bit_use_double_quant", True
