"""ZeRO-3 in the engine, beside what DeepSpeed 0.19.8's own code took under the simulation (bench/zero3.py)."""

import json
from pathlib import Path
from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import Images, Spread, TrainingSetup
from kb.memory import architecture_from_config, predict
from kb.memory.engine.follow import follow

ROWS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "zero3_peaks.json").read_text("utf-8"))
BASE = {"bf16": True, "world_size": 2, "zero_stage": 3, "per_device_train_batch_size": 2}
SCALARS = 8192  # bytes: norms, a count of tokens
SEGMENT = 2 << 20  # that such small blocks may or may not need one more of


@pytest.mark.parametrize("name", ROWS)
def test_zero3_peaks_where_deepspeed_does(name: str) -> None:
    row = ROWS[name]
    spread = Spread(deepspeed=True, **{"reduce_bucket": 20_000_000, **row["spread"]})
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in row["setup"].items()}
    given |= {"images": Images(*given["images"])} if "images" in given else {}
    setup = TrainingSetup(**{**BASE, **given}, spread=spread)
    phases = follow(setup, architecture_from_config(row["config"]), (8, 6)).phases
    for phase, (allocated, reserved) in row["peaks"].items():
        found = phases[phase]  # a name of a phase
        paired = name == "positions of two stacks"  # how long gradients of the encoder's result live
        assert found.allocated == pytest.approx(allocated, rel=0.0005 * paired, abs=SCALARS), phase
        assert found.reserved == pytest.approx(reserved, abs=SEGMENT), phase


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
