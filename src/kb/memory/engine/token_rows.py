"""Rows of the words' table that train by themselves: ``TrainableTokensLayer`` of peft/tuners/trainable_tokens/layer.py
(0.21), which ``trainable_token_indices`` asks for.

Each forward pass makes a copy of the whole table with the rows put in, for the words and again for an output layer
that is tied to them.
"""

from collections.abc import Callable
from typing import Any

from kb.memory.engine import ops
from kb.memory.engine.ops.gathers import put_rows
from kb.memory.engine.tensor import F32, I64, Tensor, new


class TokenRows:
    """The rows that train, and beside them what they were; both in fp32, as PEFT casts adapters."""

    __slots__ = ("originals", "path", "paths", "rows", "table")

    def __init__(self, path: str, table: Tensor, number: int) -> None:
        self.path, self.table, self.paths = path, table, {path}
        index = new((number,), I64)
        picked = new((number, table.shape[1]), table.dtype)
        del index
        self.rows = new(picked.shape, table.dtype)
        self.originals = new(picked.shape, table.dtype)

    def widen(self) -> None:
        """``cast_adapter_dtype``, one after the other."""
        self.rows = ops.cast(self.rows, F32)
        self.originals = ops.cast(self.originals, F32)

    def merged(self, table: Tensor) -> Tensor:
        """``get_merged_weights``: a table, or an output layer's weight, as it is with the rows."""
        index = new((self.rows.shape[0],), I64)
        return put_rows(table, index, ops.cast(self.rows, table.dtype))

    def words(self, ids: Tensor, scale: Callable[[], Tensor] | None) -> Tensor:
        """The words' embeddings, scaled where the table's own module does that."""
        whole = self.merged(self.table)
        result = ops.embedding(ids, whole)
        return result if scale is None else ops.mul(result, ops.cast(scale(), result.dtype))


def add_token_rows(model: Any, number: int) -> TokenRows:
    """Put rows beside the words' table, and before what PEFT takes for tied to it: an encoder-decoder's output layer
    also where it has a weight of its own."""
    path, table, _ = model.words_of
    found = TokenRows(path, table, number)
    found.paths |= {other for other, each, _ in model.lookups if each is table}
    for linear in model.linears:
        if linear.weight is table or (model.encodes and linear.head):
            linear.merged = found.merged
    return found
