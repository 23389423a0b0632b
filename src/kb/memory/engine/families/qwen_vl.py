"""Qwen2-VL and Qwen2.5-VL: a vision tower (patches in, tokens of the language model out), a merger, and Qwen2 with
places of three numbers.

It reads as ``modeling_qwen2_vl.py`` and ``modeling_qwen2_5_vl.py``: names that live on there live on here.
"""

from collections import Counter
from collections.abc import Collection
from functools import lru_cache, partial
from typing import Any

from kb.core.model import Architecture, Vision
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.allocator import SMALL_REQUEST
from kb.memory.engine.families.attention import eager_forward, for_flash, rotary, sdpa_forward
from kb.memory.engine.families.decoder import Decoder
from kb.memory.engine.families.decoder_inputs import masked
from kb.memory.engine.families.decoder_parts import ACTIVATIONS
from kb.memory.engine.families.picture_places import AXES, Sizes, angles, beside_beams, told_places
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import LayerNorm, Linear, Model, RmsNorm
from kb.memory.engine.runs.decoding import masked_longer
from kb.memory.engine.tensor import BOOL, F32, I32, I64, WIDTH, Tensor, new, packed
from kb.memory.engine.world import world

MOST_STRETCHES = 48  # that are attended to one by one


class PatchEmbed:
    """A convolution of three dimensions whose strides are its kernel."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        kernel = (vision.channels, vision.frames, vision.patch, vision.patch)
        self.model, self.path, self.kernel = model, path, kernel
        self.weight = model.parameter(f"{path}.proj.weight", (vision.width, *kernel))

    def __call__(self, pixels: Tensor) -> Tensor:
        world.inside["PatchEmbed"] = self.path
        x = ops.view(pixels, (pixels.shape[0], *self.kernel))
        x = ops.view(ops.patches(ops.cast(x, self.weight.dtype), self.weight), (pixels.shape[0], self.weight.shape[0]))
        self.model.require_input_grads(x)
        return x


@lru_cache(16)
def together(stretches: tuple[int, ...], bytes_each: int) -> tuple[tuple[int, int], ...]:
    """Stretches as a size and how many of that size one call attends to: one, or of very many some at once.

    transformers calls for each by itself. A batch of large pictures has thousands in every layer, and a minute would go
    by. Some at once are as many bytes, and while the allocator takes them from small segments too they are cached
    alike: allocated memory differs by 0.007 % at most, reserved by 0.05 %.
    """
    most = min(-(-len(stretches) // MOST_STRETCHES), SMALL_REQUEST // (max(stretches) * bytes_each))
    if most <= 1:
        return tuple((size, 1) for size in stretches)
    found = []
    for size, count in Counter(stretches).items():
        found += [(size, most)] * (count // most)
        if count % most:
            found.append((size, count % most))
    return tuple(found)


class VisionAttention:
    """Attention of each stretch of patches by itself: of a picture, or of a window."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        self.model, self.path, self.heads = model, path, vision.heads
        self.qkv = Linear(model, f"{path}.qkv", vision.width, 3 * vision.width, bias=True)
        self.proj = Linear(model, f"{path}.proj", vision.width, vision.width, bias=True)

    def __call__(self, x: Tensor, stretches: tuple[int, ...], cos: Tensor, sin: Tensor, bounds: Any) -> Tensor:
        world.inside["VisionAttention"] = self.path
        count, width = x.shape
        shape = (count, 3, self.heads, width // self.heads)
        q, k, v = ops.unbind(ops.permute(ops.reshape(self.qkv(x), shape), (1, 0, 2, 3)), 0)
        q, k = turned_wide(q, k, cos, sin)
        if self.model.options.flash:  # one call for all stretches
            out = ops.flash_packed(*for_flash(q, k, v, self.model.options.dtype), bounds)
            return self.proj(ops.reshape(out, (count, width)))
        q, k, v = (ops.unsqueeze(ops.transpose(each, 0, 1), 0) for each in (q, k, v))
        lengths = new((len(stretches),), I32)
        # eager attention keeps the scores of one stretch after another
        bytes_each = SMALL_REQUEST if self.model.options.eager else width * WIDTH[q.dtype]
        alike = together(stretches, bytes_each)
        sizes = tuple(size * times for size, times in alike)
        split = [ops.pieces(each, 2, sizes) for each in (q, k, v)]
        outs = []
        for (_, times), *each in zip(alike, *split, strict=True):
            if times > 1:
                each = [ops.folded(tensor, times) for tensor in each]
            one = self.attend(*each)
            outs.append(ops.view(one, (1, times * one.shape[1], *one.shape[2:])) if times > 1 else one)
        out = ops.cat(outs, 1)
        out = ops.contiguous(ops.reshape(out, (count, width)))
        out = self.proj(out)
        del lengths
        return out

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The implementation that the setup asks for."""
        if self.model.options.eager:
            return eager_forward(q, k, v, None, wide=True)[0]
        return sdpa_forward(q, k, v, None)


def turned_wide(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb_vision``: in fp32, and cast back."""
    dtype = q.dtype
    q, k = ops.cast(q, F32), ops.cast(k, F32)
    cos, sin = ops.cast(ops.unsqueeze(cos, 1), F32), ops.cast(ops.unsqueeze(sin, 1), F32)
    q_embed, k_embed = rotary(q, k, cos, sin)
    q_embed = ops.cast(q_embed, dtype)
    k_embed = ops.cast(k_embed, dtype)
    return q_embed, k_embed


class VisionMlp:
    """Gated in Qwen2.5-VL (``gate_proj``, ``up_proj``, ``down_proj``), else two layers (``fc1``, ``fc2``)."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        names = ("gate_proj", "up_proj", "down_proj") if vision.window else ("fc1", "fc2")
        self.path = path
        self.first = [Linear(model, f"{path}.{name}", vision.width, vision.ff, bias=True) for name in names[:-1]]
        self.down = Linear(model, f"{path}.{names[-1]}", vision.ff, vision.width, bias=True)
        self.act = ops.quick_gelu if vision.activation == "quick_gelu" else ACTIVATIONS[vision.activation]

    def __call__(self, x: Tensor) -> Tensor:
        first, *up = self.first
        if up:
            return self.down(ops.mul(self.act(first(x)), up[0](x)))
        return self.down(self.act(first(x)))


class VisionBlock:
    """Attention and feed-forward, each behind its norm and added to what came in."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        norm = partial(RmsNorm, decays=True) if vision.window else LayerNorm
        self.path = path
        self.norm1 = norm(model, f"{path}.norm1", vision.width)
        self.norm2 = norm(model, f"{path}.norm2", vision.width)
        self.attn = VisionAttention(model, f"{path}.attn", vision)
        self.mlp = VisionMlp(model, f"{path}.mlp", vision)

    def __call__(self, x: Tensor, stretches: tuple[int, ...], cos: Tensor, sin: Tensor, held: Any) -> Tensor:
        """``held``: the stretches' bounds, which a checkpointed block keeps."""
        world.inside["VisionBlock"] = self.path
        x = ops.add(x, self.attn(self.norm1(x), stretches, cos, sin, held))
        return ops.add(x, self.mlp(self.norm2(x)))


class Merger:
    """``PatchMerger``: neighbours side by side, through two layers."""

    def __init__(self, model: Model, path: str, vision: Vision, out: int) -> None:
        self.wide = vision.width * vision.merge**2
        self.path = path
        norm = partial(RmsNorm, decays=True) if vision.window else LayerNorm
        self.norm = norm(model, f"{path}.ln_q", vision.width)
        self.first = Linear(model, f"{path}.mlp.0", self.wide, self.wide, bias=True)
        self.second = Linear(model, f"{path}.mlp.2", self.wide, out, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["Merger"] = self.path
        x = ops.view(self.norm(x), (x.shape[0] * x.shape[1] // self.wide, self.wide))
        return self.second(ops.gelu(self.first(x)))


class Tower:
    """The vision transformer: patches in, tokens of the language model out."""

    def __init__(self, model: Model, vision: Vision) -> None:
        path = "model.visual"
        self.model, self.vision, self.path = model, vision, path
        self.patch_embed = PatchEmbed(model, f"{path}.patch_embed", vision)
        quarter = vision.width // vision.heads // 4
        model.buffer((quarter,), F32)
        model.buffer((quarter,), F32)
        self.blocks = [VisionBlock(model, f"{path}.blocks.{at}", vision) for at in range(vision.depth)]
        self.merger = Merger(model, f"{path}.merger", vision, model.architecture.d_model)

    def __call__(self, pixels: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
        """The last states and the tokens."""
        world.inside["Tower"] = self.path
        world.recording.term = "activations_encoder"
        vision, count = self.vision, pixels.shape[0]
        flash = self.model.options.flash
        places = sizes.places()
        whole = sizes.bounds()
        if flash:
            longest(whole)
        windows = sizes.window_bounds() if vision.window else None
        if windows is not None and flash:
            longest(windows)
        x = self.patch_embed(pixels)
        if vision.window:
            x = self.reordered(x)
        cos, sin = angles(places, vision.width // vision.heads)
        if vision.window:
            cos, sin = self.reordered(cos), self.reordered(sin)
        for at, block in enumerate(self.blocks):
            sees_all = not vision.window or at in vision.full_layers
            stretches, bounds = (sizes.pictures, whole) if sees_all else (sizes.windows, windows)
            x = self.model.layer(block, x, stretches, cos, sin, bounds)
        merged = self.merger(x)
        if vision.window:
            merged = ops.looked_up(merged, on_host(count // vision.merge**2))
        del places, whole, windows, cos, sin
        return x, merged

    def reordered(self, x: Tensor) -> Tensor:
        """``permute_input_for_window_attn``: tokens' patches window by window, by numbers on the host."""
        count, width = x.shape
        tokens = count // self.vision.merge**2
        x = ops.view(x, (tokens, width * self.vision.merge**2))
        return ops.view(ops.looked_up(x, on_host(tokens)), (count, width))


def longest(bounds: Tensor) -> None:
    """``get_max_seqlen`` (transformers/utils/generic.py): the host asks how long the longest stretch is."""
    lengths = new((bounds.shape[0] - 1,), I32)
    found = new((), I32)
    del lengths, found


def on_host(count: int) -> Tensor:
    """Numbers that are not on the GPU."""
    return Tensor((count,), I64, packed((count,)), None)


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
        NotFollowedError: something of the run, or the tower's activation.
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


class Seeing(Decoder):
    """A decoder with a tower, whose pictures stand in the place of some of its tokens."""

    inputs = 3  # ids, mask and labels; pictures come behind
    seen: Any = None  # what ``generate`` has seen of a prompt's pictures before it reads the prompt
    beside: Any = None  # what the last step's outputs hold beside logits
    features_of: Any  # ``get_image_features``: each picture's tokens, last, and what lives as long as they do

    def look(self, *pictures: Tensor) -> Any:
        """``_prepare_multimodal_encoder_kwargs_for_generation`` (generation/utils.py): pictures are seen before the
        prompt is read, and what is seen of them lives as long as the answer."""
        self.seen = self.features_of(*pictures)
        return self.seen

    def look_with_beams(self, ids: Tensor, beams: int) -> Any:
        """``_expand_multimodal_outputs``: what is seen, once for each beam."""
        self.seen = *self.seen[:-1], beside_beams(ids, self.seen[-1], beams)
        return self.seen


class QwenVl(Seeing):
    """``Qwen2VLForConditionalGeneration`` and ``Qwen2_5_VLForConditionalGeneration``."""

    deltas: Any = None  # by how much places are moved behind a sample's pictures

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        vision, images = architecture.vision, setup.images
        assert vision is not None
        check_seeing(architecture, setup, (*ACTIVATIONS, "quick_gelu"))
        if images is None:
            raise NotFollowedError("images of unknown size")
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

    def batch(self, rows: int, source: int, target: int = 0) -> list[Tensor]:
        images, vision = self.options.images, self.vision
        if images is None or not images.number:
            return super().batch(rows, source, target)
        ids, mask, types = (new((rows, source), I64) for _ in range(3))
        sizes = new((rows * images.number, AXES), I64)
        width = vision.channels * vision.frames * vision.patch**2
        pixels = new((rows * images.patches, width), F32)
        return [ids, mask, new((rows, source), I64), types, sizes, pixels]

    def forward(self, *batch: Any, smoothed: bool = False) -> tuple[Any, ...]:
        ids, padding, labels, *pictures = batch
        cache = None if self.options.checkpointing and world.training else Held(self.options.earlier.cache == "alike")
        x, seen = self.pictured(ids, padding, cache, *pictures)
        world.recording.term = "activations_head"
        loss, logits = self.loss_and_logits(x, labels, smoothed=smoothed)
        if cache is None:
            return loss, logits, seen
        return loss, logits, seen, cache.tensors.clear

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
        if held is not None:
            image_embeds = ops.cast(ops.cat(held[-1], 0), embeds.dtype)
            masks = placeholders(ids)
            embeds = ops.put_where(embeds, masks[0], image_embeds)
        if images is not None and pictures:
            positions, self.deltas = told_places(ids, padding, images, self.vision)
        x = self.decoded(embeds, padding, positions, cache)
        del image_embeds, masks
        return x, None if held is None or self.options.earlier.gives_features else (held[0], *held[-1])

    def features_of(self, *pictures: Tensor) -> tuple[Any, ...]:
        images, pixels = self.options.images, pictures[-1]
        assert images is not None
        sizes = Sizes(images, self.vision, pixels.shape[0] // images.patches)
        dtype = self.visual.patch_embed.weight.dtype
        pixels = ops.cast(pixels, dtype)
        states, merged = self.visual(pixels, sizes)
        world.recording.term = "activations_decoder"
        merged_pieces = ops.pieces(merged, 0, sizes.tokens)
        areas = new((sizes.count,), I64)
        shares_of = new((sizes.count,), I64)
        del areas, shares_of, pixels
        return states, merged, merged_pieces

    def decoded(self, embeds: Tensor, padding: Any, positions: Any, cache: Any) -> Tensor:
        """``Qwen2_5_VLTextModel``."""
        world.recording.term = "activations_decoder"
        batch, length, _ = embeds.shape
        if positions is None:
            first = new((length,), I64)
            positions = new((length,), I64)
            del first
        mask = masked(self, embeds, padding, cache, looks=False)
        cos, sin = self.tables(batch, length, embeds.dtype)
        x = embeds
        for layer in self.layers:
            x = self.layer(layer, x, mask, cos, sin, cache, None)
        return self.part("norm", self.norm, x)  # type: ignore[no-any-return]

    def tables(self, batch: int, length: int, dtype: str) -> tuple[Tensor, Tensor]:
        """``Qwen2_5_VLRotaryEmbedding``: angles of three places, of each of which a share is taken."""
        half = self.rotary_width // 2
        numbers = new((AXES, batch, length, 1), F32)
        freqs = new((AXES, batch, length, half), F32)
        del numbers
        cos = ops.scale(new((AXES, batch, length, half), F32))
        sin = ops.scale(new((AXES, batch, length, half), F32))
        sin = shares(sin)
        cos = shares(cos)
        out = ops.cast(cos, dtype), ops.cast(sin, dtype)
        del freqs, cos, sin
        return ops.unsqueeze(out[0], 1), ops.unsqueeze(out[1], 1)

    # What ``generate`` does.

    def base(self, ids: Tensor, padding: Any, positions: Any = None, cache: Any = None, states: Any = None) -> Any:
        """A step: pictures come with the prompt alone (``prepare_inputs_for_generation``)."""
        x, self.beside = self.pictured(ids, padding, cache, positions=positions)
        self.seen = None
        return x

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


def shares(freqs: Tensor) -> Tensor:
    """``recomposition_frequencies``: of each place its share, and that twice."""
    _, batch, length, half = freqs.shape
    taken = new((batch, length, half), F32)
    out = new((batch, length, 2 * half), F32)
    del taken
    return out
