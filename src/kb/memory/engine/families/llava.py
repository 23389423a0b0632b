"""LLaVA: a tower that sees pictures of one size, a projector, and Llama or its kin. LLaVA-NeXT cuts pictures into tiles
as their size has it, beside the whole made small.

The towers are CLIP's and SigLIP's: a picture's patches in, of CLIP its class before them, and states of each out.
It reads as ``modeling_llava.py``, ``modeling_llava_next.py``, ``modeling_clip.py`` and ``modeling_siglip.py``: names
that live on there live on here.
"""

from typing import Any

from kb.core.model import Architecture, Vision
from kb.core.setup import Images, TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.families.attention import eager_forward, for_flash, heads_of, sdpa_forward
from kb.memory.engine.families.decoder_parts import ACTIVATIONS, activation_of
from kb.memory.engine.families.decoder_wirings import sequential
from kb.memory.engine.families.qwen_vl import Seeing, check_seeing
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import LayerNorm, Linear, Model
from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, new
from kb.memory.engine.world import world
from kb.memory.picture_tiles import Tiles, tiles_of

TOWER_ACTIVATIONS = {**ACTIVATIONS, "quick_gelu": ops.quick_gelu}


class Patches:
    """A convolution whose strides are its kernel."""

    def __init__(self, model: Model, path: str, vision: Vision, *, bias: bool = True) -> None:
        kernel = (vision.width, vision.channels, vision.patch, vision.patch)
        self.model, self.path = model, path
        self.weight = model.parameter(f"{path}.weight", kernel)
        self.bias = model.parameter(f"{path}.bias", (vision.width,)) if bias else None

    def __call__(self, pixels: Tensor) -> Tensor:
        world.inside["Patches"] = self.path
        return ops.patches(pixels, self.weight, self.bias)


class Positions:
    """A table of positions."""

    def __init__(self, model: Model, path: str, rows: int, width: int) -> None:
        self.path = path
        self.weight = model.table(path, rows, width)

    def __call__(self, places: Tensor) -> Tensor:
        world.inside["Positions"] = self.path
        return ops.embedding(places, self.weight)


