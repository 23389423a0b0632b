"""What decoder-only types make before their blocks: positions, the mask, tables of angles.

Each function gets the words' embeddings and returns a block's input, the mask, two things that every block gets
(cosines and sines, or whatever the type has in their place), the positions, and what is only held.
"""

from functools import partial
from typing import Any

from kb.memory.engine import ops
from kb.memory.engine.families.masks import causal_mask, in_numbers
from kb.memory.engine.tensor import BF16, BOOL, F32, I32, I64, Tensor, new

DROPPED = 0.1  # any rate but 0 allocates the same
# Which masks a type makes: one for all layers; one of a window beside that of all tokens where a layer has a window;
# both in any case.
ONE, NAMED, BOTH = "one", "named", "both"


class ByKind(tuple):  # type: ignore[type-arg]
    """What layers that see everything get, and what those that slide get."""

    __slots__ = ()


def of_layer(each: Any, *, slides: bool) -> Any:
    """What a layer gets."""
    return each[slides] if type(each) is ByKind else each


def turned(model: Any, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> tuple[Any, ...]:
    """Llama: cosines and sines for the whole model."""
    positions = numbered_from(embeds, positions)
    mask = masked(model, embeds, padding, cache)
    x = _dropped(model, embeds)
    cos, sin = model.part("turn", model.traits.tables, positions.shape[0], x.shape[1], model.rotary_width, x.dtype)
    return x, mask, cos, sin, positions


def turned_with_places(model: Any, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> tuple[Any, ...]:
    """Ministral 3: as Llama, and attention scales queries by their places."""
    x, mask, cos, sin, positions = turned(model, embeds, padding, positions, cache)
    return x, mask, (cos, sin), positions, positions


def turned_beside_mixing(model: Any, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> tuple[Any, ...]:
    """LFM2: layers that mix without attention get the padding itself, where some of it is there
    (``create_recurrent_attention_mask``)."""
    positions = numbered_from(embeds, positions)
    mask = ByKind((masked(model, embeds, padding, cache), padding_of_mixing(model, embeds, padding)))
    cos, sin = model.part(
        "turn", model.traits.tables, positions.shape[0], embeds.shape[1], model.rotary_width, embeds.dtype
    )
    return embeds, mask, cos, sin, positions


def padding_of_mixing(model: Any, embeds: Tensor, padding: Any) -> Any:
    """Of the tokens that are given; None of one alone, and where a look finds none padded."""
    if padding is None or embeds.shape[1] == 1:
        return None
    ones = new(padding.shape, BOOL)
    every = new((), BOOL)
    del ones, every
    return padding if model.options.padded else None


def beside_recurrent(model: Any, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> tuple[Any, ...]:
    """Granite 4: whether rows are padded is asked for recurrent layers too (``create_recurrent_attention_mask``), of
    which there is none. Neither masks nor blocks get the positions."""
    positions = numbered_from(embeds, positions)
    mask = masked(model, embeds, padding, cache, looks=False)
    if padding is not None and embeds.shape[1] > 1:
        ones = new(padding.shape, BOOL)
        every = new((), BOOL)
        del ones, every
    cos, sin = model.part(
        "turn", model.traits.tables, positions.shape[0], embeds.shape[1], model.rotary_width, embeds.dtype
    )
    return embeds, mask, cos, sin, None, positions


def looked_up(model: Any, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> tuple[Any, ...]:
    """GPT-J: sines and cosines for the whole model, looked up in one table."""
    positions = numbered_from(embeds, positions)
    mask = masked(model, embeds, padding, cache)
    x = _dropped(model, embeds)
    sin, cos = model.part("turn", _angles, model, positions, x.dtype)
    return x, mask, sin, cos, positions


def _angles(model: Any, positions: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """``GPTJRotaryEmbedding.forward``: halves of one lookup."""
    (_, width), _ = model.traits.angles(model.architecture)
    found = ops.cast(new((*positions.shape, width), F32), dtype)
    half = (*positions.shape, width // 2)
    return tuple(Tensor(half, found.dtype, found.strides, found.storage) for _ in range(2))  # type: ignore[return-value]


def numbered(model: Any, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> tuple[Any, ...]:
    """GPT-J before 5.24: blocks get the positions, and turn by tables of their own."""
    positions = numbered_from(embeds, positions)
    mask = masked(model, embeds, padding, cache)
    return _dropped(model, embeds), mask, positions, None, positions


def placed(model: Any, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> tuple[Any, ...]:
    """GPT-Neo: learned positions, added to the words. Blocks do not get the positions."""
    positions = numbered_from(embeds, positions)
    mask = masked(model, embeds, padding, cache)
    places = model.placed_at(positions)
    x = _dropped(model, ops.add(embeds, places))
    return x, mask, None, None, None, places, positions


def turned_by_kind(model: Any, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> tuple[Any, ...]:
    """Gemma 3: layers that slide turn by angles of their own."""
    positions = numbered_from(embeds, positions)
    mask = masked(model, embeds, padding, cache)
    cos, sin, tables = tables_by_kind(model, embeds, positions)
    return embeds, mask, cos, sin, positions, tables


def tables_by_kind(model: Any, embeds: Tensor, positions: Tensor) -> tuple[ByKind, ByKind, list[Any]]:
    """Cosines and sines of each kind of layers, and what holds them all."""
    tables: list[Any] = [None, None]
    for kind in sorted(set(model.slides)):
        width = model.rotary_width
        tables[kind] = model.part("turn", model.traits.tables, positions.shape[0], embeds.shape[1], width, embeds.dtype)
    cos, sin = (ByKind(each and each[at] for each in tables) for at in range(2))
    return cos, sin, tables


def summed(model: Any, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> tuple[Any, ...]:
    """GPT-2: learned positions are added before the mask is made."""
    positions = numbered_from(embeds, positions)
    places = model.placed_at(positions)
    x = ops.add(embeds, places)
    mask = masked(model, embeds, padding, cache)
    x = _dropped(model, x)
    return x, mask, None, None, positions, places


def counted(model: Any, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> tuple[Any, ...]:
    """OPT: positions count what is no padding; they are given alone where embeddings are projected before the sum."""
    batch, length, _ = embeds.shape
    whole = padding
    if whole is None:
        past = cache.length() if cache is not None else 0
        whole = new((batch, past + length), F32)
    if positions is None:
        sums = new(whole.shape, whole.dtype)
        less = new(whole.shape, whole.dtype)  # the product, whose name goes
        positions = new(whole.shape, whole.dtype)
        del less
        positions = ops.cast(positions, I64)
        del sums
    mask = masked(model, embeds, padding, cache, looks=False)
    shifted = new(positions.shape, I64)
    places = model.placed_at(shifted)
    del shifted
    x = places if model.project_in is not None else ops.add(embeds, places)
    return x, mask, None, None, positions, places, whole


def sloped(model: Any, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> tuple[Any, ...]:
    """BLOOM: the embeddings' norm, and a slope for each head over the keys (``build_alibi_tensor``) for all blocks."""
    x = model.part("embed_norm", model.embed_norm, embeds)
    batch, length, _ = embeds.shape
    heads, held = model.architecture.num_heads, None
    if padding is None:
        held = slopes(heads)
        past = cache.length() if cache is not None else 0
        keys = new((past + length,), I64)
        alike = new((heads, 1, past + length), F32)
        del keys
        wide = new((batch * heads, 1, past + length), F32)
        del alike
        alibi = ops.cast(wide, x.dtype)
        del wide
    else:
        steep = slopes(heads)
        counted = counted_keys(padding)
        wide = new((batch, heads, padding.shape[1]), F32)
        alibi = ops.cast(wide, x.dtype)
        del steep, counted, wide
    mask = masked(model, embeds, padding, cache, looks=False)
    return x, mask, alibi, None, None, held


def falcon(model: Any, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> tuple[Any, ...]:
    """Falcon: the mask is always made; slopes, where there are any, go into it. Blocks get them beside the angles."""
    a, (batch, length, _) = model.architecture, embeds.shape
    whole = alibi = None
    if a.alibi:
        past = cache.length() if cache is not None else 0
        whole = new((batch, past + length), I64) if padding is None else padding
        alibi = _slanted(whole, a.num_heads, embeds.dtype)
    positions = numbered_from(embeds, positions)
    mask: Any = masked(model, embeds, padding, cache, looks=False, skips=False)
    if alibi is not None:
        mask = in_numbers(mask, embeds.dtype) if mask.dtype == BOOL else mask
        shares = new(alibi.shape, alibi.dtype)  # divided by the root of the heads' width
        hidden = new(mask.shape, BOOL)
        mask = new((batch, a.num_heads, *mask.shape[2:]), embeds.dtype)
        del shares, hidden
    tables = model.part("turn", model.traits.tables, positions.shape[0], length, model.rotary_width, embeds.dtype)
    return embeds, mask, tables, alibi, positions, whole


def _slanted(mask: Tensor, heads: int, dtype: str) -> Tensor:
    """``build_alibi_tensor`` of Falcon: as BLOOM's, but multiplied in bf16."""
    near = 1 << (heads.bit_length() - 1)
    base, powers = new((), F32), new((near,), I32)
    steep = new((near,), F32)
    extra: Any = None
    if near != heads:
        extra = new((), F32), new((heads - near,), I32)
        more = new((heads - near,), F32)
        steep = new((heads,), F32)
        del more
    counted = counted_keys(mask)
    narrow = new((heads, 1), BF16)
    wide = new((mask.shape[0], heads, mask.shape[1]), BF16)
    del narrow
    found = Tensor(
        (mask.shape[0], heads, 1, mask.shape[1]),
        BF16,
        (heads * mask.shape[1], mask.shape[1], mask.shape[1], 1),
        wide.storage,
    )
    found = ops.cast(found, dtype)
    del base, powers, steep, extra, counted, wide
    return found


def slopes(heads: int) -> Tensor:
    """``_get_alibi_slopes``: powers of a base, and of a second where the heads are no power of two."""
    near = 1 << (heads.bit_length() - 1)
    base, powers = new((), F32), new((near,), I32)
    found = new((near,), F32)
    if near != heads:
        more = heads - near
        extra_base, extra_powers = new((), F32), new((more,), I32)
        extra = new((more,), F32)
        found = new((heads,), F32)
        del extra, extra_base, extra_powers
    del base, powers
    return found


def counted_keys(padding: Tensor) -> Tensor:
    """``(mask.cumsum(-1) - 1) * mask``."""
    counted = new(padding.shape, I64)
    less = new(padding.shape, I64)
    del counted
    found = new(padding.shape, I64)
    del less
    return found


def numbered_from(embeds: Tensor, positions: Any) -> Tensor:
    """Places as they are given, or from nothing on."""
    if positions is None:
        plain = new((embeds.shape[1],), I64)
        positions = new((1, embeds.shape[1]), I64)
        del plain
    return positions  # type: ignore[no-any-return]


def _dropped(model: Any, x: Tensor) -> Tensor:
    return ops.dropout(x, DROPPED if model.architecture.embedding_dropout else 0.0)


def masked(
    model: Any,
    embeds: Tensor,
    padding: Any,
    cache: Any,
    *,
    looks: bool = True,
    skips: bool = True,
    blocks: bool = False,
    mapped: bool = False,
) -> Any:
    """``create_causal_mask`` as the model's attention takes it, or what its kinds of layers take.

    ``looks``: it gets the positions, and looks at them. ``skips``: it is left out where attention is told to be causal.
    ``blocks``: some tokens see all of their block; ``mapped``: of it, what a window leaves.
    """
    given = partial(_masked, model, embeds, padding, cache, looks=looks, skips=skips, blocks=blocks)
    window, kinds = model.architecture.window, model.traits.kinds
    if model.options.flash:  # whose kernels keep to a window by themselves
        window, kinds = None, ONE
    if kinds == ONE or (kinds == NAMED and window is None):
        return given(window)
    full = given(None)
    if mapped and padding is not None:  # lengths alone are asked of it first
        again = new(padding.shape, BOOL)
        del again
    return ByKind((full, given(window or 0, mapped=mapped)))


def _masked(
    model: Any,
    embeds: Tensor,
    padding: Any,
    cache: Any,
    window: int | None,
    *,
    looks: bool,
    skips: bool,
    blocks: bool,
    mapped: bool = False,
) -> Tensor | None:
    batch, length, _ = embeds.shape
    past = cache.length() if cache is not None else 0
    keys = past + length if padding is None else padding.shape[1]
    if window and past >= window:
        keys = window - 1 + length
    return causal_mask(
        batch,
        length,
        keys,
        padding,
        eager=embeds.dtype if model.eager else None,
        padded=model.options.padded,
        positions=looks and cache is None,
        window=window,
        skips=skips,
        blocks=blocks,
        mapped=mapped,
    )
