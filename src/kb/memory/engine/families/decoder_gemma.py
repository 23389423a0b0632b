"""What Gemma does its own way: norms in fp32, and words that are scaled.

Sources: models/gemma, gemma2 and gemma3 of transformers.
"""

from typing import Any

from kb.memory.engine import ops
from kb.memory.engine.modules import Model
from kb.memory.engine.tensor import F32, Storage, Tensor, new
from kb.memory.engine.world import world


class GemmaNorm:
    """``GemmaRMSNorm``: scaled by one plus its weight in fp32, then cast."""

    __slots__ = ("path", "weight")

    def __init__(self, model: Model, path: str, width: int) -> None:
        self.path = path
        self.weight = model.parameter(path + ".weight", (width,), decays=False)

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["GemmaNorm"] = self.path
        out = _normed(ops.cast(x, F32))
        out = ops.mul(out, ops.plus(ops.cast(self.weight, F32)))
        return ops.cast(out, x.dtype)


def _normed(x: Tensor) -> Tensor:
    return ops.mul(x, ops.rsqrt(ops.plus(ops.mean(ops.power(x)))))


def scaled_words(model: Any, embeds: Tensor) -> Tensor:
    """``GemmaTextScaledWordEmbedding``: times a number that lies on the GPU in the type of loading.

    FSDP2 leaves it in that type.
    """
    units, wanted = model.units, model.embed.dtype
    made = model.options.dtype if units is None or units.flat else units.loaded
    number = new((), wanted) if made != wanted else Tensor((), made, (), Storage(0))
    return ops.mul(embeds, number)


def number_of_words(model: Any) -> Tensor:
    """That number, which is there all along."""
    return Tensor((), model.options.dtype, (), Storage(0))
