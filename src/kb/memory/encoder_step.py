"""The peak of a training step of an encoder-only model: the largest of the moments at which it can lie."""

from kb.core.setup import TrainingSetup
from kb.memory.closed_states import FP32, HALF, States
from kb.memory.counts import count
from kb.memory.encoder import EncoderSaved, input_embeddings, saved, stream_width
from kb.memory.encoder_adapters import adapters
from kb.memory.encoder_evaluation import layer_transient
from kb.memory.encoder_parts import embedded
from kb.memory.ledger import Peak, Terms, largest
from kb.memory.remainders import copies_remainder
from kb.memory.shape import Shape

TOKEN_ID = 8  # int64


def encoder_peak(setup: TrainingSetup, states: States, s: Shape, workspace: int, remainder: float) -> Peak:
    """Peak allocated bytes of a step after the first, when the optimizer states exist.

    Memory is piecewise linear in the layers done: activations go as gradients come. So the peak lies at an end of a
    piece: the last layer's forward pass, the loss, its backward, the output layer's, the last layer's, the first
    layer's, the embeddings', the end, or the optimizer's step.

    Args:
        workspace: bytes of one thread's cuBLAS workspace; forward and backward run in two.
        remainder: bytes that the allocator leaves unsplit in a block, as a rule.
    """
    base: Terms = {
        "parameters": states.parameters,
        "adapters": states.adapters,
        "quantization": states.quantization,
        "optimizer": states.optimizer,
        "buckets": states.buckets,
        "gathered_parameters": states.gathered,
        "workspace": 2 * workspace,
        "inputs": token_inputs(s) * TOKEN_ID * s.source_tokens,
    }
    step = _Step(setup, states, s, saved(s, bare=setup.optim == "none"))
    moments = step.forward() | step.backward()
    if setup.gradient_accumulation_steps > 1 and not s.quantized:  # gradients lie in blocks that held activations
        base["allocator_remainders"] = copies_remainder(s.arch, remainder)
    elif s.copied and not setup.gradient_checkpointing:
        rest = copies_remainder(s.arch, remainder, quantized=s.quantized)
        for terms in moments.values():
            terms["allocator_remainders"] = rest if terms.get("autocast_copies") else 0
    moments["optimizer_step"] = {"gradients": states.gradients, "temporaries": states.step_temporaries}
    return largest({name: base | terms for name, terms in moments.items()})


def token_inputs(s: Shape) -> int:
    """int64 values a token: its id and its mask, its segment, its label, its position where the model computes it."""
    kinds = s.arch.model_type in ("bert", "electra", "deberta-v2", "albert")
    return 2 + kinds + (s.arch.head in ("masked", "token")) + (s.arch.type_vocab_size == 1)


