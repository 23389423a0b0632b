"""Predictions for known setups: figures of traces and field notes, verdicts, what phases share, assumptions."""

from typing import Any

import pytest

import memory_sample as sample
from kb.core.hardware import Gpu
from kb.core.memory_report import MemoryReport
from kb.core.model import Architecture
from kb.core.setup import Spread, TrainingSetup
from kb.core.units import GIB, MIB
from kb.memory import UnsupportedArchitectureError, predict
from kb.memory.process import usable_bytes
from kb.memory.search import BatchField, largest_batch

GB = 10**9
AUTO = Spread(reduce_bucket=768 * 768)  # what accelerate makes of `auto`


def report(
    config: dict[str, Any], setup: TrainingSetup, gpu: Gpu | None = sample.RTX_3090, **more: Any
) -> MemoryReport:
    return predict(setup, sample.architecture(config), constants=sample.CONSTANTS, gpu=gpu, **more)


def allocated(config: dict[str, Any], setup: TrainingSetup, phase: str) -> int:
    found = report(config, setup).phase(phase)
    assert found is not None
    return found.peak_allocated_bytes


def test_t5_base_training_agrees_with_its_trace() -> None:
    setup = TrainingSetup(bf16=True, per_device_train_batch_size=16)
    assert allocated(sample.T5_BASE, setup, "train") / MIB == pytest.approx(11140, rel=0.01)


def generation(batch: int) -> TrainingSetup:
    return TrainingSetup(
        do_train=False, do_predict=True, inference_batch_size=batch, inference_num_beams=5, inference_max_length=120
    )


def test_kobart_beam_search_agrees_with_its_trace() -> None:
    assert allocated(sample.KOBART, generation(16), "generate") / GB == pytest.approx(2.64, rel=0.005)


