"""TRL's own losses with DeepSpeed's own ZeRO-3 around policy and reference, under the simulation (level 1).

    PYTHONPATH=src:tests LOCAL_RANK=0 DS_ACCELERATOR=cpu python bench/post_training_zero3.py --trl FOLDER [NAME …]

writes tests/data/zero3_trl_peaks.json, which the memory engine is tested against; with names it shows those rows beside
the engine. FOLDER is an unpacked wheel of TRL 1.16.0; ``--beside`` names folders of what it imports (``datasets``).
The rest is as in zero3.py and post_training.py.

Full training of a model whose output layer is its own is not here: PyTorch copies a gradient that does not look like
its parameter, and the parameter is in parts again when the loss's gradient comes.
"""

import json
from collections.abc import Mapping
from typing import Any

import post_training
import pytest
import zero3
from engine_diff import followed

from kb.core.setup import PostKind, PostTraining, Spread, TrainingSetup
from kb.torch_runs.simulation.session import open_session
from kb.torch_runs.simulation.timeline import peaks_of
from kb.torch_runs.simulation.training import optimizer_of

# isort: split
from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
from transformers.integrations import deepspeed as of_transformers

from sharded_by_fsdp import Streams

PATH = zero3.PATH.with_name("zero3_trl_peaks.json")
BASE: dict[str, Any] = {"bf16": True, "world_size": 4, "zero_stage": 3, "per_device_train_batch_size": 2,
                        "max_source_length": 128, "gradient_checkpointing": True}  # fmt: skip
ANSWER = 64  # tokens of what vLLM has generated
# Name → the loss, model, settings, how it is spread.
ROWS: Mapping[str, tuple[PostKind, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]] = {
    "sft, tied": ("sft", zero3.TIED, {}, {}),
    "sft, lora": ("sft", zero3.LLAMA, zero3.LORA, {}),
    "dpo, lora": ("dpo", zero3.LLAMA, zero3.LORA, {}),
    "dpo, a reference": ("dpo", zero3.TIED, {"gradient_accumulation_steps": 2}, zero3.LATE),
    "kto, a reference": ("kto", zero3.TIED, {}, {}),
    "grpo": ("grpo", zero3.TIED, {"gradient_accumulation_steps": 2}, {}),
}


def setup_of(kind: PostKind, given: Mapping[str, Any], spread: Mapping[str, Any]) -> TrainingSetup:
    reference: Any = "none" if kind in ("sft", "grpo") else "adapter_off" if given.get("method") else "model"
    answer = ANSWER if kind == "grpo" else 0
    return TrainingSetup(
        **{**BASE, **given},
        post=PostTraining(kind, reference=reference, completion=answer),
        spread=Spread(deepspeed=True, **{"reduce_bucket": 20_000_000, **spread}),
    )


def simulated(kind: str, config: Mapping[str, Any], setup: TrainingSetup) -> tuple[int, int]:
    """The peaks of training on the first GPU: allocated and reserved bytes."""
    streams = Streams()
    session = open_session(capability=zero3.CAPABILITY, bits_and_bytes=setup.method != "full")
    with pytest.MonkeyPatch.context() as patch:
        zero3._stand_in(streams, setup, patch)
        patch.setattr(of_transformers, "is_deepspeed_zero3_enabled", lambda: True)
        with session as tracer, post_training._host_answers(setup.post.completion if setup.post else 0):
            streams.allocator = tracer.allocator
            post_training._in_place(tracer)
            tracer.padded = setup.padded
            tracer.phase = "load"
            model = zero3._built(config, setup, tracer)
            reference = _reference_of(config, setup, tracer)
            trainer = post_training._trainer(kind, model, reference, setup)
            if reference is not None:
                _share_out(reference, setup)
            _train(trainer, model, setup, tracer, kind)
            tracer.phase = "ended"
            ended = next((n for n, event in enumerate(tracer.events) if event.phase == "ended"), len(tracer.events))
            peak = peaks_of(list(tracer.events[:ended]))["train"]
    return peak.allocated_bytes, peak.reserved_bytes


def _reference_of(config: Mapping[str, Any], setup: TrainingSetup, tracer: Any) -> Any:
    assert setup.post is not None
    if setup.post.reference != "model":
        return None
    reference = zero3._built(config, setup._replace(method="full", gradient_checkpointing=False), tracer)
    return reference.eval().requires_grad_(False)


def _share_out(reference: Any, setup: TrainingSetup) -> None:
    """``prepare_deepspeed`` (trl/models/utils.py): a model that only answers has ZeRO-3's hooks alone."""
    read, spread = zero3.DeepSpeedZeroConfig(stage=3), setup.spread
    DeepSpeedZeRoOffload(
        module=reference,
        timers=zero3.NoopTimer(),
        ds_config={"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}},
        overlap_comm=True,
        prefetch_bucket_size=spread.prefetch_bucket or read.prefetch_bucket_size,
        max_reuse_distance=spread.max_reuse_distance or read.max_reuse_distance,
        max_live_parameters=spread.max_live_parameters or read.max_live_parameters,
        param_persistence_threshold=read.param_persistence_threshold,
        model_persistence_threshold=read.model_persistence_threshold,
    )


def _train(trainer: Any, model: Any, setup: TrainingSetup, tracer: Any, kind: str) -> None:
    """Two steps, with what DeepSpeed's engine does around a pass and a step."""
    tracer.phase = "train:inputs"
    model.train()
    zero = zero3._stage3(model, setup, optimizer_of(model, setup))
    for _ in range(2):
        for left in reversed(range(setup.gradient_accumulation_steps)):
            tracer.phase = "train:inputs"
            batch = post_training._batch(kind, setup, trainer)
            zero.set_gradient_accumulation_boundary(not left)
            zero.clear_backward_seen_flag()
            tracer.phase = "train:forward"
            loss = trainer.compute_loss(model, batch)
            if setup.gradient_accumulation_steps > 1:
                loss = loss / setup.gradient_accumulation_steps
            zero.enter_backward()
            tracer.phase = "train:backward"
            loss.backward()
            del loss
            zero.overlapping_partition_gradients_reduce_epilogue()
            zero.backward_epilogue()
            zero.exit_backward()
        tracer.phase = "train:optimizer"
        zero.step()


def main() -> None:
    """Record every row, or show some."""
    names = post_training.rows_asked(__doc__, ROWS)
    rows = {}
    for name in names or ROWS:
        kind, config, settings, spread = ROWS[name]
        setup = setup_of(kind, settings, spread)
        allocated, reserved = simulated(kind, config, setup)
        _, own = followed(config, setup, zero3.CAPABILITY)
        print(f"{name}: allocated {allocated:,} {own['train'][0]:,}, reserved {reserved:,} {own['train'][1]:,}")
        rows[name] = {"kind": kind, "config": config, "setup": settings, "spread": spread,
                      "peak": (allocated, reserved)}  # fmt: skip
    if not names:
        PATH.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
