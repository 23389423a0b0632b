"""Log-probabilities of the tokens that were written, from hidden states or logits, as the trainers of TRL have them.

Sources: trl/kernels/chunked_logprob.py (``ChunkedLogProbFunction``) and trl/trainer/utils.py (``add_fused_lm_head``,
``selective_log_softmax``, ``entropy_from_logits``) of TRL 1.16.0, 1.8.0 and 0.29.1.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod

from kb.memory.engine.ops.gathers import gather
from kb.memory.engine.ops.losses import log_softmax
from kb.memory.engine.ops.pointwise import whole_back
from kb.memory.engine.ops.shapes import cast, contiguous, picked_back, unbind
from kb.memory.engine.tape import Gradients, Node, record, save, saved
from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, bare, like, new
from kb.memory.engine.world import world

Reads = Callable[[Sequence[Tensor | None]], AbstractContextManager[None]]

TILE_TOKENS, TILE_COLUMNS = 4096, 32768  # TOKEN_CHUNK_SIZE, _CHUNKED_LOGPROB_CHUNK_SIZE
STATISTICS = 7  # fp32 numbers for each token while tiles are folded
ENTROPY_ROWS = 128  # entropy_from_logits


def without_last(tensor: Tensor) -> Tensor:
    """``tensor[:, :-1]``: a view, whose gradient is as long as the whole."""
    node = record(whole_back, (tensor,), (), tensor.shape)
    batch, length, *rest = tensor.shape
    return Tensor((batch, length - 1, *rest), tensor.dtype, tensor.strides, tensor.storage, node)


def last_of(tensor: Tensor, count: int) -> Tensor:
    """``tensor[:, -count:]``."""
    node = record(whole_back, (tensor,), (), tensor.shape)
    return Tensor((tensor.shape[0], count, *tensor.shape[2:]), tensor.dtype, tensor.strides, tensor.storage, node)


def first_rows(tensor: Tensor, count: int) -> Tensor:
    """``tensor[:count]``."""
    node = record(whole_back, (tensor,), (), tensor.shape)
    return Tensor((count, *tensor.shape[1:]), tensor.dtype, tensor.strides, tensor.storage, node)


# --- the fused head ---------------------------------------------------------------------------------------------------


def _there(_: Sequence[Tensor | None]) -> AbstractContextManager[None]:
    """Parameters that nothing shares out."""
    return nullcontext()


def fused(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    outputs: int,
    scored: int,
    reads: Reads = _there,
) -> tuple[Tensor, list[Tensor]]:
    """Of hidden states (batch, length, width): log-probabilities, and ``outputs`` more numbers for each token.

    Args:
        scored: tokens of each row that count.
        reads: while it is open, what shares out the parameters has those together that it is given.
    """
    batch, length, _ = hidden.shape
    labels = new((batch, length), I64)
    mask = new((batch, length), BOOL)
    picked, chosen = _picked(hidden, scored), new((batch * scored,), I64)
    with reads((weight, bias)):
        found = _chunked(picked, weight, bias, chosen, outputs, reads)
    del picked, chosen, labels
    made = [_scattered(each, (batch, length), mask) for each in found]
    del found
    return made[0], made[1:]


def _picked(hidden: Tensor, scored: int) -> Tensor:
    """``hidden_states[mask]``: where the mask is true, as indices, and a copy of those rows."""
    batch, _, width = hidden.shape
    where = new((batch * scored, 2), I64)
    node = record(picked_back, (hidden,), (where,), hidden.shape)
    return new((batch * scored, width), hidden.dtype, None, node)


def _scattered(tensor: Tensor, shape: tuple[int, ...], mask: Tensor) -> Tensor:
    """``zeros.masked_scatter(mask, tensor)``."""
    zeros = new(shape, tensor.dtype)
    node = record(_scattered_back, (tensor,), (mask,), tensor.shape)
    out = new(shape, tensor.dtype, None, node)
    del zeros
    return out


def _scattered_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    out = new(node.extra, grad.dtype)
    del kept
    return (out,)


def _chunked(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, outputs: int, reads: Reads
) -> list[Tensor]:
    """``ChunkedLogProbFunction.forward``: one tile of logits, written over and over."""
    tokens, _ = hidden.shape
    kind = world.autocast or hidden.dtype
    inputs = [hidden, weight, *(() if bias is None else (bias,))]
    node = record(_chunked_back, inputs, (), (kind, bias is not None, reads))
    running = [new((tokens,), F32) for _ in range(STATISTICS)]
    tile = new((min(tokens, TILE_TOKENS), TILE_COLUMNS), kind)
    _tiles(hidden, weight, kind)
    log_z = _summed(tokens)
    found = [new((tokens,), F32, None, node)]
    found += [_divided(tokens) if number == 0 else new((tokens,), F32) for number in range(outputs)]
    save(node, (hidden, weight, bias, targets, log_z, found[1] if outputs else log_z))
    del running, tile
    return [found[0], *(bare(each) for each in found[1:])]


def _summed(tokens: int) -> Tensor:
    """``running_max + log(sum_exp)``."""
    logs = new((tokens,), F32)
    out = new((tokens,), F32)
    del logs
    return out


_divided = _summed  # log_z - x_sum_exp / sum_exp


def _tiles(hidden: Tensor, weight: Tensor, kind: str) -> None:
    """The loop over tokens and vocabulary: what is cast to the product's type, a part at a time."""
    tokens, width = hidden.shape
    rows = weight.shape[0]
    part: Tensor | None = None
    column: Tensor | None
    for start in range(0, tokens, TILE_TOKENS):
        count = min(TILE_TOKENS, tokens - start)
        part = new((count, width), kind) if hidden.dtype != kind else part
        for first in range(0, rows, TILE_COLUMNS):
            column = new((min(TILE_COLUMNS, rows - first), width), kind) if weight.dtype != kind else None
            world.multiplied()
            del column


