"""How a block of each decoder-only type puts its parts together, where names live on as in its modelling file."""

from typing import Any

from kb.memory.engine import ops
from kb.memory.engine.tensor import Tensor


def sequential(layer: Any, x: Tensor, *rest: Any) -> Tensor:
    """Llama: attention, then feed-forward, each behind its norm and added to what came in."""
    residual = x
    x = layer.norm1(x)
    x, _ = layer.attention(x, *rest)
    x = ops.add(residual, x)
    residual = x
    x = layer.norm2(x)
    x = layer.mlp(x)
    return ops.add(residual, x)


def sandwiched(layer: Any, x: Tensor, *rest: Any) -> Tensor:
    """GLM-4: a norm before and after each of the two."""
    residual = x
    x = layer.norm1(x)
    x, _ = layer.attention(x, *rest)
    x = layer.norm3(x)
    x = ops.add(residual, x)
    residual = x
    x = layer.norm2(x)
    x = layer.mlp(x)
    x = layer.norm4(x)
    return ops.add(residual, x)


def parallel(layer: Any, x: Tensor, *rest: Any) -> Tensor:
    """Cohere: one norm, and both read it."""
    residual = x
    x = layer.norm1(x)
    attended, _ = layer.attention(x, *rest)
    fed = layer.mlp(x)
    return ops.add(ops.add(residual, attended), fed)


def phi(layer: Any, x: Tensor, *rest: Any) -> Tensor:
    """Phi: both dropped out, and the residual added last."""
    residual = x
    x = layer.norm1(x)
    attended, _ = layer.attention(x, *rest)
    attended = layer.drop(attended)
    fed = layer.drop(layer.mlp(x))
    return ops.add(ops.add(attended, fed), residual)


def gptj(layer: Any, x: Tensor, *rest: Any) -> Tensor:
    """GPT-J: one norm for both, the residual added last; they drop out themselves."""
    residual = x
    x = layer.norm1(x)
    attended, _ = layer.attention(x, *rest)
    fed = layer.mlp(x)
    return ops.add(ops.add(attended, fed), residual)


def gptj_before(layer: Any, x: Tensor, *rest: Any) -> tuple[Tensor, Any]:
    """The same before 5.24, which gave the attention's weights back."""
    residual = x
    x = layer.norm1(x)
    attended, weights = layer.attention(x, *rest)
    fed = layer.mlp(x)
    return ops.add(ops.add(attended, fed), residual), weights


def gpt_neo(layer: Any, x: Tensor, *rest: Any) -> tuple[Tensor, Any]:
    """GPT-Neo: as Llama, but what attention gave keeps its name."""
    residual = x
    x = layer.norm1(x)
    attended, weights = layer.attention(x, *rest)
    x = ops.add(attended, residual)
    residual = x
    x = layer.norm2(x)
    fed = layer.mlp(x)
    return ops.add(residual, fed), weights


def bloom(layer: Any, x: Tensor, mask: Any, alibi: Any, _: Any, cache: Any) -> tuple[Tensor, Any]:
    """BLOOM: attention and feed-forward add what came in themselves."""
    normed = layer.norm1(x)
    attended, weights = layer.attention(normed, mask, alibi, x, cache)
    normed = layer.norm2(attended)
    return layer.mlp(normed, attended), weights


def falcon(layer: Any, x: Tensor, *rest: Any) -> tuple[Tensor, Any]:
    """Falcon: parallel behind one norm or one for each, or one after the other."""
    a, residual = layer.model.architecture, x
    normed = layer.norm1(x)
    fed_with = layer.norm2(x) if a.parallel and a.norms > 1 else normed
    attended, weights = layer.attention(normed, *rest)
    if not a.parallel:
        residual = ops.add(residual, ops.dropout(attended, layer.attention.dropout))
        fed_with = layer.norm2(residual)
    fed = layer.mlp(fed_with)
    if a.parallel:
        fed = ops.add_here(fed, attended)
    return ops.add(residual, layer.drop(fed)), weights


