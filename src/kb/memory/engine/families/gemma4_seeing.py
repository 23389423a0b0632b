"""Gemma 4 as it is published, with a tower that sees and one that hears, of which a batch of words asks for nothing: as
``modeling_gemma4.py`` has it, what they weigh and what the model looks for among the words.
"""

from typing import Any

from kb.core.model import Architecture, Hearing, Vision
from kb.core.setup import TrainingSetup
from kb.memory.engine.families.decoder_inputs import NAMED, masked, numbered_from
from kb.memory.engine.families.gemma4 import Gemma4, Norm
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import LayerNorm, Linear
from kb.memory.engine.ops.gathers import gather
from kb.memory.engine.ops.shapes import indexed
from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, new
from kb.memory.engine.world import world

LIMITS = 4  # of a layer that clamps: least and most of what comes in and of what goes out
SEEING = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # of layers that clamp
HEARING = ("q_proj", "k_proj", "v_proj", "post", "ffw_layer_1", "ffw_layer_2", "linear_start", "linear_end")


class Gemma4Seeing(Gemma4):
    """``Gemma4ForConditionalGeneration``, of words alone."""

    inputs = 3
    reaches_all = False  # no word reaches a tower
    clamps = True  # its towers' layers are no linear layers, but hold one

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        super().check(architecture, setup)
        if architecture.vision is not None and setup.images is None:
            raise NotFollowedError("images of unknown size")
        if setup.images is not None and setup.images.number:
            raise NotFollowedError(f"images of {architecture.model_type}")
        clamping = (architecture.vision and SEEING) or (), (architecture.hearing and HEARING) or ()
        if cls.clamps and setup.method != "full" and {*(setup.lora_target_modules or ())} & {*sum(clamping, ())}:
            raise NotFollowedError("target_modules of gemma4")  # PEFT refuses such a name

    def place_before(self) -> None:
        vision = self.architecture.vision
        if vision is not None:
            self._place_sight("model.vision_tower", vision)
        if not any(self.slides):  # masks are made of the kinds that there are
            self.architecture = self.architecture._replace(window=None)
        self.traits = self.traits._replace(kinds=NAMED)

    def place_behind(self) -> None:
        a = self.architecture
        if a.hearing is not None:
            self._place_hearing("model.audio_tower", a.hearing)
        behind = [("vision", a.vision and a.vision.width), ("audio", a.hearing and a.hearing.out)]
        behind = [(name, width) for name, width in behind if width]
        for name, width in behind:  # of a tied model the last one stays wide (``get_keys_to_not_convert``)
            self._project(name, width or 0, packs=not a.tied or name != behind[-1][0])

    def _project(self, name: str, width: int, *, packs: bool) -> None:
        """``Gemma4MultimodalEmbedder``, and what comes before it."""
        Linear(self, f"model.embed_{name}.embedding_projection", width, self.architecture.d_model, packs=packs)

    def _clamped(self, path: str, columns: int, rows: int, clamps: bool) -> None:
        """``Gemma4ClippableLinear``."""
        Linear(self, f"{path}.linear", columns, rows)
        for _ in range(LIMITS if clamps else 0):
            self.buffer((), self.options.dtype)

    def _place_sight(self, path: str, v: Vision) -> None:
        """``Gemma4VisionModel``."""
        Linear(self, f"{path}.patch_embedder.input_proj", v.channels * v.patch**2, v.width)
        self.parameter(f"{path}.patch_embedder.position_embedding_table", (2, v.places, v.width))
        self.parameters.insert(-1, self.parameters.pop())  # named before the layer, placed behind it
        head = v.width // v.heads
        for _ in range(2):
            self.buffer((head // 4,), F32)
        for at in range(v.depth):
            layer = f"{path}.encoder.layers.{at}"
            for name in ("q", "k", "v", "o"):
                self._clamped(f"{layer}.self_attn.{name}_proj", v.width, v.width, v.clamps)
            for name in ("q", "k"):
                Norm(self, f"{layer}.self_attn.{name}_norm", head)
            for name, columns, rows in (("gate", v.width, v.ff), ("up", v.width, v.ff), ("down", v.ff, v.width)):
                self._clamped(f"{layer}.mlp.{name}_proj", columns, rows, v.clamps)
            for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
                Norm(self, f"{layer}.{name}_layernorm", v.width)

        for _ in range(2 if v.centres else 0):
            self.buffer((v.width,), self.options.dtype)

    def _place_hearing(self, path: str, h: Hearing) -> None:
        """``Gemma4AudioModel``."""
        first, second = h.channels
        for at, (before, behind) in enumerate(((1, first), (first, second))):
            stem = f"{path}.subsample_conv_projection.layer{at}"
            self.parameter(f"{stem}.conv.weight", (behind, before, 3, 3))
            LayerNorm(self, f"{stem}.norm", behind, bias=False)
        Linear(self, f"{path}.subsample_conv_projection.input_proj_linear", first // 4 * second, h.width)
        self.buffer((1, 1, h.width // 2), self.options.dtype)
        for at in range(h.depth):
            layer = f"{path}.layers.{at}"
            for name in ("feed_forward1", "feed_forward2"):
                self._clamped(f"{layer}.{name}.ffw_layer_1", h.width, 4 * h.width, h.clamps)
                self._clamped(f"{layer}.{name}.ffw_layer_2", 4 * h.width, h.width, h.clamps)
                self._norms(f"{layer}.{name}", ("pre_layer_norm", "post_layer_norm"), h.width)
            attention = f"{layer}.self_attn"
            for name in ("q_proj", "k_proj", "v_proj", "post"):
                self._clamped(f"{attention}.{name}", h.width, h.width, h.clamps)
            Linear(self, f"{attention}.relative_k_proj", h.width, h.width)
            self.parameter(f"{attention}.per_dim_scale", (h.width // h.heads,))
            self.buffer((), self.options.dtype)
            self._clamped(f"{layer}.lconv1d.linear_start", h.width, 2 * h.width, h.clamps)
            self._clamped(f"{layer}.lconv1d.linear_end", h.width, h.width, h.clamps)
            self.parameter(f"{layer}.lconv1d.depthwise_conv1d.weight", (h.width, 1, h.kernel))
            self._norms(f"{layer}.lconv1d", ("pre_layer_norm", "conv_norm"), h.width)
            self._norms(layer, ("norm_pre_attn", "norm_post_attn", "norm_out"), h.width)
        Linear(self, f"{path}.output_proj", h.width, h.out, bias=True)

    def _norms(self, path: str, names: tuple[str, ...], width: int) -> None:
        for name in names:
            Norm(self, f"{path}.{name}", width)

    def base(self, ids: Tensor, padding: Any, positions: Any = None, cache: Any = None, states: Any = None) -> Tensor:
        """``Gemma4Model``: words that stand for pictures, films or sound are looked for, and there are none."""
        world.recording.term = "activations_decoder"
        marks = [new(ids.shape, BOOL) for _ in range(3)]
        either = new(ids.shape, BOOL)
        any_of_them = new(ids.shape, BOOL)
        del either
        words = new(ids.shape, I64)
        pad_id = new((), I64)
        words = new(ids.shape, I64)
        del pad_id
        embeds = self.looked_up(words)
        own = masked_words = None
        if self.own is not None:
            pad = indexed(self.embed, 0)
            masked_words = gather(embeds, any_of_them, embeds.shape) if pad is not None else None
            own = self.own_inputs(words)
        positions = numbered_from(embeds, positions)
        blocks = new(embeds.shape[:2], I64) if self.lays_blocks() else None
        masks = masked(self, embeds, padding, cache, blocks=blocks is not None)
        found = self.passed(embeds, self.inputs_of_layers(embeds, own), masks, positions, cache)
        del marks, any_of_them, words, own, masked_words, positions, blocks, masks
        return found

    def lays_blocks(self) -> bool:
        """Whether blocks of pictures are laid over the masks where there is no picture."""
        return False


class Gemma4Unified(Gemma4Seeing):
    """``Gemma4UnifiedForConditionalGeneration``: patches and sound are projected without a tower."""

    clamps = False

    def _place_sight(self, path: str, v: Vision) -> None:
        """There is no tower."""

    def _place_hearing(self, path: str, h: Hearing) -> None:
        """Nor one that hears."""

    def _project(self, name: str, width: int, *, packs: bool) -> None:
        """``Gemma4UnifiedVisionEmbedder``; a projection alone of sound."""
        v, path, first = self.architecture.vision, f"model.embed_{name}", len(self.parameters)
        if name == "audio" or v is None:
            super()._project(name, width, packs=packs)
            return
        pixels = v.channels * v.patch**2
        LayerNorm(self, f"{path}.patch_ln1", pixels)
        Linear(self, f"{path}.patch_dense", pixels, width, bias=True)
        LayerNorm(self, f"{path}.patch_ln2", width)
        LayerNorm(self, f"{path}.pos_norm", width)
        Linear(self, f"{path}.multimodal_embedder.embedding_projection", width, self.architecture.d_model, packs=packs)
        self.parameter(f"{path}.pos_embedding", (v.places, 2, width))
        self.parameters.insert(first, self.parameters.pop())  # named before the layers, placed behind them

    def lays_blocks(self) -> bool:
        return self.architecture.vision is not None and self.architecture.vision.blocks
