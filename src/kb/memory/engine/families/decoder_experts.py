"""Feed-forwards of experts: Mixtral, Qwen2-MoE and Qwen3-MoE, whose rows are multiplied group by group.

Sources: models/mixtral, qwen2_moe and qwen3_moe of transformers; ``grouped_mm_experts_forward`` (integrations/moe.py).
"""

from functools import partial
from typing import Any

from kb.memory.engine import ops
from kb.memory.engine.families.decoder_parts import GatedMlp, activation_of
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import Linear
from kb.memory.engine.ops import gathers as by_expert
from kb.memory.engine.tensor import F32, I32, I64, Tensor, new
from kb.memory.engine.world import AMPERE, world

TYPES = ("mixtral", "qwen2_moe", "qwen3_moe")
STEP = 8  # elements: ``grouped_mm`` takes rows of whole 16 bytes
# What PEFT takes for projections of experts, or for the router, by the names of older releases: it wraps parameters
# then (``_convert_peft_config_moe``, peft/utils/transformers_weight_conversion.py).
WRAPPED = ("w1", "w2", "w3", "gate", "gate_proj", "up_proj", "down_proj")


def wrapped(targets: tuple[str, ...] | str | None) -> bool:
    """Whether adapters are asked for on experts; a pattern, or all linear layers, may ask for them."""
    if isinstance(targets, str):
        return True
    return any(name == "all-linear" or name.rpartition(".")[2] in WRAPPED for name in targets or ())


class Router:
    """``…TopKRouter``: which experts a token passes, and what each weighs.

    ``wide``: Mixtral's logits are made fp32 before their softmax, and the weights stay so.
    """

    def __init__(self, model: Any, path: str, *, wide: bool) -> None:
        a = model.architecture
        self.path, self.each, self.normed, self.wide = path, a.experts_per_token, a.shares_normed, wide
        self.weight = model.parameter(f"{path}.weight", (a.experts, a.d_model))

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        world.inside["Router"] = self.path
        logits = ops.linear(ops.view(x, x.shape), self.weight)
        shares = ops.softmax(ops.cast(logits, F32) if self.wide else logits, F32)
        top, at = by_expert.most_likely(shares, self.each)
        if self.normed:
            top = by_expert.divided_here(top, by_expert.summed(top))
        if not self.wide:
            top = ops.cast(top, logits.dtype)
        return logits, top, at


