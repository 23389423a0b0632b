"""Facts about FSDP, DeepSpeed and the launcher that follow from several settings at once."""

from collections.abc import Callable, Mapping
from typing import Any

from kb.advice.run_facts import LAYER_CLASSES, MODULE_CLASSES
from kb.core.document import Unit
from kb.core.expression import Unknown, is_unknown
from kb.core.facts import VersionOf
from kb.core.model import Model

Setting = Callable[[str], Any]
"""A setting by name, of its own type: as written, else the default; None or Unknown where neither is known."""

FSDP2_BY_DEFAULT = (5, 10)  # transformers 5.9 takes fsdp_config.version for 1, 5.10 for 2
BEHIND_A_FILE = {
    "training.fsdp_config.": "training.fsdp_config",
    "training.accelerator_config.": "training.accelerator_config",
}
# What the Trainer writes over "auto" in a DeepSpeed file, and demands to be equal to a number there
# (transformers 5.23.0, integrations/deepspeed.py, trainer_config_process).
FILLED_FROM = {
    "deepspeed.train_micro_batch_size_per_gpu": ("training.per_device_train_batch_size",),
    "deepspeed.gradient_accumulation_steps": ("training.gradient_accumulation_steps",),
    "deepspeed.gradient_clipping": ("training.max_grad_norm",),
    "deepspeed.optimizer.params.lr": ("training.learning_rate",),
    "deepspeed.optimizer.params.eps": ("training.adam_epsilon",),
    "deepspeed.optimizer.params.weight_decay": ("training.weight_decay",),
    "deepspeed.scheduler.params.warmup_max_lr": ("training.learning_rate",),
    "deepspeed.fp16.enabled": ("training.fp16", "training.fp16_full_eval"),
    "deepspeed.bf16.enabled": ("training.bf16", "training.bf16_full_eval"),
}
NAMES_A_FILE = ("training.deepspeed", "deepspeed.config_file")
_SPARED_BY_BATCH_FINDER = ("deepspeed.train_micro_batch_size_per_gpu", "deepspeed.train_batch_size")


def stage_in_name(unit: Unit) -> int | None:
    """The ZeRO stage that a DeepSpeed file which cannot be read bears in its name: ``configs/ds_zero3.json``."""
    import re

    held = unit.settings.get(unit.unread[0]) if unit.unread else None
    found = re.search(r"(?:zero|stage|z)[-_]?([0-3])(?![0-9])", str(held.value).lower()) if held else None
    return int(found[1]) if found else None


def hidden_behind(unit: Unit, name: str) -> str | None:
    """The setting that names a file which may say ``name`` and was not read; None where the config says it all.

    One that may stand in arguments which cannot be told is hidden behind itself.
    """
    if unit.hidden and name.startswith(unit.hidden):
        return name
    if name.startswith("deepspeed."):
        return unit.unread[0] if unit.unread and name not in unit.unread else None
    for group, setting in BEHIND_A_FILE.items():
        if name.startswith(group):
            held = unit.settings.get(setting)
            return setting if held is not None and isinstance(held.value, str) else None
    return None


