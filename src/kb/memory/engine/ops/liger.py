"""Liger's chunked losses: hidden states in, the loss and its gradients out, a few rows' logits at a time.

Sources: liger_kernel/chunked_loss/fused_linear_preference.py (DPO, a pair at a time), KTO's and GRPO's beside it
(fused_linear_unpaired_preference.py, fused_linear_ppo.py; a row at a time) of liger-kernel 0.6.4 to 0.8.5. Gradients
are made in forward and kept. What torch.compile makes of a chunk was read in inductor's own code for it (torch 2.13,
compiled for a CPU): logits in their type, an fp32 tensor as large that the gradient of ``gather`` is scattered into,
and the logits' gradient.
"""

from kb.core.record import NamedTuple
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.ops.shapes import cast
from kb.memory.engine.tape import Gradients, Node, record, save, saved
from kb.memory.engine.tensor import F32, Tensor, like, mark, new
from kb.memory.engine.world import world

# _SELECTIVE_LOGPROB_SEQ_CHUNK_SIZE, _SELECTIVE_LOGPROB_VOCAB_CHUNK_SIZE
TILE_TOKENS, TILE_COLUMNS = 2048, 4096


class Head(NamedTuple):
    """The output layer as the losses read it; ``frozen_too``: its gradient is made where it does not train either."""

    weight: Tensor
    bias: Tensor | None
    frozen_too: bool
    scaled: bool  # the loss is divided or scaled after it: its gradients are multiplied, each into a new tensor

    @property
    def wanted(self) -> bool:
        return self.weight.needs or self.frozen_too


def compiled(hidden: Tensor, referred: Tensor | None, head: Head, rows: int, *, reuses: bool = False) -> Tensor:
    """The loss of ``hidden`` (batch, length, width), ``rows`` rows at a time, in code that torch.compile made.

    Args:
        referred: the reference's hidden states, whose logits are made beside the policy's.
        rows: 2 of a chosen and a rejected answer, which are copied side by side; 1 is a view.
        reuses: whether the logits' gradient is written over the logits (GRPO, which needs them no more).

    Raises:
        NotFollowedError: hidden states and output layer differ in type, which the product refuses.
    """
    if world.autocast is None and hidden.dtype != head.weight.dtype:
        raise NotFollowedError("Liger beside weights of two types")
    batch, length, width = hidden.shape
    kind, words = world.autocast or hidden.dtype, head.weight.shape[0]
    node, whole = _begin(hidden, head)
    made = []
    for _ in range(0, batch, rows):
        parts = [new((rows, length, width), each.dtype) for each in (hidden, referred) if each and rows > 1]
        logits = _logits(rows * length, words, kind)
        beside = None if referred is None else _logits(rows * length, words, kind)
        scattered = _logits(rows * length, words, F32, product=False)
        del beside
        grad = logits if reuses else _logits(rows * length, words, kind, product=False)
        del scattered
        by_hidden = new((rows, length, width), hidden.dtype)
        world.multiplied()
        by_weight = new(head.weight.shape, head.weight.dtype) if whole else None
        world.multiplied()
        del grad, logits, by_weight, parts
        made.append(by_hidden)
        del by_hidden
    return _end(node, hidden, whole, made)


def tiled(hidden: Tensor, head: Head) -> Tensor:
    """GRPO from liger-kernel 0.8: 2,048 tokens × 4,096 words at a time, made again for the gradients, in fp32."""
    batch, length, width = hidden.shape
    node, whole = _begin(hidden, head)
    made = []
    for _ in range(batch):
        kept = _tiles(length, head.weight, hidden.dtype, width)
        world.thread = "autograd"  # torch.autograd.grad, in forward
        by_hidden, by_weight = _tile_gradients(length, head, hidden.dtype, width)
        world.thread = "main"
        del kept
        made.append(by_hidden)
        del by_hidden, by_weight
    return _end(node, hidden, whole, made)


