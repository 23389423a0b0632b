"""LoRA on embeddings: ``Embedding`` of peft/tuners/lora/layer.py (0.21).

Each has a matrix of (rank, rows of the table) and one of (width, rank). Tokens are looked up in the first, turned, and
multiplied by the second.
"""

from collections.abc import Callable
from typing import Any

from kb.memory.engine import ops
from kb.memory.engine.tensor import Tensor, new


class TableAdapter:
    """Both matrices of an embedding, in the table's type."""

    __slots__ = ("a", "b", "magnitude", "path")

    def __init__(self, model: Any, path: str, table: Tensor) -> None:
        (rows, width), rank = table.shape, model.options.adapters.rank
        self.path, self.magnitude = path, None
        self.a: Tensor = new((rank, rows), table.dtype)
        self.b: Tensor = new((width, rank), table.dtype)


def looked_up(model: Any, path: str, ids: Tensor, table: Tensor, *, hooked: bool = False) -> Tensor:
    """Rows of a table with what its adapter adds; ``hooked`` are the words, whose module checkpointing puts its hook
    on."""

    def base(ids: Tensor) -> Tensor:
        found = ops.embedding(ids, table)
        if hooked:
            model.require_input_grads(found)
        return found

    return adapted(model, path, ids, base)


def adapted(model: Any, path: str, ids: Tensor, base: Callable[[Tensor], Tensor], *, scale: Any = None) -> Tensor:
    """What ``base`` gives of ``ids``, with what its adapter adds; ``scale`` makes the number that a module scales its
    words by (``_get_embed_scale``)."""
    rows = model.token_rows
    if rows is not None and path in rows.paths and not model.adapters_off:
        return rows.words(ids, scale)  # type: ignore[no-any-return]
    result = base(ids)
    found = model.table_adapters.get(path)
    if found is None or model.adapters_off:
        return result
    dtype = result.dtype
    number = None if scale is None else scale()
    first = ops.transpose(found.a, 0, 1)
    turned = ops.transpose(found.b, 0, 1)  # its gradient is a view, to which another lookup's is not added in place
    after = ops.embedding(ids, first)
    output = ops.scale(ops.linear_by_hand(after, ops.transpose(turned, 0, 1)))
    if number is not None:
        output = ops.mul(output, ops.cast(number, output.dtype))
    result = ops.add(result, output)
    return ops.cast(result, dtype)
