"""Idefics3 and SmolVLM: a SigLIP tower over a picture's tiles, a shuffle of patches with one layer, and Llama.

It reads as ``modeling_idefics3.py`` and ``modeling_smolvlm.py``: names that live on there live on here.
"""

from typing import Any

from kb.core.model import Architecture, Vision
from kb.core.setup import Images, TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.families.llava import (
    ClipAttention,
    ClipLayer,
    ClipMlp,
    ClipTower,
    Llava,
    Patches,
    Positions,
    placeholders,
)
from kb.memory.engine.families.picture_places import beside_beams
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import LayerNorm, Linear, Model
from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, new
from kb.memory.engine.world import world
from kb.memory.picture_tiles import pieces_of


class Embeddings:
    """``Idefics3VisionEmbeddings``: patches, and a position for each by where in its picture it lies."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        self.model, self.path, self.side = model, path, vision.image // vision.patch
        self.patches = Patches(model, f"{path}.patch_embedding", vision)
        self.positions = Positions(model, f"{path}.position_embedding", self.side**2, vision.width)

    def __call__(self, pixels: Tensor) -> Tensor:
        world.inside["Embeddings"] = self.path
        weight = self.patches.weight
        patch_embeds = self.patches(ops.cast(pixels, weight.dtype))
        shape = (pixels.shape[0], weight.shape[0], self.side**2)
        embeddings = ops.transpose(ops.view(patch_embeds, shape), 1, 2)
        places, held = self.placed(pixels.shape[0])
        found = ops.add(embeddings, self.positions(places))
        del held, patch_embeds
        self.model.require_input_grads(found)
        return found

    def placed(self, pictures: int) -> tuple[Tensor, Any]:
        """Each patch's position, and what lives as long: parts of the whole by row and by column, put in buckets."""
        side = self.side
        bounds, places = new((side - 1,), F32), new((pictures, side**2), I64)
        counts = [new((pictures,), I64) for _ in range(2)]
        steps = []
        for _ in range(2):
            inverse = new((pictures,), F32)
            steps.append(new((pictures,), F32))
            del inverse
        indices = [new((side,), F32) for _ in range(2)]
        parts = [new((pictures, side), F32) for _ in range(2)]
        for at in range(2):
            parts[at] = new((pictures, side), F32)  # clamped
        buckets = [new((pictures, side), I64) for _ in range(2)]
        first = new((pictures, side, 1), I64)
        numbers = new((pictures, side, side), I64)
        del first
        places = new((pictures, side**2), I64)
        return places, (bounds, counts, steps, indices, parts, buckets, numbers)


class Layer(ClipLayer):
    """``Idefics3EncoderLayer``: SigLIP's, whose attention and feed-forward are placed before their norms."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        self.path = path
        self.attention = ClipAttention(model, f"{path}.self_attn", vision)
        self.norm1 = LayerNorm(model, f"{path}.layer_norm1", vision.width)
        self.mlp = ClipMlp(model, f"{path}.mlp", vision)
        self.norm2 = LayerNorm(model, f"{path}.layer_norm2", vision.width)


class Tower(ClipTower):
    """``Idefics3VisionTransformer``: all of every tile is seen, so that no mask is made."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        self.model, self.vision, self.path = model, vision, path
        self.embeddings = Embeddings(model, f"{path}.embeddings", vision)  # type: ignore[assignment]
        self.layers = [Layer(model, f"{path}.encoder.layers.{at}", vision) for at in range(vision.depth)]
        self.behind = LayerNorm(model, f"{path}.post_layernorm", vision.width)

    def seen(self, pixels: Tensor) -> Tensor:
        """The last states."""
        world.inside["Tower"] = self.path
        world.recording.term = "activations_encoder"
        embedded = self.embeddings(pixels)
        whole = new((), BOOL)
        del whole
        x = embedded
        for layer in self.layers:
            x = self.model.layer(layer, x)
        found = self.behind(x)
        del embedded
        return found


