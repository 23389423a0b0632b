"""The largest batch that fits, and the workers that fit in host memory; both grow in nearly straight pieces."""

from collections.abc import Callable, Mapping
from math import ceil, isqrt
from typing import Literal

from kb.core.hardware import Gpu
from kb.core.memory_report import Phase
from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.host import host_ledger
from kb.memory.parallel import as_run
from kb.memory.predict import loads_of, predict

BatchField = Literal["per_device_train_batch_size", "per_device_eval_batch_size", "inference_batch_size"]
LARGEST_BATCH = 4096
MOST_WORKERS = 256
_GROWING = ("activations", "encoder_output", "gathered", "inputs", "kv_cache", "logits", "loss", "temporaries")
FIRST_STRIDE = 8  # from the lowest number to the second, for the slope: the allocator's rounding weighs little in it
PATIENCE = 8  # steps along a line before bisection takes over
_PHASES = {
    "per_device_train_batch_size": ("train",),
    "per_device_eval_batch_size": ("evaluate", "generate"),
    "inference_batch_size": ("generate",),
}


def largest_batch(
    setup: TrainingSetup,
    architecture: Architecture,
    field: BatchField,
    limit_bytes: int,
    *,
    constants: Mapping[str, float],
    gpu: Gpu | None = None,
    compute_capability: tuple[int, int] | None = None,
    cautious: bool = False,
    most: int = LARGEST_BATCH,
    first: int = 1,
) -> int:
    """The largest value of ``field``, up to ``most``, whose phases stay within ``limit_bytes``; 0 where not even 1.

    The process's predicted use is compared, or with ``cautious`` the upper end of its band. Only the phases that the
    field governs count: a training batch is not held back by evaluation. ``first`` is asked about first: the answer
    of a like question.
    """
    phases = _phases_by_batch(setup, architecture, field, constants, gpu, compute_capability)
    growing = max((_growing_bytes(phase) for phase in phases(first)), default=0)
    return largest_within(
        lambda batch: _most_used(phases(batch), cautious), limit_bytes, 1, most, slope=growing / first, first=first
    )


def use_by_batch(
    setup: TrainingSetup,
    architecture: Architecture,
    field: BatchField,
    *,
    constants: Mapping[str, float],
    gpu: Gpu | None = None,
    compute_capability: tuple[int, int] | None = None,
    cautious: bool = False,
) -> Callable[[int], int]:
    """What :func:`largest_batch` compares with a limit: bytes of the phases that ``field`` governs, by its value."""
    phases = _phases_by_batch(setup, architecture, field, constants, gpu, compute_capability)
    return lambda batch: _most_used(phases(batch), cautious)


def _phases_by_batch(
    setup: TrainingSetup,
    architecture: Architecture,
    field: BatchField,
    constants: Mapping[str, float],
    gpu: Gpu | None,
    compute_capability: tuple[int, int] | None,
) -> Callable[[int], list[Phase]]:
    setup = _only(setup, field)

    def phases(batch: int) -> list[Phase]:
        report = predict(
            setup._replace(**{field: batch}),  # type: ignore[arg-type]
            architecture,
            constants=constants,
            gpu=gpu,
            compute_capability=compute_capability,
        )
        return [phase for phase in report.phases if phase.name in _PHASES[field]]

    return phases


def _most_used(phases: list[Phase], cautious: bool) -> int:
    return max((phase.high_bytes if cautious else phase.process_used_bytes for phase in phases), default=0)


def _growing_bytes(phase: Phase) -> int:
    """Bytes of what grows with the batch: a first slope, no more than a guess that saves a step."""
    return sum(term.bytes for term in phase.terms if term.name.startswith(_GROWING))