def neox(layer: Any, x: Tensor, *rest: Any) -> Tensor:
    """GPT-NeoX: two norms of one input where it is parallel."""
    attended, _ = layer.attention(layer.norm1(x), *rest)
    attended = layer.drop(attended)
    if layer.model.architecture.parallel:
        fed = layer.mlp(layer.norm2(x))
        fed = layer.drop(fed)
        return ops.add(ops.add(fed, attended), x)
    attended = ops.add(attended, x)
    fed = layer.mlp(layer.norm2(attended))
    fed = layer.drop(fed)
    return ops.add(fed, attended)


def stablelm(layer: Any, x: Tensor, *rest: Any) -> Tensor:
    """StableLM: parallel behind one norm, or one after the other."""
    residual = x
    x = layer.norm1(x)
    attended, _ = layer.attention(x, *rest)
    if layer.model.architecture.parallel:
        fed = layer.mlp(x)
        fed = layer.drop(fed)
        return ops.add(ops.add(residual, attended), fed)
    residual = ops.add(residual, attended)
    fed = layer.mlp(layer.norm2(residual))
    fed = layer.drop(fed)
    return ops.add(residual, fed)


def gpt2(layer: Any, x: Tensor, *rest: Any) -> Tensor:
    """GPT-2: as GPT-Neo, but nobody gets the weights."""
    residual = x
    x = layer.norm1(x)
    attended, _ = layer.attention(x, *rest)
    x = ops.add(attended, residual)
    residual = x
    x = layer.norm2(x)
    fed = layer.mlp(x)
    return ops.add(residual, fed)


def dropped(layer: Any, x: Tensor, *rest: Any) -> Tensor:
    """Phi-3: as Llama, with both dropped out."""
    residual = x
    x = layer.norm1(x)
    x, _ = layer.attention(x, *rest)
    x = ops.add(residual, layer.drop(x))
    residual = x
    x = layer.norm2(x)
    x = layer.mlp(x)
    return ops.add(residual, layer.drop(x))


def opt(layer: Any, x: Tensor, *rest: Any) -> Tensor:
    """OPT: tokens of all samples in one dimension before the feed-forward; OPT-350m's norms come behind the sums."""
    behind = layer.model.architecture.norms_sums
    residual = x
    if not behind:
        x = layer.norm1(x)
    x, _ = layer.attention(x, *rest)
    x = layer.drop(x)
    x = ops.add(residual, x)
    if behind:
        x = layer.norm1(x)
    shape = x.shape
    x = ops.reshape(x, (shape[0] * shape[1], shape[2]))
    residual = x
    if not behind:
        x = layer.norm2(x)
    x = layer.mlp.first(x)
    x = layer.mlp.act(x)
    x = layer.mlp.second(x)
    x = layer.drop(x)
    x = ops.view(ops.add(residual, x), shape)
    return layer.norm2(x) if behind else x


def scaled(layer: Any, x: Tensor, *rest: Any) -> Tensor:
    """Granite: what is added is scaled; HyperCLOVA X may have a norm before that."""
    more = layer.model.architecture.norms > 2
    residual = x
    x = layer.norm1(x)
    x, _ = layer.attention(x, *rest)
    if more:
        x = layer.norm3(x)
    x = ops.add(residual, ops.scale(x))
    residual = x
    x = layer.norm2(x)
    x = layer.mlp(x)
    if more:
        x = layer.norm4(x)
    return ops.add(residual, ops.scale(x))


def lfm2(layer: Any, x: Tensor, *rest: Any) -> Tensor:
    """LFM2: as Llama, but what a layer was given is added last, and keeps its name."""
    residual = x
    x, _ = layer.attention(layer.norm1(x), *rest)
    x = ops.add(x, residual)
    return ops.add(x, layer.mlp(layer.norm2(x)))


def normed_behind(layer: Any, x: Tensor, *rest: Any) -> Tensor:
    """EXAONE 4, OLMo 2: the only norm of each of the two comes behind it."""
    residual = x
    x, _ = layer.attention(x, *rest)
    x = layer.norm1(x)
    x = ops.add(residual, x)
    residual = x
    x = layer.mlp(x)
    x = layer.norm2(x)
    return ops.add(residual, x)
