"""Elements picked by an index, copies side by side, and what a mask fills with a number."""

from kb.memory.engine.tape import Gradients, Node, record, saved
from kb.memory.engine.tensor import BOOL, Shape, Tensor, new, viewed


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
