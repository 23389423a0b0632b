"""Samples with pictures as transformers' processors give them: shapes, types and the numbers that a model asks for.

Without torch: the simulator makes fake tensors of them, a trial real ones. A token of text stands before each picture,
the rest of the text behind.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from kb.core.record import NamedTuple
from kb.core.setup import Images
from kb.memory.picture_tiles import SPLITS, pieces_of

# Types that cut a picture into tiles whatever its size.
IN_PIECES = ("idefics3", "smolvlm")
# Entries of pictures, which a collator puts behind one another; those of words it lays side by side.
OF_PICTURES = ("pixel_values", "pixel_attention_mask", "image_sizes", "image_grid_thw")


class Entry(NamedTuple):
    """One tensor of a batch: pixels are fp32, all else whole numbers, by rows or one for all of it."""

    shape: tuple[int, ...]
    pixels: bool = False
    numbers: Any = 0


def entries(config: Any, length: int, images: Images, rows: int) -> Mapping[str, Entry]:
    """What ``rows`` samples of ``length`` tokens hold beside their labels, in the order in which they are made;
    ``config`` is the model's own."""
    return dict(_entries(config, length, images, rows))


def _entries(config: Any, length: int, images: Images, rows: int) -> Iterator[tuple[str, Entry]]:
    vision, kind = config.vision_config, config.model_type
    if kind == "paligemma":
        yield "token_type_ids", Entry((rows, length))  # of the prompt
    if kind in ("llava", "paligemma", "gemma3"):
        yield from _whole(config, length, images, rows)
    elif kind in IN_PIECES:
        yield from _in_pieces(config, length, images, rows)
    elif kind == "llava_next":
        yield from _tiled(config, length, images, rows)
    else:  # lists of patches, with the size of each picture
        tokens = images.rows * images.columns // vision.spatial_merge_size**2
        yield from _worded(config, length, images.number, tokens, rows)
        yield "mm_token_type_ids", Entry((rows, length), numbers=[_kinds(length, images.number, tokens)] * rows)
        size = [[1, images.rows, images.columns]] * (rows * images.number)
        yield "image_grid_thw", Entry((rows * images.number, 3), numbers=size)
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        yield "pixel_values", Entry((rows * images.patches, width), pixels=True)


def _whole(config: Any, length: int, images: Images, rows: int) -> Iterator[tuple[str, Entry]]:
    """Pictures of the one size that a tower takes, and as many tokens as it has patches (``LlavaProcessor``)."""
    vision = config.vision_config
    tokens = (vision.image_size // vision.patch_size) ** 2 + (vision.model_type == "clip_vision_model")
    tokens -= getattr(config, "vision_feature_select_strategy", "full") == "default"
    tokens = getattr(config, "mm_tokens_per_image", tokens)
    yield from _worded(config, length, images.number, tokens, rows)
    if config.model_type == "gemma3":
        yield "token_type_ids", Entry((rows, length), numbers=[_kinds(length, images.number, tokens)] * rows)
    sides = (vision.num_channels, vision.image_size, vision.image_size)
    yield "pixel_values", Entry((rows * images.number, *sides), pixels=True)


def _tiled(config: Any, length: int, images: Images, rows: int) -> Iterator[tuple[str, Entry]]:
    """Pictures in tiles, with the size that each had; the processor's own count of tokens is asked."""
    from transformers import LlavaNextProcessor
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    vision, size = config.vision_config, (images.rows, images.columns)
    side = vision.image_size
    tiles = image_size_to_num_patches(size, config.image_grid_pinpoints, side)
    processor: Any = LlavaNextProcessor  # none of its own is needed to count
    asked = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=config.image_grid_pinpoints),
        patch_size=vision.patch_size,
        num_additional_image_tokens=0,
        _get_unpadded_features=partial(processor._get_unpadded_features, None),
    )
    tokens = processor._get_number_of_features(asked, *size, side, side)
    yield from _worded(config, length, images.number, tokens, rows)
    count = rows * images.number
    yield "pixel_values", Entry((count, tiles, vision.num_channels, side, side), pixels=True)
    yield "image_sizes", Entry((count, 2), numbers=[size] * count)


def _in_pieces(config: Any, length: int, images: Images, rows: int) -> Iterator[tuple[str, Entry]]:
    """Pictures cut as the processor would, and which pixels are none of padding: all."""
    vision = config.vision_config
    side = vision.image_size
    pieces = pieces_of(images.rows, images.columns, side, SPLITS)
    tokens = pieces * (side // vision.patch_size // config.scale_factor) ** 2
    yield from _worded(config, length, images.number, tokens, rows)
    shape = (rows, pieces * images.number)
    yield "pixel_values", Entry((*shape, vision.num_channels, side, side), pixels=True)
    yield "pixel_attention_mask", Entry((*shape, side, side), numbers=1)


def _worded(config: Any, length: int, number: int, tokens: int, rows: int) -> Iterator[tuple[str, Entry]]:
    """Ids and mask of words and pictures."""
    ids = [config.image_token_id if kind else 0 for kind in _kinds(length, number, tokens)]
    yield "input_ids", Entry((rows, length), numbers=[ids] * rows)
    yield "attention_mask", Entry((rows, length), numbers=1)


def _kinds(length: int, number: int, tokens: int) -> list[int]:
    """1 for each token of a picture, 0 for each of text.

    Raises:
        ValueError: the pictures have more tokens than ``length``.
    """
    kinds = ([0] + [1] * tokens) * number
    if len(kinds) > length:
        raise ValueError(f"{number} pictures of {tokens} tokens are more than {length} tokens")
    return kinds + [0] * (length - len(kinds))
