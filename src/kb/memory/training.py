"""The peak of a training step: the largest of the moments at which it can lie."""

from kb.core.setup import TrainingSetup
from kb.memory import bart, t5
from kb.memory.adapters import kept, reach
from kb.memory.closed_states import FP32, HALF, States
from kb.memory.counts import count
from kb.memory.ledger import Peak, Terms, largest
from kb.memory.remainders import copies_remainder
from kb.memory.saved import Saved
from kb.memory.shape import Shape
from kb.memory.single_stack import stack_peak

TOKEN_ID = 8  # int64


def training_peak(setup: TrainingSetup, states: States, s: Shape, workspace: int, remainder: float) -> Peak:
    """Peak allocated bytes of a step after the first, when the optimizer states exist.

    Memory is piecewise linear in the layers done: activations go as gradients come. So the peak lies at an end of a
    piece: the loss, the end of forward, the loss's backward, the output layer's, the first layer of each stack's
    backward, the decoder's embedding, the encoder's last layer, the end, or the optimizer's step.

    Args:
        workspace: bytes of one thread's cuBLAS workspace; forward and backward run in two.
        remainder: bytes that the allocator leaves unsplit in a block, as a rule.
    """
    if s.arch.family in ("decoder", "encoder"):
        return stack_peak(setup, states, s, workspace, remainder)
    saved = (t5 if s.arch.family == "t5" else bart).saved(s)
    base: Terms = {
        "parameters": states.parameters,
        "adapters": states.adapters,
        "quantization": states.quantization,
        "optimizer": states.optimizer,
        "buckets": states.buckets,
        "gathered_parameters": states.gathered,
        "workspace": 2 * workspace,
        "inputs": TOKEN_ID * 2 * (s.source_tokens + s.target_tokens),
    }
    if setup.gradient_accumulation_steps > 1:
        base["gradients_held"] = states.gradients
    if s.copied and not setup.gradient_checkpointing:
        base["allocator_remainders"] = copies_remainder(s.arch, remainder, quantized=s.quantized)
    step = _Step(setup, states, s, saved)
    moments = step.forward() | step.backward()
    moments["optimizer_step"] = {
        "gradients": step.all,
        "temporaries": states.step_temporaries,
        "allocator_remainders": 0,
    }
    return largest({name: base | terms for name, terms in moments.items()})


