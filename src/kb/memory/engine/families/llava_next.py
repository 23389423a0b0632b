"""LLaVA-NeXT: LLaVA whose pictures are cut into tiles as their size has it, beside the whole made small.

It reads as ``modeling_llava_next.py``: names that live on there live on here.
"""

from collections.abc import Mapping
from typing import Any

from kb.core.model import Architecture, Vision
from kb.core.setup import Images, TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.families.llava import Llava
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.tensor import F32, I64, Tensor, new
from kb.memory.picture_tiles import Tiles, tiles_of


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

    def batch(self, rows: int, source: int, target: int = 0) -> list[Tensor]:
        images, vision = self.options.images, self.vision
        if images is None or not images.number:
            return super().batch(rows, source, target)
        ids, mask = (new((rows, source), I64) for _ in range(2))
        count, tiles = rows * images.number, tiles_of(images.rows, images.columns, vision)
        pixels = new((count, tiles.number + 1, vision.channels, vision.image, vision.image), F32)
        sizes = new((count, 2), I64)
        return [ids, mask, new((rows, source), I64), pixels, sizes]

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


KINDS: Mapping[str, type[Llava]] = {"llava": Llava, "llava_next": LlavaNext}
