"""What transformers and PEFT call otherwise in the releases before today's, from transformers 4.46 on.

``bench/releases.py`` simulates with five of them. torch is imported inside functions: the simulator loads a shim
before it.
"""

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from importlib import metadata
from typing import Any


def versions(packages: Iterable[str]) -> dict[str, str]:
    """By package; of what is not installed none."""
    found = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def release() -> tuple[int, int]:
    """Of the transformers that is installed, the first two numbers."""
    import transformers

    major, minor, *_ = transformers.__version__.split(".")
    return int(major), int(minor)


def typed(dtype: Any) -> dict[str, Any]:
    """The weights' type, as ``from_config`` takes it."""
    return {"dtype" if release() >= (4, 56) else "torch_dtype": dtype}


def no_init_weights() -> AbstractContextManager[None]:
    """transformers' own: models are made without random numbers."""
    if release() >= (5, 0):
        from transformers.initialization import no_init_weights as without
    else:
        from transformers.modeling_utils import no_init_weights as without  # type: ignore[attr-defined,no-redef]
    return without()  # type: ignore[no-any-return,no-untyped-call]


def kept_in_fp32(model: Any, dtype: Any) -> list[str]:
    """Names of modules whose weights stay in fp32 whatever type is asked for."""
    import torch

    plan = getattr(model, "_get_dtype_plan", None)  # it came after 5.0
    if plan is not None:
        return list(plan(dtype))
    return list(model._keep_in_fp32_modules or ()) if dtype == torch.float16 else []


def not_quantized(model: Any, skipped: list[str] | None = None) -> list[str]:
    """Names of modules that bitsandbytes leaves as they are: those named, else the library's own choice."""
    from torch.utils._python_dispatch import _disable_current_modes
    from transformers.quantizers.base import HfQuantizer

    if hasattr(HfQuantizer, "get_modules_to_not_convert"):
        with _disable_current_modes():  # type: ignore[no-untyped-call]
            return list(HfQuantizer.get_modules_to_not_convert(model, skipped, model._keep_in_fp32_modules))
    from transformers.integrations import get_keys_to_not_convert  # type: ignore[attr-defined]

    with _disable_current_modes():  # type: ignore[no-untyped-call]
        own = skipped if skipped is not None else get_keys_to_not_convert(model)  # of a copy
    return [*own, *(model._keep_in_fp32_modules or ())]


def decayed_names(model: Any, patterns: tuple[str, ...]) -> set[str]:
    """Parameters whose weights decay, by ``Trainer.get_decay_parameter_names``; ``patterns`` are those of names that do
    not. Before 4.49 biases alone were left out by name."""
    import torch
    from transformers.trainer_pt_utils import get_parameter_names

    if release() >= (4, 49):
        return set(get_parameter_names(model, [torch.nn.LayerNorm], list(patterns)))
    named = get_parameter_names(model, [torch.nn.LayerNorm])
    return {name for name in named if not re.search("bias", name)}


def uncompiled() -> dict[str, bool]:
    """What ``generate`` is told so that nothing is compiled; before 4.49 nothing would be."""
    return {"disable_compile": True} if release() >= (4, 49) else {}


def scores_on_host() -> bool:
    """Whether beams are scored by ``BeamSearchScorer``, in Python."""
    return release() < (4, 50)


def cached_layers(cache: Any) -> list[tuple[int, Any, Any]]:
    """Of a cache that is an object, each layer's number, keys and values, of layers that hold any."""
    if hasattr(cache, "layers"):
        found = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers]
    else:  # before 4.54
        found = list(zip(cache.key_cache, cache.value_cache, strict=True))
    return [(number, keys, values) for number, (keys, values) in enumerate(found) if getattr(keys, "ndim", 0)]


def is_fixed(cache: Any) -> bool:
    """Whether a cache is as long from its first token on as it will ever be."""
    return bool(getattr(cache, "is_compileable", False) or getattr(cache, "is_static", False))
