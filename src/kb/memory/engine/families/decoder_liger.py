"""What Liger puts into decoder-only types of transformers: rows for those that it has kernels for.

Source: ``MODEL_TYPE_TO_APPLY_LIGER_FN`` and its functions (liger_kernel/transformers/monkey_patch.py) of liger-kernel
0.6.4 to 0.8.5; gpt_oss and exaone4 from 0.7.0.
"""

from collections.abc import Callable
from typing import Any

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.memory.engine.families.decoder_parts import FusedGatedMlp, GatedMlp, GemmaNorm
from kb.memory.engine.modules import RmsNorm
from kb.memory.engine.ops import liger, split
from kb.memory.engine.options import Fused
from kb.memory.engine.tensor import Tensor
from kb.memory.engine.world import world


class Norm(RmsNorm):
    """``LigerRMSNorm``, which writes a gradient over the one that it reads."""

    in_place = True

    def __init__(self, model: Any, path: str, width: int) -> None:
        super().__init__(model, path, width)
        self.release = model.options.fused.release

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["RmsNorm"] = self.path
        return liger.rms_norm(x, self.weight, self.release, in_place=self.in_place)


class ApartNorm(Norm):
    """``LigerRMSNorm(in_place=False)``: of types whose blocks add what a norm gave to what it was given."""

    in_place = False


class Gemma(GemmaNorm):
    """``LigerRMSNormForGemma``: its casts are the kernel's own."""

    in_place = True

    def __init__(self, model: Any, path: str, width: int) -> None:
        super().__init__(model, path, width)
        self.release = model.options.fused.release

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["GemmaNorm"] = self.path
        return liger.rms_norm(x, self.weight, self.release, in_place=self.in_place)


class ApartGemma(Gemma):
    """``LigerRMSNormForGemma2``, ``…Gemma3``."""

    in_place = False


class Mlp(GatedMlp):
    """``LigerSwiGLUMLP``, ``LigerGEGLUMLP``."""

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["GatedMlp"] = self.path
        return self.down(liger.gated(self.gate(x), self.up(x)))


class FusedMlp(FusedGatedMlp):
    """``LigerPhi3SwiGLUMLP``: halves of one product, copied apart."""

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["FusedGatedMlp"] = self.path
        up = self.gate_up(x)
        gate, up = split(up, (self.width, self.width))
        return self.down(liger.gated(gate, up))


class Kernels(NamedTuple):
    """What a type's blocks are made of; ``head``: its loss is fused. None is left as transformers' own.

    ``since`` is the first release that has the type, ``head_norms`` that whose norms of queries and keys are Liger's.
    """

    norm: Callable[..., Any] | None = Norm
    mlp: Callable[..., Any] | None = Mlp
    turns: bool = True
    head: bool = True
    since: tuple[int, ...] = ()
    head_norms: tuple[int, ...] = ()


TYPES = {
    # llava: of its words' model, which is one of these types
    **dict.fromkeys(("llama", "mistral", "qwen2", "smollm3", "llava"), Kernels()),
    "qwen3": Kernels(head_norms=(0, 8, 5)),
    "mixtral": Kernels(mlp=None),  # Liger's experts are not followed
    "qwen3_moe": Kernels(mlp=None, head_norms=(0, 8, 5)),
    "phi3": Kernels(mlp=FusedMlp),
    "gemma": Kernels(Gemma),
    **dict.fromkeys(("gemma2", "gemma3_text"), Kernels(ApartGemma)),
    "glm4": Kernels(ApartNorm, FusedMlp, turns=False),
    "exaone4": Kernels(ApartNorm, since=(0, 7, 0)),
    # whose blocks are not followed: logits of granite are scaled, and its loss reads whole ones
    "granite": Kernels(None, None, turns=False, head=False),
    "gpt_oss": Kernels(None, None, turns=False, since=(0, 7, 0)),
    "olmo2": Kernels(None, None, turns=False),
    **dict.fromkeys(("olmo3", "hunyuan_v1_dense"), Kernels(None, None, turns=False, since=(0, 6, 4))),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), Kernels(None, None, turns=False)),
}


def kernels_of(a: Architecture, fused: Fused | None) -> Kernels | None:
    """Liger's kernels for a type; None where there are none, or another library's are asked for."""
    found = TYPES.get(a.model_type) if fused is not None and fused.named else None
    return None if fused is None or found is None or fused.release < found.since else found


def has_fused_head(a: Architecture, fused: Fused) -> bool:
    """Whether the type's loss is fused; a kernel that nobody names is taken to know every type."""
    found = kernels_of(a, fused)
    return found.head if found is not None else not fused.named


def with_kernels(traits: Any, a: Architecture, fused: Fused | None) -> Any:
    """A type's traits with Liger's parts in its blocks."""
    found = kernels_of(a, fused)
    if fused is None or found is None or not fused.layers:
        return traits
    parts: dict[str, Any] = {"norm": found.norm, "mlp": found.mlp, "turn": found.turns and liger.rotary}
    if fused.release < found.head_norms:
        parts["head_norm"] = traits.norm
    return traits._replace(**{name: part for name, part in parts.items() if part})


def left_out(a: Architecture, fused: Fused | None) -> bool:
    """Whether some of what Liger puts into the blocks is counted as transformers' own."""
    found = kernels_of(a, fused)
    return fused is not None and fused.layers and found is not None and (found.norm is None or found.mlp is None)
