"""Elements and rows picked by an index, put back, copied side by side or filled where a mask is; and what else a
mixture of experts takes that sorts tokens by expert and multiplies each expert's group of rows.
"""

from kb.memory.engine.ops.pointwise import seen_again
from kb.memory.engine.tape import Gradients, Node, record, save, saved
from kb.memory.engine.tensor import BOOL, F32, I64, Shape, Tensor, like, new, seen_as, viewed
from kb.memory.engine.world import world


def gather(tensor: Tensor, at: Tensor, shape: Shape) -> Tensor:
    """``torch.gather`` by an index seen as ``shape``. Its backward keeps the whole input, for its shape, and adds the
    gradient into zeros in place (``gather_backward``, FunctionsManual.cpp)."""
    return new(shape, tensor.dtype, None, record(_gather_back, (tensor,), (tensor, at)))


def _gather_back(node: Node, grad: Tensor) -> Gradients:
    tensor, at = saved(node)
    zeros = new(tensor.shape, grad.dtype)
    del at
    return (zeros,)


def put_rows(table: Tensor, at: Tensor, rows: Tensor) -> Tensor:
    """``table.index_copy(0, at, rows)``: a copy of the whole table. Both the index and the rows are kept
    (derivatives.yaml), the rows for their shape."""
    return new(table.shape, table.dtype, None, record(_put_rows_back, (table, rows), (at, rows)))


def _put_rows_back(node: Node, grad: Tensor) -> Gradients:
    table, _ = node.edges
    _, rows = saved(node)
    by_table = None if table is None else new(grad.shape, grad.dtype)
    picked = new(rows.shape, grad.dtype)
    return by_table, Tensor(picked.shape, picked.dtype, picked.strides, picked.storage, based=True)  # ``expand_as``


def repeated(tensor: Tensor, times: int) -> Tensor:
    """``tensor.repeat(times, 1, …)``: a copy, also of one time."""
    node = record(_repeated_back, (tensor,), (), (times, tensor.shape))
    return new((times * tensor.shape[0], *tensor.shape[1:]), tensor.dtype, None, node)


def _repeated_back(node: Node, grad: Tensor) -> Gradients:
    """Gradients are summed over the copies (``repeat_backward``, FunctionsManual.cpp)."""
    times, shape = node.extra
    if times == 1:
        return (grad,)
    whole = grad if viewed(grad, (times, *shape)) is not None else new(grad.shape, grad.dtype)
    out = new(shape, grad.dtype)
    del whole
    return (out,)


def filled(tensor: Tensor, mask: Tensor) -> Tensor:
    """``tensor.masked_fill(~mask, number)``: a contiguous copy; the mask's opposite is kept."""
    unseen = new(mask.shape, BOOL)
    return new(tensor.shape, tensor.dtype, None, record(filled_back, (tensor,), (unseen,)))


def filled_back(node: Node, grad: Tensor) -> Gradients:
    """Zeros where the mask is."""
    kept = saved(node)
    out = new(grad.shape, grad.dtype)
    del kept
    return (out,)


def rows_at(tensor: Tensor, at: Tensor, rows: int = 0, columns: int = 0) -> Tensor:
    """``tensor[at]``: a copy; its gradient is added to zeros of the whole (``index_backward``).

    ``rows`` where ``at`` holds more than where those are, and ``columns`` where not all of each is picked.
    """
    node = record(_rows_back, (tensor,), (at,), tensor.shape)
    shape = (rows, columns or tensor.shape[1]) if rows else (*at.shape, *tensor.shape[1:])
    return new(shape, tensor.dtype, None, node)


def _rows_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    out = new(node.extra, grad.dtype)
    del kept
    return (out,)


