"""Liger's kernels (liger-kernel 0.6.4 to 0.8.5): losses that read hidden states a few rows or a chunk of logits at a
time, and the norm, the gated activation and the rotary embedding of its layers.

Losses over answers: liger_kernel/chunked_loss/fused_linear_preference.py (DPO, a pair at a time), KTO's and GRPO's
beside it (fused_linear_unpaired_preference.py, fused_linear_ppo.py; a row at a time). Gradients are made in forward
and kept. What torch.compile makes of a chunk was read in inductor's own code for it (torch 2.13, compiled for a CPU):
logits in their type, an fp32 tensor as large that the gradient of ``gather`` is scattered into, and the logits'
gradient.

Cross-entropy: ``fused_linear_cross_entropy_forward`` (liger_kernel/ops/fused_linear_cross_entropy.py). A chunk has
about as many elements as all hidden states. The kernel writes the logits' gradient over the logits, and both gradients
are made in forward; nothing that a Triton kernel does allocates.

Layers: liger_kernel/ops/rms_norm.py, swiglu.py, geglu.py and rope.py. Each is a ``torch.autograd.Function`` of one
Triton kernel, which keeps what it read: inside of it nothing is recorded, and what is not contiguous is copied first.
"""

from math import prod

from kb.core.record import NamedTuple
from kb.memory.engine.autocast import half
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.kernel_choice import MULTIPROCESSORS
from kb.memory.engine.ops.shapes import cast, is_contiguous
from kb.memory.engine.tape import Gradients, Node, record, save, saved
from kb.memory.engine.tensor import BF16, BOOL, F16, F32, Tensor, bare, like, mark, new, packed, scratch
from kb.memory.engine.world import AMPERE, world

# _SELECTIVE_LOGPROB_SEQ_CHUNK_SIZE, _SELECTIVE_LOGPROB_VOCAB_CHUNK_SIZE
TILE_TOKENS, TILE_COLUMNS = 2048, 4096
# From which releases ``torch.addmm`` adds to a gradient in fp32, and (then also to one in half) a buffer holds the
# chunks' logits, one after the other.
ADDS, REUSES = (0, 8, 1), (0, 8, 3)
HALVES = (F16, BF16)
SPARES = (0, 8, 5)  # from here a frozen norm's gradient is not made (``needs_dw``)


class Head(NamedTuple):
    """The output layer as the losses read it; ``frozen_too``: its gradient is made where it does not train either."""

    weight: Tensor
    bias: Tensor | None
    frozen_too: bool
    scaled: bool  # the loss is divided or scaled after it: its gradients are multiplied, each into a new tensor

    @property
    def wanted(self) -> bool:
        return self.weight.needs or self.frozen_too


def compiled(hidden: Tensor, referred: Tensor | None, head: Head, rows: int, *, reuses: bool = False) -> Tensor:
    """The loss of ``hidden`` (batch, length, width), ``rows`` rows at a time, in code that torch.compile made.

    Args:
        referred: the reference's hidden states, whose logits are made beside the policy's.
        rows: 2 of a chosen and a rejected answer, which are copied side by side; 1 is a view.
        reuses: whether the logits' gradient is written over the logits (GRPO, which needs them no more).

    Raises:
        NotFollowedError: hidden states and output layer differ in type, which the product refuses.
    """
    if world.autocast is None and hidden.dtype != head.weight.dtype:
        raise NotFollowedError("Liger beside weights of two types")
    batch, length, width = hidden.shape
    kind, words = world.autocast or hidden.dtype, head.weight.shape[0]
    node, whole = _begin(hidden, head)
    made = []
    for _ in range(0, batch, rows):
        parts = [new((rows, length, width), each.dtype) for each in (hidden, referred) if each and rows > 1]
        logits = _logits(rows * length, words, kind)
        beside = None if referred is None else _logits(rows * length, words, kind)
        scattered = _logits(rows * length, words, F32, product=False)
        del beside
        grad = logits if reuses else _logits(rows * length, words, kind, product=False)
        del scattered
        by_hidden = new((rows, length, width), hidden.dtype)
        world.multiplied()
        by_weight = new(head.weight.shape, head.weight.dtype) if whole else None
        world.multiplied()
        del grad, logits, by_weight, parts
        made.append(by_hidden)
        del by_hidden
    return _end(node, hidden, whole, made)


