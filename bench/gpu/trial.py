"""One trial of bench/gpu, in a process of its own: what each phase took, and what the allocator was asked on the way.

The model is built from its configuration with random weights and run by the Trainer, as a user runs it, by the code
that ``kb probe`` measures with. Memory by phase is torch's peak since the phase began; the process's is by NVML.
"""

import json
import os
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from kb.core.setup_json import setup_from

STEPS = 4  # the first two make optimizer states and warm up the allocator; the rest are measured
MOST_ACTS = 400_000  # what torch keeps of the allocator's history
HALF_A_SEGMENT = 2**20  # beyond a limit, so that a rounded fraction of the whole leaves no segment out


def run(
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    phases: Sequence[str],
    lengths: Sequence[int],
    device: str,
    acts: Path | None = None,
    limit: int = 0,
) -> dict[str, Any]:
    """What was measured; ``outcome`` says why there is nothing. ``acts`` is where the allocator's history goes,
    ``limit`` how many bytes torch may reserve once the model is there: drawing random weights needs more than the run.
    """
    import torch

    from kb.torch_runs.probe.meter import Meter
    from kb.torch_runs.probe.trainer_run import Clock, build_model, phase_runs, trainer_of

    setup = setup_from(given)
    meter, clock, began = Meter(device), Clock(), time.monotonic()
    meter.start()
    if acts:
        torch.cuda.memory._record_memory_history(context=None, max_entries=MOST_ACTS)
    model = build_model(config, setup, device).to(device)
    if limit:
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((limit + HALF_A_SEGMENT) / whole)
    meter.start()
    meter.end("load")
    result: dict[str, Any] = {"trainable": sum(each.numel() for each in model.parameters() if each.requires_grad)}
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(model, setup, meter, folder, steps=STEPS, clock=clock, lengths=lengths)
        try:
            for phase in phases:
                phase_runs(trainer, model, setup, meter)[phase]()
        except torch.OutOfMemoryError:
            result["outcome"] = "oom"
    if acts:
        acts.write_bytes(history())
    if meter.cuda:
        result["retries"] = torch.cuda.memory_stats()["num_alloc_retries"]
        result["capability"] = list(torch.cuda.get_device_capability())
        result["gpu_memory_bytes"] = torch.cuda.get_device_properties(0).total_memory
    if clock.seconds:
        result["step_seconds"] = round(clock.seconds, 4)
    return {**result, "phases": meter.phases, "seconds": round(time.monotonic() - began, 1)}


def history() -> bytes:
    """The allocator's requests in their order: bytes asked for, ``~n`` for the end of request n; segments apart."""
    import torch

    asked: list[int] = []
    segments: list[list[int]] = []
    at: dict[int, int] = {}
    for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
        action, size, address = entry["action"], entry["size"], entry["addr"]
        if action == "alloc":
            at[address] = len(asked)
            asked.append(size)
        elif action == "free_completed" and address in at:
            asked.append(~at.pop(address))
        elif action.startswith("segment"):
            segments.append([len(asked), size if action == "segment_alloc" else -size])
    return zlib.compress(json.dumps({"asked": asked, "segments": segments}, separators=(",", ":")).encode(), 9)


def answer(pipe: Any, given: Mapping[str, Any], device: str, acts: Path | None, folder: str) -> None:
    """Run one trial and send what came of it: the whole of a process that was forked for it. What it writes is in
    ``folder``."""
    tempfile.tempdir = folder
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for stream in (1, 2):  # what libraries say is not the campaign's
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    import torch

    if given["expandable"]:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    try:
        result = run(
            given["config"], given["setup"], given["phases"], given["lengths"], device, acts, given["limit"]
        )  # fmt: skip
    except torch.OutOfMemoryError:
        result = {"outcome": "oom"}  # before the run began
    except Exception as error:
        result = {"outcome": "failed", "error": f"{type(error).__name__}: {error}"[:300],
                  "traceback": traceback.format_exc()[-1500:]}  # fmt: skip
    pipe.send(result)
    pipe.close()