class Connector:
    """``Idefics3Connector``: neighbours side by side (``pixel_shuffle``), then one layer."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        self.path, self.merge = path, vision.merge
        wide = vision.width * vision.merge**2
        self.proj = Linear(model, f"{path}.modality_projection.proj", wide, model.architecture.d_model)

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["Connector"] = self.path
        x = self.shuffled(x)
        return self.proj(x)

    def shuffled(self, x: Tensor) -> Tensor:
        tiles, patches, width = x.shape
        merge, side = self.merge, int(patches**0.5)
        x = ops.view(x, (tiles, side, side // merge, width * merge))
        x = ops.permute(x, (0, 2, 1, 3))
        x = ops.reshape(x, (tiles, side // merge, side // merge, width * merge**2))
        x = ops.permute(x, (0, 2, 1, 3))
        return ops.reshape(x, (tiles, patches // merge**2, width * merge**2))


class Idefics3(Llava):
    """``Idefics3ForConditionalGeneration``, which hands the outer ``use_cache`` on, that the Trainer turns off."""

    caches = False
    leaves_one = False  # SmolVLM keeps one picture where all are padding

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        vision, images = architecture.vision, setup.images
        assert vision is not None
        if images is not None and images.number and images.rows * images.columns < 1:
            raise NotFollowedError(f"images of {images.rows} × {images.columns} pixels")
        super().check(architecture, setup)

    @classmethod
    def tokens_of(cls, images: Images, vision: Vision) -> int:
        """Tokens of one picture: of each tile as many as the shuffle leaves (``Idefics3Processor``)."""
        if not images.number:
            return 0
        each = (vision.image // vision.patch) ** 2 // vision.merge**2
        return pieces_of(images.rows, images.columns, vision.image, vision.splits) * each

    tower: Tower

    def build_sight(self) -> None:
        self.tower = Tower(self, "model.vision_model", self.vision)
        self.projector = Connector(self, "model.connector", self.vision)

    @property
    def first_type(self) -> str:
        """``self.dtype``: that of the first parameter, which is the patches'."""
        return self.tower.embeddings.patches.weight.dtype

    def pictures_of(self, rows: int, source: int, images: Images) -> list[Tensor]:
        vision = self.vision
        count = images.number * pieces_of(images.rows, images.columns, vision.image, vision.splits)
        pixels = new((rows, count, vision.channels, vision.image, vision.image), F32)
        return [pixels, new((rows, count, vision.image, vision.image), I64)]  # with what is no padding

    def pictured(
        self, ids: Tensor, padding: Any, cache: Any, *pictures: Tensor, positions: Any = None
    ) -> tuple[Tensor, Any]:
        """``Idefics3Model``."""
        world.recording.term = "activations_decoder"
        embeds = self.part("embed", self.looked_up, ids)
        features: Any = None
        held: Any = self.seen
        if pictures:
            held = self.features_of(*pictures)
        if held is not None:
            features = ops.cast(ops.cat(held[1:], 0), self.first_type)
            world.recording.term = "activations_decoder"
            mask: Any = placeholders(ids, named=self.leaves_one)
            embeds = ops.put_where(embeds, mask, ops.cast(features, embeds.dtype))
            if not self.leaves_one:  # it is a function's own there
                mask = None
        x = self.decoded(embeds, padding, cache, positions)
        return x, self.given(features, held)

    def in_outputs(self, held: Any) -> tuple[Tensor, ...]:
        return held  # type: ignore[no-any-return]

    def look_with_beams(self, ids: Tensor, beams: int) -> Any:
        last, *parts = self.seen
        self.seen = last, *beside_beams(ids, (parts,), beams)[0]
        return self.seen

    def features_of(self, pixels: Tensor, seen: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """``get_image_features``: pictures of nothing but padding are left out, of which there are none."""
        rows, count, *sides = pixels.shape
        tiles = rows * count
        pixels = ops.view(ops.cast(pixels, self.first_type), (tiles, *sides))
        blank = new(pixels.shape, BOOL)
        summed = new((tiles,), I64)
        del blank
        real = new((tiles,), BOOL)
        del summed
        if self.leaves_one:
            some = new((), BOOL)
            none = new((), BOOL)
            del some, none
        numbers = new((rows,), I64)
        pixels = new(pixels.shape, pixels.dtype)  # those that are real, a copy
        mask = new((tiles, *sides[1:]), I64)
        each = self.vision.image // self.vision.patch
        patches = new((tiles, each, each), I64)
        shown = new((tiles, each, each), BOOL)
        del patches
        last = self.tower.seen(pixels)
        features = self.projector(last)
        found = ops.pieces(features, 0, (count,) * rows)
        width = features.shape[-1]
        parts = [ops.reshape(piece, (count * piece.shape[1], width)) for piece in found]
        del real, numbers, mask, shown, found, features
        return last, *parts


class SmolVlm(Idefics3):
    """``SmolVLMForConditionalGeneration``, whose outputs held the tower's before 5.24 too."""

    leaves_one = True

    def given(self, features: Any, held: Any) -> Any:
        return held
