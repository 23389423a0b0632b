"""Images of a run: how large they are, from where kb knows it, and what is said where nobody says."""

from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.advice.project_lengths import largest_grid
from kb.advice.question import Question
from kb.core.setup import Images, TrainingSetup
from kb.memory import parameter_count
from kb.memory.engine.predict import record_runs
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.torch_runs.simulation.job import Job, job_text, read_job

CATALOG = load_catalog()
FACTORY = """model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
dataset: mllm_demo
template: qwen2_vl
cutoff_len: 2048
per_device_train_batch_size: 1
bf16: true
output_dir: out
"""
PLAIN = "model_name_or_path: Qwen/Qwen2-VL-2B-Instruct\nper_device_train_batch_size: 1\nbf16: true\noutput_dir: out\n"
PIXELS, COUNT = "data.image_max_pixels", "data.images_per_sample"


def checked(text: str, facts: dict[str, Any]) -> Any:
    wanted = Question.of(gpu="rtx-4090", gpus=1, host_memory="60GB", cpus="8")
    return file_checker(CATALOG, Project(facts=facts), wanted).check(text.encode(), "train.yaml").results[0]


@pytest.mark.parametrize(
    ("text", "facts", "reason"),
    [
        (FACTORY, {}, "largest_image_by_default"),  # 768 × 768 pixels
        (FACTORY + "image_max_pixels: 262144\n", {}, "largest_image"),
        (PLAIN, {PIXELS: 262144}, "largest_image"),
    ],
)
def test_how_large_images_are_is_assumed_aloud(text: str, facts: dict[str, Any], reason: str) -> None:
    result = checked(text, facts)
    assert result.prediction is not None
    said = {each.name: each.reason for each in result.prediction.assumed if each.name in (PIXELS, COUNT)}
    assert said == {PIXELS: reason, COUNT: "one_image"}


@pytest.mark.parametrize(
    ("text", "facts", "note"),
    [
        (PLAIN, {}, "pictures_not_said"),
        (PLAIN, {COUNT: 0}, None),  # text alone
        (PLAIN, {PIXELS: 262144, COUNT: 40}, "engine_not_followed"),  # more tokens than a sample has
        (FACTORY.replace("mllm_demo", "mllm_video_demo"), {}, "not_modelled"),
        (FACTORY + "flash_attn: fa2\n", {}, "engine_not_followed"),
        (FACTORY.replace("sft", "dpo"), {}, "engine_not_followed"),
    ],
)
def test_what_is_not_followed_is_said_by_name(text: str, facts: dict[str, Any], note: str | None) -> None:
    result = checked(text, facts)
    assert (result.prediction is None) == (note is not None)
    assert result.note == note


def test_an_image_is_as_many_whole_tokens_as_its_pixels_allow() -> None:
    vision = CATALOG.models["qwen2.5-vl-7b"].architecture.vision
    assert vision is not None
    assert largest_grid(768 * 768, vision) == (50, 60)  # 25 × 30 tokens of 28 × 28 pixels: 750 of 752
    assert largest_grid(28 * 28, vision) == (2, 2)


@pytest.mark.parametrize("model", ["qwen2-vl-2b", "qwen2-vl-7b", "qwen2.5-vl-3b", "qwen2.5-vl-7b"])
def test_parameters_are_those_of_the_built_model(model: str) -> None:
    assert parameter_count(CATALOG.models[model].architecture) == CATALOG.models[model].parameters


def test_a_whole_checkpoint_peaks_where_the_real_code_did() -> None:
    """Recorded by the simulation of transformers 5.23: LoRA of Qwen2.5-VL 3B, one image of 30 × 44 patches."""
    setup = TrainingSetup(images=Images(1, 30, 44), max_source_length=1024, per_device_train_batch_size=1, bf16=True,
                          weights="bf16", method="lora", lora_r=8, lora_target_modules=("q_proj", "v_proj"),
                          gradient_checkpointing=True)  # fmt: skip
    (run,) = record_runs(setup, CATALOG.models["qwen2.5-vl-3b"].architecture, (8, 6))
    assert run.phases["train"][:2] == (9_860_287_488, 10_370_416_640)


def test_a_simulation_gets_the_images_of_its_job() -> None:
    job = Job(TrainingSetup(images=Images(2, 10, 14), frozen=("visual",)), {"model_type": "qwen2_vl"}, (8, 6))
    assert read_job(job_text(job)).setup == job.setup
