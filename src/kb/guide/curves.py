"""One model's memory on many GPUs: what a prediction is apart from the card is computed once for all cards alike.

A card decides three things: which kernels run (its generation), the CUDA context, and the limit. Without the last two
the cards of a generation share each prediction and each curve of memory by batch: a card costs two points of it.
"""

from collections.abc import Callable, Mapping

from kb.core.hardware import Gpu
from kb.core.memory_report import Phase
from kb.core.model import Model
from kb.core.setup import TrainingSetup
from kb.memory import predict
from kb.memory.closed_form import FLASH_FROM, HOPPER
from kb.memory.process import Context, context_of, judged, usable_bytes
from kb.memory.search import LARGEST_BATCH, BatchField, largest_within, use_by_batch

Curve = tuple[Callable[[int], int], dict[int, int]]


class Curves:
    """Predictions of one model. What it answers for a GPU equals what :class:`kb.advice.estimator.Estimator` does.

    Args:
        constants: the figures of ``rules/constants.yaml`` by name.
    """

    def __init__(self, model: Model, constants: Mapping[str, float]) -> None:
        self.model = model
        self._constants = constants
        self._bare = {name: 0 if name.startswith("context_") else value for name, value in constants.items()}
        self._phases: dict[tuple[object, TrainingSetup], tuple[Phase, ...]] = {}
        self._curves: dict[tuple[object, TrainingSetup, BatchField], Curve] = {}

    def phases(self, setup: TrainingSetup, gpu: Gpu) -> tuple[Phase, ...]:
        """Each phase as the process sees it on the GPU.

        Raises:
            UnsupportedArchitectureError: no closed form for the model's family.
        """
        key = (_generation(gpu), setup)
        if key not in self._phases:
            report = predict(
                setup,
                self.model.architecture,
                constants=self._bare,
                compute_capability=gpu.compute_capability,
                rough=True,
            )
            self._phases[key] = report.phases
        context = self._context(gpu)
        phases = tuple(_with_context(phase, context) for phase in self._phases[key])
        return judged(phases, gpu.memory_total, self._constants)[0]

    def verdict(self, setup: TrainingSetup, gpu: Gpu) -> str:
        return judged(self.phases(setup, gpu), gpu.memory_total, self._constants)[1].status

    def largest(self, setup: TrainingSetup, field: BatchField, gpu: Gpu) -> int:
        """The largest batch whose phases fit with their whole band; 0 where not even 1 does.

        0 too where the model has no such phase: an encoder generates nothing.
        """
        if field == "inference_batch_size" and self.model.architecture.family == "encoder":
            return 0
        used, known = self._curve(setup, field, gpu)
        limit = usable_bytes(gpu.memory_total, self._constants) - self._context(gpu).high
        low = max((batch for batch, size in known.items() if size <= limit), default=1)
        high = min((batch for batch, size in known.items() if size > limit), default=LARGEST_BATCH + 1)
        slope = (known[high] - used(low)) / (high - low) if low < high <= LARGEST_BATCH else 0.0
        return largest_within(used, limit, low, high - 1, slope)

    def _curve(self, setup: TrainingSetup, field: BatchField, gpu: Gpu) -> Curve:
        key = (_generation(gpu), setup, field)
        if key not in self._curves:
            known: dict[int, int] = {}
            use = use_by_batch(
                setup,
                self.model.architecture,
                field,
                constants=self._bare,
                compute_capability=gpu.compute_capability,
                rough=True,
            )

            def used(batch: int) -> int:
                if batch not in known:
                    known[batch] = use(batch)
                return known[batch]

            self._curves[key] = used, known
        return self._curves[key]

    def _context(self, gpu: Gpu) -> Context:
        return context_of(self._constants, gpu.compute_capability, gpu)


def _generation(gpu: Gpu) -> tuple[bool, bool]:
    """What of a GPU's capability a prediction reads: SDPA's kernels, and cuBLAS's workspace."""
    return gpu.compute_capability >= FLASH_FROM, gpu.compute_capability[0] >= HOPPER


def _with_context(phase: Phase, context: Context) -> Phase:
    return phase._replace(
        process_used_bytes=phase.process_used_bytes + context.expected,
        low_bytes=phase.low_bytes + context.low,
        high_bytes=phase.high_bytes + context.high,
    )
