"""The type that a model's weights are loaded in: what the config names, else what its loader takes.

transformers keeps the checkpoint's type from 5 on and loads fp32 before. Some trainers have defaults of their own,
which their formats say (``rules/dialects``): TRL asks for fp32 from 0.27 on, where it loads the model itself.
"""

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
DTYPE = "model.torch_dtype"
OWN, COMPUTED = "auto", "compute"  # defaults of formats: the checkpoint's type, the type of the arithmetic
OF_LOADERS: Mapping[str, str | None] = {"transformers": None, "unsloth": "bfloat16"}  # by what a program calls


def weight_type(name: Any) -> WeightType | None:
    """``torch.bfloat16`` or ``bf16`` → ``bf16``; None where it is no type of weights, such as ``auto``."""
    return WEIGHT_TYPES.get(str(name).removeprefix("torch."))


def checkpoint_dtype(model: Model | None) -> str | None:
    """The type that the model's checkpoint stores, in PyTorch's name for it; None where it is not known."""
    if model is None or model.weights_dtype is None or model.guessed_from:
        return None
    return NAMES[model.weights_dtype]


def weights_of(
    read: SettingsReader, model: Model | None, given: Mapping[str, Any], transformers: tuple[int, ...] | None
) -> WeightType:
    """The type that the run loads the model's weights in; what no config says of it is listed as assumed.

    The newest release is assumed where it is not known, and a checkpoint whose type nobody recorded counts as fp32. Of
    a checkpoint in fp32 nothing is listed where it is loaded so.

    Args:
        given: what the project says of itself; it may name the checkpoint's type.
    """
    named = read.value(DTYPE)
    found = weight_type(named)
    if found is not None:
        return found
    own = weight_type(given.get("model.checkpoint_dtype")) or (model.weights_dtype if model is not None else None)
    usual, reason = (OWN, "checkpoint_own_type") if named is not None else _usual(read, transformers)
    loaded: WeightType = weight_type(usual) or "fp32"
    if usual == COMPUTED:
        loaded = "fp16" if read.or_default("training.fp16") else "bf16"
    if usual == OWN:
        loaded, reason = (own, reason) if own is not None else ("fp32", "checkpoint_type_not_recorded")
    if model is not None and (loaded, own) != ("fp32", "fp32"):
        read.or_assume(DTYPE, None, NAMES[loaded], reason)
    return loaded


def _usual(read: SettingsReader, transformers: tuple[int, ...] | None) -> tuple[str, str]:
    """What is loaded where no type is named, and why: the format's default, else that of transformers."""
    loader = read.value("model.loader")
    usual = OF_LOADERS.get(loader, read.default(DTYPE))
    if usual is not None:
        newest = loader is None and read.default_is_open(DTYPE)
        return usual, "trainer_default_newest" if newest else "trainer_default"
    if transformers is None:
        return OWN, "checkpoint_own_type_newest"
    return (OWN, "checkpoint_own_type") if transformers >= OWN_TYPE_SINCE else ("float32", "transformers_4_default")
