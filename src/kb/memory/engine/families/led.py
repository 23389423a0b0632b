"""LED as ``modeling_led.py`` reads: Longformer's self-attention in the encoder, a decoder like BART's.

Input is padded to whole windows inside of the encoder; no token is global, as nothing says which. Attention has no
other implementation.
"""

from typing import Any

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.adapters import looked_up
from kb.memory.engine.families.attention import PairedCache
from kb.memory.engine.families.bart import DROPPED, Bart, BartAttention, BartLayer, BartStack
from kb.memory.engine.families.masks import causal_mask, padding_mask
from kb.memory.engine.families.windows import WindowAttention, lengthened, masks_of, spread_over
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import Linear
from kb.memory.engine.tensor import BOOL, I64, Tensor, new
from kb.memory.engine.world import world


class EncoderAttention:
    """``LEDEncoderAttention``."""

    def __init__(self, model: Any, path: str, at: int) -> None:
        a = model.architecture
        self.attention = WindowAttention(model, f"{path}.longformer_self_attn", a.windows[at])
        self.output = Linear(model, f"{path}.output", a.d_model, a.d_model, bias=True)

    def __call__(self, x: Tensor, masks: Any) -> Tensor:
        out = self.attention(x, masks)
        attended = self.output(out)
        del out
        return attended


class EncoderLayer(BartLayer):
    """``LEDEncoderLayer``: what its attention gave back lives until it ends."""

    def attention_of(self, path: str, at: int) -> Any:
        return EncoderAttention(self.model, path, at)

    def __call__(self, x: Tensor, masks: Any) -> Tensor:  # type: ignore[override]
        world.inside["EncoderLayer"] = self.path
        residual = x
        attended = self.attention(x, masks)
        x = ops.dropout(attended, DROPPED)
        x = ops.add(residual, x)
        x = self.norm1(x)
        residual = x
        x = self.activation(self.fc1(x))
        x = ops.dropout(x, DROPPED if self.model.architecture.activation_dropout else 0.0)
        x = self.fc2(x)
        x = ops.dropout(x, DROPPED)
        x = ops.add(residual, x)
        x = self.norm3(x)
        del attended
        return x


class DecoderAttention(BartAttention):
    """``LEDDecoderAttention``: batches of products of three dimensions."""

    def __call__(self, x: Tensor, mask: Any, other: Any = None, cache: PairedCache | None = None) -> tuple[Tensor, Any]:
        world.inside["DecoderAttention"] = self.path
        (batch, length, wide), heads = x.shape, self.model.architecture.num_heads
        q = ops.scale(self.q(x))
        k, v = self.keys_and_values(x, other, cache)
        many, count, width = batch * heads, k.shape[2], wide // heads
        q = ops.reshape(self.heads(q), (many, length, width))
        k = ops.reshape(k, (many, count, width))
        v = ops.reshape(v, (many, count, width))
        weights = ops.bmm(q, ops.transpose(k, 1, 2))
        if mask is not None:
            weights = ops.add(ops.view(weights, (batch, heads, length, count)), mask)
            weights = ops.view(weights, (many, length, count))
        weights = ops.softmax(weights)
        shares = ops.dropout(weights, self.dropout)
        out = ops.bmm(shares, v)
        out = ops.reshape(ops.transpose(ops.view(out, (batch, heads, length, width)), 1, 2), x.shape)
        out = self.o(out)
        del q, k, v, weights, shares
        return out, None


class DecoderLayer(BartLayer):
    """``LEDDecoderLayer``."""

    def attention_of(self, path: str, at: int) -> Any:
        return DecoderAttention(self.model, path, at)


class Stack(BartStack):
    """``LEDEncoder`` or ``LEDDecoder``."""

    def layer_of(self, path: str, at: int) -> BartLayer:
        return (DecoderLayer if self.decoder else EncoderLayer)(self.model, path, at, decoder=self.decoder)

    def rows_of_positions(self) -> int:
        a = self.model.architecture
        return (a.target_positions if self.decoder else a.max_positions) or 0

    def words(self, ids: Tensor) -> Tensor:
        """As an adapter leaves them: nothing scales them."""
        table = self.model.stack_words.get(self.path, self.model.shared)
        return looked_up(self.model, f"{self.path}.embed_tokens", ids, table, hooked=True)

    def encode(self, ids: Tensor, padding: Any) -> Tensor:
        (rows, given), longest = ids.shape, max(self.model.architecture.windows)
        embeds = self.words(ids)
        mask = padding if padding is not None else new(ids.shape, I64)
        more = -given % longest
        if more:
            ids, embeds, mask = self.lengthened(ids, embeds, mask, more)
        numbers = spread_over(inverted(mask, embeds.dtype), rows, given + more)
        mask = None
        masks = masks_of(numbers, first=False)
        places = new((given + more,), I64)
        positions = self.placed(places)
        del places
        x = ops.add(embeds, positions)
        x = self.norm(x)
        x = ops.dropout(x, DROPPED)
        for layer in self.layers:
            x = self.model.layer(layer, x, masks)
        if more:
            x = ops.cut(x, 1, given)
        del embeds, positions, masks, numbers, ids
        return x

    def lengthened(self, ids: Tensor, embeds: Tensor, mask: Tensor, more: int) -> tuple[Tensor, Tensor, Tensor]:
        """``_pad_to_window_size``: what embeds padding is put behind the words."""
        ids = lengthened(ids, more)
        filling = new((ids.shape[0], more), I64)
        behind = self.words(filling)
        embeds = ops.cat((embeds, behind), 1)
        mask = lengthened(mask, more)
        del filling, behind
        return ids, embeds, mask

    def decode(self, ids: Tensor, encoder_mask: Any, other: Tensor, cache: PairedCache | None) -> Tensor:
        padded, (batch, length) = self.model.options.padded, ids.shape
        embeds = self.words(ids)
        past = cache.own.length() if cache is not None else 0
        visible: Any = None
        if length > 1:
            visible = causal_mask(
                batch, length, past + length, None, eager=embeds.dtype, padded=padded, positions=False
            )
        encoder_mask = padding_mask(batch, length, other.shape[1], encoder_mask, eager=other.dtype, padded=padded)
        places = new((length,), I64)
        positions = self.placed(places)
        del places
        x = ops.add(embeds, positions)
        x = self.norm(x)
        x = ops.dropout(x, DROPPED)
        for layer in self.layers:
            x = self.model.layer(layer, x, visible, other, encoder_mask, cache)
        del visible, encoder_mask, embeds, positions
        return x


def inverted(mask: Tensor, dtype: str) -> Tensor:
    """``_prepare_4d_attention_mask_inverted``."""
    rows, length = mask.shape
    shape = (rows, 1, length, length)
    wide = new(shape, dtype)
    turned = new(shape, dtype)
    flags = new(shape, BOOL)
    low = new(shape, dtype)
    del flags
    low = new(shape, dtype)
    del wide, turned
    return low


class Led(Bart):
    """``LEDForConditionalGeneration``."""

    root = "led"
    stack_class = Stack
    eager_only = True
    reaches_all = False  # no token is global

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        if setup.attn_implementation == "flash":
            raise NotFollowedError("flash_attention_2")  # there is none
        if setup.weights == "fp16" and not setup.load_in_4bit:
            raise NotFollowedError("weights of fp16 of led")  # each layer looks for what is not finite