def tiled(hidden: Tensor, head: Head) -> Tensor:
    """GRPO from liger-kernel 0.8: 2,048 tokens × 4,096 words at a time, made again for the gradients, in fp32."""
    batch, length, width = hidden.shape
    node, whole = _begin(hidden, head)
    made = []
    for _ in range(batch):
        kept = _tiles(length, head.weight, hidden.dtype, width)
        world.thread = "autograd"  # torch.autograd.grad, in forward
        by_hidden, by_weight = _tile_gradients(length, head, hidden.dtype, width)
        world.thread = "main"
        del kept
        made.append(by_hidden)
        del by_hidden, by_weight
    return _end(node, hidden, whole, made)


def _begin(hidden: Tensor, head: Head) -> tuple[Node | None, Tensor | None]:
    inputs = [hidden, head.weight, *(() if head.bias is None else (head.bias,))]
    node = record(_back, inputs, (), head)
    whole = like(head.weight) if head.wanted else None
    if whole is not None:
        mark(whole, "gradients")
    return node, whole


def _end(node: Node | None, hidden: Tensor, whole: Tensor | None, made: list[Tensor]) -> Tensor:
    """``torch.cat`` of the rows' gradients; they and the output layer's are kept for backward."""
    by_hidden = new(hidden.shape, hidden.dtype)
    del made
    save(node, (by_hidden, whole))
    return new((), F32, None, node)


def _back(node: Node, grad: Tensor) -> Gradients:
    """What forward made, multiplied where the loss was."""
    head = node.extra
    by_hidden, whole = saved(node)
    if head.scaled:
        by_hidden = like(by_hidden)
        whole = None if whole is None else like(whole)
    by_bias = None if head.bias is None or not head.bias.needs else like(head.bias)
    return by_hidden, whole, *(() if head.bias is None else (by_bias,))


def _logits(tokens: int, words: int, dtype: str, *, product: bool = True) -> Tensor:
    out = new((tokens, words), dtype)
    mark(out, "logits")
    if product:
        world.multiplied()
    return out


def _product(shape: tuple[int, ...], dtype: str) -> Tensor:
    out = new(shape, dtype)
    world.multiplied()
    return out


def _wide(tensor: Tensor) -> Tensor:
    """``.float()``, of fp32 the same."""
    return cast(tensor, F32)


def _tiles(tokens: int, weight: Tensor, dtype: str, width: int) -> list[Tensor]:
    """``_selective_logprob_forward``: what it returns. Names of a tile live until the next tile has its own."""
    found = [new((tokens,), F32), new((tokens,), F32)]
    logits = powers = None
    for start in range(0, tokens, TILE_TOKENS):
        rows = min(TILE_TOKENS, tokens - start)
        for first in range(0, weight.shape[0], TILE_COLUMNS):
            columns = min(TILE_COLUMNS, weight.shape[0] - first)
            narrow = _narrow(weight, columns, width, dtype)
            product = _product((rows, columns), dtype)
            del narrow
            logits = _wide(product)
            del product
            apart = new((rows, columns), F32)
            powers = new((rows, columns), F32)
            del apart
    del logits, powers
    return found


def _narrow(weight: Tensor, columns: int, width: int, dtype: str) -> Tensor | None:
    """``weight_chunk.to(hidden.dtype)``."""
    return None if weight.dtype == dtype else new((columns, width), dtype)


def _tile_gradients(tokens: int, head: Head, dtype: str, width: int) -> tuple[Tensor, Tensor | None]:
    """``_selective_logprob_backward``, and what its results are cast to."""
    weight = head.weight
    by_hidden = new((tokens, width), F32)
    by_weight = new(weight.shape, F32) if head.wanted else None
    logits = powers = grad = None
    for start in range(0, tokens, TILE_TOKENS):
        rows = min(TILE_TOKENS, tokens - start)
        for first in range(0, weight.shape[0], TILE_COLUMNS):
            columns = min(TILE_COLUMNS, weight.shape[0] - first)
            narrow = _narrow(weight, columns, width, dtype)
            product = _product((rows, columns), dtype)
            del narrow
            logits = _wide(product)
            del product
            apart = new((rows, columns), F32)
            powers = new((rows, columns), F32)
            del apart
            grad = new((rows, columns), F32)
            wide = None if weight.dtype == F32 else new((columns, width), F32)
            added = _product((rows, width), F32)
            del added, wide
            if by_weight is not None:
                wide = None if dtype == F32 else new((rows, width), F32)
                added = _product((columns, width), F32)
                del added, wide
    del logits, powers, grad
    return cast(by_hidden, dtype), None if by_weight is None else cast(by_weight, weight.dtype)


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
    node = record(_CrossEntropy._back, (hidden, weight))
    tapes, world.grad = world.grad, False
    made = _CrossEntropy(hidden, weight, release)
    made.run()
    out = new((), F32, None, node)
    world.grad = tapes
    save(node, (made.by_hidden, made.by_weight))
    return out


