"""How long the rows are that a run trains on: from a dataset that can be read without running
anyone's code, and from the batches as they come.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from kb.core.record import NamedTuple

MOST_ROWS = 2000  # of a dataset that has to be looked at row by row


class Lengths(NamedTuple):
    """Tokens of the longest row; None where nothing says. ``rows``: how many the dataset has."""

    source: int | None = None
    target: int | None = None
    rows: int | None = None


UNKNOWN_LENGTHS = Lengths()


def longest_rows(dataset: Any, collator: Any = None) -> Lengths:
    """The longest input and target of a tokenized dataset, as the collator will pad them.

    A ``datasets.Dataset`` with the columns ``input_ids`` and ``labels``, and a list of such rows, are read. Any other
    dataset is not: asking it for a row runs its owner's code, which may augment, drawing from the run's random numbers.
    """
    rows = _rows_of(dataset)
    if isinstance(dataset, list | tuple):
        chosen = dataset[:: max(len(dataset) // MOST_ROWS, 1)]
        mappings = [row for row in chosen if isinstance(row, Mapping)]
        return _padded(
            _longest([row.get("input_ids") for row in mappings]),
            _longest([row.get("labels") for row in mappings]),
            rows,
            collator,
        )
    if type(dataset).__module__.startswith("datasets.") and rows:
        names = getattr(dataset, "column_names", None) or ()
        step = max(rows // MOST_ROWS, 1)
        plain = dataset.with_format(None).select(range(0, rows, step))
        source = _longest(plain["input_ids"]) if "input_ids" in names else None
        target = _longest(plain["labels"]) if "labels" in names else None
        return _padded(source, target, rows, collator)
    return Lengths(rows=rows)


def _rows_of(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:  # an iterable dataset: nobody knows before it ends
        return None


def _longest(rows: Any) -> int | None:
    return max((len(row) for row in rows if hasattr(row, "__len__")), default=None)


def _padded(source: int | None, target: int | None, rows: int | None, collator: Any) -> Lengths:
    """To the length, or the multiple, that the collator pads to; a label that is a class has no length."""
    fixed = getattr(collator, "max_length", None) if getattr(collator, "padding", None) == "max_length" else None
    multiple = getattr(collator, "pad_to_multiple_of", None) or 1

    def padded(length: int | None) -> int | None:
        return None if length is None else max(-(-length // multiple) * multiple, fixed or 0)

    return Lengths(padded(source), padded(target), rows)


class Seen(NamedTuple):
    """Samples, and tokens of input and target. ``target`` is None where the target is no row of its own."""

    batch: int
    source: int
    target: int | None = None


class Shapes:
    """Looks on while a model is called. ``most``: the most of each that one training batch had."""

    def __init__(self) -> None:
        self.most: Seen | None = None
        self._handle: Any = None

    def attach(self, model: Any) -> None:
        """Look on at a ``torch.nn.Module`` until :meth:`detach`: a hook that reads shapes, and nothing else."""
        self.detach()
        self._handle = model.register_forward_pre_hook(self._look, with_kwargs=True)

    def detach(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def forget(self) -> None:
        self.most = None

    def _look(self, module: Any, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        with contextlib.suppress(Exception):  # in the middle of a step, where nothing of kb's may fail
            if module.training:
                self._see(given, named)

    def _see(self, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        inputs = named.get("input_ids", given[0] if given else None)
        inputs = named.get("inputs_embeds") if inputs is None else inputs
        shape: Sequence[int] = getattr(inputs, "shape", ())
        if len(shape) < 2:
            return
        rows: Sequence[int] = getattr(named.get("labels"), "shape", ())
        seen = Seen(int(shape[0]), int(shape[1]), int(rows[1]) if len(rows) > 1 else None)
        if self.most is None or seen != self.most:
            self.most = seen if self.most is None else _larger(self.most, seen)


def _larger(one: Seen, other: Seen) -> Seen:
    targets = [size for size in (one.target, other.target) if size is not None]
    return Seen(max(one.batch, other.batch), max(one.source, other.source), max(targets, default=None))
