"""The largest batch that fits, and the workers that fit in host memory, by bisection on the prediction."""

from collections.abc import Mapping
from typing import Literal

from kb.core.hardware import Gpu
from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.predict import predict

BatchField = Literal["per_device_train_batch_size", "per_device_eval_batch_size", "inference_batch_size"]
LARGEST_BATCH = 4096
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
) -> int:
    """The largest value of ``field`` whose phases stay within ``limit_bytes``; 0 where not even 1 fits.

    The process's predicted use is compared, or with ``cautious`` the upper end of its band. Only the phases that the
    field governs count: a training batch is not held back by evaluation.
    """

    def fits(batch: int) -> bool:
        report = predict(
            _only(setup, field)._replace(**{field: batch}),  # type: ignore[arg-type]
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
        return max(sizes, default=0) <= limit_bytes

    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= LARGEST_BATCH and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return min(low, LARGEST_BATCH)


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
    cpus: int | None = None,
    checkpoint_bytes: int | None = None,
) -> int:
    """The most DataLoader workers whose host memory, at its upper end, stays within ``limit_bytes``.

    With ``cpus``, at most a third of them (the field notes' rule), at least one where memory allows.
    """

    def fits(workers: int) -> bool:
        report = predict(
            setup._replace(dataloader_num_workers=workers),
            architecture,
            constants=constants,
            checkpoint_bytes=checkpoint_bytes,
        )
        return report.host.peak_bytes <= limit_bytes

    ceiling = max(cpus // 3, 1) if cpus else 256
    low, high = 0, ceiling + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
