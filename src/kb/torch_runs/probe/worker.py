"""A trial's process: builds the model, runs its phases by the Trainer, and tells what it took while it goes.

``python -m kb.torch_runs.probe.worker TRIAL EVENTS``; started by :mod:`kb.torch_runs.probe.running`.
"""

import json
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kb.core.setup_json import setup_from
from kb.torch_runs.probe.events import GPU_WORDS, HOST_WORDS, Teller
from kb.torch_runs.probe.trial import Trial, trial_from
from kb.torch_runs.releases import versions

if TYPE_CHECKING:
    from kb.torch_runs.probe.meter import Meter

PACKAGES = ("torch", "transformers", "accelerate", "peft", "bitsandbytes")
BACKSTOP_BYTES = 2 << 30  # above the limit that is watched from outside: what no watch between two looks would catch
REASON_CHARACTERS = 300


def main(trial_path: str, events_path: str) -> int:
    """0 where the trial told its end, an out-of-memory error too."""
    with open(trial_path, encoding="utf-8") as stream:
        trial = trial_from(json.load(stream))
    teller = Teller(events_path)
    _limit_host_memory(trial)
    try:
        _run(trial, teller)
    except Exception as error:
        status, resource = _kind_of(error)
        teller.fault(status, _said(error), resource)
        traceback.print_exc()
        return 0 if status == "oom" else 1
    teller.done()
    return 0


def _run(trial: Trial, teller: Teller) -> None:
    teller.begin("load")
    from kb.torch_runs.probe.meter import Meter, machine_of  # it imports torch, which counts as loading

    device = "cuda" if trial.backend == "cuda" else "cpu"
    teller.fact(stack=stack(), machine=machine_of(device))
    with Meter(device) as meter:
        _measure(trial, teller, meter, device)


def _measure(trial: Trial, teller: Teller, meter: "Meter", device: str) -> None:
    from kb.torch_runs.probe.trainer_run import Clock, build_model, phase_runs, trainer_of  # likewise

    setup, clock = setup_from(trial.setup), Clock()
    assert trial.config is not None  # only a command has none
    model = build_model(trial.config, setup, device).to(device)
    meter.start()
    meter.end("load")
    teller.sizes("load", meter.phases["load"])
    teller.fact(trainable=sum(each.numel() for each in model.parameters() if each.requires_grad))
    with tempfile.TemporaryDirectory(prefix="kb-trial-") as folder:
        trainer = trainer_of(model, setup, meter, folder, steps=trial.steps, clock=clock)
        runs = phase_runs(trainer, model, setup, meter)
        for phase in trial.phases:
            teller.begin(phase)
            runs[phase]()
            for name, sizes in meter.phases.items():
                teller.sizes(name, sizes)
            if phase == "train" and clock.seconds > 0:
                seconds = round(clock.seconds, 4)
                rate = setup.per_device_train_batch_size * setup.gradient_accumulation_steps / clock.seconds
                teller.fact(step_seconds=seconds, samples_per_second=round(rate, 3))


def stack(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of what the measurement depends on, by package; of what is not installed none."""
    return {"python": ".".join(map(str, sys.version_info[:3])), **versions(packages)}


def _kind_of(error: Exception) -> tuple[str, str | None]:
    import torch

    said = f"{type(error).__name__}: {error}"
    if isinstance(error, torch.OutOfMemoryError) or GPU_WORDS.search(said):
        return "oom", "gpu"
    return ("oom", "host") if isinstance(error, MemoryError) or HOST_WORDS.search(said) else ("crash", None)


def _said(error: Exception) -> str:
    """The error's first line, after its kind where it is a library's."""
    line = next((line for line in str(error).strip().splitlines() if line.strip()), "")
    ours = type(error).__module__.startswith("kb.")
    return (line if ours else f"{type(error).__name__}: {line}")[:REASON_CHARACTERS]


def _limit_host_memory(trial: Trial) -> None:
    """A hard end for sudden growth. CUDA reserves address space by the terabyte, so that there it is left out."""
    if trial.limits.host_bytes is None or trial.backend == "cuda":
        return
    try:
        import resource
    except ImportError:  # Windows
        return
    limit = trial.limits.host_bytes + BACKSTOP_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
