"""Runs that were measured on an H100 and an H200 (rules/measurements): the engine takes what the real code took."""

from typing import Any

import pytest

from catalog_sample import load_guide
from effort import EXHAUSTIVE
from kb.core.setup import PostTraining, TrainingSetup
from kb.core.setup_json import setup_from
from kb.memory import architecture_from_config
from kb.memory.engine.expandable import ExpandableAllocator
from kb.memory.engine.kernel_choice import summed_buffers
from kb.memory.engine.predict import record_runs, record_training
from kb.memory.releases import earlier_release

MEASUREMENTS = load_guide()["measurements"]
HOPPER, TURING = (9, 0), (7, 5)
# Of a campaign: how many rows stand for one by default (all run with --exhaustive); the most that allocated and
# reserved bytes may be off, in the sample's mean and for allocated bytes in one row.
CAMPAIGNS = {
    "gpu-h100-2026-11-26": (9, 0.002, 0.03, 0.04),
    "gpu-h200-2026-11-27": (23, 0.002, 0.02, 0.01),  # models of which nothing was measured before
    "large-h200-2026-11-27": (6, 0.002, 0.01, 0.015),  # whole models of up to 14 billion parameters, and that see, hear
    "generation-h200-2026-11-27": (10, 0.01, 0.06, 0.05),  # of allocated: what min_new_tokens copies
}


def found(campaign: dict[str, Any], row: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Peaks of allocated and reserved bytes by phase."""
    architecture = architecture_from_config(campaign["models"][row["model"]]["architecture"])
    release = tuple(map(int, campaign["stack"]["transformers"].split(".")[:2]))
    setup = setup_from(row["setup"])._replace(earlier=earlier_release(architecture.model_type, release))
    if "lengths" in row:
        recording = record_training(setup, architecture, HOPPER, row["lengths"])
        peak = recording.phases["train"]
        if row.get("expandable_segments"):
            peak = recording.peaks(ExpandableAllocator())["train"]
        return {"train": (peak.allocated, peak.reserved)}
    recordings = record_runs(setup, architecture, HOPPER)
    return {name: (peak.allocated, peak.reserved) for each in recordings for name, peak in each.phases.items()}


@pytest.mark.long
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_runs_take_what_they_took_on_a_gpu(name: str) -> None:
    campaign = MEASUREMENTS[name]
    every, mean_allocated, mean_reserved, worst = CAMPAIGNS[name]
    rows = campaign["rows"] if EXHAUSTIVE else campaign["rows"][::every]
    allocated, reserved = [], []
    for row in rows:
        peaks = found(campaign, row)
        for phase in ("train", "evaluate", "generate"):
            measured = row["phases"].get(phase)
            if measured:
                allocated.append(abs(peaks[phase][0] / measured["allocated_bytes"] - 1))
                reserved.append(abs(peaks[phase][1] / measured["reserved_bytes"] - 1))
    assert len(allocated) >= len(rows)
    assert sum(allocated) / len(allocated) < mean_allocated
    assert max(allocated) < worst
    assert sum(reserved) / len(reserved) < mean_reserved


# Adafactor's mean over the rows of t5-small's table: 126 MiB more were reserved on an H100 than without the buffer.
@pytest.mark.parametrize(
    ("shape", "capability", "mib"),
    [
        ((32128, 512), HOPPER, 125.5),
        ((8192, 3072), HOPPER, 132.0),
        ((8192, 3072), TURING, 21.0),  # 40 multiprocessors of half the threads
        ((1016, 3072), HOPPER, 0.0),  # too few rows for blocks to share
        ((2048, 30001), HOPPER, 0.0),  # columns enough for all blocks, one by one
    ],
)
def test_a_sum_over_rows_holds_a_number_for_each_block(
    shape: tuple[int, int], capability: tuple[int, int], mib: float
) -> None:
    buffers = summed_buffers(shape, (shape[1], 1), (False, True), capability)
    assert sum(buffers[:1]) / 2**20 == pytest.approx(mib, abs=0.01)


def test_a_sum_over_the_fastest_dimension_holds_next_to_nothing() -> None:
    assert summed_buffers((32128, 512), (512, 1), (True, False), HOPPER) == ()


# --- a trainer's own loss --------------------------------------------------------------------------------------------

TRL = MEASUREMENTS["trl-h100-2026-11-26"]
PREFERENCES = [row for row in TRL["rows"] if row["run"].startswith(("trl dpo", "trl kto"))]


def preference_setup(row: dict[str, Any]) -> TrainingSetup:
    config = row["config"]
    adapted = config.get("use_peft", False)
    reference: Any = "adapter_off" if adapted else "model"
    post = PostTraining(
        "dpo" if row["run"].startswith("trl dpo") else "kto",
        reference="none" if config.get("precompute_ref_log_probs") else reference,
        scored=row["answer_tokens"],
    )
    return TrainingSetup(
        method="full" if not adapted else "qlora" if config.get("load_in_4bit") else "lora",
        load_in_4bit=config.get("load_in_4bit", False),
        bf16=True,
        weights="fp32" if config["dtype"] == "float32" else "bf16",
        per_device_train_batch_size=config["per_device_train_batch_size"],
        gradient_accumulation_steps=config.get("gradient_accumulation_steps", 1),
        gradient_checkpointing=config.get("gradient_checkpointing", True),
        max_source_length=row["tokens"],
        lora_target_modules=tuple(config["lora_target_modules"]) if adapted else None,
        lora_r=16,
        prepare_for_kbit=False,
        trained_type="bf16" if config.get("load_in_4bit") else "peft",
        padded=False,
        post=post,
    )


@pytest.mark.long
def test_a_loss_of_answers_takes_what_it_took_on_an_h100() -> None:
    """Two thirds of each sample are its prompt, which the loss does not read."""
    errors = {0: [], 1: []}
    for row in PREFERENCES if EXHAUSTIVE else PREFERENCES[::9]:
        architecture = architecture_from_config(TRL["models"][row["model"]]["architecture"])
        setup = preference_setup(row)
        assert setup.post is not None
        for known in errors:
            (recording,) = record_runs(
                setup._replace(post=setup.post._replace(scored=known * row["answer_tokens"])), architecture, HOPPER
            )
            measured = row["phases"]["train"]["allocated_bytes"]
            errors[known].append(abs(recording.phases["train"].allocated / measured - 1))
    assert max(errors[1]) < 0.006
    assert sum(errors[0]) / len(errors[0]) > 0.02  # without what the project says of its prompts
