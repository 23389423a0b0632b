"""The peak of a training step: the largest of the moments at which it can lie."""

from kb.core.setup import TrainingSetup
from kb.memory import bart, t5
from kb.memory.adapters import Kept, Reach, kept, reach
from kb.memory.counts import Counts, count
from kb.memory.ledger import Peak, Terms, largest
from kb.memory.remainders import copies_remainder
from kb.memory.saved import Saved
from kb.memory.shape import Shape
from kb.memory.states import States


def training_peak(setup: TrainingSetup, states: States, s: Shape, workspace: int, remainder: float) -> Peak:
    """Peak allocated bytes of a step after the first, when the optimizer states exist.

    Memory is piecewise linear in the layers done: activations go as gradients come. So the peak lies at the ends of
    its pieces: the end of forward, the loss's backward, the output layer's, the first layer of each stack's backward,
    its last, the embedding's, and the optimizer's step.
    """
    saved = (t5 if s.arch.family == "t5" else bart).saved(s)
    found = reach(states.targets)
    extra = kept(found, setup.lora_r, s)
    base: Terms = {
        "parameters": states.parameters,
        "adapters": states.adapters,
        "quantization": states.quantization,
        "optimizer": states.optimizer,
        "buckets": states.buckets,
        "workspace": 2 * workspace,
        "inputs": 8 * (2 * s.source_tokens + 2 * s.target_tokens),
        "gradients_held": states.gradients if setup.gradient_accumulation_steps > 1 else 0,
    }
    if s.copied and not setup.gradient_checkpointing:
        base["allocator_remainders"] = copies_remainder(s.arch, remainder, quantized=s.quantized)
    flow = _Flow(setup, states, s, saved, found, extra)
    moments = {name: base | terms for name, terms in flow.moments().items()}
    return largest(moments)


class _Flow:
    """One step, moment by moment."""

    def __init__(self, setup: TrainingSetup, states: States, s: Shape, saved: Saved, found: Reach, extra: Kept) -> None:
        self.states, self.s, self.saved, self.setup = states, s, saved, setup
        self.counts: Counts = count(s.arch)
        self.checkpointing = setup.gradient_checkpointing
        arch = s.arch
        encoder, decoder = saved.encoder, saved.decoder
        self.encoder_layer = encoder.kept + extra.encoder // arch.encoder_layers + encoder.copies
        self.decoder_layer = decoder.kept + extra.decoder // arch.decoder_layers + decoder.copies
        if self.checkpointing:
            self.encoder = arch.encoder_layers * encoder.entry + saved.encoder_tail + saved.bias + saved.encoder_output
            self.decoder = arch.decoder_layers * decoder.entry + saved.decoder_tail + extra.outside
            if s.frozen:  # enable_input_require_grads: the embeddings' output is a leaf and stays
                self.encoder += encoder.entry
                self.decoder += decoder.entry
            self.copies = 0
        else:
            self.encoder = arch.encoder_layers * encoder.kept + saved.encoder_tail + extra.encoder
            self.decoder = arch.decoder_layers * decoder.kept + saved.decoder_tail + extra.decoder + extra.outside
            if s.frozen and not found.embeddings:
                self.encoder -= saved.unneeded
            if not s.frozen and not s.autocast:
                self.encoder += saved.encoder_output
            self.copies = arch.encoder_layers * encoder.copies + arch.decoder_layers * decoder.copies
        # what autocast's cache holds to the end of the forward pass: weights that train, checkpointed or not;
        # embeddings are not cast, and checkpointed layers cast theirs again
        half = 2 * setup.lora_r if s.frozen and s.autocast else 0
        adapters = half * (found.encoder_weights + found.decoder_weights + found.head_weights)
        self.adapter_copies = half * found.head_weights if self.checkpointing else adapters
        cached = arch.encoder_layers * encoder.copies + arch.decoder_layers * decoder.copies
        self.cached = max(self.copies, 0 if s.frozen else cached) + saved.head_copies + adapters
        self.width = s.weight_bytes if not s.frozen else 4
        self.embedding = 0 if s.frozen else self.width * self.counts.embedding
        self.found = found

    def moments(self) -> dict[str, Terms]:
        s, saved, states = self.s, self.saved, self.states
        loss = saved.loss
        activations: Terms = {"activations_encoder": self.encoder, "activations_decoder": self.decoder}
        arch = s.arch
        encoder_grads = self._encoder_gradients()
        head_grads = self.embedding
        copies = self.copies + self.adapter_copies
        one = self.checkpointing
        enc_copies = 0 if one else arch.encoder_layers * saved.encoder.copies
        last = saved.encoder.backward
        grads = states.gradients
        tied_once = self.embedding if s.arch.tied else 0
        return {
            "loss": activations | {"activations_head": loss.kept, "loss": loss.inside, "autocast_copies": self.cached},
            "forward_end": activations
            | {"activations_head": loss.kept, "loss": loss.forward, "autocast_copies": copies + saved.head_copies},
            "loss_backward": activations
            | {"activations_head": loss.kept, "loss": loss.backward, "autocast_copies": copies + saved.head_copies},
            "head_backward": activations | self._head_backward(copies),
            "decoder_backward": activations
            | {
                "gradients": head_grads,
                "temporaries": saved.decoder.backward + (self.decoder_layer if one else 0),
                "autocast_copies": copies,
            },
            "embedding_backward": {
                "activations_encoder": self.encoder,
                "gradients": grads - encoder_grads,
                "temporaries": tied_once + saved.encoder.entry,
                "autocast_copies": enc_copies,
            },
            "encoder_backward": {
                "activations_encoder": self.encoder
                - saved.encoder_tail
                + saved.encoder_mask
                + (self.encoder_layer - saved.encoder.entry - saved.encoder_output if one else 0),
                "gradients": grads - encoder_grads,
                "temporaries": last,
                "autocast_copies": enc_copies,
            },
            "encoder_last": {
                "activations_encoder": self.encoder_layer + (saved.encoder_mask + saved.bias if one else 0),
                "gradients": grads - encoder_grads // arch.encoder_layers,
                "temporaries": last,
            },
            "backward_end": {
                "gradients": grads,
                "temporaries": (self.embedding or 4 * self.setup.lora_r * self.found.widest_embedding)
                + 2 * saved.encoder.entry,
            },
            "optimizer_step": {"gradients": grads, "temporaries": states.step_temporaries},
        }

    def _encoder_gradients(self) -> int:
        """Bytes of the gradients that the encoder's own layers produce."""
        if self.s.frozen:
            return 4 * self.setup.lora_r * self.found.encoder_weights
        return self.width * self.counts.encoder_linear

    def _head_backward(self, copies: int) -> Terms:
        """The output layer's backward: the logits' gradient, and the weight's where it trains."""
        s, saved = self.s, self.saved
        weight = self.counts.embedding
        if s.frozen:
            gradient = saved.loss.gradient * (2 if s.lora_head else 1)
            return {"loss": gradient, "temporaries": 4 * s.target_tokens * s.arch.d_model,
                    "autocast_copies": copies + saved.head_copies}  # fmt: skip
        if not s.copied:
            return {"loss": saved.loss.gradient, "gradients": self.width * weight, "autocast_copies": copies}
        product = saved.loss.gradient + 2 * weight + saved.head_copies
        if product > 6 * weight:
            return {"loss": saved.loss.gradient, "temporaries": 2 * weight,
                    "autocast_copies": copies + saved.head_copies}  # fmt: skip
        return {"gradients": 4 * weight, "temporaries": 2 * weight, "autocast_copies": copies}