class ClipEmbeddings:
    """``CLIPVisionEmbeddings``: patches, the class before them, positions."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        self.model, self.path = model, path
        self.patches = Patches(model, f"{path}.patch_embedding", vision, bias=False)
        self.count = (vision.image // vision.patch) ** 2 + 1
        self.positions = Positions(model, f"{path}.position_embedding", self.count, vision.width)
        self.first = model.parameter(f"{path}.class_embedding", (vision.width,))
        model.parameters.insert(-3, model.parameters.pop())  # placed behind its module's children, named before them
        model.buffer((1, self.count), I64)
        self.places = Tensor((1, self.count), I64, (self.count, 1), None)  # the buffer, which is there all along

    def __call__(self, pixels: Tensor) -> Tensor:
        world.inside["ClipEmbeddings"] = self.path
        weight = self.patches.weight
        pictures, width = pixels.shape[0], weight.shape[0]
        patch_embeds = self.patches(ops.cast(pixels, weight.dtype))
        self.model.require_input_grads(patch_embeds)
        patch_embeds = ops.transpose(ops.view(patch_embeds, (pictures, width, self.count - 1)), 1, 2)
        class_embeds = ops.expand(self.first, (pictures, 1, width))
        embeddings = ops.cat((class_embeds, patch_embeds), 1)
        return ops.add(embeddings, self.positions(self.places))


class SiglipEmbeddings:
    """``SiglipVisionEmbeddings``: patches and positions."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        self.model, self.path = model, path
        self.patches = Patches(model, f"{path}.patch_embedding", vision)
        self.count = (vision.image // vision.patch) ** 2
        self.positions = Positions(model, f"{path}.position_embedding", self.count, vision.width)
        model.buffer((1, self.count), I64)
        self.places = Tensor((1, self.count), I64, (self.count, 1), None)  # the buffer, which is there all along

    def __call__(self, pixels: Tensor) -> Tensor:
        world.inside["SiglipEmbeddings"] = self.path
        weight = self.patches.weight
        patch_embeds = self.patches(ops.cast(pixels, weight.dtype))
        self.model.require_input_grads(patch_embeds)
        shape = (pixels.shape[0], weight.shape[0], self.count)
        embeddings = ops.transpose(ops.view(patch_embeds, shape), 1, 2)
        return ops.add(embeddings, self.positions(self.places))


class ClipAttention:
    """``CLIPAttention``: every patch sees all of its picture. SigLIP sees each projection by heads at once."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        self.model, self.path, self.heads, self.together = model, path, vision.heads, vision.classed
        self.k, self.v, self.q, self.o = (
            Linear(model, f"{path}.{name}", vision.width, vision.width, bias=True)
            for name in ("k_proj", "v_proj", "q_proj", "out_proj")
        )

    def __call__(self, x: Tensor) -> tuple[Tensor, Any]:
        world.inside["ClipAttention"] = self.path
        if self.together:
            q = self.q(x)
            k = self.k(x)
            v = self.v(x)
            q = heads_of(q, self.heads)
            k = heads_of(k, self.heads)
            v = heads_of(v, self.heads)
        else:
            q = heads_of(self.q(x), self.heads)
            k = heads_of(self.k(x), self.heads)
            v = heads_of(self.v(x), self.heads)
        weights = None
        if self.model.options.eager:
            out, weights = eager_forward(q, k, v, None, wide=True)
        elif self.model.options.flash:
            out = sdpa_forward(*for_flash(q, k, v, self.model.options.dtype), None)
        else:
            out = sdpa_forward(q, k, v, None)
        out = ops.contiguous(ops.reshape(out, x.shape))
        out = self.o(out)
        return out, weights


class ClipMlp:
    """``CLIPMLP``."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        self.path, self.act = path, TOWER_ACTIVATIONS[vision.activation]
        self.first = Linear(model, f"{path}.fc1", vision.width, vision.ff, bias=True)
        self.second = Linear(model, f"{path}.fc2", vision.ff, vision.width, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["ClipMlp"] = self.path
        x = self.first(x)
        x = self.act(x)
        return self.second(x)


class ClipLayer:
    """``CLIPEncoderLayer``: each part behind its norm; attention's weights live until the layer is done."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        self.path = path
        if vision.classed:
            self.attention = ClipAttention(model, f"{path}.self_attn", vision)
            self.norm1 = LayerNorm(model, f"{path}.layer_norm1", vision.width)
            self.mlp = ClipMlp(model, f"{path}.mlp", vision)
            self.norm2 = LayerNorm(model, f"{path}.layer_norm2", vision.width)
            return
        self.norm1 = LayerNorm(model, f"{path}.layer_norm1", vision.width)
        self.attention = ClipAttention(model, f"{path}.self_attn", vision)
        self.norm2 = LayerNorm(model, f"{path}.layer_norm2", vision.width)
        self.mlp = ClipMlp(model, f"{path}.mlp", vision)

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["ClipLayer"] = self.path
        return sequential(self, x)


class ClipTower:
    """``CLIPVisionModel`` and ``SiglipVisionModel``: all layers are run, though what is projected may be the states
    before the last."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        self.model, self.vision, self.path = model, vision, path
        kind = ClipEmbeddings if vision.classed else SiglipEmbeddings
        self.embeddings = kind(model, f"{path}.embeddings", vision)
        self.before = LayerNorm(model, f"{path}.pre_layrnorm", vision.width) if vision.classed else None
        self.layers = [ClipLayer(model, f"{path}.encoder.layers.{at}", vision) for at in range(vision.depth)]
        self.behind = LayerNorm(model, f"{path}.post_layernorm", vision.width)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Any, dict[int, Tensor]]:
        """The last states, what is pooled of them, which nobody reads, and the states that are projected.

        CLIP's norm behind all layers is the class's alone, SigLIP's that of all states.
        """
        world.inside["ClipTower"] = self.path
        world.recording.term = "activations_encoder"
        first = self.embeddings(pixels)
        if self.before is not None:
            first = self.before(first)
        x, kept = first, {}
        if 0 in self.vision.states:
            kept[0] = first
        for at, layer in enumerate(self.layers, 1):
            x = self.model.layer(layer, x)
            if at in self.vision.states:
                kept[at] = x
        if not self.vision.classed:
            return self.behind(x), None, kept
        pooled = ops.indexed(x, 1)
        pooled = self.behind(pooled)
        return x, pooled, kept


class Projector:
    """``LlavaMultiModalProjector``: two layers, from the tower's width to the words'."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        width, self.path = model.architecture.d_model, path
        seen = vision.width * len(vision.states)
        self.first = Linear(model, f"{path}.linear_1", seen, width, bias=vision.projector_bias)
        self.second = Linear(model, f"{path}.linear_2", width, width, bias=vision.projector_bias)
        self.act = activation_of(vision.projector_activation)

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["Projector"] = self.path
        x = self.first(x)
        x = self.act(x)
        return self.second(x)


class Llava(Seeing):
    """``LlavaForConditionalGeneration``."""

    flattens = shards = False
    projector_class: Any = Projector

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        vision = architecture.vision
        assert vision is not None
        check_seeing(architecture, setup, TOWER_ACTIVATIONS)
        assert setup.images is not None
        tokens = cls.tokens_of(setup.images, vision) * setup.images.number
        if tokens and tokens + setup.images.number >= setup.max_source_length:
            raise NotFollowedError(f"{tokens} image tokens in {setup.max_source_length}")

    @classmethod
    def tokens_of(cls, images: Images, vision: Vision) -> int:
        """Tokens of one picture: a patch's each and the class's, without the first where it is left out
        (``LlavaProcessor``)."""
        return (vision.image // vision.patch) ** 2 + vision.classed - vision.drops_first

    def every_layer(self) -> list[Any]:
        return [*self.tower.layers, *self.layers]

    def beside_layers(self) -> list[Any]:
        return [self.tower, self.projector]

    def build(self) -> None:
        assert self.architecture.vision is not None
        self.vision: Vision = self.architecture.vision
        self.build_sight()
        super().build()

    def build_sight(self) -> None:
        """The tower, and what lies behind it."""
        self.tower = ClipTower(self, "model.vision_tower", self.vision)
        self.projector = self.projector_class(self, "model.multi_modal_projector", self.vision)

    def pictures_of(self, rows: int, source: int, images: Images) -> list[Tensor]:
        vision = self.vision
        return [new((rows * images.number, vision.channels, vision.image, vision.image), F32)]

    def pictured(
        self, ids: Tensor, padding: Any, cache: Any, *pictures: Tensor, positions: Any = None
    ) -> tuple[Tensor, Any]:
        """``LlavaModel``: pictures in the place of their tokens, then the language model; what is seen is given too."""
        world.recording.term = "activations_decoder"
        embeds = self.part("embed", self.looked_up, ids)
        features: Any = None
        held: Any = self.seen
        if pictures:
            held = self.features_of(*pictures)
        if held is not None:
            features = ops.cast(ops.cat(held[-1], 0), embeds.dtype)
            world.recording.term = "activations_decoder"
            mask = placeholders(ids)
            embeds = ops.put_where(embeds, mask, features)
        x = self.decoded(embeds, padding, cache, positions)
        return x, self.given(features, held)

    def given(self, features: Any, held: Any) -> Any:
        """What the outputs hold of what is seen: all that came of it (``image_outputs``); before 5.24 what took the
        place of words."""
        return features if held is None or self.options.earlier.gives_features else self.in_outputs(held)

    def in_outputs(self, held: Any) -> tuple[Tensor, ...]:
        """The tensors of the tower's outputs, in the order of their names."""
        last, kept, features = held
        return last, *features, *kept.values()

    def features_of(self, pixels: Tensor) -> tuple[Any, ...]:
        last, pooled, kept = self.tower(pixels)
        selected = self.selected(kept)
        features = self.projector(selected)
        del pooled
        return last, kept, ops.unbind(features, 0)

    def selected(self, kept: dict[int, Tensor]) -> Tensor:
        """The states that are projected, those of several layers side by side."""
        found = [self.without_first(kept[at]) for at in self.vision.states]
        return found[0] if len(found) == 1 else ops.cat(found)

    def without_first(self, states: Tensor) -> Tensor:
        """``[:, 1:]``, where the class is left out."""
        return ops.cut(states, 1, states.shape[1] - 1) if self.vision.drops_first else states

    def decoded(self, embeds: Tensor, padding: Any, cache: Any, positions: Any = None) -> Tensor:
        """``LlamaModel`` from embeddings on."""
        x, mask, cos, sin, positions, *held = self.traits.inputs(self, embeds, padding, positions, cache)
        for layer in self.layers:
            x = self.layer(layer, x, mask, cos, sin, cache, positions)
        del held
        return self.part("norm", self.norm, x)  # type: ignore[no-any-return]


def placeholders(ids: Tensor, *, named: bool = True) -> Tensor:
    """``get_placeholder_mask``: where pictures are, who are counted. ``named``: the count has a name."""
    mask = new(ids.shape, BOOL)
    counted: Any = new((), I64)
    elements = new((), I64)
    if not named:
        counted = None
    same = new((), BOOL)
    del elements
    every = new((), BOOL)
    del same, every, counted
    return mask


class LlavaNext(Llava):
    """``LlavaNextForConditionalGeneration``, which hands its own ``use_cache`` on, that the Trainer turns off."""

    caches = False

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        vision, images = architecture.vision, setup.images
        assert vision is not None
        if images is not None and images.number:
            tiles = tiles_of(images.rows, images.columns, vision)
            if tiles.rows < 1 or tiles.columns < 1:  # nothing is left without its padding
                raise NotFollowedError(f"images of {images.rows} × {images.columns} pixels")
        super().check(architecture, setup)

    @classmethod
    def tokens_of(cls, images: Images, vision: Vision) -> int:
        """What :func:`tiles_of` says of a picture's size."""
        return tiles_of(images.rows, images.columns, vision).tokens if images.number else 0

    def place_head(self) -> None:
        """The new line is the model's own, and is placed before the head."""
        self.newline = self.parameter("model.image_newline", (self.architecture.d_model,))
        self.parameters.insert(0, self.parameters.pop())  # placed behind its module's children, named before them
        super().place_head()

    def pictures_of(self, rows: int, source: int, images: Images) -> list[Tensor]:
        vision = self.vision
        count, tiles = rows * images.number, tiles_of(images.rows, images.columns, vision)
        pixels = new((count, tiles.number + 1, vision.channels, vision.image, vision.image), F32)
        return [pixels, new((count, 2), I64)]  # with the pictures' sizes

    def features_of(self, pixels: Tensor, *_: Tensor) -> tuple[Any, ...]:
        """``get_image_features``: the tiles of all pictures together; of each what :meth:`packed` makes of them."""
        images = self.options.images
        assert images is not None
        tiles, count = tiles_of(images.rows, images.columns, self.vision), pixels.shape[0]
        pixels = ops.cat([ops.indexed(pixels, 0)] * count, 0)
        last, pooled, kept = self.tower(pixels)
        selected = self.selected(kept)
        features = self.projector(selected)
        split = ops.pieces(features, 0, (tiles.number + 1,) * count)
        found: list[Tensor] = []
        base: Any = None
        for feature in split:
            base = ops.indexed(feature, 0)
            found.append(self.packed(base, ops.cut(feature, 0, tiles.number), tiles))
        lengths = new((count,), I64)
        del pooled, pixels, selected, features, split, base, lengths
        return last, kept, found

    def selected(self, kept: dict[int, Tensor]) -> Tensor:
        """Several layers' states are put side by side before the class is left out."""
        found = [kept[at] for at in self.vision.states]
        return self.without_first(found[0] if len(found) == 1 else ops.cat(found))

    def packed(self, base: Tensor, feature: Tensor, tiles: Tiles) -> Tensor:
        """``pack_image_features`` of one picture."""
        width, side = feature.shape[-1], tiles.side
        feature = ops.view(feature, (tiles.high, tiles.wide, side, side, width))
        feature = ops.contiguous(ops.permute(feature, (4, 0, 2, 1, 3)))
        feature = ops.view(feature, (width, tiles.high * side, tiles.wide, side))
        feature = ops.view(feature, (width, tiles.high * side, tiles.wide * side))
        for at, size in ((1, tiles.rows), (2, tiles.columns)):
            if size < feature.shape[at]:
                feature = ops.cut(feature, at, size)
        newline = ops.expand(ops.unsqueeze(ops.unsqueeze(self.newline, 1), 2), (width, tiles.rows, 1))
        feature = ops.cat((feature, ops.cast(newline, feature.dtype)))
        del newline
        feature = ops.view(feature, (width, tiles.rows * (tiles.columns + 1)))
        return ops.cat((base, ops.transpose(feature, 0, 1)), 0)
