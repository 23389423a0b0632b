"""How LLaVA-NeXT and Idefics3 cut a picture into tiles, by its size in pixels.

Source: ``select_best_resolution`` (transformers/image_processing_utils.py), ``unpad_image``
(models/llava_next/modeling_llava_next.py), ``_get_unpadded_features`` (models/llava_next/processing_llava_next.py);
``get_number_of_image_patches`` (models/idefics3/image_processing_idefics3.py).
"""

from kb.core.model import Vision
from kb.core.record import NamedTuple

SPLITS = 4  # `size` of Idefics3ImageProcessor: 4 × 364 pixels, of tiles of 364; SmolVLM's are 4 tiles long too


class Tiles(NamedTuple):
    """Tiles of ``side`` × ``side`` patches, and the rows and columns of patches that are not padding."""

    high: int
    wide: int
    side: int
    rows: int
    columns: int

    @property
    def number(self) -> int:
        return self.high * self.wide

    @property
    def tokens(self) -> int:
        """The small whole's, and those of the tiles without their padding, a new line behind each row."""
        return self.side**2 + self.rows * (self.columns + 1)


def tiles_of(height: int, width: int, vision: Vision) -> Tiles:
    """The tiles of a picture of so many pixels."""
    best = best_resolution(height, width, vision.tilings)
    high, wide = (size // vision.image for size in best)
    side = vision.image // vision.patch
    rows, columns = high * side, wide * side
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    return Tiles(high, wide, side, rows, columns)


def best_resolution(height: int, width: int, tilings: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Where most of the picture is left, and of several where least is wasted; of those the first."""

    def kept(tiling: tuple[int, int]) -> int:
        scale = min(tiling[1] / width, tiling[0] / height)
        return min(int(width * scale) * int(height * scale), width * height)

    return max(tilings, key=lambda tiling: (kept(tiling), kept(tiling) - tiling[0] * tiling[1]))


def pieces_of(height: int, width: int, side: int, splits: int) -> int:
    """Tiles of ``side`` × ``side`` pixels that Idefics3 and SmolVLM cut a picture into: its longer side becomes
    ``splits`` tiles long, the shorter one is made whole tiles, and the whole made small is one more."""
    longest = splits * side
    shorter = int(longest * min(height, width) / max(height, width))
    shorter = max(shorter + shorter % 2, 1)
    tiles = splits * -(-shorter // side)
    return tiles + 1 if tiles > 1 else 1
