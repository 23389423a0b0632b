"""The shapes of the batches that a model is trained on, as they come."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from kb.core.record import NamedTuple


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
