"""Losses over answers, as TRL's trainers and LLaMA-Factory's compute them: SFT with a fused head, DPO, KTO, ORPO, CPO,
rewards.

It reads as ``_compute_loss`` of trl/trainer/dpo_trainer.py and kto_trainer.py, and ``concatenated_forward`` of
trl/experimental/orpo/orpo_trainer.py (TRL 1.16.0, 1.8.0, 0.29.1). Every token is taken as one of the answer's, unless
the project says how long its prompts are. Numbers for each row, of which a loss has a dozen, are left out: each is a
block of 512 bytes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kb.core.setup import PAIRED, PostTraining, TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.autocast import autocast
from kb.memory.engine.ddp import through_sink
from kb.memory.engine.families.decoder import Decoder, causal_loss
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import Model
from kb.memory.engine.ops import liger, log_probs
from kb.memory.engine.ops.losses import row_sums, scalar_of
from kb.memory.engine.runs.generate import decoding_of, generate
from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, bare, mark, new
from kb.memory.engine.world import world

OUTPUTS = {"sft": 2, "dpo": 3, "kto": 2, "grpo": 1, "rloo": 1}  # numbers for each token beside its log-probability


class Loss:
    """One trainer's loss of a policy, with its reference.

    Raises:
        NotFollowedError: the model is no decoder, or its head has an adapter.
    """

    def __init__(self, model: Model, reference: Model | None, setup: TrainingSetup) -> None:
        assert setup.post is not None
        if not isinstance(model, Decoder):
            raise NotFollowedError(f"{setup.post.kind} of {model.architecture.model_type}")
        if model.head.a is not None and (setup.post.head == "fused" or setup.post.liger):
            raise NotFollowedError("LoRA on lm_head")
        self.model, self.setup, self.post = model, setup, setup.post
        self.reference = reference

    @property
    def rows(self) -> int:
        """Rows of one forward pass."""
        return self.setup.per_device_train_batch_size * (2 if self.post.kind in PAIRED else 1)

    def __call__(self, source: int) -> tuple[Any, ...]:
        """The loss of samples of ``source`` tokens, and the batch, which lives as long as the pass."""
        recording = world.recording
        recording.moment, recording.term = "forward", "inputs"
        batch = [new((self.rows, source), I64) for _ in range(3)]
        for tensor in batch:
            mark(tensor, "inputs")
        ids, mask, _ = batch
        padding = mask if self.model.options.padded else None
        if self.post.kind == "sft":
            found = self._score(self.model, ids, padding)
            return scalar_of(row_sums(found[0])), batch
        if self.post.kind == "reward":
            return self._rewarded(ids, padding), batch
        if self.post.liger is not None:
            return self._chunked(ids, padding), batch
        if self.post.kind in ("orpo", "cpo"):
            return self._odds(ids, padding), batch
        if self.post.completion:  # the reference has spoken before the steps
            policy = self._score(self.model, ids, padding)
            if self.post.head != "fused":
                with no_gradients():
                    log_probs.entropy_of(bare(policy[2]))
            return scalar_of(row_sums(policy[0])), batch
        labels = self._labels(ids)
        if self.post.kind == "kto":
            self._apart(self.model, ids, padding)
        policy = self._score(self.model, ids, padding)
        recording.moment = "loss"
        apart = None
        if self.post.kind == "kto" and self.post.head != "fused":  # index_select of desirable and undesirable rows
            apart = new(policy[2].shape, policy[2].dtype)
        reference = self._referred(ids, padding)
        loss = scalar_of(row_sums(policy[0]))
        if self.post.head != "fused":
            self._metrics(policy[2])
        del labels, reference, apart
        return loss, batch

    def prepared(self) -> None:
        """What comes before the steps on a batch of answers: they are generated, and scored by the reference.

        Source: ``_generate_and_score_completions`` (trl/trainer/grpo_trainer.py): as many rows as the loss has at once.
        """
        source, answer = self.setup.max_source_length, self.post.completion
        recording = world.recording
        if self.post.generated_rows:
            rows = self.post.generated_rows
            prompts = [new((rows, source - answer), I64) for _ in range(2)]
            decoding = decoding_of(self.model, answer, 1, trained=True)._replace(sampled=True)
            generate(self.model, decoding, prompts)
            world.grad = world.training = True
            recording.begin("train")
            del prompts
        elif self.setup.zero_stage == 3 and self.setup.method != "full":
            # vLLM is sent the model with its adapter merged, all of it gathered (``_iter_named_params``,
            # trl/generation/vllm_generation.py)
            with self.model.units.reading([tensor for _, tensor in self.model.parameters]):
                pass
        if self.post.reference != "none":
            recording.moment, recording.term = "forward", "inputs"
            batch = [new((self.setup.per_device_train_batch_size, source), I64) for _ in range(2)]
            self._referred(batch[0], batch[1] if self.model.options.padded else None)

    def _labels(self, ids: Tensor) -> Tensor:
        """``input_ids.masked_fill(completion_mask == 0, -100)``."""
        unseen = new(ids.shape, BOOL)
        out = new(ids.shape, I64)
        del unseen
        return out

    def _score(self, model: Any, ids: Tensor, mask: Any) -> tuple[Any, ...]:
        """Log-probabilities of the tokens, (rows, length - 1), and what the caller's ``outputs`` hold."""
        kind = model.options.autocast
        if self.post.head == "fused":
            with autocast(kind):
                if model.units is None:
                    return self._fused(model, ids, mask)
                with model.units.running((ids, mask)) as given:
                    found, more = self._fused(model, *given)
                found, *more = model.units.given((found, *more))
                return found, more
        logits = self._logits(model, ids, mask)
        world.recording.term = "loss"
        if self.post.completion:  # logits[:, :-1], logits[:, -n:], divided by the temperature
            logits = ops.scale(log_probs.last_of(log_probs.without_last(logits), self.post.completion))
            mark(logits, "logits")
            labels = Tensor(logits.shape[:-1], I64, ids.strides, ids.storage)
            return log_probs.selected(logits, labels), logits, logits
        return self._chosen(logits, ids), logits, logits

    def _fused(self, model: Any, ids: Tensor, mask: Any) -> tuple[Tensor, list[Tensor]]:
        """``_fused_forward`` of a model: it asks the backbone itself, and reads the output layer's weight."""
        hidden = log_probs.without_last(model.base(ids, mask))
        world.recording.term = "loss"
        scored = min(self.post.completion or self.post.scored or ids.shape[1], hidden.shape[1])
        outputs = OUTPUTS[self.post.kind] if model is self.model else 0
        weight, bias, units = model.head.weight, model.head.bias, model.units
        if units is None:
            return log_probs.fused(hidden, weight, bias, outputs, scored)
        return log_probs.fused(hidden, units.made_whole(weight), bias, outputs, scored, units.reading)

    def _logits(self, model: Any, ids: Tensor, mask: Any) -> Tensor:
        kind = model.options.autocast
        with autocast(kind):
            hidden = model.base(ids, mask)
            world.recording.term = "activations_head"
            if self.post.completion:
                hidden = log_probs.last_of(hidden, self.post.completion + 1)
            logits = model.scores(hidden)
            del hidden
        mark(logits, "logits")
        if kind or self.post.head == "wide":
            logits = ops.cast(logits, F32)
            mark(logits, "logits")
        if world.grad:
            (logits,) = through_sink(model, (logits,))
        return logits  # type: ignore[no-any-return]

    def _chosen(self, logits: Tensor, ids: Tensor) -> Tensor:
        shifted = log_probs.without_last(logits)
        if self.post.head == "copied":
            shifted = ops.contiguous(shifted)
        labels = Tensor(shifted.shape[:-1], I64, ids.strides, ids.storage)
        if self.post.head == "wide":
            return log_probs.gathered_log_softmax(shifted, labels)
        return log_probs.selected(shifted, labels)

    def _referred(self, ids: Tensor, mask: Any) -> Any:
        """What the reference says, without gradients; None where it was computed ahead or there is none."""
        if self.post.reference == "none":
            return None
        with no_gradients(), adapters_off(self.model, self.post):
            referred: Any = self.reference or self.model
            if self.post.kind == "kto":
                self._apart(referred, ids, mask)
            return self._score(referred, ids, mask)

    def _apart(self, model: Any, ids: Tensor, mask: Any) -> None:
        """KTO's estimate of the distance between policy and reference, of mismatched pairs."""
        with no_gradients():
            found = self._score(model, ids, mask)
            del found

    def _rewarded(self, ids: Tensor, mask: Any) -> Tensor:
        """A number for each token, of which the last of a row is its reward (trl/trainer/reward_trainer.py)."""
        kind = self.model.options.autocast
        with autocast(kind):
            hidden = self.model.base(ids, mask)
            world.recording.term = "activations_head"
            rewards = self.model.head(hidden)
        world.recording.moment, world.recording.term = "loss", "loss"
        if kind:
            rewards = ops.cast(rewards, F32)
        return scalar_of(row_sums(rewards))

    def _chunked(self, ids: Tensor, mask: Any) -> Tensor:
        """Liger's loss, of hidden states that the backbone is asked for itself: accelerate's autocast is in the model's
        own ``forward``, which nobody calls.

        Sources: ``_compute_loss_liger`` of trl/trainer/dpo_trainer.py and kto_trainer.py, ``compute_liger_loss`` of
        grpo_trainer.py (TRL 0.19.1 to 1.12.0).
        """
        recording, how, kind = world.recording, self.post.liger, self.post.kind
        assert how is not None
        if kind == "kto":
            self._apart(self.model, ids, mask)
        hidden, kept = self._hidden(self.model, ids, mask)
        referred = beside = None
        if kind != "grpo" and self.post.reference != "none":
            with no_gradients(), adapters_off(self.model, self.post):
                model: Any = self.reference or self.model
                if kind == "kto":
                    self._apart(model, ids, mask)
                referred, beside = self._hidden(model, ids, mask)
        labels = self._labels(ids)
        recording.moment, recording.term = "loss", "loss"
        scaled = self.setup.gradient_accumulation_steps > 1 or self.setup.fp16
        head = liger.Head(self.model.head.weight, self.model.head.bias, how.frozen_gradient, scaled)
        if kind == "grpo" and how.tiles:
            loss = liger.tiled(hidden, head)
        else:
            with autocast(self.model.options.autocast if how.autocast else None):
                loss = liger.compiled(hidden, referred, head, 2 if kind == "dpo" else 1, reuses=kind == "grpo")
        del labels, kept, beside
        return loss

    def _hidden(self, model: Any, ids: Tensor, mask: Any) -> tuple[Tensor, Any]:
        """The backbone's last hidden states of the positions that count, and what its outputs hold beside them."""
        assert self.post.liger is not None
        states: list[Tensor] | None = [] if self.post.liger.states_kept else None
        with autocast(model.options.autocast if self.post.liger.autocast else None):
            whole = model.base(ids, mask, states=states)
        hidden = log_probs.without_last(whole)
        if self.post.completion:
            hidden = log_probs.last_of(hidden, self.post.completion)
        elif self.post.kind == "dpo" and states is None:
            hidden = ops.contiguous(hidden)
        return hidden, (whole, states)

    def _metrics(self, logits: Tensor) -> None:
        """What is logged of whole logits: entropy, and the mean of chosen and rejected ones."""
        if self.post.head not in ("rows", "copied"):
            return
        with no_gradients():
            shifted = log_probs.without_last(bare(logits))
            entropy = log_probs.entropy_of(shifted)
            half = (max(1, shifted.shape[0] // 2) * shifted.shape[1], shifted.shape[2])
            picked = new(half, shifted.dtype)
            del picked, entropy

    def _odds(self, ids: Tensor, mask: Any) -> Tensor:
        """ORPO and CPO: one forward pass, the likelihood of the chosen answers beside the odds of both."""
        logits = self._logits(self.model, ids, mask)
        world.recording.moment, world.recording.term = "loss", "loss"
        labels = new(ids.shape, I64)
        likelihood = causal_loss(_first_half(logits), labels, "narrow")
        del labels
        odds = scalar_of(row_sums(self._chosen(logits, ids)))
        return ops.add(likelihood, odds)


def _first_half(tensor: Tensor) -> Tensor:
    return log_probs.first_rows(tensor, tensor.shape[0] // 2)


@contextmanager
def no_gradients() -> Iterator[None]:
    """``torch.no_grad()``."""
    before, world.grad = world.grad, False
    try:
        yield
    finally:
        world.grad = before


@contextmanager
def adapters_off(model: Model, post: PostTraining) -> Iterator[None]:
    """``use_adapter(model, None)``, where the reference is the policy without its adapter."""
    model.adapters_off = post.reference == "adapter_off"
    try:
        yield
    finally:
        model.adapters_off = False
