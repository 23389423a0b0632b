"""Mistral 3 as it is published, with a tower of Pixtral's, of which a batch of words asks for nothing: as
``modeling_mistral3.py`` has it, what tower and projector weigh, and the language model behind them.
"""

from typing import Any

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.engine.families.llava import Llava, Patches
from kb.memory.engine.families.qwen_vl import check_words_alone
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import Linear, RmsNorm
from kb.memory.engine.tensor import F32


class Mistral3(Llava):
    """``Mistral3ForConditionalGeneration``, of words alone: its language model is Mistral or Ministral 3."""

    reaches_all = caches = False  # no word reaches the tower; it hands its own ``use_cache`` on
    gathers = False

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        check_words_alone(architecture, setup)
        if setup.attn_implementation == "flash":
            raise NotFollowedError("flash_attention_2 of mistral3")

    def every_layer(self) -> list[Any]:
        return self.layers

    def build_sight(self) -> None:
        """``PixtralVisionModel`` and ``Mistral3MultiModalProjector``."""
        v, path, behind = self.vision, "model.vision_tower", "model.multi_modal_projector"
        Patches(self, f"{path}.patch_conv", v, bias=False)
        RmsNorm(self, f"{path}.ln_pre", v.width)
        for at in range(v.depth):
            layer = f"{path}.transformer.layers.{at}"
            RmsNorm(self, f"{layer}.attention_norm", v.width)
            for name, columns, rows in (("gate", v.width, v.ff), ("up", v.width, v.ff), ("down", v.ff, v.width)):
                Linear(self, f"{layer}.feed_forward.{name}_proj", columns, rows)
            for name in ("k", "v", "q", "o"):
                Linear(self, f"{layer}.attention.{name}_proj", v.width, v.width)
            RmsNorm(self, f"{layer}.ffn_norm", v.width)
        for _ in range(2):
            self.buffer((v.width // v.heads // 2,), F32)
        RmsNorm(self, f"{behind}.norm", v.width)
        Linear(self, f"{behind}.patch_merger.merging_layer", v.width * v.merge**2, v.width)
        width = self.architecture.d_model
        Linear(self, f"{behind}.linear_1", v.width * len(v.states), width, bias=v.projector_bias)
        Linear(self, f"{behind}.linear_2", width, width, bias=v.projector_bias)