class _CrossEntropy:
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

    @staticmethod
    def _back(node: Node, grad: Tensor) -> Gradients:
        """What forward made, multiplied in place where the loss's gradient is not 1."""
        scratch(4)
        by_hidden, by_weight = saved(node)
        return by_hidden, by_weight


def _contiguous(tensor: Tensor) -> Tensor:
    return bare(tensor) if is_contiguous(tensor) else new(tensor.shape, tensor.dtype)


def rms_norm(x: Tensor, weight: Tensor, release: tuple[int, ...], *, in_place: bool) -> Tensor:
    """``LigerRMSNormFunction``: in the input's type; a number in fp32 for each row is kept beside it.

    Args:
        release: liger-kernel's, as numbers.
        in_place: the input's gradient is written over the result's.
    """
    node = record(_rms_norm_back, (x, weight), (), (in_place, release < SPARES))
    read = _contiguous(x)
    out = new(x.shape, x.dtype, None, node)
    save(node, (read, weight, new((prod(x.shape[:-1]),), F32)))
    return out


def _rms_norm_back(node: Node, grad: Tensor) -> Gradients:
    """The weight's gradient is summed by every multiprocessor for itself, and then over them."""
    kept = saved(node)
    weight, (in_place, always) = kept[1], node.extra
    grad = _contiguous(grad)
    shares = by_weight = None
    if always or node.edges[1] is not None:
        processors = MULTIPROCESSORS.get(world.capability, MULTIPROCESSORS[(8, 0)])
        shares = new((processors, *weight.shape), F32)
    out = over(grad if in_place else like(grad))
    if shares is not None:
        by_weight = new(weight.shape, F32)
        by_weight = by_weight if weight.dtype == F32 else like(weight)
    del shares, kept
    return out, by_weight


def over(tensor: Tensor) -> Tensor:
    """What was written in a tensor's place: a view of it, made in backward."""
    return Tensor(tensor.shape, tensor.dtype, packed(tensor.shape), tensor.storage, based=True)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """``LigerSiLUMulFunction``, ``LigerGELUMulFunction``: only both inputs are kept, over which backward writes."""
    node = record(_gated_back, (gate, up))
    read = _contiguous(gate), _contiguous(up)
    out = new(gate.shape, gate.dtype, None, node)
    save(node, read)
    return out


def _gated_back(node: Node, grad: Tensor) -> Gradients:
    grad = _contiguous(grad)
    gate, up = saved(node)
    return over(gate), over(up)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """``LigerRopeFunction``: queries and keys are turned where they lie, in their own type."""
    node = record(_rotary_back, (q, k))
    if node is not None:
        node.results = 2
    q, k = (_turned(each) for each in (q, k))
    save(node, (cos, sin))
    for at, each in enumerate((q, k)):
        each.node, each.needs = node and (node, at), node is not None
    return q, k


def _turned(heads: Tensor) -> Tensor:
    """Heads (batch, heads, length, width), of a layout in which a token's heads lie side by side."""
    batch, count, length, width = heads.shape
    strides = heads.strides[0], heads.strides[2], heads.strides[1], heads.strides[3]
    tokens = _contiguous(Tensor((batch, length, count, width), heads.dtype, strides, heads.storage))
    a, b, c, d = tokens.strides
    return Tensor(heads.shape, heads.dtype, (a, c, b, d), tokens.storage, based=True)


def _rotary_back(node: Node, grads: list[Tensor | None]) -> Gradients:
    kept = saved(node)
    out = [None if grad is None else _turned(grad) for grad in grads]
    del kept
    return out
