"""PaliGemma: SigLIP's tower, one layer behind it, and Gemma or Gemma 2, which sees a prompt as one block; Gemma 3,
whose tower's patches are averaged, and which sees each picture as a block.

It reads as ``modeling_paligemma.py`` and ``modeling_gemma3.py``: names that live on there live on here.
"""

from collections.abc import Sequence
from typing import Any

from kb.core.model import Architecture, Vision
from kb.core.setup import Images, TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.families.attention import Cache
from kb.memory.engine.families.decoder_inputs import BOTH, NAMED, masked, numbered_from, of_layer, tables_by_kind
from kb.memory.engine.families.decoder_parts import GemmaNorm
from kb.memory.engine.families.llava import Llava, placeholders
from kb.memory.engine.families.picture_places import counted_by_sample
from kb.memory.engine.families.qwen_vl import Held
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import Linear, Model
from kb.memory.engine.ops.pooling import averaged_squares
from kb.memory.engine.ops.products import product
from kb.memory.engine.runs.decoding import masked_longer
from kb.memory.engine.tensor import BOOL, I32, I64, Tensor, new
from kb.memory.engine.world import world


class Projector:
    """``PaliGemmaMultiModalProjector``: one layer, from the tower's width to the words'."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        self.path = path
        self.linear = Linear(model, f"{path}.linear", vision.width, model.architecture.d_model, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["Projector"] = self.path
        return self.linear(x)


class HeldInWindows(Held):
    """Of Gemma 2: a layer that slides puts its window's size on the GPU first (``DynamicSlidingWindowLayer``)."""

    def __init__(self, slides: Sequence[bool], alike: bool) -> None:
        super().__init__(alike)
        self.slides = slides

    def update(self, at: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if self.slides[at]:
            self.tensors.append(new((), I64))
        return super().update(at, key, value)


class PaliGemma(Llava):
    """``PaliGemmaForConditionalGeneration``. Its processor says of each token whether it is of the prompt."""

    projector_class: Any = Projector
    kinds: Any = None  # of the tokens of a prompt that ``generate`` reads
    mapped = False  # of a window over the blocks

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        if setup.attn_implementation == "flash" and not setup.earlier.gives_features:  # refused since 5.24
            raise NotFollowedError("flash_attention_2 of paligemma")
        super().check(architecture, setup)

    def build(self) -> None:
        super().build()
        if self.traits.kinds == BOTH:  # the model makes the masks, and none of a window where there is none
            self.traits = self.traits._replace(kinds=NAMED)

    def pictures_of(self, rows: int, source: int, images: Images) -> list[Tensor]:
        kinds = new((rows, source), I64)
        return [*super().pictures_of(rows, source, images), kinds]

    def training_cache(self) -> Held:
        alike = self.options.earlier.cache == "alike"
        return HeldInWindows(self.slides, alike) if self.architecture.window else super().training_cache()

    def pictured(
        self, ids: Tensor, padding: Any, cache: Any, *pictures: Tensor, positions: Any = None
    ) -> tuple[Tensor, Any]:
        """``PaliGemmaModel``: pictures in the place of their tokens, then masks, then the language model."""
        world.recording.term = "activations_decoder"
        embeds = self.part("embed", self.looked_up, ids)
        positions = self.placed_from(embeds, positions)
        features: Any = None
        held, kinds = self.seen, self.kinds
        if pictures:
            pixels, kinds = pictures
            held = self.features_of(pixels)
        if held is not None:
            features = ops.cast(held[-1], embeds.dtype)
            world.recording.term = "activations_decoder"
            mask = placeholders(ids)
            embeds = ops.put_where(embeds, mask, features)
        blocks = None if kinds is None else self.blocks_of(kinds)
        known = None if isinstance(cache, Held) else cache  # in training the language model makes its own
        # flash attention has no blocks: transformers leaves them out
        blocked = blocks is not None and not self.options.flash
        looks = positions is not None
        masks = masked(self, embeds, padding, known, looks=looks, blocks=blocked, mapped=blocked and self.mapped)
        x = self.behind_masks(embeds, masks, cache, positions)
        del blocks
        return x, self.given(features, held)

    def placed_from(self, embeds: Tensor, positions: Any) -> Any:
        """Places from one on, before anything is seen."""
        return places_from_one(embeds.shape[1]) if positions is None else positions

    def blocks_of(self, kinds: Tensor) -> Tensor:
        """Tokens of the prompt are one block, which see all of it."""
        compared = new(kinds.shape, BOOL)
        block, none = new((), I64), new((), I64)
        found = new(kinds.shape, I64)
        del compared, block, none
        return found

    def in_outputs(self, held: Any) -> tuple[Tensor, ...]:
        return held  # type: ignore[no-any-return]

    def features_of(self, pixels: Tensor, *_: Tensor) -> tuple[Any, ...]:
        """``get_image_features``: the tower's last states, which live as long as what is projected of them."""
        last: Tensor = self.tower(pixels)[0]
        return last, self.projector(last)

    # What ``generate`` does of its own.

    def look_with_beams(self, ids: Tensor, beams: int) -> Any:
        """Features that are one tensor are repeated sample by sample, and put together again."""
        last, features = self.seen
        self.seen, shape, dtype = None, features.shape, features.dtype
        with counted_by_sample(ids, shape[0]) as number:
            repeated: Any = [new((number * beams, *shape[1:]), dtype) for _ in range(ids.shape[0])]
            features = None
            self.seen = last, new((shape[0] * beams, *shape[1:]), dtype)
            del repeated
        return self.seen

    def kinds_of(self, batch: list[Any]) -> Any:
        return batch[-1] if len(batch) > self.inputs else None

    def counted(self, places: Any) -> Any:
        """Places from one on."""
        return new(places.shape, I64)

    def kinds_longer(self, rows: int, length: int) -> Tensor:
        """The last kind once more, which :meth:`named_longer` replaces."""
        return new((rows, length), I64)

    def named_longer(self, kinds: Any, rows: int, length: int) -> Any:
        return kinds and masked_longer(rows, length)

    def answered(self, ids: Tensor, padding: Any, positions: Any, kinds: Any, cache: Cache) -> Tensor:
        """Only a prompt is a block."""
        self.kinds = None if cache.length() else kinds
        out = self.step(ids, padding, positions, cache)
        self.kinds = None
        return out

    def behind_masks(self, embeds: Tensor, masks: Any, cache: Any, positions: Tensor) -> Tensor:
        """``GemmaModel`` from embeddings and a mask on."""
        tables, shape = self.traits.tables, (positions.shape[0], embeds.shape[1])
        cos, sin = self.part("turn", tables, *shape, self.rotary_width, embeds.dtype)
        x = embeds
        for layer in self.layers:
            x = self.layer(layer, x, of_layer(masks, slides=layer.slides), cos, sin, cache, positions)
        return self.part("norm", self.norm, x)  # type: ignore[no-any-return]


def places_from_one(length: int) -> Tensor:
    """``arange(length) + past``, then one more."""
    plain = new((length,), I64)
    places = new((length,), I64)
    del plain
    from_one = new((1, length), I64)
    del places
    return from_one


class AveragedProjector:
    """``Gemma3MultiModalProjector``: neighbours averaged, a norm, and a product with a weight that is no layer's."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        self.path, self.side, self.merge = path, vision.image // vision.patch, vision.merge
        self.norm = GemmaNorm(model, f"{path}.mm_soft_emb_norm", vision.width)
        self.weight = model.parameter(f"{path}.mm_input_projection_weight", (vision.width, model.architecture.d_model))
        model.parameters.insert(-1, model.parameters.pop())  # placed behind its module's child, named before it

    def __call__(self, states: Tensor) -> Tensor:
        world.inside["AveragedProjector"] = self.path
        pictures, _, width = states.shape
        x = ops.reshape(ops.transpose(states, 1, 2), (pictures, width, self.side, self.side))
        x = ops.contiguous(x)
        pooled = averaged_squares(x, self.merge)
        pooled = ops.view(pooled, (pictures, width, (self.side // self.merge) ** 2))
        pooled = ops.transpose(pooled, 1, 2)
        normed = self.norm(pooled)
        return ops.cast(product(normed, self.weight), states.dtype)


class Gemma3(PaliGemma):
    """``Gemma3ForConditionalGeneration``. Its processor says of each token whether it is of a picture."""

    gathers = False  # its projector's own weight under ZeRO-3, which was not compared
    projector_class = AveragedProjector
    mapped = True

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        if setup.attn_implementation == "flash":
            raise NotFollowedError("flash_attention_2 of gemma3")
        super().check(architecture, setup)

    @classmethod
    def tokens_of(cls, images: Images, vision: Vision) -> int:
        return (vision.image // vision.patch // vision.merge) ** 2

    def placed_from(self, embeds: Tensor, positions: Any) -> Any:
        """The language model counts, once all masks are there."""
        return positions

    def blocks_of(self, kinds: Tensor) -> Tensor:
        """``get_block_sequence_ids_for_mask``: tokens of a picture are a block."""
        of_picture = new(kinds.shape, BOOL)
        longer = new((kinds.shape[0], kinds.shape[1] + 1), BOOL)
        before = new(kinds.shape, BOOL)
        begins = new(kinds.shape, BOOL)
        del before
        whole = new(kinds.shape, I32)
        summed = new(kinds.shape, I64)
        del whole
        groups = new(kinds.shape, I64)
        del summed
        none = new((), I64)
        found = new(kinds.shape, I64)
        del of_picture, longer, begins, groups, none
        return found

    def counted(self, places: Any) -> Any:
        return places

    def named_longer(self, kinds: Any, rows: int, length: int) -> Any:
        return kinds

    def behind_masks(self, embeds: Tensor, masks: Any, cache: Any, positions: Any) -> Tensor:
        """``Gemma3TextModel``, likewise."""
        positions = numbered_from(embeds, positions)
        cos, sin, tables = tables_by_kind(self, embeds, positions)
        x = embeds
        for layer in self.layers:
            given = (of_layer(each, slides=layer.slides) for each in (masks, cos, sin))
            x = self.layer(layer, x, *given, cache, positions)
        del tables
        return self.part("norm", self.norm, x)  # type: ignore[no-any-return]