def _chunked_back(node: Node, grad: Tensor) -> Gradients:
    """Gradients are summed in fp32 and cast to the type of what they belong to."""
    hidden, weight, *_ = kept = saved(node)
    kind, biased, reads = node.extra
    with reads((weight, kept[2])):
        return _tiles_back(node, hidden, weight, kind, biased=biased)


def _tiles_back(node: Node, hidden: Tensor, weight: Tensor, kind: str, *, biased: bool) -> Gradients:
    tokens = hidden.shape[0]
    by_hidden = None if node.edges[0] is None else new(hidden.shape, F32)
    by_weight = None if node.edges[1] is None else new(weight.shape, F32)
    by_bias = new((weight.shape[0],), F32) if biased and node.edges[2] is not None else None
    tile = new((min(tokens, TILE_TOKENS), TILE_COLUMNS), kind)
    part: Tensor | None = None
    column: Tensor | None = None
    for start in range(0, tokens, TILE_TOKENS):
        count = min(TILE_TOKENS, tokens - start)
        part = new((count, hidden.shape[1]), kind) if hidden.dtype != kind else part
        for first in range(0, weight.shape[0], TILE_COLUMNS):
            rows = min(TILE_COLUMNS, weight.shape[0] - first)
            column = new((rows, hidden.shape[1]), kind) if weight.dtype != kind else column
            world.multiplied()
            if kind == F32:  # acc.addmm_(a.float(), b.float()) of what is fp32 already
                continue
    outs = [None if each is None else cast(each, like_) for each, like_ in (
        (by_hidden, hidden.dtype), (by_weight, weight.dtype), *(((by_bias, weight.dtype),) if biased else ()),
    )]  # fmt: skip
    del tile, part, column
    return outs


# --- whole logits -----------------------------------------------------------------------------------------------------


def selected(logits: Tensor, labels: Tensor) -> Tensor:
    """``selective_log_softmax``: of fp32 gather minus logsumexp, row by row; else a row's log_softmax and gather."""
    if logits.dtype == F32:
        chosen = gather(logits, labels, logits.shape[:-1])
        rows = unbind(logits, 0)
        sums = _stacked([_logsumexp(row) for row in rows])
        del rows
        return _minus(chosen, sums)
    found = []
    for row in unbind(logits, 0):
        logs = log_softmax(row)
        found.append(gather(logs, labels, logs.shape[:-1]))
    return _stacked(found)


def gathered_log_softmax(logits: Tensor, labels: Tensor) -> Tensor:
    """``torch.gather(logits.log_softmax(-1), …)`` of the whole batch at once."""
    return gather(log_softmax(logits), labels, logits.shape[:-1])


def entropy_of(logits: Tensor) -> Tensor:
    """``entropy_from_logits``: flat (a copy where the view is not contiguous), by 128 rows, without gradients."""
    flat = contiguous(logits)
    rows = prod(logits.shape[:-1])
    parts = []
    logs = None
    for start in range(0, rows, ENTROPY_ROWS):
        shape = (min(ENTROPY_ROWS, rows - start), logits.shape[-1])
        logs = new(shape, logits.dtype)
        probabilities = new(shape, logits.dtype)
        product = new(shape, logits.dtype)
        del probabilities
        summed = new(shape[:1], logits.dtype)
        del product
        parts.append(new(shape[:1], logits.dtype))
        del summed
        if start >= 2 * ENTROPY_ROWS:  # every further part is as these
            break
    del logs, parts, flat
    return new(logits.shape[:-1], logits.dtype)


def _logsumexp(row: Tensor) -> Tensor:
    """Its kernel makes the maxima, and the exponentials of what is below them; input and result are kept."""
    node = record(_logsumexp_back, (row,), (row,))
    maxima = new((*row.shape[:-1], 1), row.dtype)
    below = new(row.shape, row.dtype)
    out = new(row.shape[:-1], row.dtype, None, node)
    del below, maxima
    save(node, (bare(out),))
    return out


def _logsumexp_back(node: Node, grad: Tensor) -> Gradients:
    """``grad * (self - result).exp()``."""
    kept = saved(node)
    row = kept[0]
    apart = new(row.shape, row.dtype)
    powers = new(row.shape, row.dtype)
    out = new(row.shape, row.dtype)
    del apart, powers, kept, row
    return (out,)


def _stacked(tensors: list[Tensor]) -> Tensor:
    node = record(_stacked_back, tensors, (), len(tensors))
    return new((len(tensors), *tensors[0].shape), tensors[0].dtype, None, node)


def _stacked_back(node: Node, grad: Tensor) -> Gradients:
    shape = grad.shape[1:]
    return tuple(Tensor(shape, grad.dtype, grad.strides[1:], grad.storage, based=True) for _ in range(node.extra))


def _minus(first: Tensor, second: Tensor) -> Tensor:
    return like(first, None, record(_minus_back, (first, second)))


def _minus_back(node: Node, grad: Tensor) -> Gradients:
    return grad, like(grad)
