"""How the layers of one decoder-only model differ: which slide, which turn queries and keys, which have no experts.

Each is read as the type's ``configuration_*.py`` of transformers 5.23 does.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kb.memory.config_fields import flag, number

MOST_NAMED = 1 << 12  # layers: of a model of more, only how many slide is said
# Types whose window counts for nothing unless the config says that it is used.
_ASKED = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3")


def windows(
    config: Mapping[str, Any], layers: int, window: int | None, every: int | None
) -> tuple[int | None, int, tuple[bool, ...]]:
    """The window of sliding attention, how many layers slide, and which do where not all are alike.

    ``window`` and ``every`` are the type's defaults; of so many layers one sees everything.
    """
    asked = str(config.get("model_type")) in _ASKED
    if not flag(config, "use_sliding_window", not asked):
        return None, 0, ()
    found = config.get("sliding_window", window)
    if not found:
        return None, 0, ()
    found = number({"sliding_window": found}, "sliding_window")
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) >= layers:
        slides: tuple[bool, ...] = tuple(kind == "sliding_attention" for kind in kinds[:layers])
    else:
        slides = tuple(map(_slider(config, every), range(min(layers, MOST_NAMED))))
    several = any(slides) and not all(slides)
    counted = sum(slides) if len(slides) == layers else layers * sum(slides) // len(slides)
    return (found if counted else None), counted, slides if several and len(slides) == layers else ()


def _slider(config: Mapping[str, Any], every: int | None) -> Callable[[int], bool]:
    """Whether the layer of a number slides, where no list says it."""
    kind = config.get("model_type")
    if kind in ("qwen2", "qwen3"):
        first = number(config, "max_window_layers", default=28)
        return lambda at: at >= first
    if kind == "qwen2_moe":
        last = number(config, "max_window_layers", default=28)
        return lambda at: at % 2 == 0 and at < last
    if kind == "smollm3":
        turns = _turner(config)
        return lambda at: not turns(at)
    each = 0
    if every:  # Gemma 2 has no field for it
        each = every if kind == "gemma2" else number(config, "sliding_window_pattern", default=every)
    return lambda at: not each or (at + 1) % each > 0


def turned(config: Mapping[str, Any], layers: int, window: int | None, slides: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which layers turn queries and keys by their positions; () where all do.

    EXAONE 4's layers that see everything do not, where others slide.
    """
    kind = config.get("model_type")
    found: tuple[bool, ...] = ()
    if kind == "smollm3" and layers <= MOST_NAMED:
        found = tuple(map(_turner(config), range(layers)))
    if kind == "exaone4" and window is not None:
        found = slides
    return () if all(found) else found


def _turner(config: Mapping[str, Any]) -> Callable[[int], bool]:
    """SmolLM3: a list of ones and zeros, or one of so many layers that turns nothing."""
    named = config.get("no_rope_layers")
    if isinstance(named, list):
        return lambda at: bool(named[at]) if at < len(named) else True
    interval = number(config, "no_rope_layer_interval", default=4)
    return lambda at: (at + 1) % interval > 0


def dense(config: Mapping[str, Any], layers: int) -> tuple[int, tuple[bool, ...]]:
    """How many layers of a mixture have no experts, and which."""
    step = number(config, "decoder_sparse_step", default=1)
    named = config.get("mlp_only_layers")
    alone = set(named) if isinstance(named, list) else set()
    found = [layer in alone or (layer + 1) % step != 0 for layer in range(layers)]
    return sum(found), tuple(found) if any(found) and layers <= MOST_NAMED else ()