class _Step:
    """What one step keeps, by stack, and the moments of its passes."""

    def __init__(self, setup: TrainingSetup, states: States, s: Shape, saved: Saved) -> None:
        arch, found = s.arch, reach(states.targets)
        extra = kept(found, setup.lora_r, s, states.targets)
        encoder, decoder = saved.encoder, saved.decoder
        self.s, self.saved, self.states = s, saved, states
        self.checkpointed = setup.gradient_checkpointing
        layers_e, layers_d = arch.encoder_layers, arch.decoder_layers
        # one layer, as its backward finds it where checkpointing makes it again
        self.encoder_layer = encoder.kept + extra.encoder // layers_e + encoder.copies
        self.decoder_layer = decoder.kept + extra.decoder // layers_d + decoder.copies
        copies_e, copies_d = layers_e * encoder.copies, layers_d * decoder.copies
        half = HALF * setup.lora_r if s.frozen and s.autocast else 0  # of adapters: autocast copies their weights too
        inner_adapters = half * (found.encoder_weights + found.decoder_weights)
        head_copies = saved.head_copies + half * found.head_weights
        # while autocast's cache lives it holds the copies of all weights that train, checkpointed layers' too
        self.cached = (0 if s.frozen and self.checkpointed else copies_e + copies_d) + head_copies + inner_adapters
        if self.checkpointed:
            self.encoder = layers_e * encoder.entry + saved.encoder_tail + saved.bias + saved.encoder_output
            self.decoder = layers_d * decoder.entry + saved.decoder_tail + extra.outside
            if s.frozen:  # enable_input_require_grads: the embeddings' outputs are leaves and stay
                self.encoder += encoder.entry
                self.decoder += decoder.entry
            copies_e = copies_d = inner_adapters = 0
        else:
            self.encoder = layers_e * encoder.kept + saved.encoder_tail + extra.encoder
            self.decoder = layers_d * decoder.kept + saved.decoder_tail + extra.decoder + extra.outside
            if s.frozen and not found.embeddings:
                self.encoder -= saved.unneeded
            if not s.frozen and not s.autocast:
                self.encoder += saved.encoder_output
            self.encoder += extra.crossing
        self.encoder_copies = copies_e
        self.cached_states = 0
        if arch.family == "t5" and s.quantized and s.autocast and not self.checkpointed:
            # T5 builds its cache in training too, until the loss is there; elsewhere attention keeps the same tensors
            self.cached_states = 2 * FP32 * layers_d * s.inner * (s.source_tokens + s.target_tokens)
        self.copies = copies_e + copies_d + inner_adapters
        self.head_copies = head_copies
        self._count_gradients(setup, found.encoder_weights, found.widest_embedding)

    def _count_gradients(self, setup: TrainingSetup, encoder_weights: int, widest_embedding: int) -> None:
        counts, s, states = count(self.s.arch), self.s, self.states
        share, held = states.gradient_share, setup.gradient_accumulation_steps > 1
        # where gradients accumulate they are all held, and what comes is added to them at once, but for a table that is
        # used more than once: it waits for its last use
        self.all = 0 if held else states.gradients
        if s.frozen:
            self.embedding = 0
            self.embedding_transient = FP32 * setup.lora_r * widest_embedding
            self.encoder_gradients = round(FP32 * setup.lora_r * encoder_weights * share)
        else:
            self.embedding = self.embedding_transient = s.weight_bytes * counts.embedding
            self.encoder_gradients = round(s.weight_bytes * counts.encoder_linear * share)
        # the output layer's gradient enters as a view of a product, so autograd adds the embedding's into a third
        # tensor; under autocast it is a copy of its own, and takes it in
        self.adding = self.embedding * ((1 if s.copied else 2) if s.arch.tied else 0)
        self.before_encoder = self.embedding if held else states.gradients - self.encoder_gradients
        self.before_last = self.before_encoder
        if held:
            self.adding += 0 if s.arch.tied else self.embedding
            self.waiting = self.embedding if s.arch.tied else 0
        else:
            self.before_last = states.gradients - self.encoder_gradients // s.arch.encoder_layers
            self.waiting = self.embedding

    def forward(self) -> dict[str, Terms]:
        loss = self.saved.loss
        activations: Terms = {
            "activations_encoder": self.encoder,
            "activations_decoder": self.decoder,
            "activations_head": loss.kept,
        }
        after = self.copies + self.head_copies
        if self.cached_states:
            activations["activations_decoder"] += self.cached_states
        return {
            "loss": activations | {"loss": loss.inside, "autocast_copies": self.cached},
            "forward_end": activations | {"loss": loss.forward, "autocast_copies": after},
            "loss_backward": activations
            | {"activations_decoder": self.decoder, "loss": loss.backward, "autocast_copies": after},
        }

    def backward(self) -> dict[str, Terms]:
        saved = self.saved
        encoder, decoder, one = saved.encoder, saved.decoder, self.checkpointed
        stacks: Terms = {"activations_encoder": self.encoder, "activations_decoder": self.decoder}
        # an encoder layer made again: its input is kept already, the decoder has let go of the encoder's output
        again = self.encoder_layer - encoder.entry - saved.encoder_output if one else 0
        encoder_need = max(encoder.backward, encoder.forward) if one else encoder.backward
        decoder_need = max(decoder.backward, decoder.forward) + self.decoder_layer if one else decoder.backward
        last_layer = self.encoder_layer + (saved.encoder_mask + saved.bias if one else 0)
        return {
            "head_backward": stacks | self._head_backward(),
            "decoder_backward": stacks
            | {
                "gradients": self.waiting,
                "temporaries": decoder_need,
                "autocast_copies": self.copies,
            },
            "embedding_backward": {
                "activations_encoder": self.encoder,
                "gradients": self.before_encoder,
                "temporaries": self.adding + encoder.entry,
                "autocast_copies": self.encoder_copies,
            },
            "encoder_backward": {
                "activations_encoder": self.encoder - saved.encoder_tail + saved.encoder_mask + again,
                "gradients": self.before_encoder,
                "temporaries": encoder_need,
                "autocast_copies": self.encoder_copies,
            },
            "encoder_last": {
                "activations_encoder": last_layer,
                "gradients": self.before_last,
                "temporaries": encoder_need,
            },
            "backward_end": {
                "gradients": self.all or self.waiting,
                "temporaries": self.embedding_transient + 2 * encoder.entry,
            },
        }

    def _head_backward(self) -> Terms:
        """The output layer's backward: the logits' gradient, and its weight's where that trains (in half first)."""
        s, gradient, weight = self.s, self.saved.loss.gradient, count(self.s.arch).embedding
        copies = self.copies + self.head_copies
        if s.frozen:
            hidden = FP32 * s.target_tokens * s.arch.d_model
            return {"loss": gradient * (1 + s.lora_head), "temporaries": hidden, "autocast_copies": copies}
        if not s.copied:
            return {"loss": gradient, "gradients": s.weight_bytes * weight, "autocast_copies": self.copies}
        if gradient + self.head_copies > FP32 * weight:
            return {"loss": gradient, "temporaries": HALF * weight, "autocast_copies": copies}
        return {"gradients": FP32 * weight, "temporaries": HALF * weight, "autocast_copies": self.copies}