def largest_within(
    used: Callable[[int], int],
    limit_bytes: int,
    lowest: int,
    highest: int,
    slope: float = 0.0,
    first: int | None = None,
) -> int:
    """The largest whole number in a range whose ``used`` bytes stay within the limit; one below ``lowest`` where none.

    It fits, and one more does not: that holds too where ``used`` falls now and then, as memory taken from a cache does.
    Four numbers are asked about as a rule, since each may cost a run of the memory engine: the lowest, one for the
    slope, the one where the line meets the limit, and its neighbour.

    Args:
        slope: bytes for each one more, of what is known of the line before the first step.
        first: the number to ask about first: one whose answer is likely, or that is likely known.
    """
    low, high = _Asked(lowest - 1), _Asked(highest + 1)
    guess, steps = min(max(first or lowest, lowest), highest), 0
    while high.number - low.number > 1:
        asked, steps = _Asked(guess, used(guess)), steps + 1
        before, (low, high) = low, ((asked, high) if asked.bytes <= limit_bytes else (low, asked))
        if low.bytes and before.bytes and low is not before:
            slope = (low.bytes - before.bytes) / (low.number - before.number)
        guess = min(max(_next(low, high, limit_bytes, slope, steps), low.number + 1), high.number - 1)
    return low.number


class _Asked(NamedTuple):
    """A number and the bytes that it takes; 0 where it was not asked about."""

    number: int
    bytes: int = 0


def _next(low: _Asked, high: _Asked, limit_bytes: int, slope: float, steps: int) -> int:
    """Where the line meets the limit: between a number that fits and one that does not, or beyond the one known."""
    if high.bytes and steps > PATIENCE:
        return (low.number + high.number) // 2  # no line: a curve takes little longer than bisection
    if high.bytes and low.bytes:
        share = (limit_bytes - low.bytes) / (high.bytes - low.bytes)
        return low.number + int(share * (high.number - low.number))
    if high.bytes:
        return high.number - ceil((high.bytes - limit_bytes) / slope) if slope > 0 else (low.number + high.number) // 2
    if slope <= 0:
        return low.number * FIRST_STRIDE
    reach = low.number + int((limit_bytes - low.bytes) / slope)
    return max(reach, 2 * low.number) if steps > PATIENCE else reach


def largest_dividing(used: Callable[[int], int], limit_bytes: int, whole: int, first: int) -> int:
    """The largest divisor of ``whole`` whose ``used`` bytes, which never fall, stay within the limit; 0 where none.

    Args:
        first: the divisor to ask about first: one whose answer is likely known.
    """
    small = [number for number in range(1, isqrt(whole) + 1) if whole % number == 0]
    divisors = sorted({*small, *(whole // number for number in small)})
    low, high, at = 0, len(divisors), divisors.index(first)  # so many fit; from `high` on none does
    while low < high:
        if used(divisors[at]) <= limit_bytes:
            low = at + 1
        else:
            high = at
        at = (low + high) // 2
    return divisors[low - 1] if low else 0


def _only(setup: TrainingSetup, field: str) -> TrainingSetup:
    """The setup with other phases off, so that they cost no time; training stays on where it holds memory."""
    if field == "per_device_train_batch_size":
        return setup._replace(do_train=True, do_eval=False, do_predict=False)
    if field == "inference_batch_size":
        return setup._replace(do_train=False, do_eval=False, do_predict=True)
    return setup._replace(do_eval=True, do_predict=False)


def workers_that_fit(
    setup: TrainingSetup,
    architecture: Architecture,
    limit_bytes: int,
    *,
    constants: Mapping[str, float],
    most: int | None = None,
    checkpoint_bytes: int | None = None,
) -> int:
    """The most DataLoader workers whose host memory, at its upper end, stays within ``limit_bytes``.

    Args:
        most: never more than these; None sets no bound but the memory.
    """
    run = as_run(setup)
    loads = loads_of(run, architecture, None, checkpoint_bytes)

    def used(workers: int) -> int:
        changed = setup._replace(dataloader_num_workers=workers)
        return host_ledger(changed, loads, constants=constants, limit_bytes=None).peak_bytes

    return max(largest_within(used, limit_bytes, 0, MOST_WORKERS if most is None else most), 0)
