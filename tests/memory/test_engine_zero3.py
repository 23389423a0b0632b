"""ZeRO-3 in the engine, beside what DeepSpeed 0.19.8's own code took under the simulation (bench/zero3.py)."""

import json
from pathlib import Path
from typing import Any

import pytest

import memory_sample as sample
from catalog_sample import shallow_catalog
from kb.core.setup import PostTraining, Spread, TrainingSetup
from kb.core.setup_json import setup_from
from kb.memory import architecture_from_config, predict
from kb.memory.engine.follow import follow
from kb.memory.engine.predict import record_runs
from kb.memory.engine.report import why_not
from kb.memory.engine.runs import train as runs
from kb.memory.engine.world import Recording

ROWS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "zero3_peaks.json").read_text("utf-8"))
BASE = {"bf16": True, "world_size": 2, "zero_stage": 3, "per_device_train_batch_size": 2}
SCALARS = 8192  # bytes: norms, a count of tokens
SEGMENT = 2 << 20  # that such small blocks may or may not need one more of


@pytest.mark.parametrize("name", ROWS)
def test_zero3_peaks_where_deepspeed_does(name: str) -> None:
    row = ROWS[name]
    spread = Spread(deepspeed=True, **{"reduce_bucket": 20_000_000, **row["spread"]})
    setup = setup_from({**BASE, **row["setup"]})._replace(spread=spread)
    phases = follow(setup, architecture_from_config(row["config"]), (8, 6)).phases
    for phase, (allocated, reserved) in row["peaks"].items():
        found = phases[phase]  # a name of a phase
        paired = name == "positions of two stacks"  # how long gradients of the encoder's result live
        assert found.allocated == pytest.approx(allocated, rel=0.0005 * paired, abs=SCALARS), phase
        assert found.reserved == pytest.approx(reserved, abs=SEGMENT), phase


class Followed(Recording):
    """One whose passes are all followed."""

    repeats = False


@pytest.mark.parametrize("name", ["accumulated", "lora, checkpointed"])
def test_a_later_pass_of_a_step_is_repeated_as_it_would_be_followed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, passes = ROWS[name], list[int]()
    followed = runs.one_pass
    monkeypatch.setattr(runs, "one_pass", lambda *given, **named: passes.append(1) or followed(*given, **named))
    setup = setup_from({**BASE, **row["setup"]})._replace(spread=Spread(deepspeed=True, **row["spread"]))
    recordings = [
        record_runs(setup, architecture_from_config(row["config"]), (8, 6), kind=kind)[0]
        for kind in (Recording, Followed)
    ]
    one, other = ((each.log, each.acts, each.labels(), each.terms, each.paths) for each in recordings)
    assert one == other
    assert len(passes) == 3 + 4


TRL_ROWS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "zero3_trl_peaks.json").read_text("utf-8"))


@pytest.mark.parametrize("name", TRL_ROWS)
def test_a_trainer_s_own_loss_peaks_under_zero3_where_trl_s_does(name: str) -> None:
    """bench/post_training_zero3.py: TRL 1.16.0, DeepSpeed 0.19.8; the reference is shared out by itself."""
    row = TRL_ROWS[name]
    given = row["setup"]
    alone = row["kind"] in ("sft", "grpo")
    reference: Any = "none" if alone else "adapter_off" if "method" in given else "model"
    whole = {**BASE, "world_size": 4, "max_source_length": 128, "gradient_checkpointing": True, **given}
    setup = setup_from(whole)._replace(
        post=PostTraining(row["kind"], reference=reference, completion=64 if row["kind"] == "grpo" else 0),
        spread=Spread(deepspeed=True, **{"reduce_bucket": 20_000_000, **row["spread"]}),
    )
    found = follow(setup, architecture_from_config(row["config"]), (8, 6)).phases["train"]
    allocated, reserved = row["peak"]
    assert found.allocated == pytest.approx(allocated, abs=2 * SCALARS)
    assert found.reserved == reserved
    assert ("reference_model" in dict(found.terms)) is (reference == "model")


@pytest.mark.parametrize(
    "post", [PostTraining("orpo", head="rows"), PostTraining("grpo", completion=32, generated_rows=2)]
)
def test_losses_that_were_not_compared_under_zero3_are_refused_by_name(post: PostTraining) -> None:
    setup = TrainingSetup(**BASE, post=post, spread=Spread(deepspeed=True))
    assert why_not(setup, architecture_from_config(ROWS["plain"]["config"])) == f"ZeRO-3 of {post.kind}"


def test_every_encoder_under_zero3_is_followed_or_refused_by_name() -> None:
    """Of each type in the catalogue the smallest model, of two layers."""
    setup = TrainingSetup(bf16=True, zero_stage=3, world_size=2, per_device_train_batch_size=1, max_source_length=64)
    setup = setup._replace(max_target_length=16, spread=Spread(deepspeed=True))
    for model in {each.architecture.model_type: each for each in shallow_catalog().models.values()}.values():
        if model.architecture.family == "encoder" and why_not(setup, model.architecture) is None:
            assert predict(setup, model.architecture, constants=sample.CONSTANTS).phases, model.id


def test_zero3_is_answered_by_the_engine_and_says_what_lies_there() -> None:
    llama = architecture_from_config(ROWS["plain"]["config"])
    setup = TrainingSetup(**BASE, spread=Spread(deepspeed=True))
    found = predict(setup, llama, constants=sample.CONSTANTS)
    assert found.level == "engine"
    train = next(phase for phase in found.phases if phase.name == "train")
    held = {term.name: term.bytes for term in train.terms}
    assert held["buckets"] >= 2 * 500_000_000  # DeepSpeed's default bucket is taken whole
    assert {"parameters", "gathered_parameters", "gradients", "optimizer"} <= set(held)
    alone = predict(setup._replace(world_size=1), llama, constants=sample.CONSTANTS)
    assert alone.level == "rough"  # on one GPU nothing is gathered


def test_a_rough_answer_of_a_deep_model_is_not_drawn_from_few_layers() -> None:
    """All of a shallow model stays whole: it has fewer elements than DeepSpeed keeps for their next use."""
    llama = architecture_from_config({**ROWS["plain"]["config"], "num_hidden_layers": 40})
    setup = TrainingSetup(
        **{**BASE, "world_size": 4},
        method="lora",
        weights="bf16",
        gradient_checkpointing=True,
        spread=Spread(deepspeed=True, max_reuse_distance=100_000_000, max_live_parameters=100_000_000),
    )
    made = predict(setup, llama, constants=sample.CONSTANTS)
    roughly = predict(setup, llama, constants=sample.CONSTANTS, rough=True)
    assert (made.level, roughly.level) == ("engine", "rough")
    for one, other in zip(made.phases, roughly.phases, strict=True):
        assert one.peak_allocated_bytes == pytest.approx(other.peak_allocated_bytes, rel=0.03), one.name
