"""One trial of bench/gpu, in a process of its own: prints a line of JSON with what it measured.

    python trial.py '{"model": "t5-base", "task": "train", …}' cuda

The model is built from its configuration with random weights and run by the Trainer, as a user runs it, by the code
that ``kb probe`` measures with. Memory by phase is torch's peak since the phase began; the process's is by NVML.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from gpu_trials import LORA_TARGETS, MODELS, TINY, Trial

from kb.core.setup import TrainingSetup

STEPS = 4  # the first two make optimizer states and warm up the allocator; the rest are measured
LORA_RANK = 16
LORA_DROPOUT = 0.1


def setup_of(trial: Trial) -> TrainingSetup:
    """The trial as the Trainer's settings; it evaluates and generates with its one batch."""
    adapters = trial.method != "full"
    return TrainingSetup(
        method=trial.method,
        do_eval=trial.task == "evaluate",
        do_predict=trial.task == "generate",
        fp16=trial.precision == "fp16",
        bf16=trial.precision == "bf16",
        per_device_train_batch_size=trial.batch,
        per_device_eval_batch_size=trial.batch,
        inference_batch_size=trial.batch,
        inference_num_beams=trial.beams,
        inference_max_length=trial.target_length,
        max_source_length=trial.source_length,
        max_target_length=trial.target_length,
        gradient_checkpointing=trial.gradient_checkpointing,
        lora_r=LORA_RANK,
        lora_dropout=LORA_DROPOUT,
        lora_target_modules=tuple(LORA_TARGETS[(MODELS | TINY)[trial.model]["model_type"]]) if adapters else None,
        load_in_4bit=trial.method == "qlora",
        bnb_4bit_use_double_quant=trial.method == "qlora",
    )


def run(trial: Trial, device: str) -> dict[str, Any]:
    from kb.torch_runs.probe.meter import Meter
    from kb.torch_runs.probe.trainer_run import Clock, build_model, phase_runs, trainer_of

    setup, meter, clock = setup_of(trial), Meter(device), Clock()
    meter.start()
    model = build_model((MODELS | TINY)[trial.model], setup, device).to(device)
    meter.start()
    meter.end("load")
    result: dict[str, Any] = {"trainable": sum(each.numel() for each in model.parameters() if each.requires_grad)}
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(model, setup, meter, folder, steps=STEPS, clock=clock)
        phase_runs(trainer, model, setup, meter)[trial.task]()
    if clock.seconds:
        result["step_seconds"] = round(clock.seconds, 4)
    return {**result, "phases": meter.phases}


def main() -> int:
    trial, device = Trial(**json.loads(sys.argv[1])), sys.argv[2]
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    try:
        result = run(trial, device)
    except torch.OutOfMemoryError:
        result = {"outcome": "oom"}
    print("result:", json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
