"""Clipping and the optimizers' steps: states, and what a step holds on top.

Sources: torch/nn/utils/clip_grad.py, torch/optim/adamw.py and _multi_tensor_adam, bitsandbytes/optim/optimizer.py
(``init_state``), transformers/trainer.py (embeddings stay in 32 bits), transformers/optimization.py (Adafactor, and up
to 4.49 ``AdamW``), torchao/optim/adam.py and its subclasses of 8 and 4 bits (0.18), in the Trainer's blocks.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

from kb.core.setup import TORCHAO
from kb.memory.engine import ops
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.kernel_choice import summed_buffers
from kb.memory.engine.tensor import F32, I8, Tensor, like, mark, new, scratch
from kb.memory.engine.world import world

FUSED = ("adamw_torch_fused",)
FOREACH = ("adamw_torch",)
OWN_LOOP = ("adamw_hf",)  # transformers' own AdamW, which went with release 4.50
EIGHT_BITS = ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit")
PAGED = ("paged_adamw_8bit", "paged_adamw_32bit", "paged_adamw", "paged_lion_8bit", "paged_lion_32bit")
LION = ("lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit")  # one state
# bitsandbytes keeps these in fp32, whatever the weights are
THIRTY_TWO_BITS = ("lion_32bit", "paged_lion_32bit", "paged_adamw_32bit", "paged_adamw")
KNOWN = (*TORCHAO, *FUSED, *FOREACH, *OWN_LOOP, *EIGHT_BITS, *PAGED, *LION, "sgd", "none", "adafactor")
SMALLEST_PAGED = 100_000  # elements; states of fewer stay on the GPU (``get_state_buffer``)
SMALLEST_EIGHT_BITS = 4096  # elements; below, and for embeddings, states stay in 32 bits
BLOCK = 256
TABLE = (256,)


class Optimizer:
    """One optimizer over a model's trained tensors, its states kept from step to step.

    Raises:
        NotFollowedError: an optimizer that the engine does not follow.
    """

    def __init__(self, model: Any, name: str, *, foreach: bool = True, keeps: bool = False) -> None:
        if name not in KNOWN:
            raise NotFollowedError(f"optim {name}")
        self.model, self.name, self.names, self.foreach = model, name, model.names(), foreach
        self.keeps = keeps  # gradients
        self.states: dict[int, tuple[Tensor, ...]] = {}
        self.tables: tuple[Tensor, ...] = ()
        self.sizes: dict[int, Tensor] = {}  # Adafactor's RMS of each parameter

    @property
    def alike(self) -> bool:
        """Whether each step makes what the first made, but for states."""
        return self.name != "adafactor"  # whose sizes of parameters are made anew

    def step(self) -> None:
        """Clip the gradients, update, and let them go, unless a loop keeps them."""
        recording = world.recording
        recording.moment, recording.term = "optimizer_step", "temporaries"
        trained = [tensor for tensor in self.model.trained() if tensor.grad is not None]
        if self.name != "none":
            self._clip(trained)
            self.update(trained)
        for tensor in self._turns([] if self.keeps else trained):
            tensor.grad = None

    def begin(self, tensors: list[Tensor]) -> None:
        """The states that a step makes, before there is one; none of Adafactor's, which depend on the gradients."""
        for tensor in tensors if self.name not in ("none", "sgd", "adafactor") else ():
            self._begin(tensor)

    def _turns(self, tensors: list[Tensor]) -> Iterator[Tensor]:
        """Each tensor in its turn."""
        return world.recording.turns((self.names[id(tensor)], tensor) for tensor in tensors)

    def update(self, trained: list[Tensor]) -> None:
        """One step of these, whose gradients are there: states at first, and what it holds on top."""
        if self.name == "sgd":
            return
        if self.name == "adafactor":
            self._adafactor(trained)
            return
        groups = [[t for t in trained if self.model.decays(t) is decays] for decays in (True, False)]
        if self.name in OWN_LOOP:
            self._in_own_loop(groups)
            return
        for group in groups:
            for tensor in self._turns(group):
                self._begin(tensor)
            if self.name in FOREACH and not self.foreach:
                self._one_by_one(group)
            elif self.name in FOREACH:
                roots = [like(tensor) for tensor in self._turns(group)]  # _foreach_sqrt
                del roots

    def _clip(self, trained: list[Tensor]) -> None:
        """``clip_grad_norm_``: a norm for each gradient, stacked, and the factor that all are multiplied by."""
        if not trained:
            return
        norms = [new((), tensor.dtype) for tensor in self._turns(trained)]
        stack = new((len(norms),), norms[0].dtype)
        total = new((), stack.dtype)
        del stack, norms
        summed = ops.plus(total)
        inverse = ops.plus(summed)
        factor = ops.plus(inverse)
        del summed, inverse
        clamped = ops.plus(factor)
        del factor, total, clamped

    def _one_by_one(self, group: list[Tensor]) -> None:
        """``_single_tensor_adam``: of each a root and what it is divided to, whose name outlives its turn."""
        divisor: Any = None
        for tensor in self._turns(group):
            root = like(tensor)
            divisor = like(tensor)
            del root
        del divisor

    def _begin(self, tensor: Tensor) -> None:
        """The states of a tensor that has none yet."""
        if id(tensor) in self.states:
            return
        self.states[id(tensor)] = self._made(tensor)
        for state in self.states[id(tensor)]:
            mark(state, "optimizer", self.names[id(tensor)])

    def _in_own_loop(self, groups: list[list[Tensor]]) -> None:
        """``AdamW.step`` of transformers below 4.50: tensor by tensor its states and what it is divided by, whose name
        lives until the next tensor's takes it."""
        divisor: Any = None
        for group in groups:
            for tensor in self._turns(group):
                self._begin(tensor)
                divisor = like(tensor)
        del divisor

    def _made(self, tensor: Tensor) -> tuple[Tensor, ...]:
        if self.name in FUSED:
            return new((), F32), like(tensor), like(tensor)
        if self.name in (*FOREACH, *OWN_LOOP):
            return like(tensor), like(tensor)
        if self.name in TORCHAO:
            return self._made_by_torchao(tensor)
        count = 1 if self.name in LION else 2
        small = prod(tensor.shape) < SMALLEST_EIGHT_BITS or id(tensor) in self.model.wide
        paged = self.name in PAGED and prod(tensor.shape) >= SMALLEST_PAGED
        if small or self.name in THIRTY_TWO_BITS:
            return () if paged else tuple(like(tensor, F32) for _ in range(count))
        if not self.tables:
            self.tables = tuple(new(TABLE, F32) for _ in range(count))
            for table in self.tables:
                mark(table, "optimizer")
        blocks = (-(-prod(tensor.shape) // BLOCK),)
        packed = () if paged else tuple(like(tensor, I8) for _ in range(count))
        return *packed, *(new(blocks, F32) for _ in range(count))

    def _made_by_torchao(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """``_new_buffer``: codes, scales and a table for each moment; what is small or makes no whole blocks is kept as
        wide as it is. The step is one compiled kernel, of which :func:`.report.with_others_kernels` tells the rest."""
        size, values = prod(tensor.shape), TORCHAO[self.name]
        if size < SMALLEST_EIGHT_BITS or size % BLOCK:
            return like(tensor), like(tensor)
        shapes = ((size // values,), I8), ((size // BLOCK,), F32), ((TABLE if values == 1 else (16,)), F32)
        return tuple(new(shape, dtype) for _ in range(2) for shape, dtype in shapes)

    def _adafactor(self, trained: list[Tensor]) -> None:
        """``Adafactor.step``: row and column means of a matrix, else a second moment of its own.

        What the loop names lives until the next tensor's takes its name.
        """
        grad: Any
        wide: Any
        update: Any
        for tensor in self._turns(trained):
            matrix = len(tensor.shape) >= 2
            grad = tensor.grad
            grad = ops.cast(grad, F32)
            state = self.states.get(id(tensor))
            if state is None:
                rows, columns = tensor.shape[:-1], tensor.shape[:-2] + tensor.shape[-1:]
                state = self.states[id(tensor)] = (new(rows, F32), new(columns, F32)) if matrix else (like(grad),)
                for each in state:
                    mark(each, "optimizer", self.names[id(tensor)])
            wide = tensor
            wide = ops.cast(wide, F32)
            self.sizes[id(tensor)] = _root_mean_square()
            update = _squared(grad)
            if matrix:
                for each, dimension in zip(state, (-1, -2), strict=True):
                    mean = new(each.shape, F32)
                    _hold_mean(update, dimension)
                    del mean
                update = _outer(state[0], state[1], grad.shape)
            else:
                update = like(grad)  # rsqrt
            size = _root_mean_square()
            ratio = new((), F32)  # divided by the threshold, clamped in place
            del size, ratio
            negative = like(update)
            del negative


def _squared(grad: Tensor) -> Tensor:
    """``grad**2 + eps``."""
    squared = like(grad)
    return like(squared)


def _hold_mean(tensor: Tensor, dimension: int) -> None:
    """What the mean over a dimension holds meanwhile."""
    if not world.recording.books_sums:
        return
    kept = [True] * len(tensor.shape)
    kept[dimension] = False
    scratch(*summed_buffers(tensor.shape, tensor.strides, tuple(kept), world.capability))


def _root_mean_square() -> Tensor:
    """A norm divided by a number."""
    norm = new((), F32)
    found = new((), F32)
    del norm
    return found


def _outer(row: Tensor, column: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``_approx_sq_grad``: the product of a column and a row of factors."""
    mean = new((*row.shape[:-1], 1), F32)
    rows = new(row.shape, F32)
    del mean
    columns = new(column.shape, F32)
    out = new(shape, F32)
    del rows, columns
    return out
