"""Facts that the names in a config tell: an old name, names that no class of arguments has."""

from collections.abc import Callable
from typing import Any

from kb.core.document import Unit


def eval_generations(setting: Callable[[str], Any]) -> Any:
    """Completions for each prompt in evaluation: its own number, else that of training."""
    own = setting("trl.num_generations_eval")
    return setting("trl.num_generations") if own is None else own


def says_torch_dtype(unit: Unit) -> bool:
    """Whether the weights' type is given under transformers' old name for it."""
    setting = unit.settings.get("model.torch_dtype")
    return setting is not None and str(setting.path[-1]).lstrip("-") == "torch_dtype"


def unknown_training_keys(unit: Unit, group: str) -> tuple[str, ...]:
    """Keys that lie directly in this group of settings and that no version of its class is known to have."""
    parts = [key.rpartition(".") for key in unit.unknown_keys]
    return tuple(name for parent, _, name in parts if parent == group)