def grouped(rows: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """``torch.nn.functional.grouped_mm`` of (rows, inputs) and (experts, inputs, outputs); of whole 16 bytes a row."""
    kept = (rows if weights.needs else None, weights if rows.needs else None, offsets)
    node = record(_grouped_back, (rows, weights), kept, weights.strides)
    return new((rows.shape[0], weights.shape[2]), rows.dtype, None, node)


def _grouped_back(node: Node, grad: Tensor) -> Gradients:
    """The weights' gradient comes first, laid out as they are."""
    kept = saved(node)
    rows, weights = node.edges
    by_weights = None if weights is None else new(weights[1], grad.dtype, node.extra)
    by_rows = None if rows is None else new(rows[1], grad.dtype)
    del kept
    return by_rows, by_weights


def added_rows(tensor: Tensor, rows: Tensor, at: Tensor) -> Tensor:
    """``tensor.index_add_(0, at, rows)``; the rows are kept for their gradient's shape."""
    return seen_again(tensor, record(_added_back, (tensor, rows), (at, rows), rows.shape))


def _added_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    by_rows = None if node.edges[1] is None else new(node.extra, grad.dtype)
    del kept
    return (grad if node.edges[0] is not None else None), by_rows


def summed_over(tensor: Tensor, times: int) -> Tensor:
    """``tensor.view(rows, times, width).sum(1)``, in fp32 under autocast, whose gradient is copied, or cast, to be seen
    as all rows again."""
    node = record(_summed_back, (tensor,), (), (tensor.shape, tensor.dtype))
    dtype = tensor.dtype if world.autocast is None else F32
    return new((tensor.shape[0] // times, tensor.shape[1]), dtype, None, node)


def _summed_back(node: Node, grad: Tensor) -> Gradients:
    return (new(*node.extra),)


def largest(tensor: Tensor) -> Tensor:
    """``tensor.max(-1, keepdim=True).values``; where each is, is kept."""
    return most_likely(tensor, 1)[0]


def most_likely(tensor: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """``torch.topk`` of the last dimension: values, and where they are."""
    node, shape = record(_put_back, (tensor,), (), tensor.shape), (*tensor.shape[:-1], number)
    values = new(shape, tensor.dtype, None, node)
    at = new(shape, I64)
    save(node, (at,))
    return values, at


def _put_back(node: Node, grad: Tensor) -> Gradients:
    """``value_selecting_reduction_backward``: zeros, and a copy of them with the gradient scattered into it."""
    kept = saved(node)
    zeros = new(node.extra, grad.dtype)
    out = new(node.extra, grad.dtype)
    del zeros, kept
    return (out,)


def below(tensor: Tensor) -> Tensor:
    """``tensor.clamp(max=number)``; the input is kept."""
    return like(tensor, None, record(_below_back, (tensor,), (tensor,)))


def _below_back(node: Node, grad: Tensor) -> Gradients:
    kept = saved(node)
    zero = new((), grad.dtype)
    flags = new(grad.shape, BOOL)
    out = like(grad)
    del flags, zero, kept
    return (out,)


def every_other(tensor: Tensor) -> Tensor:
    """``tensor[..., ::2]``: a view, whose gradient is put into zeros of the whole."""
    node = record(_rows_like_back, (tensor,), (), tensor.shape)
    shape = (*tensor.shape[:-1], tensor.shape[-1] // 2)
    strides = (*tensor.strides[:-1], 2 * tensor.strides[-1])
    return Tensor(shape, tensor.dtype, strides, tensor.storage, node)


def _rows_like_back(node: Node, grad: Tensor) -> Gradients:
    return (new(node.extra, grad.dtype),)


def summed(tensor: Tensor) -> Tensor:
    """``tensor.sum(-1, keepdim=True)``, of fp32; its gradient is seen as all columns."""
    return new((*tensor.shape[:-1], 1), tensor.dtype, None, record(_summed_up_back, (tensor,), (), tensor.shape))


def _summed_up_back(node: Node, grad: Tensor) -> Gradients:
    return (seen_as(grad, node.extra, (*grad.strides[:-1], 0)),)


def divided_here(tensor: Tensor, by: Tensor) -> Tensor:
    """``tensor /= by``: what was there is kept in a copy, for the gradient of what it is divided by."""
    kept = (by, like(tensor) if by.needs else None)
    return seen_again(tensor, record(_divided_back, (tensor, by), kept))


def _divided_back(node: Node, grad: Tensor) -> Gradients:
    """``div_tensor_self_backward`` and ``div_tensor_other_backward`` (FunctionsManual.cpp)."""
    by, tensor = saved(node)
    by_other = None
    if node.edges[1] is not None:
        once = like(tensor)
        twice = like(tensor)
        negative = like(grad)
        by_other = like(grad)
        del once, twice, negative
    by_tensor = like(grad) if node.edges[0] is not None else None
    del by, tensor
    return by_tensor, by_other
