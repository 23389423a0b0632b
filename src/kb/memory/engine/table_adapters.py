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


def adapted(model: Any, path: str, ids: Tensor, base: Callable[[Tensor], Tensor], *, scale: Any = None) -> Tensor:
    """What ``base`` gives of ``ids``, with what its adapter adds; ``scale`` makes the number that a module scales its
    words by (``_get_embed_scale``)."""
    result = base(ids)
    found = model.table_adapters.get(path)
    if found is None or model.adapters_off:
        return result
    dtype = result.dtype
    number = None if scale is None else scale()
    after = ops.embedding(ids, ops.transpose(found.a, 0, 1))
    output = ops.scale(ops.linear_by_hand(after, found.b))
    if number is not None:
        output = ops.mul(output, ops.cast(number, output.dtype))
    result = ops.add(result, output)
    return ops.cast(result, dtype)
