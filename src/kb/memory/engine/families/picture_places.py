"""Where pictures' patches are: what transformers works out of their sizes on the GPU, tensor by tensor.

Sources: transformers/vision_utils.py, ``get_rope_index`` (models/qwen2_5_vl/modeling_qwen2_5_vl.py).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kb.core.model import Vision
from kb.core.setup import Images
from kb.memory.engine import ops
from kb.memory.engine.tensor import BOOL, F32, I32, I64, Tensor, new

AXES = 3  # time, height and width
AROUND = 4  # learned places around a patch's own


class Sizes:
    """The pictures of a batch: all of one size, some in each sample.

    ``pictures`` and ``windows`` are the patches of each that is attended to by itself, ``tokens`` each picture's.
    """

    def __init__(self, images: Images, vision: Vision, samples: int) -> None:
        self.images, self.vision = images, vision
        self.count = samples * images.number
        self.patches = images.rows * images.columns
        self.pictures = (self.patches,) * self.count
        self.tokens = (self.patches // vision.merge**2,) * self.count
        self.windows = self._windows() * self.count

    def _windows(self) -> tuple[int, ...]:
        """Patches of each window of a picture, row by row; those at its edges are cut."""
        vision = self.vision
        if not vision.window:
            return ()
        side = vision.window // vision.merge // vision.patch
        rows, columns = (
            [min(side, tokens - at) for at in range(0, tokens, side)]
            for tokens in (self.images.rows // vision.merge, self.images.columns // vision.merge)
        )
        return tuple(height * width * vision.merge**2 for height in rows for width in columns)

    def places(self) -> Tensor:
        """``get_vision_position_ids``: each patch's row and column."""
        rows, columns, patches = self.images.rows, self.images.columns, self.patches
        merge = new((1,), I64)
        found, height, width = [], None, None
        for _ in range(self.count):
            first, second = new((rows,), I64), new((columns,), I64)
            height = width = None
            height = new((patches,), I64)
            del first
            width = new((patches,), I64)
            del second
            both = new((patches, 2), I64)
            found.append(new((patches, 2), I64))
            del both
        out = new((self.count * patches, 2), I64)
        del merge, found, height, width
        return out

    def among_learned(self) -> tuple[Tensor, Tensor]:
        """``get_vision_interpolation_indices_and_weights``: of each patch the four learned places around it, and the
        share of each."""
        count = self.count * self.patches
        counts = self._numbers(self.count)
        heights, widths = self._numbers(count), self._numbers(count)
        summed = new((self.count,), I64)
        before = new((self.count,), I64)
        del summed
        starts = self._numbers(count)
        del before
        all_patches = new((), I64)
        numbered = new((count,), I64)
        del all_patches
        apart = new((count,), I64)
        del numbered
        areas = new((count,), I64)
        within = new((count,), I64)
        del apart, areas
        wide, column = new((count,), I64), new((count,), I64)
        blocks = [self._numbers(count) for _ in range(5)]  # rows, columns, of blocks and in them; and of patches
        near_rows, row_shares = _near(count)
        near_columns, column_shares = _near(count)
        scaled = new((count, 2, 1), I64)
        near = new((count, AROUND), I64)
        del scaled
        shares = new((count, AROUND), F32)
        del counts, heights, widths, starts, within, wide, column, blocks
        del near_rows, row_shares, near_columns, column_shares
        return near, shares

    @staticmethod
    def _numbers(count: int) -> Tensor:
        """Made of others that nothing holds any more."""
        of = new((count,), I64)
        out = new((count,), I64)
        del of
        return out

    def bounds(self) -> Tensor:
        """``get_vision_cu_seqlens``."""
        areas = new((self.count,), I64)
        repeats = new((self.count,), I64)
        lengths = new((self.count,), I64)
        del areas, repeats
        summed = new((self.count,), I32)
        out = new((self.count + 1,), I32)
        del summed, lengths
        return out

    def window_bounds(self) -> Tensor:
        """``get_vision_window_index``: worked out on the host, but for the windows' bounds."""
        side = self.vision.window // self.vision.merge // self.vision.patch
        rows, columns = (each // self.vision.merge // side + 1 for each in (self.images.rows, self.images.columns))
        padded = new((rows * columns * self.count + 1,), I32)  # an edge of its own, without patches, where none is cut
        out = new((len(self.windows) + 1,), I32)
        del padded
        return out


def _near(count: int) -> tuple[Tensor, Tensor]:
    """``_interpolation_axis_taps_weights`` of an axis: the two learned places beside each patch, and their shares."""
    index = new((count,), F32)
    stretched = new((count,), F32)
    less = new((count,), I64)
    least = new((count,), I64)
    del less
    place = new((count,), F32)
    del stretched, least
    floor = new((count,), F32)
    offsets = new((2,), I64)
    whole = new((count,), I64)
    raw = new((count, 2), I64)
    del whole
    near = new((count, 2), I64)
    behind = new((count, 1), F32)
    apart = new((count, 2), F32)
    del behind
    distance = new((count, 2), F32)
    del apart
    rest = new((count, 2), F32)
    shares = new((count, 2), F32)
    del rest
    del index, place, floor, offsets, raw, distance
    return near, shares


def angles(places: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """``Qwen2_5_VLVisionRotaryEmbedding``: cosines and sines of a patch's two places, over a head's width."""
    count = places.shape[0]
    numbers = new((count, 2, 1), F32)
    freqs = new((count, 2, width // 4), F32)
    del numbers
    raw = new(freqs.shape, F32)
    cos = new(freqs.shape, F32)
    del raw
    raw = new(freqs.shape, F32)
    sin = new(freqs.shape, F32)
    del raw
    cos = _twice(cos)
    sin = _twice(sin)
    del freqs
    return cos, sin


def _twice(freqs: Tensor) -> Tensor:
    count, _, quarter = freqs.shape
    both = new((count, 2 * quarter), F32)
    out = new((count, 4 * quarter), F32)
    del both
    return out


@contextmanager
def counted_by_sample(ids: Tensor, count: int) -> Iterator[int]:
    """How many of ``count`` pictures a sample has, as ``_expand_multimodal_outputs`` finds it (generation/utils.py):
    each sum of pictures' tokens is held against those of text. What it counted lives as long as it works."""
    rows, number = ids.shape[0], count // ids.shape[0]
    mask = new(ids.shape, BOOL)
    counted = new((rows,), I64)
    del mask
    sums = [new((), I64) for _ in range(rows - 1)]
    for at in range(1, count + 1):
        for _ in range(rows if at % number else at // number):
            same = new((), BOOL)
            del same
    yield number
    del counted, sums


def beside_beams(ids: Tensor, seen: Sequence[Sequence[Tensor]], beams: int) -> list[list[Tensor]]:
    """Of each sample what is seen of its pictures, once for each beam; of the first list they are counted."""
    with counted_by_sample(ids, len(seen[0])) as number:
        starts = range(0, len(seen[0]), number)
        return [[each for at in starts for each in [*pieces[at : at + number]] * beams] for pieces in seen]


def told_places(ids: Tensor, padding: Any, images: Images, vision: Vision) -> tuple[Tensor, Tensor]:
    """``get_rope_index``: every token's place in time, height and width, and by how much a sample's last is moved."""
    rows, length = ids.shape
    height, width = images.rows // vision.merge, images.columns // vision.merge
    out = new((AXES, rows, length), I64)
    deltas: list[Tensor] = []
    found: list[Tensor] = []
    current = picture = together = taken = kinds = None
    for _ in range(rows):
        taken = kinds = None
        if padding is not None:
            taken = _picked(length)
            kinds = _picked(length)
        current, found = None, []
        left = length
        for _ in range(images.number):
            found.append(_text(1))
            picture = _picture(height, width, spaced=not vision.window)
            found.append(picture)
            current = _moved(current)
            left -= 1 + height * width
        found.append(_text(left))
        together = new((AXES, length), I64)
        if padding is not None:
            mask = new((length,), BOOL)
            del mask
        highest = new((), I64)
        after = new((), I64)
        del highest
        deltas.append(new((), I64))
        del after
    moved = new((rows,), I64)
    del deltas, kinds, taken, found, current, picture, together
    return out, moved


def _picked(length: int) -> Tensor:
    """A sample's numbers without its padding."""
    mask = new((length,), BOOL)
    out = new((length,), I64)
    del mask
    return out


def _text(length: int) -> Tensor:
    plain = new((length,), I64)
    out = new((AXES, length), I64)
    del plain
    return out


def _moved(current: Any) -> Tensor:
    """Behind a picture: a number on the host until the first, then one that is added to in place."""
    further = new((), BOOL)
    del further
    side = new((), I64)
    if current is None:
        current = new((), I64)
    del side
    return current  # type: ignore[no-any-return]


def _picture(height: int, width: int, *, spaced: bool) -> Tensor:
    """``get_vision_position_ids``: three axes, each counted and moved to where the picture begins.

    ``spaced``: time is counted in spaces of some seconds first, in fp32 (Qwen2-VL).
    """
    moved: list[Tensor] = []
    for count in (1, height, width):
        plain = new((count,), I64)
        if spaced and not moved:
            times = new((count,), F32)
            del plain
            plain = times
            del times
        moved.append(new((count,), I64))
        del plain
    out = new((AXES, 1, height, width), I64)
    del moved
    return out


def tables_of_places(
    batch: int, length: int, width: int, dtype: str, shares: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """``Qwen2_5_VLRotaryEmbedding``: angles of three places, of each of which a share is taken."""
    numbers = new((AXES, batch, length, 1), F32)
    freqs = new((AXES, batch, length, width // 2), F32)
    del numbers
    cos = ops.scale(new(freqs.shape, F32))
    sin = ops.scale(new(freqs.shape, F32))
    sin = shares(sin)
    cos = shares(cos)
    out = ops.cast(cos, dtype), ops.cast(sin, dtype)
    del freqs, cos, sin
    return ops.unsqueeze(out[0], 1), ops.unsqueeze(out[1], 1)


def among_first(freqs: Tensor) -> Tensor:
    """Qwen3-VL: the shares are put among those of time, in their place."""
    _, batch, length, half = freqs.shape
    return new((batch, length, 2 * half), F32)
