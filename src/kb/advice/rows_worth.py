"""How many rows at once are worth it: beyond some batch a GPU is busy, and a larger one only takes memory. Pure."""

from collections.abc import Iterable
from typing import Literal

from kb.advice.estimator import Estimator
from kb.core.hardware import Gpu
from kb.core.memory_report import Phase
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.search import largest_within

# The rule `long-generation-large-batch` begins here (guide-batch-inference).
LONG_GENERATION, LARGE_BATCH = 100, 32

Reason = Literal["memory", "busy", "share", "asked"]


class Capped(NamedTuple):
    """A batch to evaluate or generate with. ``reason``: ``memory`` is all that bounds it, the GPU is ``busy`` with
    ``rows`` rows already, or a long generation stays within the ``share`` of the GPU that the guide calls safe."""

    batch: int
    reason: Reason
    rows: int


def rows_worth(gpu: Gpu | None, gpus: Iterable[Gpu]) -> int:
    """Rows with which a GPU's arithmetic, not its memory, sets the speed: a power of two.

    A weight of two bytes is read once for all rows and takes two operations for each, so that reading and computing
    take equal time at operations a second / bytes a second rows (the roofline model). Of a GPU without figures, the
    least of all known ones.
    """
    known = [gpu] if gpu is not None and gpu.tensor_flops and gpu.memory_bandwidth else list(gpus)
    ridges = [one.tensor_flops / one.memory_bandwidth for one in known if one.tensor_flops and one.memory_bandwidth]
    return 1 << (int(min(ridges)).bit_length() - 1) if ridges else LARGE_BATCH


def evaluation_batch(largest: int, setup: TrainingSetup, rows: int) -> Capped:
    """The evaluation batch: no more rows than keep the GPU busy; each beam is a row."""
    most = max(rows // (setup.generation_num_beams if setup.predict_with_generate else 1), 1)
    return Capped(min(largest, most), "busy" if largest > most else "memory", rows)


def inference_batch(largest: int, setup: TrainingSetup, rows: int, estimator: Estimator) -> Capped:
    """The batch to generate with: the same below the guide's danger line, and of a long generation no more than the
    guide's share of the GPU."""
    most = max(rows // setup.inference_num_beams, 1)
    found = Capped(min(largest, most), "busy" if largest > most else "memory", rows)
    limit, constants = estimator.limit_bytes, estimator.constants
    if limit is None or not found.batch:
        return found

    def used(batch: int) -> int:
        phase: Phase | None = estimator.predict(setup._replace(inference_batch_size=batch)).phase("generate")
        return phase.process_used_bytes if phase else 0

    def within(share: str, batch: int) -> int:
        return largest_within(used, int(limit * constants[share]) - 1, 1, batch, first=batch)

    found = found._replace(batch=max(within("generation_danger_share", found.batch), 1))
    if found.batch < LARGE_BATCH or setup.inference_max_length <= LONG_GENERATION:
        return found
    safe = max(within("generation_safe_share", found.batch), LARGE_BATCH - 1)
    return found if safe >= found.batch else Capped(safe, "share", rows)
