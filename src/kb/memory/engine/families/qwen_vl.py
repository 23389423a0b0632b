"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: a vision tower, and Qwen2 or Qwen3 with places of three numbers.

It reads as ``modeling_qwen2_vl.py``, ``modeling_qwen2_5_vl.py`` and ``modeling_qwen3_vl.py``: names that live on there
live on here.
"""

from collections.abc import Collection, Sequence
from typing import Any

from kb.core.model import Architecture, Vision
from kb.core.setup import Images, TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.families.decoder import Decoder
from kb.memory.engine.families.decoder_inputs import masked
from kb.memory.engine.families.decoder_parts import ACTIVATIONS
from kb.memory.engine.families.picture_places import (
    AXES,
    Sizes,
    among_first,
    beside_beams,
    tables_of_places,
    told_places,
)
from kb.memory.engine.families.qwen_tower import Tower
from kb.memory.engine.families.recurrent import HeldMixed
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.ops.windows import at, put_at
from kb.memory.engine.runs.decoding import masked_longer
from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, new
from kb.memory.engine.world import Replaced, world


def placeholders(ids: Tensor) -> tuple[Tensor, Tensor]:
    """``get_placeholder_mask``: where pictures are, and films; the first are counted, and what is given."""
    pictures, films = new(ids.shape, BOOL), new(ids.shape, BOOL)
    counted = new((), I64)
    elements = new((), I64)
    same = new((), BOOL)
    del elements
    every = new((), BOOL)
    del same, every
    none = new((), I64)
    del counted, none
    return pictures, films


def check_seeing(architecture: Architecture, setup: TrainingSetup, activations: Collection[str]) -> None:
    """Refuse, by name, what is followed of no model that sees; ``activations`` are those that its tower may have.

    Raises:
        NotFollowedError: something of the run, or the tower's activation, or that nothing is known of pictures.
    """
    vision = architecture.vision
    assert vision is not None
    refused = {
        "label_smoothing_factor": setup.label_smoothing_factor > 0,
        "packing": setup.lengths is not None,
        **({str(setup.post.kind): setup.post.kind != "sft"} if setup.post is not None else {}),
        f"activation {vision.activation}": vision.activation not in activations,
    }
    for name, refuses in refused.items():
        if refuses:
            raise NotFollowedError(name)
    if setup.images is None:
        raise NotFollowedError("images of unknown size")


def check_words_alone(architecture: Architecture, setup: TrainingSetup) -> None:
    """Of a model whose tower is weighed and not followed: refuse pictures as well.

    Raises:
        NotFollowedError: as :func:`check_seeing`, or pictures.
    """
    assert architecture.vision is not None
    check_seeing(architecture, setup, (architecture.vision.activation,))
    if setup.images is not None and setup.images.number:
        raise NotFollowedError(f"images of {architecture.model_type}")


class Held:
    """The cache that the language model keeps in training too: the Trainer turns it off in the outer config alone
    (``model.config.use_cache``), and the inner model reads its own (``merge_with_config_defaults``).

    ``alike``: values are kept in the keys' type, as before 5.24."""

    def __init__(self, alike: bool = False) -> None:
        self.alike = alike
        self.tensors: list[Tensor] = []

    def length(self) -> int:
        """Tokens that were there before a pass: it is filled once."""
        return 0

    def update(self, at: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's keys and values, joined to none before them."""
        wide = ops.promoted(key, value) if self.alike else value.dtype
        key = ops.copied(key)
        value = ops.copied(value, wide)
        self.tensors += (key, value)
        return key, value

    def clear(self) -> None:
        self.tensors.clear()


class Seeing(Decoder):
    """A decoder with a tower, whose pictures stand in the place of some of its tokens."""

    inputs = 3  # ids, mask and labels; pictures come behind
    seen: Any = None  # what ``generate`` has seen of a prompt's pictures before it reads the prompt
    beside: Any = None  # what the last step's outputs hold beside logits
    caches = True  # the language model keeps a cache in training too, as its own config has it
    pictured: Any  # pictures in the place of their tokens, then the language model; and what the outputs hold of them
    pictures_of: Any  # what a batch holds of them, by rows, tokens of a row and the images' sizes
    features_of: Any  # ``get_image_features``: each picture's tokens, last, and what lives as long as they do

    def batch(self, rows: int, source: int, target: int = 0) -> list[Tensor]:
        """Ids, mask and labels, before which is made what lies behind them."""
        images = self.options.images
        if images is None or not images.number:
            return super().batch(rows, source, target)
        ids, mask = (new((rows, source), I64) for _ in range(2))
        pictures = self.pictures_of(rows, source, images)
        return [ids, mask, new((rows, source), I64), *pictures]

    def forward(self, *batch: Any, smoothed: bool = False) -> tuple[Any, ...]:
        ids, padding, labels, *pictures = batch
        cache = self.training_cache() if self.caches and not (self.options.checkpointing and world.training) else None
        x, seen = self.pictured(ids, padding, cache, *pictures)
        world.recording.term = "activations_head"
        loss, logits = self.loss_and_logits(x, labels, smoothed=smoothed)
        if cache is None:
            return loss, logits, seen
        return loss, logits, seen, cache.clear

    def training_cache(self) -> Any:
        """What the language model keeps in training too."""
        return Held(self.options.earlier.cache == "alike")

    def base(self, ids: Tensor, padding: Any, positions: Any = None, cache: Any = None, states: Any = None) -> Any:
        """A step of ``generate``: pictures come with the prompt alone (``prepare_inputs_for_generation``)."""
        x, self.beside = self.pictured(ids, padding, cache, positions=positions)
        self.seen = None
        return x

    def look(self, *pictures: Tensor) -> Any:
        """``_prepare_multimodal_encoder_kwargs_for_generation`` (generation/utils.py): pictures are seen before the
        prompt is read, and what is seen of them lives as long as the answer."""
        self.seen = self.features_of(*pictures)
        return self.seen

    def look_with_beams(self, ids: Tensor, beams: int) -> Any:
        """``_expand_multimodal_outputs``: what is seen, once for each beam."""
        *others, pieces = self.seen
        self.seen = *others, *beside_beams(ids, (pieces,), beams)
        return self.seen


class QwenVl(Seeing):
    """``Qwen2VLForConditionalGeneration`` and ``Qwen2_5_VLForConditionalGeneration``."""

    deltas: Any = None  # by how much places are moved behind a sample's pictures
    told: Any = None  # where the last step had found them

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        vision, images = architecture.vision, setup.images
        assert vision is not None
        check_seeing(architecture, setup, (*ACTIVATIONS, "quick_gelu"))
        assert images is not None
        tokens = images.patches // vision.merge**2 + images.number
        if images.rows % vision.merge or images.columns % vision.merge or tokens >= setup.max_source_length:
            raise NotFollowedError(f"{tokens - images.number} image tokens in {setup.max_source_length}")

    def every_layer(self) -> list[Any]:
        return [*self.visual.blocks, *self.layers]

    def beside_layers(self) -> list[Any]:
        return [self.visual]

    def build(self) -> None:
        assert self.architecture.vision is not None
        self.vision: Vision = self.architecture.vision
        self.visual = Tower(self, self.vision)
        super().build()

    def pictures_of(self, rows: int, source: int, images: Images) -> list[Tensor]:
        vision = self.vision
        types = new((rows, source), I64)
        sizes = new((rows * images.number, AXES), I64)
        width = vision.channels * vision.frames * vision.patch**2
        pixels = new((rows * images.patches, width), F32)
        return [types, sizes, pixels]

    def pictured(
        self, ids: Tensor, padding: Any, cache: Any, *pictures: Tensor, positions: Any = None
    ) -> tuple[Tensor, Any]:
        """``Qwen2_5_VLModel``: pictures in the place of their tokens, then the language model; what the outputs hold
        of what is seen is given too (``image_outputs``, since 5.24)."""
        images = self.options.images
        embeds = self.part("embed", self.looked_up, ids)
        held: Any = self.seen
        if pictures:
            held = self.features_of(*pictures)
        image_embeds = masks = None
        deep: list[Tensor] = []
        if held is not None:
            image_embeds = ops.cast(ops.cat(held[-1], 0), embeds.dtype)
            masks = placeholders(ids)
            embeds = ops.put_where(embeds, masks[0], image_embeds)
            deep = [ops.cat(each, 0) for each in held[-2]]
        if images is not None and pictures:
            positions, self.deltas = told_places(ids, padding, images, self.vision)
            self.told = world.recording.here()
        x = self.decoded(embeds, padding, positions, cache, masks and masks[0], deep)
        del image_embeds, masks, deep
        return x, self.in_outputs(held)

    def replaced(self) -> Sequence[Replaced]:
        return () if self.told is None else ((self.deltas.storage, self.told),)

    def in_outputs(self, held: Any) -> Any:
        """What a step's outputs hold of what was seen."""
        return None if held is None or self.options.earlier.gives_features else (held[0], *held[-1])

    def features_of(self, *pictures: Tensor) -> tuple[Any, ...]:
        images, pixels = self.options.images, pictures[-1]
        assert images is not None
        sizes = Sizes(images, self.vision, pixels.shape[0] // images.patches)
        dtype = self.visual.patch_embed.weight.dtype
        pixels = ops.cast(pixels, dtype)
        states, merged, deep = self.visual(pixels, sizes)
        world.recording.term = "activations_decoder"
        merged_pieces = ops.pieces(merged, 0, sizes.tokens)
        deep_pieces = [ops.pieces(each, 0, sizes.tokens) for each in deep]
        areas = new((sizes.count,), I64)
        shares_of = new((sizes.count,), I64)
        del areas, shares_of, pixels
        return states, merged, deep_pieces, merged_pieces

    def look_with_beams(self, ids: Tensor, beams: int) -> Any:
        *others, deep, pieces = self.seen
        pieces, *deep = beside_beams(ids, (pieces, *deep), beams)
        self.seen = *others, deep, pieces
        return self.seen

    def decoded(
        self, embeds: Tensor, padding: Any, positions: Any, cache: Any, mask: Any, deep: Sequence[Tensor]
    ) -> Tensor:
        """``Qwen2_5_VLTextModel``; behind its first layers the tokens of earlier states (``deep``) are added where
        ``mask`` is (Qwen3-VL)."""
        world.recording.term = "activations_decoder"
        batch, length, _ = embeds.shape
        if positions is None:
            first = new((length,), I64)
            positions = new((length,), I64)
            del first
        attended = masked(self, embeds, padding, cache, looks=False)
        cos, sin = tables_of_places(batch, length, self.rotary_width, embeds.dtype, self.shares)
        x = embeds
        for number, layer in enumerate(self.layers):
            outputs = x = self.layer(layer, x, attended, cos, sin, cache, None)
            if number < len(deep):
                x = added_where(x, mask, deep[number])
        del outputs  # which was held beside what is added to it
        return self.part("norm", self.norm, x)  # type: ignore[no-any-return]

    def shares(self, freqs: Tensor) -> Tensor:
        """``recomposition_frequencies``: of each place its share, and that twice."""
        _, batch, length, half = freqs.shape
        taken = new((batch, length, half), F32)
        out = new((batch, length, 2 * half), F32)
        del taken
        return out

    # What ``generate`` does.

    def kinds_of(self, batch: list[Any]) -> Any:
        return batch[3] if len(batch) > self.inputs else None

    def numbered(self, places: Any, ids: Tensor, mask: Any, kinds: Any) -> Any:
        """Places of text, and behind them those in time, height and width."""
        rows, length = ids.shape
        images = self.options.images
        if kinds is None or images is None:
            seen, self.deltas = places, new((rows, 1), I64)
        else:
            asked = new((), BOOL)  # are there pictures?
            del asked
            seen, self.deltas = told_places(ids, mask, images, self.vision)
        found = new((1 + AXES, rows, length), I64)
        del seen
        return found

    def kinds_longer(self, rows: int, length: int) -> Tensor:
        return masked_longer(rows, length)


class Qwen3Vl(QwenVl):
    """``Qwen3VLForConditionalGeneration``."""

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        super().check(architecture, setup)
        if setup.liger_kernels is not None:
            raise NotFollowedError("use_liger_kernel of qwen3_vl")

    def in_outputs(self, held: Any) -> Any:
        """``CausalLMOutputWithPast``: nothing of it."""
        return None

    def shares(self, freqs: Tensor) -> Tensor:
        return among_first(freqs)


def added_where(x: Tensor, mask: Tensor, more: Tensor) -> Tensor:
    """``_deepstack_process``: a copy, to whose tokens of pictures something is added."""
    more = ops.cast(more, x.dtype)
    x = ops.clone(x)
    added = ops.add(at(x, (mask,), more.shape), more)
    return put_at(x, (mask,), added)


class Qwen35(QwenVl):
    """``Qwen3_5ForConditionalGeneration``, of words alone, which reach no tower."""

    reaches_all = False

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        check_words_alone(architecture, setup)

    def training_cache(self) -> Any:
        return HeldMixed(self.options.earlier.cache)

    def pictured(
        self, ids: Tensor, padding: Any, cache: Any, *pictures: Tensor, positions: Any = None
    ) -> tuple[Tensor, Any]:
        return Decoder.base(self, ids, padding, positions, cache), None