class Experts:
    """``…Experts``: parameters of three dimensions, gate and up halves of one."""

    def __init__(self, model: Any, path: str) -> None:
        a, self.path, self.model = model.architecture, path, model
        if world.capability < AMPERE:  # where experts are multiplied one by one
            raise NotFollowedError(f"{a.model_type} before compute capability 8.0")
        self.number, self.each, self.width = a.experts, a.experts_per_token, a.expert_ff
        self.up = model.parameter(f"{path}.gate_up_proj", (a.experts, 2 * a.expert_ff, a.d_model))
        self.down = model.parameter(f"{path}.down_proj", (a.experts, a.d_model, a.expert_ff))
        self.act = activation_of(a.activation)

    def __call__(self, x: Tensor, scores: Tensor, at: Tensor) -> Tensor:
        world.inside["Experts"] = self.path
        if self.model.decodes:
            return self.batched(x, scores)
        pairs = (x.shape[0] * self.each,)
        weights = ops.view(scores, pairs)
        _, order = new(pairs, I64), new(pairs, I64)
        rows = by_expert.rows_at(x, new(pairs, I64))
        held = []
        if self.model.options.earlier.experts_named:
            held.append(rows)
            rows = by_expert.rows_at(rows, order)
        weights_by_expert = by_expert.rows_at(weights, order)
        whole = new(pairs, I32)
        counted = new((self.number,), I32)
        offsets = new((self.number,), I32)
        out = self.multiplied(rows, self.up, offsets)
        if held:
            held.append(out)
        gate, up = ops.split(out, (self.width, self.width))
        out = ops.mul(self.act(gate), up)
        del gate, up
        if held:
            held.append(out)
        out = self.multiplied(out, self.down, offsets)
        weighted = ops.mul(out, ops.unsqueeze(weights_by_expert, 1))
        back = new(pairs, I64)
        places = new(pairs, I64)
        del places
        if held:
            del out
            held.append(weighted)
        weighted = by_expert.rows_at(weighted, back)
        found = ops.cast(by_expert.summed_over(weighted, self.each), x.dtype)
        del whole, counted, rows, held, _
        return found

    def batched(self, x: Tensor, scores: Tensor) -> Tensor:
        """``batched_mm_experts_forward``, which ``generate`` changes to behind the prompt: each pair of a token and an
        expert gets a copy of the expert's weights (``_optimize_model_for_decode``, generation/utils.py)."""
        pairs = x.shape[0] * self.each
        repeated = new((pairs, x.shape[1]), x.dtype)
        weights = new((pairs, *self.up.shape[1:]), self.up.dtype)
        out = ops.bmm(weights, ops.unsqueeze(repeated, 2))
        gate, up = ops.split(ops.view(out, (pairs, 2 * self.width)), (self.width, self.width))
        out = ops.mul(self.act(gate), up)
        del gate, up
        weights = new((pairs, *self.down.shape[1:]), self.down.dtype)
        out = ops.bmm(weights, ops.unsqueeze(out, 2))
        weighted = ops.mul(ops.view(out, (pairs, x.shape[1])), ops.unsqueeze(ops.view(scores, (pairs,)), 1))
        found = ops.cast(by_expert.summed_over(weighted, self.each), x.dtype)
        del repeated, weights
        return found

    def multiplied(self, rows: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
        """``_grouped_linear``: autocast has no list for it, so that rows come in the weights' type."""
        return by_expert.grouped(ops.cast(rows, weights.dtype), ops.transpose(weights, 1, 2), offsets)


class RouterApart:
    """The router before transformers 5: a linear layer, whose softmax is in fp32."""

    def __init__(self, model: Any, path: str) -> None:
        a = model.architecture
        self.each, self.normed = a.experts_per_token, a.shares_normed
        self.gate = Linear(model, path, a.d_model, a.experts)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.gate(x)
        top, at = by_expert.most_likely(ops.softmax(logits, F32), self.each)
        if self.normed:
            top = by_expert.divided_here(top, by_expert.summed(top))
        return logits, ops.cast(top, x.dtype), at


class Expert(GatedMlp):
    """``MixtralBlockSparseTop2MLP``, ``Qwen2MoeMLP``."""

    def __init__(self, model: Any, path: str) -> None:
        self.names = ("w1", "w3", "w2") if model.architecture.model_type == "mixtral" else GatedMlp.names
        super().__init__(model, path, model.architecture.expert_ff)


class ExpertsApart:
    """Experts before transformers 5, one after another; each gets as many pairs of a token and itself as any other."""

    def __init__(self, model: Any, path: str) -> None:
        a, self.path = model.architecture, path
        self.each = a.experts_per_token
        self.experts = [Expert(model, f"{path}.{at}") for at in range(a.experts)]

    def __call__(self, x: Tensor, scores: Tensor, at: Tensor) -> Tensor:
        pairs, number = x.shape[0] * self.each, len(self.experts)
        found = new(x.shape, x.dtype)  # zeros
        mask = new((pairs, number), I64)  # one_hot
        state = out = places = None
        for expert, mine in enumerate(self.experts):
            rows = pairs // number + (expert < pairs % number)
            if not rows:
                continue
            world.inside["Experts"] = self.path
            places = new((rows, 2), I64)  # nonzero
            state = by_expert.rows_at(x, places, rows)
            out = ops.mul(mine(state), by_expert.rows_at(scores, places, rows, 1))
            found = by_expert.added_rows(found, ops.cast(out, x.dtype), places)
        del mask, state, out, places
        return found


class Mixture:
    """``…SparseMoeBlock``; ``shared``: a feed-forward beside the experts that every token passes (Qwen2-MoE)."""

    def __init__(self, model: Any, path: str, *, wide: bool = False, experts_first: bool = False) -> None:
        a, self.path, self.shared = model.architecture, path, None
        apart = model.options.earlier.experts_apart
        experts: Any = ExpertsApart if apart else Experts
        if experts_first and not apart:
            self.experts = experts(model, f"{path}.experts")
        self.router: Any = RouterApart(model, f"{path}.gate") if apart else Router(model, f"{path}.gate", wide=wide)
        if apart or not experts_first:
            self.experts = experts(model, f"{path}.experts")
        if a.shared_ff:
            self.shared = GatedMlp(model, f"{path}.shared_expert", a.shared_ff)
            self.shared_gate = Linear(model, f"{path}.shared_expert_gate", a.d_model, 1)

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["Mixture"] = self.path
        shape = x.shape
        x = ops.view(x, (shape[0] * shape[1], shape[2]))
        shared: Any = self.shared(x) if self.shared is not None else None
        logits, scores, at = self.router(x)
        out = self.experts(x, scores, at)
        if shared is not None:
            shared = ops.mul(ops.tanh(self.shared_gate(x)), shared)  # as of a tanh, a sigmoid's result is kept
            out = ops.add(out, shared)
        del logits
        return ops.view(out, shape)


mixtral = partial(Mixture, wide=True)
qwen3_moe = partial(Mixture, experts_first=True)