class DistributedFacts:
    """The providers of ``fsdp.``, and of the ``deepspeed.`` facts that no config says itself."""

    def __init__(self, unit: Unit, setting: Setting, model: Model | None, versions: VersionOf) -> None:
        self._unit, self._setting, self._model, self._versions = unit, setting, model, versions

    def providers(self) -> Mapping[str, Callable[[str], Any]]:
        return {
            "fsdp.enabled": lambda _: self._fsdp_enabled(),
            "fsdp.options": lambda _: self._fsdp_options(),
            "fsdp.version": lambda _: self._fsdp_version(),
            "fsdp.missing_wrap_classes": lambda _: self._missing_wrap_classes(),
            "model.layer_classes": lambda _: self._model and LAYER_CLASSES.get(self._model.architecture.model_type),
            "model.on_cpu": lambda _: self._on_cpu(),
            "deepspeed.joined": lambda _: self._joined(),
            "deepspeed.auto_values": lambda _: self._auto_values(),
            "deepspeed.disagreements": lambda _: self._disagreements(),
        }

    def _fsdp_enabled(self) -> Any:
        value = self._setting("training.fsdp")
        return (
            value.strip().lower() not in ("", "false") if isinstance(value, str) else False if value is None else value
        )

    def _fsdp_options(self) -> Any:
        value = self._setting("training.fsdp")
        if isinstance(value, str):
            return tuple(word for word in value.replace(",", " ").lower().split() if word not in ("true", "false"))
        return () if value is None else value

    def _fsdp_version(self) -> Any:
        said = self._setting("training.fsdp_config.version")
        if said is not None:
            return said
        transformers = self._versions("transformers", FSDP2_BY_DEFAULT)
        if transformers is None:
            return Unknown(frozenset(("versions.transformers",)), "FSDP's version was 1 by default, then 2")
        return 2 if transformers >= FSDP2_BY_DEFAULT else 1

    def _missing_wrap_classes(self) -> Any:
        """The named classes that no module of the model has: Accelerate refuses each of them."""
        name = "training.fsdp_config.transformer_layer_cls_to_wrap"
        written = self._unit.settings.get(name)
        text = written.value if written and isinstance(written.value, str) else None
        named = self._setting(name) if text is None else tuple(part.strip() for part in text.split(","))
        if named is None or is_unknown(named):
            return () if named is None else named
        if self._model is None:
            return Unknown(frozenset(("model.name",)), "model not known")
        known = MODULE_CLASSES.get(self._model.architecture.model_type)
        return None if known is None else tuple(name for name in named if name not in known)

    def _on_cpu(self) -> Any:
        """Whether the config itself puts some modules, but not all, on the CPU or the disk."""
        written = self._unit.settings.get("model.device_map")
        placed = written.value if written else None
        if isinstance(placed, Mapping):
            devices = {str(device) for device in placed.values()}
            return devices != {"cpu"} and bool(devices & {"cpu", "disk"})
        return placed if is_unknown(placed) else False

    def _joined(self) -> Any:
        """Whether a DeepSpeed file that the config names was read; unknown where it names one that was not."""
        if self._unit.unread:
            return Unknown(frozenset(self._unit.unread), "the file that it names was not read")
        return any(name in NAMES_A_FILE for name in self._unit.joined)

    def _auto_values(self) -> tuple[str, ...]:
        return tuple(name.removeprefix("deepspeed.") for name in self._unit.left_open if name.startswith("deepspeed."))

    def auto(self, name: str) -> Any:
        """What the Trainer puts in the place of an ``auto`` in the DeepSpeed file that the config names."""
        if name == "deepspeed.train_batch_size":
            return self._whole_batch()
        values = [self._setting(source) for source in FILLED_FROM.get(name, ())]
        unknown = next((value for value in values if is_unknown(value) or value is None), None)
        if not values or None in values or unknown is not None:
            return unknown
        return any(values) if isinstance(values[0], bool) else values[0]

    def _whole_batch(self) -> Any:
        parts = ("training.per_device_train_batch_size", "training.gradient_accumulation_steps", "launch.num_processes")
        product = 1
        for name in parts:
            value = self._setting(name)
            if not isinstance(value, int):
                return value if is_unknown(value) else Unknown(frozenset((name,)))
            product *= value
        return product

    def _disagreements(self) -> Any:
        """``gradient_accumulation_steps 2 ≠ 4`` for each number of the DeepSpeed file that is not the Trainer's."""
        joined = self._joined()
        if is_unknown(joined):
            return joined
        if not joined or "training.deepspeed" not in self._unit.settings:
            return ()
        spared = _SPARED_BY_BATCH_FINDER if self._setting("training.auto_find_batch_size") is True else ()
        found, undecided = [], None
        for name in (*FILLED_FROM, "deepspeed.train_batch_size"):
            setting = self._unit.settings.get(name)
            if setting is None or not setting.joined or name in spared:
                continue
            said, meant = self._setting(name), self.auto(name)
            if is_unknown(meant) or is_unknown(said):
                undecided = meant if is_unknown(meant) else said
            elif meant is None:
                undecided = Unknown(frozenset(FILLED_FROM.get(name, ())))
            elif meant != said:
                found.append(f"{name.removeprefix('deepspeed.')} {_shown(said)} ≠ {_shown(meant)}")
        return tuple(found) if found or undecided is None else undecided


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
