"""The peak of a training step for a model of one stack: decoder-only and encoder-only.

Adapters change a decoder's: the first layer needs less, a wrapped last projection needs room.
"""

from functools import lru_cache

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.adapters import input_bytes, kept, reach
from kb.memory.closed_states import FP32, HALF, States
from kb.memory.counts import count
from kb.memory.ledger import Peak, Terms, largest
from kb.memory.linear import LinearModule, modules
from kb.memory.remainders import copies_remainder
from kb.memory.saved import StackSaved
from kb.memory.shape import Shape

TOKEN_ID = 8  # int64
MASK = 1  # dropout keeps a byte for each element
_READERS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "c_attn", "query_key_value")
_DOWN = ("mlp.down_proj", "mlp.c_proj", "fc2", "dense_4h_to_h")
_FORWARD = ("fc1", "fc2", "dense_h_to_4h", "dense_4h_to_h")


def stack_peak(setup: TrainingSetup, states: States, s: Shape, workspace: int, remainder: float) -> Peak:
    """Peak allocated bytes of a step after the first, when the optimizer states exist.

    As for encoder-decoders the peak lies at an end of a piece: in the last layer's forward pass, at the loss, the end
    of forward, the loss's backward, the output layer's, the last and the first layer's, the input embedding's, the end,
    or the optimizer's step.

    Args:
        workspace: bytes of one thread's cuBLAS workspace; forward and backward run in two.
        remainder: bytes that the allocator leaves unsplit in a block, as a rule.
    """
    if s.arch.family == "encoder":  # imported where used, as a run needs one family only
        from kb.memory.encoder_step import encoder_peak

        return encoder_peak(setup, states, s, workspace, remainder)
    from kb.memory import decoder

    base: Terms = {
        "parameters": states.parameters,
        "adapters": states.adapters,
        "quantization": states.quantization,
        "optimizer": states.optimizer,
        "buckets": states.buckets,
        "gathered_parameters": states.gathered,
        "workspace": 2 * workspace,
        "inputs": TOKEN_ID * (3 if s.padded else 2) * s.source_tokens,
    }
    if setup.gradient_accumulation_steps > 1:
        base["gradients_held"] = states.gradients
    if s.copied and not setup.gradient_checkpointing:
        base["allocator_remainders"] = copies_remainder(s.arch, remainder, quantized=s.quantized)
    step = _Step(setup, states, s, decoder.saved(s))
    moments = step.forward() | step.backward()
    moments["optimizer_step"] = {
        "gradients": step.all,
        "temporaries": states.step_temporaries,
        "allocator_remainders": 0,
    }
    return largest({name: base | terms for name, terms in moments.items()})


