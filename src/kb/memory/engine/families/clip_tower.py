"""CLIP's and SigLIP's vision towers: a picture's patches in, of CLIP its class before them, and states of each out.

It reads as ``modeling_clip.py`` and ``modeling_siglip.py``: names that live on there live on here.
"""

from typing import Any

from kb.core.model import Vision
from kb.memory.engine import ops
from kb.memory.engine.families.attention import eager_forward, for_flash, heads_of, sdpa_forward
from kb.memory.engine.families.decoder_parts import ACTIVATIONS
from kb.memory.engine.modules import LayerNorm, Linear, Model
from kb.memory.engine.tensor import I64, Tensor
from kb.memory.engine.world import world

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
        residual = x
        x = self.norm1(x)
        x, _ = self.attention(x)
        x = ops.add(residual, x)
        residual = x
        x = self.norm2(x)
        x = self.mlp(x)
        return ops.add(residual, x)


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