def test_a_run_that_ends_only_as_cached_memory_is_given_back_is_tight() -> None:
    """On a GPU a little smaller than what is reserved where there is enough; not on a large one, nor on a small one."""
    setup = TrainingSetup(optim="sgd", per_device_train_batch_size=4, max_source_length=256, max_target_length=64)
    enough = report(sample.T5_BASE, setup, gpu_memory_bytes=48 * GIB).phase("train")
    assert enough is not None
    told = []
    for share in range(80, 161, 4):
        found = report(sample.T5_BASE, setup, gpu_memory_bytes=enough.process_used_bytes * share // 100)
        train = found.phase("train")
        assert train is not None
        less = train.peak_reserved_bytes < enough.peak_reserved_bytes
        told.append((found.verdict.status, less))
    assert told[0][0] == "oom" and told[-1] == ("fits", False)
    assert ("tight", True) in told and ("fits", True) not in told


@pytest.mark.parametrize("field", ["per_device_train_batch_size", "per_device_eval_batch_size"])
def test_the_largest_batch_is_said_to_fit(field: BatchField) -> None:
    setup = TrainingSetup(optim="sgd", max_source_length=256, max_target_length=64, do_eval=True)
    memory = 8 * GIB
    usable = usable_bytes(memory, sample.CONSTANTS)
    batch = largest_batch(setup, sample.architecture(sample.T5_BASE), field, usable, constants=sample.CONSTANTS)
    found: dict[str, Any] = {field: batch}
    assert batch > 1
    assert report(sample.T5_BASE, setup._replace(**found), gpu=None, gpu_memory_bytes=memory).verdict.status == "fits"


@pytest.mark.parametrize(("batch", "five_folds_gb"), [(8, 8.0), (16, 13.1), (32, 23.2), (64, 43.5)])
def test_five_folds_alive_together_need_what_the_notes_saw(batch: int, five_folds_gb: float) -> None:
    """Joint averaging keeps five models, encoder outputs and caches; what works on one of them is there once, and so is
    the process's CUDA context."""
    found = report(sample.KOBART, generation(batch)).phase("generate")
    assert found is not None
    kept = {"parameters", "encoder_output", "kv_cache_self", "kv_cache_cross"}
    joint = sum(term.bytes * (5 if term.name in kept else 1) for term in found.terms)
    used = joint + sample.CONSTANTS["context_bytes"]
    assert used / GB == pytest.approx(five_folds_gb, rel=0.04)


@pytest.mark.long
def test_the_config_that_ran_is_not_called_out_of_memory() -> None:
    found = report(sample.MT5_BASE, sample.MT5_QLORA, host_limit_bytes=60 * GB)
    train = found.phase("train")
    assert train is not None
    assert 11 * GB < train.process_used_bytes < 18 * GB
    assert train.high_bytes < sample.RTX_3090.memory_total
    assert found.verdict.status != "oom"
    assert (found.verdict.phase, found.verdict.term) == ("generate", "kv_cache_cross")


@pytest.mark.long
def test_terms_add_up_to_the_peak_in_every_phase() -> None:
    for setup in (sample.MT5_QLORA, sample.MT5_QLORA._replace(method="full", load_in_4bit=False)):
        for phase in report(sample.MT5_BASE, setup).phases:
            assert sum(term.bytes for term in phase.terms) == phase.peak_allocated_bytes
            assert all(term.bytes > 0 for term in phase.terms)
            assert phase.low_bytes < phase.process_used_bytes < phase.high_bytes


def test_phases_follow_what_the_setup_asks_for() -> None:
    def phases(**settings: Any) -> list[str]:
        return [phase.name for phase in report(sample.T5_BASE, TrainingSetup(**settings)).phases]

    assert phases() == ["load", "train", "save"]
    assert phases(do_eval=True) == ["load", "train", "evaluate", "save"]
    assert phases(do_eval=True, predict_with_generate=True) == ["load", "train", "evaluate", "generate", "save"]
    assert phases(do_train=False, do_predict=True) == ["load", "generate"]


def test_evaluation_beside_training_finds_the_optimizer_states_there() -> None:
    evaluating = TrainingSetup(do_eval=True, predict_with_generate=True)
    alone = evaluating._replace(do_train=False)
    for phase in ("evaluate", "generate"):
        difference = allocated(sample.T5_BASE, evaluating, phase) - allocated(sample.T5_BASE, alone, phase)
        assert difference == pytest.approx(8 * 222_903_552, rel=0.06)  # and a workspace, and ends of blocks


def test_gathered_logits_outgrow_a_24_gb_card_by_the_fourth_step() -> None:
    setup = TrainingSetup(
        do_train=False, do_eval=True, per_device_eval_batch_size=16, max_source_length=1024, max_target_length=200
    )
    statuses = [report(sample.MT5_BASE, setup._replace(eval_samples=16 * n)).verdict.status for n in (1, 2, 4)]
    assert statuses[0] != "oom"
    assert statuses[2] == "oom"
    moved = setup._replace(eval_samples=1600, eval_accumulation_steps=1)
    assert report(sample.MT5_BASE, moved).verdict.status != "oom"


def test_verdict_is_oom_only_beyond_the_low_end_and_fits_only_below_the_high_end() -> None:
    setup = TrainingSetup(bf16=True, per_device_train_batch_size=16)
    train = report(sample.T5_BASE, setup).phase("train")
    assert train is not None
    usable = sample.CONSTANTS["usable_memory_ratio"]

    def status(memory: float) -> str:
        return report(
            sample.T5_BASE, setup, gpu=None, gpu_memory_bytes=round(memory), compute_capability=(8, 6)
        ).verdict[0]

    assert status(train.low_bytes - 200 * MIB) == "oom"
    assert status(train.low_bytes + 200 * MIB) == "likely_oom"
    assert status(train.process_used_bytes / usable + 200 * MIB) == "tight"
    assert status(train.high_bytes / usable - 200 * MIB) == "tight"
    assert status(train.high_bytes / usable + 200 * MIB) == "fits"


def test_without_a_gpu_the_verdict_is_unknown_not_assumed() -> None:
    found = report(sample.T5_BASE, TrainingSetup(), gpu=None)
    assert (found.verdict.status, found.verdict.phase) == ("unknown", "train")


def test_found_memory_and_capability_win_over_the_catalogue() -> None:
    setup = TrainingSetup(bf16=True)
    assert report(sample.T5_BASE, setup, gpu_memory_bytes=4 * GIB).verdict.status == "oom"
    hopper = report(sample.T5_BASE, setup, compute_capability=(9, 0)).phase("train")
    ampere = report(sample.T5_BASE, setup).phase("train")
    assert hopper is not None
    assert ampere is not None
    assert dict(hopper.terms)["workspace"] == 4 * 2**24
    assert dict(ampere.terms)["workspace"] == 2 * 8_519_680


def test_a_family_that_is_not_known_is_said() -> None:
    other = Architecture(
        family="other", model_type="rwkv", d_model=8, d_ff=8, num_heads=1, d_kv=8, encoder_layers=0,
        decoder_layers=1, vocab_size=8,
    )  # fmt: skip
    with pytest.raises(UnsupportedArchitectureError, match="rwkv"):
        predict(TrainingSetup(), other, constants=sample.CONSTANTS)


def test_what_is_taken_for_granted_is_listed() -> None:
    def reasons(**settings: Any) -> set[str]:
        return {assumption.reason for assumption in report(sample.T5_BASE, TrainingSetup(**settings)).assumed}

    assert reasons() == set()
    assert "one_evaluation_step" in reasons(do_eval=True)
    assert "one_evaluation_step" not in reasons(do_eval=True, eval_samples=100)
    assert "optimizer_as_adamw" in reasons(optim="rmsprop")
    assert "unmatched_targets" in reasons(method="lora", lora_target_modules=("q", "wi_0"))
    assert "no_flash_of_the_type" in reasons(attn_implementation="flash")
    assert "deepspeed_source" in reasons(world_size=4, zero_stage=2)
    assert "fp16_as_bf16" in reasons(world_size=4, zero_stage=2, fp16=True)


@pytest.mark.parametrize(
    ("change", "phase"),
    [
        ({"per_device_train_batch_size": 9}, "train"),
        ({"max_source_length": 600}, "train"),
        ({"max_target_length": 200}, "train"),
        ({"attn_implementation": "eager"}, "train"),
        ({"gradient_accumulation_steps": 2}, "train"),
        ({"label_smoothing_factor": 0.1}, "train"),
        ({"generation_num_beams": 5}, "generate"),
        ({"generation_max_length": 200}, "generate"),
        ({"per_device_eval_batch_size": 16}, "evaluate"),
    ],
)
def test_asking_for_more_needs_more(change: dict[str, Any], phase: str) -> None:
    base = TrainingSetup(do_eval=True, predict_with_generate=True, generation_num_beams=4, generation_max_length=100)
    assert allocated(sample.T5_BASE, base._replace(**change), phase) > allocated(sample.T5_BASE, base, phase)


@pytest.mark.parametrize(
    "change",
    [
        {"gradient_checkpointing": True},
        {"bf16": True},
        {"method": "lora"},
        {"optim": "adafactor"},
        {"optim": "adamw_bnb_8bit"},
        {"optim": "paged_adamw_32bit"},
        {"world_size": 4, "zero_stage": 1, "spread": AUTO},
        {"zero_stage": 2, "offload_optimizer": True, "spread": AUTO},
        {"weights": "bf16"},
        {"padded": False},
    ],
)
def test_memory_savers_save_in_training(change: dict[str, Any]) -> None:
    base = TrainingSetup()
    assert allocated(sample.T5_BASE, base._replace(**change), "train") < allocated(sample.T5_BASE, base, "train")
