"""The largest batch that fits, and the workers that fit in host memory; both grow in nearly straight pieces."""

from collections.abc import Callable, Mapping
from math import floor, isqrt
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
ENDLESS = 1 << 60  # bytes of a GPU that is never full
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
    growing = max((_growing_bytes(phase) for phase in phases(first, ENDLESS)), default=0)

    def used(batch: int) -> int:
        """Bytes without a limit, which grow evenly; inside of the GPU where only what the allocator holds is too much,
        since it gives that back."""
        without = phases(batch, ENDLESS)
        bytes_used = _most_used(without, cautious)
        if bytes_used <= limit_bytes or _most_used(without, cautious, alive=True) > limit_bytes:
            return bytes_used
        inside = _most_used(phases(batch, None), cautious)
        return inside if inside <= limit_bytes else bytes_used

    return largest_within(used, limit_bytes, 1, most, slope=growing / first, first=first)


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
    return lambda batch: _most_used(phases(batch, None), cautious)


def _phases_by_batch(
    setup: TrainingSetup,
    architecture: Architecture,
    field: BatchField,
    constants: Mapping[str, float],
    gpu: Gpu | None,
    compute_capability: tuple[int, int] | None,
) -> Callable[[int, int | None], list[Phase]]:
    """The phases by the batch, on a GPU of so many bytes; None: of its own."""
    setup = _only(setup, field)
    # vLLM takes a share of the GPU: of its own bytes, always
    beside = None if setup.post is not None and setup.post.colocated else ENDLESS

    def phases(batch: int, memory: int | None) -> list[Phase]:
        report = predict(
            setup._replace(**{field: batch}),  # type: ignore[arg-type]
            architecture,
            constants=constants,
            gpu=gpu,
            gpu_memory_bytes=memory and beside,
            compute_capability=compute_capability,
        )
        return [phase for phase in report.phases if phase.name in _PHASES[field]]

    return phases


def _most_used(phases: list[Phase], cautious: bool, *, alive: bool = False) -> int:
    """The most that a phase takes; with ``alive`` no more than a GPU that is full makes of it: the share of what is
    reserved that is allocated."""
    return max((_used(phase, cautious, alive) for phase in phases), default=0)


def _used(phase: Phase, cautious: bool, alive: bool) -> int:
    size = phase.high_bytes if cautious else phase.process_used_bytes
    return size * phase.peak_allocated_bytes // max(phase.peak_reserved_bytes, 1) if alive else size


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
    guess, last, steps = min(max(first or lowest, lowest), highest), None, 0
    while high.number - low.number > 1:
        before, last, steps = last, _Asked(guess, used(guess)), steps + 1
        low, high = (last, high) if last.bytes <= limit_bytes else (low, last)
        if before is not None:
            between = (last.bytes - before.bytes) / (last.number - before.number)
            slope = between if between > 0 else slope
        guess = min(max(_next(low, high, last, limit_bytes, slope, steps), low.number + 1), high.number - 1)
    return low.number


class _Asked(NamedTuple):
    """A number and the bytes that it takes; 0 where it was not asked about."""

    number: int
    bytes: int = 0


def _next(low: _Asked, high: _Asked, last: _Asked, limit_bytes: int, slope: float, steps: int) -> int:
    """Where the line meets the limit: that of the last two numbers, which follows a curve, or where it leaves what is
    known, the one between a number that fits and one that does not.
    """
    reach = last.number + floor((limit_bytes - last.bytes) / slope) if slope > 0 else None
    if not high.bytes:
        beyond = low.number * FIRST_STRIDE if reach is None else reach
        return max(beyond, 2 * low.number) if steps > PATIENCE else beyond
    if steps > PATIENCE:
        return (low.number + high.number) // 2  # no line: a staircase takes little longer than bisection
    if reach is not None and low.number <= reach < high.number:
        return reach
    if not low.bytes:
        return (low.number + high.number) // 2
    share = (limit_bytes - low.bytes) / (high.bytes - low.bytes)
    return low.number + int(share * (high.number - low.number))


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
