"""What Unsloth puts into decoder-only types of transformers, where LoRA trains them and it runs their layers by code of
its own: norms, and layers with LoRA in one step of the tape each. Forward keeps a layer's input alone, and of a gated
feed-forward both halves; backward writes over them.

Source: ``LlamaDecoderLayer_fast_forward``, ``LlamaAttention_fast_forward`` and ``patch_peft_model``
(unsloth/models/llama.py 2026.10.9), loader.py, which says what type goes there, ``LoRA_MLP``, ``LoRA_QKV``, ``LoRA_W``
(kernels/fast_lora.py) and ``matmul_lora`` (kernels/utils.py). A packed weight is made wide for each product; that
Unsloth keeps one such buffer for all of them is not followed.
"""

from collections.abc import Sequence
from typing import Any

from kb.core.model import Architecture
from kb.core.setup import NEWEST_LIGER
from kb.memory.engine import ops
from kb.memory.engine.families.decoder_parts import GatedMlp, GemmaNorm
from kb.memory.engine.modules import Linear, RmsNorm
from kb.memory.engine.ops import liger
from kb.memory.engine.quantized import unpacked
from kb.memory.engine.tape import Gradients, Node, record, save, saved
from kb.memory.engine.tensor import Tensor, new
from kb.memory.engine.world import world


class Norm(RmsNorm):
    """``Fast_RMS_Layernorm``: the frozen weight gets no gradient; the input's lies where the result's lay."""

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["RmsNorm"] = self.path
        return liger.rms_norm(x, self.weight, NEWEST_LIGER, in_place=True)


class Gemma(GemmaNorm):
    """The same of Gemma, whose gradient is a new one."""

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["GemmaNorm"] = self.path
        return liger.rms_norm(x, self.weight, NEWEST_LIGER, in_place=False)


class Mlp(GatedMlp):
    """``apply_lora_mlp_swiglu``, ``…geglu_approx``; transformers' own where a layer of the three has no adapter."""

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["GatedMlp"] = self.path
        if not fuses((self.gate, self.up, self.down)):
            return super().__call__(x)
        return lora_mlp(x, self.gate, self.up, self.down)


class Output(Linear):
    """``apply_lora_o``: attention's output layer."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["Linear"] = self.path
        return lora_products(x, (self,))[0] if fuses((self,)) else super().__call__(x)


def project(attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``apply_lora_qkv``, and norms of each head where the type has them."""
    layers = attention.projections
    q, k, v = lora_products(x, layers) if fuses(layers) else [each(x) for each in layers]
    if not attention.norms:
        return attention.head(q), attention.head(k, kv=True), attention.head(v, kv=True)
    norm_q, norm_k = attention.norms
    batch, length, _ = x.shape
    q = ops.transpose(norm_q(ops.view(q, (batch, length, attention.heads, attention.width))), 1, 2)
    k = ops.transpose(norm_k(ops.view(k, (batch, length, attention.kv_heads, attention.width))), 1, 2)
    return q, k, attention.head(v, kv=True)


def with_unsloth(traits: Any, a: Architecture) -> Any:
    """The traits of a type of :data:`~kb.core.model.OF_UNSLOTH` with Unsloth's parts in its blocks."""
    norm = Gemma if a.model_type == "gemma" else Norm

    def linear(model: Any, path: str, *shape: int, **more: Any) -> Linear:
        return (Output if path.endswith(traits.output) else traits.linear)(model, path, *shape, **more)

    return traits._replace(norm=norm, mlp=Mlp, turn=liger.rotary, project=project, linear=linear, repeats_kv=True)


# --- layers with LoRA -------------------------------------------------------------------------------------------------


def fuses(layers: Sequence[Linear]) -> bool:
    """Whether Unsloth takes these layers together: each has an adapter that is on, and none a bias."""
    return all(each.a is not None and each.bias is None and not each.model.adapters_off for each in layers)


def lora_mlp(x: Tensor, gate: Linear, up: Linear, down: Linear) -> Tensor:
    """``down(act(gate(x)) * up(x))``."""
    layers = gate, up, down
    node = record(_lora_mlp_back, (x, *_matrices(layers)), (), layers)
    e = _product(x, gate)
    g = _product(x, up)
    h = new(e.shape, e.dtype)
    out = _product(h, down)
    del h
    return _made(node, (x, e, g), out)


def _lora_mlp_back(node: Node, grad: Tensor) -> Gradients:
    """``h``, ``df`` and ``de`` lie where the gradient by ``h``, and both halves, lay; the input's gradient is written
    over the input."""
    gate, up, down = layers = node.extra
    x, *halves = saved(node)
    narrow = [new(each.shape, x.dtype) for each in _matrices(layers)]
    by_hidden = _product(grad, down, back=True)
    gradients = [new(each.shape, x.dtype) for each in narrow]
    through = [_between(x, each) for each in (up, gate)]
    for each in layers:
        turned = _between(x, each)
        del turned
    by_x = liger.over(x)
    for each in (up, gate):
        wide = _wide(each)
        del wide
    del by_hidden, through, narrow, halves
    return (by_x, *gradients)


def lora_products(x: Tensor, layers: Sequence[Linear]) -> list[Tensor]:
    """Queries, keys and values of one input; or one layer by itself."""
    node = record(_lora_products_back, (x, *_matrices(layers)), (), layers)
    outs = [_product(x, each) for each in layers]
    if node is None:
        return outs
    if len(layers) > 1:
        node.results = len(layers)
    save(node, (x,))
    for at, out in enumerate(outs):
        out.node, out.needs = (node, at) if node.results else node, True
    return outs


def _lora_products_back(node: Node, grads: Sequence[Tensor] | Tensor) -> Gradients:
    """Of queries, keys and values the input's gradient is written over the input; of one layer it is new."""
    layers = node.extra
    (x,) = saved(node)
    narrow = [new(each.shape, x.dtype) for each in _matrices(layers)]
    gradients = [new(each.shape, x.dtype) for each in narrow]
    through = [_between(x, each) for each in layers]
    for each in layers:
        turned = _between(x, each)
        del turned
    by_x = liger.over(x) if len(layers) > 1 else None
    for each in layers:
        wide = _wide(each)
        if by_x is None:
            by_x = new(x.shape, x.dtype)
        del wide
    del through, narrow
    return (by_x, *gradients)


def _matrices(layers: Sequence[Linear]) -> list[Tensor]:
    return [side for each in layers for side in (each.a, each.b)]  # type: ignore[misc]


def _made(node: Node | None, keeps: Sequence[Tensor], out: Tensor) -> Tensor:
    save(node, keeps)
    out.node, out.needs = node, node is not None
    return out


def _wide(layer: Linear) -> Tensor:
    """The weight as products read it."""
    return layer.weight if layer.state is None else unpacked(layer)


def _between(x: Tensor, layer: Linear) -> Tensor:
    """What lies between both matrices of an adapter: a product of ``rank`` columns."""
    assert layer.a is not None
    made = new((*x.shape[:-1], layer.a.shape[0]), x.dtype)
    world.multiplied()
    return made


def _product(x: Tensor, layer: Linear, *, back: bool = False) -> Tensor:
    """``matmul_lora``: the base's product, to which the adapter's is added in place; ``back``: of the gradient."""
    rows, columns = layer.sides()
    assert layer.a is not None and layer.b is not None
    wide = _wide(layer)
    out = new((*x.shape[:-1], columns if back else rows), x.dtype)
    world.multiplied()
    del wide
    first = new(layer.a.shape, x.dtype)
    between = _between(x, layer)
    del first
    second = new(layer.b.shape, x.dtype)
    del between, second
    return out