def _begin(hidden: Tensor, head: Head) -> tuple[Node | None, Tensor | None]:
    inputs = [hidden, head.weight, *(() if head.bias is None else (head.bias,))]
    node = record(_back, inputs, (), head)
    whole = like(head.weight) if head.wanted else None
    if whole is not None:
        mark(whole, "gradients")
    return node, whole


def _end(node: Node | None, hidden: Tensor, whole: Tensor | None, made: list[Tensor]) -> Tensor:
    """``torch.cat`` of the rows' gradients; they and the output layer's are kept for backward."""
    by_hidden = new(hidden.shape, hidden.dtype)
    del made
    save(node, (by_hidden, whole))
    return new((), F32, None, node)


def _back(node: Node, grad: Tensor) -> Gradients:
    """What forward made, multiplied where the loss was."""
    head = node.extra
    by_hidden, whole = saved(node)
    if head.scaled:
        by_hidden = like(by_hidden)
        whole = None if whole is None else like(whole)
    by_bias = None if head.bias is None or not head.bias.needs else like(head.bias)
    return by_hidden, whole, *(() if head.bias is None else (by_bias,))


def _logits(tokens: int, words: int, dtype: str, *, product: bool = True) -> Tensor:
    out = new((tokens, words), dtype)
    mark(out, "logits")
    if product:
        world.multiplied()
    return out


def _product(shape: tuple[int, ...], dtype: str) -> Tensor:
    out = new(shape, dtype)
    world.multiplied()
    return out


def _wide(tensor: Tensor) -> Tensor:
    """``.float()``, of fp32 the same."""
    return cast(tensor, F32)


def _tiles(tokens: int, weight: Tensor, dtype: str, width: int) -> list[Tensor]:
    """``_selective_logprob_forward``: what it returns. Names of a tile live until the next tile has its own."""
    found = [new((tokens,), F32), new((tokens,), F32)]
    logits = powers = None
    for start in range(0, tokens, TILE_TOKENS):
        rows = min(TILE_TOKENS, tokens - start)
        for first in range(0, weight.shape[0], TILE_COLUMNS):
            columns = min(TILE_COLUMNS, weight.shape[0] - first)
            narrow = _narrow(weight, columns, width, dtype)
            product = _product((rows, columns), dtype)
            del narrow
            logits = _wide(product)
            del product
            apart = new((rows, columns), F32)
            powers = new((rows, columns), F32)
            del apart
    del logits, powers
    return found


def _narrow(weight: Tensor, columns: int, width: int, dtype: str) -> Tensor | None:
    """``weight_chunk.to(hidden.dtype)``."""
    return None if weight.dtype == dtype else new((columns, width), dtype)


def _tile_gradients(tokens: int, head: Head, dtype: str, width: int) -> tuple[Tensor, Tensor | None]:
    """``_selective_logprob_backward``, and what its results are cast to."""
    weight = head.weight
    by_hidden = new((tokens, width), F32)
    by_weight = new(weight.shape, F32) if head.wanted else None
    logits = powers = grad = None
    for start in range(0, tokens, TILE_TOKENS):
        rows = min(TILE_TOKENS, tokens - start)
        for first in range(0, weight.shape[0], TILE_COLUMNS):
            columns = min(TILE_COLUMNS, weight.shape[0] - first)
            narrow = _narrow(weight, columns, width, dtype)
            product = _product((rows, columns), dtype)
            del narrow
            logits = _wide(product)
            del product
            apart = new((rows, columns), F32)
            powers = new((rows, columns), F32)
            del apart
            grad = new((rows, columns), F32)
            wide = None if weight.dtype == F32 else new((columns, width), F32)
            added = _product((rows, width), F32)
            del added, wide
            if by_weight is not None:
                wide = None if dtype == F32 else new((rows, width), F32)
                added = _product((columns, width), F32)
                del added, wide
    del logits, powers, grad
    return cast(by_hidden, dtype), None if by_weight is None else cast(by_weight, weight.dtype)
