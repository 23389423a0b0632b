"""What Qwen2-VL, Qwen2.5-VL and Qwen3-VL see with: a vision tower (patches in, tokens of the language model out) and
its mergers.

It reads as ``modeling_qwen2_vl.py``, ``modeling_qwen2_5_vl.py`` and ``modeling_qwen3_vl.py``: names that live on there
live on here.
"""

from collections import Counter
from functools import lru_cache, partial
from typing import Any

from kb.core.model import Vision
from kb.memory.engine import ops
from kb.memory.engine.allocator import SMALL_REQUEST
from kb.memory.engine.families.attention import eager_forward, for_flash, rotary, sdpa_forward
from kb.memory.engine.families.decoder_parts import ACTIVATIONS
from kb.memory.engine.families.picture_places import Sizes, angles
from kb.memory.engine.modules import LayerNorm, Linear, Model, RmsNorm
from kb.memory.engine.ops.pooling import summed_rows
from kb.memory.engine.tensor import F32, I32, I64, WIDTH, Tensor, new, packed
from kb.memory.engine.world import world

MOST_STRETCHES = 48  # that are attended to one by one


class PatchEmbed:
    """A convolution of three dimensions whose strides are its kernel."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        kernel = (vision.channels, vision.frames, vision.patch, vision.patch)
        self.model, self.path, self.kernel = model, path, kernel
        self.weight = model.parameter(f"{path}.proj.weight", (vision.width, *kernel))
        self.bias = model.parameter(f"{path}.proj.bias", (vision.width,)) if vision.places else None

    def __call__(self, pixels: Tensor) -> Tensor:
        world.inside["PatchEmbed"] = self.path
        x = ops.view(pixels, (pixels.shape[0], *self.kernel))
        x = ops.patches(ops.cast(x, self.weight.dtype), self.weight, self.bias)
        x = ops.view(x, (pixels.shape[0], self.weight.shape[0]))
        if self.bias is None:  # of Qwen3-VL the hook is on the words alone
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
    """Gated in Qwen2.5-VL (``gate_proj``, ``up_proj``, ``down_proj``), else two layers."""

    def __init__(self, model: Model, path: str, vision: Vision) -> None:
        names: tuple[str, ...] = ("linear_fc1", "linear_fc2") if vision.places else ("fc1", "fc2")
        names = ("gate_proj", "up_proj", "down_proj") if vision.window else names
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
    """``PatchMerger``: neighbours side by side, through two layers; ``late``: before the norm."""

    def __init__(self, model: Model, path: str, vision: Vision, out: int, *, late: bool = False) -> None:
        self.wide = vision.width * vision.merge**2
        self.path, self.late = path, late
        norm = partial(RmsNorm, decays=True) if vision.window else LayerNorm
        names = ("norm", "linear_fc1", "linear_fc2") if vision.places else ("ln_q", "mlp.0", "mlp.2")
        self.norm = norm(model, f"{path}.{names[0]}", self.wide if late else vision.width)
        self.first = Linear(model, f"{path}.{names[1]}", self.wide, self.wide, bias=True)
        self.second = Linear(model, f"{path}.{names[2]}", self.wide, out, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["Merger"] = self.path
        shape = x.shape[0] * x.shape[1] // self.wide, self.wide
        x = self.norm(ops.view(x, shape) if self.late else x)
        return self.second(ops.gelu(self.first(ops.view(x, shape))))


class Tower:
    """The vision transformer: patches in, tokens of the language model out."""

    def __init__(self, model: Model, vision: Vision) -> None:
        path = "model.visual"
        self.model, self.vision, self.path = model, vision, path
        self.patch_embed = PatchEmbed(model, f"{path}.patch_embed", vision)
        self.table = model.table(f"{path}.pos_embed", vision.places, vision.width) if vision.places else None
        quarter = vision.width // vision.heads // 4
        model.buffer((quarter,), F32)
        model.buffer((quarter,), F32)
        self.blocks = [VisionBlock(model, f"{path}.blocks.{at}", vision) for at in range(vision.depth)]
        out = model.architecture.d_model
        self.merger = Merger(model, f"{path}.merger", vision, out)
        # of the states behind some blocks, which the decoder's first layers get too (Qwen3-VL)
        self.deep = [
            Merger(model, f"{path}.deepstack_merger_list.{at}", vision, out, late=True)
            for at in range(len(vision.states))
        ]

    def __call__(self, pixels: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The last states, the tokens, and those of earlier states."""
        world.inside["Tower"] = self.path
        world.recording.term = "activations_encoder"
        vision, count = self.vision, pixels.shape[0]
        flash = self.model.options.flash
        among = sizes.among_learned() if vision.places else None
        places = sizes.places()
        whole = sizes.bounds()
        if flash:
            longest(whole)
        windows = sizes.window_bounds() if vision.window else None
        if windows is not None and flash:
            longest(windows)
        x = self.patch_embed(pixels)
        learned = None
        if among is not None:
            learned = self.learned(*among)
            x = ops.add(x, ops.cast(learned, x.dtype))
        if vision.window:
            x = self.reordered(x)
        cos, sin = angles(places, vision.width // vision.heads)
        if vision.window:
            cos, sin = self.reordered(cos), self.reordered(sin)
        deep: list[Tensor] = []
        for at, block in enumerate(self.blocks):
            sees_all = not vision.window or at in vision.full_layers
            stretches, bounds = (sizes.pictures, whole) if sees_all else (sizes.windows, windows)
            x = self.model.layer(block, x, stretches, cos, sin, bounds)
            if at + 1 in vision.states:
                deep.append(self.deep[vision.states.index(at + 1)](x))
        merged = self.merger(x)
        if vision.window:
            merged = ops.looked_up(merged, on_host(count // vision.merge**2))
        del among, learned, places, whole, windows, cos, sin
        return x, merged, deep

    def learned(self, near: Tensor, shares: Tensor) -> Tensor:
        """Of each patch the places around it, by their shares."""
        assert self.table is not None
        table = f"{self.path}.pos_embed"
        return summed_rows(ops.mul(self.model.part(table, ops.embedding, near, self.table), ops.unsqueeze(shares, 2)))

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
