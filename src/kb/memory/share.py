"""The largest part of an optimizer step's samples that fits at once, followed as seldom as what is known allows."""

from collections.abc import Mapping
from typing import Any

from kb.core.hardware import Gpu
from kb.core.memory_report import Phase
from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.prediction import is_followed, predict
from kb.memory.process import Context, Peak, context_of, phase_of
from kb.memory.search import GROWING, divisors_of, largest_dividing, use_by_batch

# Terms that grow with the batch whatever the loss is made of: of a fused one a head has chunks.
ACTIVATIONS = "activations_encoder", "activations_decoder", "encoder_output"
STATES = "parameters", "gradients", "optimizer", "adapters"  # terms that no batch changes
UNEVEN = 0.02  # by how much what grows may miss a line: blocks are rounded, and small ones come and go


def largest_share(
    setup: TrainingSetup,
    architecture: Architecture,
    limit_bytes: int,
    *,
    constants: Mapping[str, float],
    gpu: Gpu | None = None,
    gpu_memory_bytes: int | None = None,
    compute_capability: tuple[int, int] | None = None,
    rough: bool = False,
    own: Phase | None = None,
) -> int:
    """The largest training batch that stays within ``limit_bytes`` and divides what a process takes for one optimizer
    step; 0 where not even 1 does.

    Args:
        own: training with the setup's own batch, where that is predicted already.
    """
    where: dict[str, Any] = {"constants": constants, "gpu": gpu, "compute_capability": compute_capability}
    where["gpu_memory_bytes"] = gpu_memory_bytes
    first = setup.per_device_train_batch_size
    whole = first * setup.gradient_accumulation_steps
    capability = compute_capability or (gpu.compute_capability if gpu else None)
    followed = not rough and is_followed(setup, architecture, capability)
    if setup.post is not None or not followed:
        used = use_by_batch(setup, architecture, "per_device_train_batch_size", **where, rough=rough)
        known_use = own.high_bytes if own is not None and followed else None
        return largest_dividing(
            lambda batch: known_use if batch == first and known_use is not None else used(batch),
            limit_bytes,
            whole,
            first,
        )
    training = setup.training_alone
    known = ByBatch(training, constants, context_of(constants, capability, gpu), limit_bytes)
    divisors = divisors_of(whole)
    low, high, at = 0, len(divisors), divisors.index(first)  # so many fit; from `high` on none does
    while low < high:
        batch = divisors[at]
        found = own if batch == first else None
        if found is None:
            asked = training._replace(per_device_train_batch_size=batch)
            found = predict(asked, architecture, **where).phase("train")
        assert found is not None
        known.phases[batch] = found
        low, high = (at + 1, high) if found.high_bytes <= limit_bytes else (low, at)
        while low < high and known.surely_over(divisors[high - 1]):
            high -= 1
        while low < high and known.surely_fits(divisors[low]):
            low += 1
        at = max((each for each in range(low, high) if known.likely_fits(divisors[each])), default=low)
    return divisors[low - 1] if low else 0


class ByBatch:
    """What a few predictions of training, ``phases`` by their batch, say of any other batch.

    At each moment the bytes lie on a line through the batch. So no batch takes less than the moment of another's peak
    would, by what grows there, and a larger one no more than if all but the weights had grown.
    """

    def __init__(
        self, setup: TrainingSetup, constants: Mapping[str, float], context: Context, limit_bytes: int
    ) -> None:
        self.phases: dict[int, Phase] = {}
        self._limit, self._constants, self._context = limit_bytes, constants, context
        self._holes = {"checkpointing": setup.gradient_checkpointing, "eager": setup.attn_implementation == "eager"}
        self._surely_grows = ACTIVATIONS if setup.fused_loss else (*ACTIVATIONS, "activations_head")

    def surely_over(self, batch: int) -> bool:
        """Whether the tensors of a moment alone are too much."""
        room = self._limit - self._context.high
        for of, phase in self.phases.items():
            may_grow = tuple({term.name for term in phase.terms} - {*STATES})
            least = _at(phase, self._surely_grows if batch > of else may_grow, batch / of)
            if least * (1 - UNEVEN) > room:
                return True
        return False

    def surely_fits(self, batch: int) -> bool:
        """Whether a rough answer's band about the most that there can be is within the limit."""
        for of, phase in self.phases.items():
            weights = sum(term.bytes for term in phase.terms if term.name == "parameters")
            most = weights + round((phase.peak_allocated_bytes - weights) * batch / of)
            peak = Peak(phase.moment, (), most)
            if of <= batch and self._high(peak) <= self._limit:
                return True
        return False

    def _high(self, peak: Peak) -> int:
        return phase_of("train", peak, self._constants, self._context, **self._holes).high_bytes

    def likely_fits(self, batch: int) -> bool:
        """Whether it fits by the line of the nearest batch that is known."""
        of = min(self.phases, key=lambda known: max(known / batch, batch / known))
        return _at(self.phases[of], GROWING, batch / of) * (1 + UNEVEN) + self._context.high <= self._limit


def _at(phase: Phase, growing: tuple[str, ...], times: float) -> float:
    """Bytes at the moment of a phase's peak with a batch so many times as large."""
    grown = sum(term.bytes for term in phase.terms if term.name.startswith(growing))
    return phase.peak_allocated_bytes + grown * (times - 1)