class _Step:
    """What one step keeps, and the moments of its passes."""

    def __init__(self, setup: TrainingSetup, states: States, s: Shape, saved: StackSaved) -> None:
        found = reach(states.targets)
        extra = kept(found, setup.lora_r, s, states.targets)
        self.s, self.saved, self.states, layer = s, saved, states, saved.layer
        self.stack = "encoder" if s.arch.family == "encoder" else "decoder"
        self.checkpointed = setup.gradient_checkpointing
        adapters = extra.encoder + extra.decoder
        half = HALF * setup.lora_r if s.frozen and s.autocast else 0  # of adapters: autocast copies their weights too
        inner_copies = half * (found.encoder_weights + found.decoder_weights)
        self.head_copies = saved.head_copies + half * found.head_weights
        copies = saved.layers * layer.copies
        # while autocast's cache lives it holds the copies of all weights that train, checkpointed layers' too
        self.cached = (0 if s.frozen and self.checkpointed else copies) + self.head_copies + inner_copies
        self.layer = layer.kept + adapters // saved.layers  # of one layer made again, its copies apart
        if self.checkpointed:
            self.kept = saved.layers * layer.entry + saved.shared + saved.arguments
            self.copies = 0
            if s.frozen and (s.arch.max_positions or found.embeddings):
                # enable_input_require_grads: the embedding's output is a leaf and stays, apart from what is added to it
                self.kept += layer.entry
        else:
            self.kept = saved.kept + adapters + saved.shared
            self.copies = copies + inner_copies
            if s.frozen and not found.embeddings:
                activations, weights = unneeded(s, states.targets)
                self.kept -= activations
                self.copies -= weights
                self.cached -= weights
        self.kept += saved.first
        self.outside = saved.last + extra.outside
        self.backward_need = wrapped_backward(s, states.targets, layer.backward)
        self._count_gradients(setup, found.widest_embedding)

    def _count_gradients(self, setup: TrainingSetup, widest_embedding: int) -> None:
        counts, s, share = count(self.s.arch), self.s, self.states.gradient_share
        if s.frozen:
            self.embedding = FP32 * setup.lora_r * widest_embedding
            self.head = 0
        else:
            # the output layer's gradient enters as a view of a product, so autograd adds the embedding's into a third
            # tensor; under autocast it is a copy of its own, and takes it in
            third = s.arch.tied and not s.copied
            self.embedding = s.weight_bytes * counts.embedding * (2 if third else 1)
            self.head = round(s.weight_bytes * self.saved.head * share)
        if setup.gradient_accumulation_steps > 1:  # gradients are held already: what comes is added and goes
            self.inner = self.all = 0
            self.head *= s.arch.tied  # a tied head's waits for the embedding's
            return
        self.all = self.states.gradients
        inner = self.all - self.head
        if not s.frozen and not (s.arch.tied and s.arch.head in ("causal", "masked")):
            inner -= round(s.weight_bytes * (counts.embedding + counts.positions) * share)
        self.inner = max(inner, 0)  # of the layers

    def _activations(self, size: int) -> Terms:
        return {f"activations_{self.stack}": size}

    def forward(self) -> dict[str, Terms]:
        loss, layer = self.saved.loss, self.saved.layer
        activations = self._activations(self.kept) | {"activations_head": self.outside + loss.kept}
        after = self.copies + self.head_copies
        return {
            f"{self.stack}_forward": self._activations(self.kept)
            | {
                "temporaries": layer.forward,
                "autocast_copies": self.cached - self.head_copies,
            },
            "loss": activations | {"loss": loss.inside, "autocast_copies": self.cached},
            "forward_end": activations | {"loss": loss.forward, "autocast_copies": after},
            "loss_backward": activations | {"loss": loss.backward, "autocast_copies": after},
        }

    def backward(self) -> dict[str, Terms]:
        saved, layer, gradients = self.saved, self.saved.layer, self.all
        again = self.layer - layer.entry + layer.copies if self.checkpointed else 0
        one = self.inner // saved.layers
        last = self.layer if self.checkpointed else self.layer + layer.copies
        return {
            "head_backward": self._activations(self.kept) | self._head_backward(),
            f"{self.stack}_backward": self._activations(self.kept)
            | {
                "gradients": self.head,
                "temporaries": self.backward_need + again,
                "autocast_copies": self.copies,
            },
            f"{self.stack}_last": self._activations(last + saved.first + saved.shared)
            | {
                "gradients": self.head + self.inner - one,
                "temporaries": self.backward_need + (layer.copies if self.checkpointed else 0),
            },
            "input_embedding": {
                "gradients": self.head + self.inner,
                "temporaries": self.embedding + 2 * layer.entry,
            },
            "backward_end": {"gradients": gradients},
        }

    def _head_backward(self) -> Terms:
        """The output layer's backward: the logits' gradient, and its weight's where that trains (in half first)."""
        s, gradient, weight = self.s, self.saved.loss.gradient, count(self.s.arch).embedding
        copies = self.copies + self.head_copies
        hidden = {"activations_head": self.outside}
        if s.frozen:
            entering = FP32 * s.source_tokens * s.arch.d_model
            return hidden | {
                "loss": gradient * (1 + s.lora_head),
                "temporaries": entering,
                "autocast_copies": copies,
            }
        if not s.copied:
            return hidden | {
                "loss": gradient,
                "gradients": s.weight_bytes * self.saved.head,
                "temporaries": s.weight_bytes * s.source_tokens * s.arch.d_model,
                "autocast_copies": self.copies,
            }
        if gradient + self.head_copies > FP32 * weight:
            return hidden | {"loss": gradient, "temporaries": HALF * self.saved.head, "autocast_copies": copies}
        return hidden | {
            "gradients": FP32 * self.saved.head,
            "temporaries": HALF * self.saved.head,
            "autocast_copies": self.copies,
        }


@lru_cache(maxsize=256)
def _weights(arch: Architecture, inner: bool) -> int:
    """Elements of one layer's weights that read the first norm; the feed-forward's too with ``inner``."""
    names = _READERS + _FORWARD if inner else _READERS
    return sum(m.in_features * m.out_features for m in modules(arch) if m.leaf in names)


def unneeded(s: Shape, targets: tuple[LinearModule, ...]) -> tuple[int, int]:
    """Bytes of activations and of autocast's weight copies that the first layer does not keep.

    The first norm, the embedding's dropout, the masks of the adapters that read the norm; and, where attention and
    feed-forward read one input, the whole feed-forward, unless adapters train in it.
    """
    from kb.memory.decoder import feed_forward, norm

    a, t, width = s.arch, s.source_tokens, s.weight_bytes
    leaves = {module.leaf for module in targets}
    inner = a.parallel and not leaves & set(_FORWARD)
    a_token = 0 if a.norm_after else norm(s, a.d_model, 0, width)
    if s.lora_dropout:
        a_token += MASK * sum(module.in_features for module in targets if module.leaf in _READERS)
    a_token += MASK * a.d_model if a.embedding_dropout else 0
    if inner:
        a_token += feed_forward(s)[0]
    copied = 2 if s.copied and not s.quantized else 0
    return t * a_token, copied * _weights(a, inner)


def wrapped_backward(s: Shape, targets: tuple[LinearModule, ...], backward: int) -> int:
    """The most that a layer's backward needs above what it keeps, where adapters wrap the feed-forward's last layer.

    Their dropped-out input is gone when the feed-forward's product gets its gradient. Made again, the product stands
    beside its fp32 copy and that copy's dropped-out one, or beside a 4-bit weight in half.
    """
    from kb.memory.decoder import linear_width

    if not any(module.name.endswith(_DOWN) for module in targets):
        return backward
    a, width = s.arch, linear_width(s)
    elements = s.source_tokens * a.d_ff
    kept = input_bytes(s)
    again = elements * (width + (FP32 if width == 2 else 0) + (FP32 if s.autocast and s.lora_dropout else 0))
    if s.quantized and not s.autocast:
        again = max(again, elements * (width + 2 - kept) + 2 * a.d_model * a.d_ff)
    return max(backward - elements * kept, again + 2 * FP32 * s.source_tokens * a.d_model)
