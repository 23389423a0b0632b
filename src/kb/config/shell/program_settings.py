"""A command with what the program that it starts says of a run: the defaults of its own flags, and how it places the
model.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from kb.config.dialect.dialects import LAST
from kb.config.python.declared import declared
from kb.config.shell.command import Speller
from kb.config.shell.expand import Argument
from kb.config.shell.flag_values import setting_of
from kb.config.shell.flags import Flag
from kb.config.text.source import Places
from kb.core.document import Setting, Unit
from kb.core.expression import is_unknown
from kb.core.finding import Span
from kb.core.naming import Program

BROUGHT = (
    "data.", "lora.", "quantization.", "model.name", "model.torch_dtype", "model.attn_implementation",
    "training.per_device_", "training.gradient_", "training.optim", "training.bf16", "training.fp16", "training.do_",
    "training.dataloader_", "training.eval_accumulation_steps", "training.max_steps", "training.num_train_epochs",
)  # fmt: skip
"""What counts where the command leaves it out: what a run takes rests on it. Of a default that only wants to be tidied,
such as a warm-up that its schedule does not have, nobody wants to hear in a command that does not say it.
"""
# What says a thing only where the first of its group is on: rank 8 of adapters that nobody asked for is no adapter.
SWITCHED = {
    "lora.": ("lora.enabled",),
    "quantization.": ("quantization.load_in_4bit", "quantization.load_in_8bit"),
}
DEVICE_MAP, NOT_MODELLED = "model.device_map", "run.not_modelled"
LOSS_ONLY = "training.prediction_loss_only"
OF_METRICS = ("training.predict_with_generate", "training.metric_for_best_model")  # what asks for metrics all the same
_PLACED = re.compile(r"""^[^#\n]*\bdevice_map["']?\s*[=:]\s*["'](auto|balanced|balanced_low_0|sequential)["']""", re.M)
# Libraries that split a model over GPUs by themselves, whatever the command says.
_SPLITS = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(tensor_parallel|colossalai|megatron|fairscale|parallelformers|oslo|alpa)\b", re.M
)


def with_program(unit: Unit, programs: Sequence[Program], speller: Speller) -> Unit:
    """The unit of a command with what its program says; what the command says itself wins.

    A finding about one of these settings is shown where the command begins, and names the program.

    Args:
        programs: the sources of the program, where they were found.
        speller: the dialect of the unit's flags.
    """
    if len(programs) != 1:
        return unit
    text = programs[0].text
    start = unit.span
    place = Span(start.line, start.column, start.line, start.column, start.start, start.start)
    naming = Setting(None, place, place, (unit.program,), joined=unit.program)
    settings = dict(_defaults(unit, text, speller, naming))
    placed, splits = _PLACED.search(text), _SPLITS.search(text)
    if placed is not None and unit.launcher in ("python", None):  # under another launcher its code does otherwise
        settings[DEVICE_MAP] = naming._replace(value=placed[1], path=(f"device_map ({unit.program})",))
    if not any(name in unit.settings for name in OF_METRICS) and _keeps_no_logits(text):
        settings[LOSS_ONLY] = naming._replace(value=True, path=(f"compute_metrics ({unit.program})",))
    if splits is not None:
        settings[NOT_MODELLED] = naming._replace(value=f"{splits[1]} ({unit.program})")
    return unit._replace(settings={**settings, **unit.settings}) if settings else unit


def _defaults(unit: Unit, text: str, speller: Speller, naming: Setting) -> Iterator[tuple[str, Setting]]:
    """The settings that the program's own flags have where the command leaves them out."""
    found: dict[str, tuple[int, Setting]] = {}
    nowhere = Places("")
    for name, default in declared(text).items():
        for target in speller.targets.get(name, []):
            fact = target.fact.name
            if fact in unit.settings or fact == DEVICE_MAP or not fact.startswith(BROUGHT):
                continue
            if default is None:
                setting: Setting | None = None
            else:
                flag = Flag(name, Argument(name, 0, 0), (Argument(default, 0, 0),), inline=True)
                setting, event = setting_of(flag, False, target, nowhere)
                setting = None if event is not None or (setting and is_unknown(setting.value)) else setting
            if setting is not None and (fact not in found or target.rank < found[fact][0]):
                made = naming._replace(
                    value=setting.value, path=(f"{name} ({unit.program})",), own_name=target.rank >= LAST
                )
                found[fact] = target.rank, made
    brought = {fact: setting for fact, (_, setting) in found.items()}
    yield from ((fact, each) for fact, each in brought.items() if _counts(fact, brought, unit.settings))


def _counts(fact: str, brought: Mapping[str, Setting], said: Mapping[str, Setting]) -> bool:
    for group, switches in SWITCHED.items():
        if fact.startswith(group) and fact not in switches:
            on = [
                (said.get(each) or brought[each]).value is True for each in switches if each in said or each in brought
            ]
            return any(on) or (not on and any(name.startswith(group) for name in said))
    return True


def _keeps_no_logits(text: str) -> bool:
    """Whether evaluation keeps the losses alone: no metric function is given to the trainer (``Trainer.evaluate``)."""
    return "Trainer(" in text and "compute_metrics" not in text
