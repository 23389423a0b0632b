"""The largest batch that fits, and the workers that fit in host memory; both grow in straight pieces."""

from collections.abc import Callable, Mapping
from math import isqrt
from typing import Literal

from kb.core.hardware import Gpu
from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.host import host_ledger
from kb.memory.parallel import as_run
from kb.memory.predict import loads_of, predict

BatchField = Literal["per_device_train_batch_size", "per_device_eval_batch_size", "inference_batch_size"]
LARGEST_BATCH = 4096
MOST_WORKERS = 256
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
) -> int:
    """The largest value of ``field``, up to ``most``, whose phases stay within ``limit_bytes``; 0 where not even 1.

    The process's predicted use is compared, or with ``cautious`` the upper end of its band. Only the phases that the
    field governs count: a training batch is not held back by evaluation.
    """
    used = use_by_batch(
        setup,
        architecture,
        field,
        constants=constants,
        gpu=gpu,
        compute_capability=compute_capability,
        cautious=cautious,
    )
    return largest_within(used, limit_bytes, 1, most)


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
    setup = _only(setup, field)

    def used(batch: int) -> int:
        report = predict(
            setup._replace(**{field: batch}),  # type: ignore[arg-type]
            architecture,
            constants=constants,
            gpu=gpu,
            compute_capability=compute_capability,
        )
        sizes = [
            phase.high_bytes if cautious else phase.process_used_bytes
            for phase in report.phases
            if phase.name in _PHASES[field]
        ]
        return max(sizes, default=0)

    return used


def largest_within(used: Callable[[int], int], limit_bytes: int, lowest: int, highest: int, slope: float = 0.0) -> int:
    """The largest whole number in a range whose ``used`` bytes, which never fall, stay within the limit.

    One below ``lowest`` where not even that does. Each step aims where the line through the last two points meets the
    limit; every other step halves the range, so that a curve takes no longer than bisection. ``slope``, in bytes for
    each one more, is what is known of the line before the first step.
    """
    size = used(lowest)
    if size > limit_bytes:
        return lowest - 1
    low, low_size, high, halve = lowest, size, highest + 1, False
    while high - low > 1:
        reach = int((limit_bytes - low_size) / slope) if slope > 0 else 1
        guess = (low + high) // 2 if halve and reach > 1 else min(low + max(reach, 1), high - 1)
        size = used(guess)
        slope = (size - low_size) / (guess - low)
        halve = not halve
        if size <= limit_bytes:
            low, low_size = guess, size
        else:
            high = guess
    return low


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
