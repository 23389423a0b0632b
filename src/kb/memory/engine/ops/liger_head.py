"""Liger's fused linear cross-entropy: hidden states in, the loss and its gradients out, a chunk of logits at a time.

Source: liger_kernel/ops/fused_linear_cross_entropy.py (``fused_linear_cross_entropy_forward``) of liger-kernel 0.6.4 to
0.8.5. A chunk has about as many elements as all hidden states. The kernel writes the logits' gradient over the logits,
and both gradients are made in forward; nothing that a Triton kernel does allocates.
"""

from kb.memory.engine.autocast import half
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.tape import Gradients, Node, record, save, saved
from kb.memory.engine.tensor import BF16, BOOL, F16, F32, Tensor, like, mark, new, scratch
from kb.memory.engine.world import AMPERE, world

# From which releases ``torch.addmm`` adds to a gradient in fp32, and (then also to one in half) a buffer holds the
# chunks' logits, one after the other.
ADDS, REUSES = (0, 8, 1), (0, 8, 3)
HALVES = (F16, BF16)


def chunk_of(tokens: int, width: int, words: int) -> int:
    """Tokens of a chunk: the power of two from ``tokens`` over the number of times that ``words`` hold ``width``."""
    times = -(-words // width)
    return int(1 << (-(-tokens // times) - 1).bit_length())


def fused_cross_entropy(hidden: Tensor, weight: Tensor, release: tuple[int, ...]) -> Tensor:
    """The loss of ``hidden`` (tokens, width) by an output layer of ``weight`` (words, width).

    Args:
        release: liger-kernel's, as numbers.

    Raises:
        NotFollowedError: hidden states and output layer differ in type, which the product refuses.
    """
    if world.autocast is None and hidden.dtype != weight.dtype:
        raise NotFollowedError("use_liger_kernel beside weights of two types")
    node = record(_back, (hidden, weight))
    tapes, world.grad = world.grad, False
    made = _Chunks(hidden, weight, release)
    made.run()
    out = new((), F32, None, node)
    world.grad = tapes
    save(node, (made.by_hidden, made.by_weight))
    return out


class _Chunks:
    """One call: what it holds, and its loop."""

    def __init__(self, hidden: Tensor, weight: Tensor, release: tuple[int, ...]) -> None:
        self.hidden, self.weight, self.release = hidden, weight, release
        self.kind = world.autocast or hidden.dtype
        self.trains = hidden.needs
        self.by_hidden = like(hidden)
        self.by_weight = like(weight) if self.trains and weight.needs else None
        if self.by_weight is not None:
            mark(self.by_weight, "gradients")
        # names of a chunk that live until the next has its own, before releases that delete them
        self.before: Tensor | None = None
        self.turned: Tensor | None = None
        self.narrow: Tensor | None = None

    def run(self) -> None:
        (tokens, width), words = self.hidden.shape, self.weight.shape[0]
        size = chunk_of(tokens, width, words)
        self.held = new((tokens,), F32), new((tokens,), BOOL)  # losses, and which count
        scratch(8)  # how many do
        reuses = self.release >= REUSES
        buffer = None
        if reuses:
            size = min(size, tokens)
            buffer = self._logits(size) if self.hidden.dtype == self.weight.dtype == self.kind else None
        for start in range(0, tokens, size):
            rows = min(size, tokens - start)
            logits = buffer if buffer is not None else self._product(rows)
            self.before = logits
            if self.trains:
                self._gradient_of_hidden(rows, written=buffer is not None)
            if self.by_weight is not None:
                self.turned = logits if self.release >= ADDS else None
                self._gradient_of_weight(rows, logits.dtype)
            if reuses:
                self.before = self.turned = self.narrow = None
            del logits
        del buffer

    def _logits(self, rows: int) -> Tensor:
        made = new((rows, self.weight.shape[0]), self.kind)
        mark(made, "logits")
        return made

    def _product(self, rows: int) -> Tensor:
        """``_input_chunk @ weight.t()``: of a view autocast keeps no copy."""
        weight = None if self.weight.dtype == self.kind else new(self.weight.shape, self.kind)
        chunk = self._narrow(rows)
        made = self._logits(rows)
        world.multiplied()
        del weight, chunk
        return made

    def _narrow(self, rows: int) -> Tensor | None:
        """The chunk's hidden states in the product's type."""
        return None if self.hidden.dtype == self.kind else new((rows, self.hidden.shape[1]), self.kind)

    def _gradient_of_hidden(self, rows: int, *, written: bool) -> None:
        """``grad_logits_chunk @ weight``, into the chunk's place; autocast keeps its copy of a weight that trains."""
        if written:
            world.multiplied()
            return
        weight = half(self.weight)
        made = new((rows, self.hidden.shape[1]), self.kind)
        world.multiplied()
        del weight, made

    def _gradient_of_weight(self, rows: int, kind: str) -> None:
        assert self.by_weight is not None
        wide = self.by_weight.dtype == F32 and self.release >= ADDS
        same = self.by_weight.dtype == kind and self.release >= REUSES
        if kind in HALVES and (wide or same) and world.capability >= AMPERE:
            self.narrow = None
            self.narrow = self._narrow(rows)
            world.multiplied()  # addmm, with the gradient as its result
            return
        chunk = self._narrow(rows)
        made = new(self.weight.shape, kind)
        world.multiplied()
        del chunk
        added = made if kind == F32 else new(self.weight.shape, F32)
        del made, added


def _back(node: Node, grad: Tensor) -> Gradients:
    """What forward made, multiplied in place where the loss's gradient is not 1."""
    scratch(4)
    by_hidden, by_weight = saved(node)
    return by_hidden, by_weight
