"""What the callback says and logs of a GPU, whose allocator a script plays: there is none here."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from kb.core.hardware import DetectedGpu, Machine
from kb.core.units import GIB, MIB
from torch_later import imported_where_run
from trainer_runs import gpt2_model, require_trainer

if TYPE_CHECKING:
    import torch

    from kb.integrations.trainer.forecast import Forecast, Knowledge, without_ours
    from kb.integrations.trainer.live import LiveRun, held_bytes, model_of, model_settings
    from kb.integrations.trainer.meter import Reading
    from kb.integrations.trainer.watching import Watching, size
imported = imported_where_run(globals(), require_trainer)


class Allocator:
    """Plays torch's peaks: ``now`` is what is held, a peak lasts until it is set back."""

    kind = "cuda"

    def __init__(self, *, resets: bool = True) -> None:
        self.resets, self._now, self._peak = resets, 0, 0

    def holds(self, size: int) -> None:
        self._now, self._peak = size, max(self._peak, size)

    def read(self) -> Reading:
        return Reading(self._peak, self._peak + 2 * MIB, GIB)

    def reset(self) -> None:
        if self.resets:
            self._peak = self._now


def watching_of(allocator: Allocator, language: str = "en", **settings: Any) -> Watching:
    model, knowledge = gpt2_model(), Knowledge(language)
    watching = Watching(knowledge, allocator, torch.device("cpu"))
    given = {"per_device_train_batch_size": 4, "max_source_length": 32, "do_train": True, **settings}
    run = LiveRun({**model_settings(model), **given}, {}, model_of(model, knowledge.catalog), held_bytes(model))
    watching.start(run)
    return watching


@pytest.mark.parametrize(
    ("language", "start", "reserved"),
    [
        ("ko", "kb: 학습: 할당 정점 예측 {predicted}, 측정 16.0 MiB ({error:+.1%});", "예약 예측 "),
        (
            "en",
            "kb: train: allocated at the peak, predicted {predicted}, measured 16.0 MiB ({error:+.1%});",
            "reserved, ",
        ),
    ],
)
def test_predicted_and_measured_of_the_allocator_are_said_side_by_side(
    language: str, start: str, reserved: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="kb.transformers")
    allocator = Allocator()
    watching = watching_of(allocator, language)
    allocator.holds(16 * MIB)
    comparison = watching.stepped()
    assert comparison is not None
    predicted = comparison.predicted_allocated
    assert predicted
    assert start.format(predicted=size(predicted), error=predicted / (16 * MIB) - 1) + f" {reserved}" in caplog.text
    assert sorted(comparison.record()) == [
        "kb/measured_allocated_gib",
        "kb/measured_host_gib",
        "kb/measured_reserved_gib",
        "kb/predicted_allocated_gib",
        "kb/predicted_reserved_gib",
    ]


def test_an_evaluations_peak_is_its_own_and_not_trainings() -> None:
    allocator = Allocator()
    watching = watching_of(allocator, eval_strategy="steps")
    allocator.holds(100 * MIB)
    allocator.holds(10 * MIB)
    watching.stepped()
    watching.before_evaluation()
    allocator.holds(20 * MIB)
    found = watching.evaluated()
    assert found is not None
    assert found.measured_allocated == 20 * MIB


def test_where_peaks_may_not_be_set_back_an_evaluation_is_compared_with_all_that_came_before() -> None:
    allocator = Allocator(resets=False)
    watching = watching_of(allocator, eval_strategy="steps", per_device_eval_batch_size=1)
    allocator.holds(100 * MIB)
    train = watching.stepped()
    watching.before_evaluation()
    found = watching.evaluated()
    assert train is not None
    assert found is not None
    assert found.measured_allocated == 100 * MIB
    assert (found.predicted_allocated or 0) >= (train.predicted_allocated or 1)


def test_a_peak_that_grows_after_the_first_step_is_told_at_the_end() -> None:
    allocator = Allocator()
    watching = watching_of(allocator)
    allocator.holds(10 * MIB)
    watching.stepped()
    allocator.holds(30 * MIB)
    ended = watching.end()
    assert ended is not None
    assert ended.measured_allocated == 30 * MIB
    assert watching_of(Allocator()).end() is None


def test_what_this_process_holds_already_is_free_for_its_run() -> None:
    import os

    gpu = DetectedGpu(0, "NVIDIA T4", 16 * GIB, memory_free=6 * GIB, processes=((os.getpid(), 3 * GIB), (1, 7 * GIB)))
    mended = without_ours(Machine(gpus=(gpu,), gpu_source="nvml"), 0, 2 * GIB).gpus[0]
    assert mended.memory_free == 9 * GIB
    assert mended.processes == ((1, 7 * GIB),)


def test_no_device_of_a_machine_without_gpus_is_no_fault() -> None:
    assert without_ours(Machine(), 0, GIB) == Machine()


def test_a_forecast_names_no_gpu_where_the_run_is_on_none() -> None:
    model, knowledge = gpt2_model(), Knowledge("en")
    run = LiveRun(model_settings(model), {}, model_of(model, knowledge.catalog), held_bytes(model))
    assert Forecast(run, knowledge, device=torch.device("cpu")).limit_bytes is None
