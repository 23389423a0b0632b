"""What is asked of a simulation: it survives the way into the subprocess, and what cannot be is refused before."""

from typing import Any

import pytest

from kb.core.setup import Assumption, TrainingSetup
from kb.torch_runs.simulation.job import BadJobError, BadModelError, Job, check_job, job_text, read_job

CONFIG = {"model_type": "t5", "num_layers": 2}


def job(**settings: Any) -> Job:
    return Job(TrainingSetup(**settings), CONFIG, (8, 6))


def test_a_job_survives_its_text() -> None:
    asked = Job(
        TrainingSetup(method="lora", lora_target_modules=("q", "v"), eval_samples=7),
        {"model_type": "t5", "이름": ["가", None, 1.5]},
        (7, 5),
        allocator_limit_bytes=1 << 40,
        snapshot_path="/tmp/s.pickle",
    )
    assert read_job(job_text(asked)) == asked


def test_assumptions_stay_behind() -> None:
    asked = job(assumed=(Assumption("a", {"not": "plain"}, "b"),))
    assert read_job(job_text(asked)).setup == TrainingSetup()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("per_device_train_batch_size", 0),
        ("per_device_eval_batch_size", -1),
        ("max_source_length", 0),
        ("gradient_accumulation_steps", 1 << 40),
        ("generation_num_beams", 0),
        ("inference_batch_size", 0),
    ],
)
def test_a_size_that_no_run_can_have_is_refused(name: str, value: int) -> None:
    with pytest.raises(BadJobError) as caught:
        check_job(job(**{name: value}))
    assert caught.value.values == {"name": name, "value": value}


def test_a_batch_beyond_every_gpu_is_refused() -> None:
    with pytest.raises(BadJobError, match="batch × length"):
        check_job(job(per_device_train_batch_size=1 << 20, max_source_length=1 << 20))


def test_layers_without_end_are_refused_before_they_are_built() -> None:
    with pytest.raises(BadModelError, match="num_layers"):
        check_job(Job(TrainingSetup(), {"model_type": "t5", "num_layers": 10**9}, (8, 6)))


def test_an_ordinary_job_is_not_refused() -> None:
    check_job(job())
