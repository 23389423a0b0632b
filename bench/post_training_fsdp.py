"""SFT of TRL with torch's own FSDP around the model, under the simulation (level 1).

    PYTHONPATH=src:tests LOCAL_RANK=0 python bench/post_training_fsdp.py --trl FOLDER [NAME …]

writes tests/data/fsdp_trl_peaks.json, which the memory engine is tested against; with names it shows those rows beside
the engine. FOLDER is an unpacked wheel of TRL 1.16.0; ``--beside`` names folders of what it imports (``datasets``).
The rest is as in tests/sharded_by_fsdp.py and post_training.py.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import post_training
import pytest
from engine_diff import followed

from kb.core.setup import PostTraining, Spread, TrainingSetup
from kb.torch_runs.simulation import simulator, training

# isort: split
import sharded_by_fsdp

PATH = Path(__file__).resolve().parents[1] / "tests" / "data" / "fsdp_trl_peaks.json"
CAPABILITY = (8, 6)
LLAMA = {"model_type": "llama", "hidden_size": 128, "intermediate_size": 320, "num_attention_heads": 4,
         "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 32000, "max_position_embeddings": 512,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-5}  # fmt: skip
TIED = {**LLAMA, "model_type": "starcoder2", "tie_word_embeddings": True}
BASE: dict[str, Any] = {"bf16": True, "per_device_train_batch_size": 3, "max_source_length": 72, "world_size": 2,
                        "fsdp": True, "gradient_checkpointing": True}  # fmt: skip
LORA = {"method": "lora", "lora_target_modules": ("q_proj", "down_proj"), "weights": "bf16"}
QLORA = {**LORA, "method": "qlora", "load_in_4bit": True, "bnb_4bit_quant_storage": "bf16", "prepare_for_kbit": False}
# Name → model, settings, how it is spread.
ROWS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]] = {
    "FSDP1": (LLAMA, {}, {"fsdp_version": 1}),
    "FSDP1, lora": (LLAMA, LORA, {"fsdp_version": 1}),
    "FSDP1, 4 bits": (LLAMA, QLORA, {"fsdp_version": 1, "packed_on": "host"}),
    "FSDP2": (LLAMA, {"gradient_accumulation_steps": 2}, {}),
    "FSDP2, tied": (TIED, {}, {}),
    "FSDP2, lora": (LLAMA, LORA, {}),
    "FSDP2, 4 bits": (LLAMA, QLORA, {}),
}


def setup_of(given: Mapping[str, Any], spread: Mapping[str, Any]) -> TrainingSetup:
    return TrainingSetup(**{**BASE, **given}, post=PostTraining("sft"), spread=Spread(**spread))


def simulated(config: Mapping[str, Any], setup: TrainingSetup) -> tuple[int, int]:
    """The peaks of training on the first GPU: allocated and reserved bytes."""
    with pytest.MonkeyPatch.context() as patch, post_training._host_answers(0):
        fuse, session = post_training._fuse, simulator.open_session
        patch.setattr(post_training, "_fuse", lambda *_: None)  # done before the model is wrapped, as in its __init__

        def fused(shard: Callable[..., Any]) -> Callable[..., Any]:
            def sharded(model: Any, *given: Any) -> Any:
                fuse("sft", model, None)
                return shard(model, *given)

            return sharded

        @contextmanager
        def opened(**given: Any) -> Iterator[Any]:
            with session(**given) as tracer:
                post_training._in_place(tracer)
                yield tracer

        for name in ("_sharded", "_flat"):
            patch.setattr(sharded_by_fsdp, name, fused(getattr(sharded_by_fsdp, name)))
        patch.setattr(simulator, "open_session", opened)
        patch.setattr(training, "_pass", one_pass)
        _, peaks = sharded_by_fsdp.simulated_in_fsdp(config, setup, CAPABILITY, patch)
    return peaks["train"]


def one_pass(model: Any, setup: TrainingSetup, tracer: Any, _: Any) -> None:
    """A pass with the trainer's own loss."""
    trainer = post_training._trainer("sft", model, None, setup)
    tracer.phase = "train:inputs"
    batch = post_training._batch("sft", setup, trainer)
    tracer.phase = "train:forward"
    loss = trainer.compute_loss(model, batch)
    if setup.gradient_accumulation_steps > 1:
        loss = loss / setup.gradient_accumulation_steps
    tracer.phase = "train:backward"
    loss.backward()


def main() -> None:
    """Record every row, or show some."""
    names = post_training.rows_asked(__doc__, ROWS)
    rows = {}
    for name in names or ROWS:
        config, settings, spread = ROWS[name]
        setup = setup_of(settings, spread)
        allocated, reserved = simulated(config, setup)
        _, own = followed(config, setup, CAPABILITY)
        print(f"{name}: allocated {allocated:,} {own['train'][0]:,}, reserved {reserved:,} {own['train'][1]:,}")
        rows[name] = {"config": config, "setup": settings, "spread": spread, "peak": (allocated, reserved)}
    if not names:
        PATH.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
