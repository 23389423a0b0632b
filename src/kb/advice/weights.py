"""The type that a model's weights are loaded in: what the config names, else the checkpoint's own."""

from collections.abc import Mapping
from typing import Any

from kb.advice.settings_reader import SettingsReader
from kb.core.model import Model
from kb.core.setup import WeightType

WEIGHT_TYPES: Mapping[str, WeightType] = {
    "float16": "fp16",
    "fp16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float32": "fp32",
    "fp32": "fp32",
}
NAMES: Mapping[WeightType, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
OWN_TYPE_SINCE = (5,)  # transformers: from_pretrained keeps the checkpoint's type where no other is named


def weight_type(name: Any) -> WeightType | None:
    """``torch.bfloat16`` or ``bf16`` → ``bf16``; None where it is no type of weights, such as ``auto``."""
    return WEIGHT_TYPES.get(str(name).removeprefix("torch."))


def checkpoint_dtype(model: Model | None) -> str | None:
    """The type that the model's checkpoint stores, in PyTorch's name for it; None where it is not known."""
    return NAMES[model.weights_dtype] if model is not None and model.weights_dtype is not None else None


def weights_of(
    read: SettingsReader,
    model: Model | None,
    given: Mapping[str, Any],
    transformers: tuple[int, ...] | None,
    dialect: str | None,
) -> WeightType:
    """The type that the run loads the model's weights in; a checkpoint's own that is no fp32 is listed as assumed.

    Where the config names none, transformers 5 keeps the checkpoint's type and 4 loads fp32; the newest is assumed
    where the version is not known. TRL asks for fp32 itself. A checkpoint whose type nobody knows counts as fp32.

    Args:
        given: what the project says of itself; it may name the checkpoint's type.
    """
    named = read.value("model.torch_dtype")
    found = weight_type(named)
    if found is not None:
        return found
    own = weight_type(given.get("model.checkpoint_dtype")) or (model.weights_dtype if model is not None else None)
    kept = str(named) == "auto" or (dialect != "trl" and (transformers is None or transformers >= OWN_TYPE_SINCE))
    if own in (None, "fp32") or not kept:
        return "fp32"
    read.or_assume("model.torch_dtype", None, NAMES[own], "checkpoint_own_type")
    return own