class _Step:
    """What one step keeps, and the moments of its passes."""

    def __init__(self, setup: TrainingSetup, states: States, s: Shape, found: EncoderSaved) -> None:
        extra = adapters(s, states.targets, setup.lora_r, found.position_rows)
        layer = found.layer
        self.layer_forward = max(layer.forward, extra.forward)
        self.s, self.saved, self.states = s, found, states
        self.checkpointed = setup.gradient_checkpointing
        self.held = setup.gradient_accumulation_steps > 1
        self.layer = layer.kept + extra.kept // found.layers
        if self.checkpointed:
            self.kept = found.layers * layer.entry + found.shared
            if s.frozen:  # enable_input_require_grads: the embeddings' outputs are leaves and stay
                self.kept += input_embeddings(s) + s.source_tokens * embedded(s.arch) * s.weight_bytes
            self.copies = 0
        else:
            self.kept = found.layers * layer.kept + extra.kept - extra.unneeded
            self.copies = found.copies + extra.copies
        # while autocast's cache lives it holds the copies of all weights that train, checkpointed layers' too
        self.cached = (extra.copies if s.frozen else found.copies) if self.checkpointed else self.copies
        self.kept += found.first + found.head.handed
        self.above = found.head.kept + extra.outside
        self._count_gradients()

    def _count_gradients(self) -> None:
        """Gradients above the layers, of the layers, and of the input embedding, on this GPU."""
        counts, s, total = count(self.s.arch), self.s, self.states.gradients
        if s.frozen:
            self.head, self.inner, self.table, self.waiting = 0, total, 0, 0
            return
        share, width = self.states.gradient_share, s.weight_bytes
        tied = s.arch.head == "masked" and s.arch.tied
        table = width * counts.embedding  # whole, before it is shared out
        # a table that is the output layer's weight too gets two gradients; as the first is a view (of a transposed
        # product), autograd adds them into a third, as measured runs show
        self.table = 2 * table if tied else table if self.held else 0
        self.waiting = table if tied and self.held else 0  # the output layer's, until the embedding's is there
        output = counts.head + (counts.embedding if tied else 0) if s.arch.head == "masked" else 0
        self.head = round(width * share * (output + counts.outside))
        below = counts.positions + (0 if tied else counts.embedding)
        self.inner = max(total - self.head - round(width * share * below), 0)

    def _gradients(self, size: int) -> Terms:
        """Where gradients accumulate they are all there, and what comes is added to them at once."""
        return self._held() | {"gradients": self.waiting if self.held and size else 0 if self.held else size}

    def _held(self) -> Terms:
        return {"gradients_held": self.states.gradients} if self.held else {}

    def forward(self) -> dict[str, Terms]:
        head, found = self.saved.head, self.saved
        activations: Terms = {"activations_encoder": self.kept, "activations_head": self.above + head.loss.kept}
        held = self._held()
        after = held | {"autocast_copies": self.copies + head.copies}
        cached = held | {"autocast_copies": self.cached + head.copies}
        passing = 0 if self.checkpointed else found.passing
        last = layer_transient(self.s) if self.checkpointed else self.layer_forward
        return {
            "encoder_forward": held
            | {
                "activations_encoder": self.kept,
                "temporaries": last + passing,
                "autocast_copies": self.cached,
            },
            "loss": activations | cached | {"loss": head.loss.inside},
            "forward_end": activations | after | {"loss": head.loss.forward},
            "loss_backward": activations | after | {"loss": head.loss.backward},
        }

    def backward(self) -> dict[str, Terms]:
        found, layer, states = self.saved, self.saved.layer, self.states
        row, again = layer.entry, 0
        transient = layer.backward
        if self.checkpointed:
            # the layer is made again while its output's gradient waits; what it reads may be kept already
            dup = 0 if self.s.frozen or stream_width(self.s) != self.s.weight_bytes or self.s.autocast else row
            again = self.layer - dup
            transient = max(layer.backward, row + self.layer_forward)
        one = self.inner // found.layers
        end = found.first + found.shared + row if self.checkpointed else found.first + self.layer
        copies_one = found.copies // found.layers
        return {
            "head_backward": {"activations_encoder": self.kept, **self._head_backward()},
            "encoder_backward": self._gradients(self.head)
            | {
                "activations_encoder": self.kept + again,
                "temporaries": transient,
                "autocast_copies": self.copies + (copies_one if self.checkpointed else 0),
            },
            "encoder_last": self._gradients(self.head + self.inner - one)
            | {
                "activations_encoder": end + again + found.head.handed,
                "temporaries": transient,
                "autocast_copies": copies_one,
            },
            "input_embedding": self._gradients(states.gradients)
            | {"activations_head": found.head.handed}
            | {"temporaries": self.table + self.s.source_tokens * embedded(self.s.arch) * 2 * FP32},
            "backward_end": self._gradients(states.gradients),
        }

    def _head_backward(self) -> Terms:
        """The output layer's backward: the logits' gradient, and its weight's where that trains (in half first)."""
        s, head, loss = self.s, self.saved.head, self.saved.head.loss
        weight = count(s.arch).embedding
        copies = self.copies + head.copies
        terms: Terms = {"activations_head": self.above, "autocast_copies": copies}
        if s.arch.head != "masked":
            return terms | self._gradients(0) | {"temporaries": head.entering}
        if s.frozen:
            return terms | {
                "loss": loss.gradient * (1 + s.lora_head),
                "temporaries": FP32 * s.source_tokens * embedded(s.arch),
            }
        if not s.copied:
            return (
                terms
                | self._gradients(s.weight_bytes * weight)
                | {"loss": loss.gradient, "temporaries": s.source_tokens * embedded(s.arch) * s.weight_bytes}
            )
        if loss.gradient + head.copies > FP32 * weight:
            return terms | self._gradients(0) | {"loss": loss.gradient, "temporaries": HALF * weight}
        return terms | self._gradients(FP32 * weight) | {"temporaries": HALF * weight, "autocast_copies": self.copies}
