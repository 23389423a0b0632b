"""What a plan can switch on once smaller batches do not help, and how a config says it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kb.advice.attempts import targets_for
from kb.advice.estimator import Estimator
from kb.advice.precision import precision_for
from kb.core.setup import TrainingSetup
from kb.memory import default_targets

_NAMES = {
    "gradient_checkpointing": "training.gradient_checkpointing",
    "bf16": "training.bf16",
    "fp16": "training.fp16",
    "optim": "training.optim",
    "lora_target_modules": "lora.target_modules",
    "load_in_4bit": "quantization.load_in_4bit",
    "bnb_4bit_use_double_quant": "quantization.bnb_4bit_use_double_quant",
}


class Option(NamedTuple):
    """Something to switch on: the step's name, fields of the setup, the notes' lines that advise it."""

    name: str
    fields: Mapping[str, Any]
    lines: str | None = None


def options_for(setup: TrainingSetup, estimator: Estimator) -> list[Option]:
    """What can be switched on, in the notes' order and then by how much it changes the run."""
    found: list[Option] = []
    if not setup.gradient_checkpointing:
        found.append(Option("checkpointing", {"gradient_checkpointing": True}, "109"))
    autocast = precision_for(estimator.gpu, estimator.model.architecture).autocast
    if not setup.autocast and setup.weights == "fp32" and autocast != "fp32":
        found.append(Option(f"precision_{autocast}", {autocast: True}, "110"))
    adapter: dict[str, Any] = {}
    if (
        setup.lora_target_modules is None and default_targets(estimator.model.architecture) is None
    ):  # PEFT wants them named
        adapter["lora_target_modules"] = targets_for(estimator.model.architecture)
    if setup.method == "full":
        if setup.optim.startswith("adamw") and "8bit" not in setup.optim:
            found.append(Option("optimizer_8bit", {"optim": "adamw_bnb_8bit"}))
        found.append(Option("lora", {"method": "lora", "prepare_for_kbit": False, **adapter}))
    if setup.method != "qlora":
        quantized = {"load_in_4bit": True, "bnb_4bit_use_double_quant": True, "prepare_for_kbit": True}
        found.append(Option("qlora", {"method": "qlora", **quantized, **adapter}))
    return found


def compatible(options: Sequence[Option]) -> list[Option]:
    """Adapters make an 8-bit optimizer needless, and 4-bit weights are adapters already."""
    names = {option.name for option in options}
    dropped = {"lora", "optimizer_8bit"} if "qlora" in names else {"optimizer_8bit"} if "lora" in names else set()
    return [option for option in options if option.name not in dropped]


def with_options(setup: TrainingSetup, options: Iterable[Option]) -> TrainingSetup:
    """The setup with the options on."""
    for option in options:
        setup = setup._replace(**option.fields)
    return setup


def said(changes: Mapping[str, Any], setup: TrainingSetup) -> dict[str, tuple[Any, Any]]:
    """The change as a config says it."""
    said: dict[str, tuple[Any, Any]] = {}
    if "method" in changes and setup.method == "full":
        said["lora.enabled"] = (False, True)
    for field, value in changes.items():
        if field in _NAMES:
            said[_NAMES[field]] = (getattr(setup, field), value)
    return said
