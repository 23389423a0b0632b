"""One model's memory on many GPUs: what a prediction is apart from the card is computed once for cards alike.

A card decides three things: which kernels run (its generation), the CUDA context, and the limit. Without the last two
the cards of a generation share each prediction and each line of memory by batch.
"""

from collections.abc import Callable, Mapping

from kb.core.hardware import Gpu
from kb.core.memory_report import Phase
from kb.core.model import Model
from kb.core.setup import TrainingSetup
from kb.memory import predict
from kb.memory.engine.rough import generation_of, phases_by_batch
from kb.memory.process import Context, context_of, judged, usable_bytes
from kb.memory.search import LARGEST_BATCH, BatchField, largest_within, use_by_batch

Capability = tuple[int, int]


class Curves:
    """Rough predictions of one model: for a GPU what :class:`kb.advice.estimator.Estimator` answers.

    Args:
        constants: the figures of ``rules/constants.yaml`` by name.
    """

    def __init__(self, model: Model, constants: Mapping[str, float]) -> None:
        self.model = model
        self._constants = constants
        self._bare = {name: 0 if name.startswith("context_") else value for name, value in constants.items()}
        self._phases: dict[tuple[Capability, TrainingSetup], tuple[Phase, ...]] = {}
        self._trained: dict[tuple[Capability, TrainingSetup], Callable[[int], tuple[Phase, ...]]] = {}
        self._curves: dict[tuple[Capability, TrainingSetup, BatchField], Callable[[int], int]] = {}

    def phases(self, setup: TrainingSetup, gpu: Gpu) -> tuple[Phase, ...]:
        """Each phase as the process sees it on the GPU.

        Raises:
            UnsupportedArchitectureError: nothing is known of the model's family.
        """
        key = (generation_of(gpu.compute_capability), setup)
        if key not in self._phases:
            report = predict(
                setup, self.model.architecture, constants=self._bare, compute_capability=key[0], rough=True
            )
            self._phases[key] = report.phases
        context = self._context(gpu)
        phases = tuple(_with_context(phase, context) for phase in self._phases[key])
        return judged(phases, gpu.memory_total, self._constants)[0]

    def verdicts(self, setup: TrainingSetup, gpu: Gpu) -> Callable[[int], str]:
        """The verdict on training alone in a way, by its batch."""
        key = (generation_of(gpu.compute_capability), setup)
        if key not in self._trained:
            bare = context_of(self._bare, None, None)
            self._trained[key] = phases_by_batch(setup, self.model.architecture, self._bare, bare, key[0])
        context = self._context(gpu)

        def verdict(batch: int) -> str:
            phases = tuple(_with_context(phase, context) for phase in self._trained[key](batch))
            return judged(phases, gpu.memory_total, self._constants)[1].status

        return verdict

    def largest(self, setup: TrainingSetup, field: BatchField, gpu: Gpu) -> int:
        """The largest batch whose phases fit with their whole band; 0 where not even 1 does.

        0 too where the model has no such phase: an encoder generates nothing.
        """
        if field == "inference_batch_size" and self.model.architecture.family == "encoder":
            return 0
        key = (generation_of(gpu.compute_capability), setup, field)
        if key not in self._curves:
            self._curves[key] = use_by_batch(
                setup, self.model.architecture, field, constants=self._bare, compute_capability=key[0], rough=True
            )
        limit = usable_bytes(gpu.memory_total, self._constants) - self._context(gpu).high
        return largest_within(self._curves[key], limit, 1, LARGEST_BATCH)

    def _context(self, gpu: Gpu) -> Context:
        return context_of(self._constants, gpu.compute_capability, gpu)


def _with_context(phase: Phase, context: Context) -> Phase:
    return phase._replace(
        process_used_bytes=phase.process_used_bytes + context.expected,
        low_bytes=phase.low_bytes + context.low,
        high_bytes=phase.high_bytes + context.high,
    )
