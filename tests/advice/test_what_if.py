"""`--what-if`: each memory option that a run does not have, with what it would save."""

import pytest

from catalog_sample import load_catalog
from kb.advice.estimate import Saving, what_if
from kb.advice.fit.estimator import Estimator, on_gpu
from kb.core.setup import PostTraining, TrainingSetup

CATALOG = load_catalog()


def savings(setup: TrainingSetup, model: str = "t5-small") -> dict[str, Saving]:
    estimator = Estimator(CATALOG.models[model], on_gpu(CATALOG.gpus["rtx-3090"]), CATALOG.constants)
    fused = CATALOG.facts["model.has_liger_loss"].model_types
    found = what_if(setup, estimator.predict(setup), estimator, fused)
    assert [saving.bytes for saving in found] == sorted((saving.bytes for saving in found), reverse=True)
    return {saving.written: saving for saving in found}


def test_each_option_that_the_run_lacks_is_a_line() -> None:
    found = savings(TrainingSetup(per_device_train_batch_size=16))
    assert found["gradient_checkpointing: true"].bytes > 0
    assert found["LoRA"].bytes > 0
    assert "attn_implementation: sdpa" not in found


def test_what_the_run_has_is_not_offered_again() -> None:
    found = savings(TrainingSetup(per_device_train_batch_size=1, gradient_checkpointing=True, optim="adamw_8bit"))
    assert not {"gradient_checkpointing: true", "optim: adamw_8bit"} & found.keys()
    assert not any(written.startswith("per_device_train_batch_size") for written in found)


@pytest.mark.long
def test_an_adapter_s_base_in_bf16_and_a_loss_in_pieces_are_offered_where_they_help() -> None:
    found = savings(TrainingSetup(per_device_train_batch_size=4, method="lora", bf16=True), "smollm2-135m")
    assert found["dtype: bfloat16"].bytes > 2 * 100_000_000  # half of the weights, and their copies under autocast
    assert found["use_liger_kernel: true"].bytes > 0
    assert not {"dtype: bfloat16", "use_liger_kernel: true"} & savings(TrainingSetup()).keys()  # full fine-tuning of T5


def test_half_the_batch_keeps_the_effective_one() -> None:
    found = savings(TrainingSetup(per_device_train_batch_size=16))
    half = savings(TrainingSetup(per_device_train_batch_size=8, gradient_accumulation_steps=2))
    written = "per_device_train_batch_size / 2, gradient_accumulation_steps × 2"
    assert found[written].peak_bytes - half[written].peak_bytes == pytest.approx(half[written].bytes, rel=0.01)


@pytest.mark.long
def test_a_preference_run_can_compute_its_reference_ahead_or_have_none_of_its_own() -> None:
    post = PostTraining("orpo", head="rows")
    setup = TrainingSetup(per_device_train_batch_size=1, max_source_length=64, weights="bf16", post=post)
    assert "precompute_ref_log_probs: true" not in savings(setup, "smollm2-135m")
    referring = setup._replace(post=PostTraining("dpo", reference="model"))
    found = savings(referring, "smollm2-135m")
    assert found["precompute_ref_log_probs: true"].bytes > 2 * 100_000_000  # the reference's weights in bf16
