"""Measures GPU memory as users meet it: the Trainer, real models with random weights, one process to a trial.

    make bench-gpu                                # in an environment of its own; a GPU with CUDA
    python bench/gpu/campaign.py --hours 2        # stops in time; run again to go on where it stopped
    python bench/gpu/campaign.py --device cpu --tiny --no-write   # tries the way on a CPU; nothing is recorded

Each trial's result goes to a journal at once, so that nothing is lost; in the end the journal's rows become
rules/measurements/gpu-<name>-<date>.yaml. Trials come in a fixed shuffled order: any beginning of it is spread evenly.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from gpu_rows import append, as_yaml, read_journal
from gpu_trials import Trial, trials

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
JOURNAL = ROOT / "bench" / "results" / "gpu-journal.jsonl"
PACKAGES = ("torch", "transformers", "accelerate", "peft", "bitsandbytes")
TIMEOUT_SECONDS = 300
HOST_LIMIT_BYTES = 64 * 2**30  # of a trial's address space that is not the GPU's; CUDA maps much more than it uses
SEED = 7


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny models and two sizes: tries the way, measures nothing"
    )
    parser.add_argument("--only", default="", help="what a trial's id must hold: a model, a task, a method")
    parser.add_argument("--limit", type=int, help="trials at most")
    parser.add_argument("--hours", type=float, help="stop when so much time has passed")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, help=f"seconds a trial ({TIMEOUT_SECONDS})")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--no-write", action="store_true", help="leave rules/measurements as it is")
    options = parser.parse_args()
    try:
        machine = machine_of(options.device)
    except RuntimeError as error:
        print(f"{error}\nOn a machine without a GPU: --device cpu --tiny --no-write", file=sys.stderr)
        return 2
    run_all(options, machine)
    if not options.no_write:
        return write(options.journal)
    return 0


def run_all(options: argparse.Namespace, machine: dict[str, Any]) -> None:
    done = read_journal(options.journal)
    wanted = [each for each in trials(tiny=options.tiny) if options.only in each.id and each.id not in done]
    random.Random(SEED).shuffle(wanted)
    stop = time.monotonic() + options.hours * 3600 if options.hours else float("inf")
    for number, trial in enumerate(wanted[: options.limit], 1):
        if time.monotonic() > stop:
            print(f"time is up; {len(wanted) - number + 1} trials left", file=sys.stderr)
            return
        entry = {
            "id": trial.id,
            "trial": trial._asdict(),
            "date": datetime.date.today().isoformat(),
            "machine": machine,
            "stack": stack(),
            "recordable": options.device == "cuda" and not options.tiny,
            "result": run_trial(trial, options.device, options.timeout),
        }
        append(options.journal, entry)
        print(f"{number}/{len(wanted)} {trial.id}: {summary(entry['result'])}", file=sys.stderr, flush=True)


def run_trial(trial: Trial, device: str, timeout: float) -> dict[str, Any]:
    """The child's result; ``outcome`` says why there is none."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_DISABLED": "true"}
    command = [sys.executable, str(HERE / "trial.py"), json.dumps(trial._asdict()), device]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env=environment, cwd=HERE,
            preexec_fn=_limit_host_memory,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"outcome": "time"}
    line = next((line for line in run.stdout.splitlines() if line.startswith("result: ")), None)
    if line is None:
        return {"outcome": "failed", "code": run.returncode, "stderr": run.stderr[-1500:]}
    result: dict[str, Any] = json.loads(line.removeprefix("result: "))
    return result


def _limit_host_memory() -> None:
    """Data and stack alone: CUDA reserves address space by the terabyte, which RLIMIT_AS would count."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (HOST_LIMIT_BYTES, HOST_LIMIT_BYTES))


def machine_of(device: str) -> dict[str, Any]:
    """The GPU as the driver names it; of the CPU path, that there is none.

    Raises:
        RuntimeError: no CUDA device can be used.
    """
    if device == "cpu":
        return {"gpu_name": "none"}
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device")
    import pynvml

    properties = torch.cuda.get_device_properties(0)
    pynvml.nvmlInit()
    return {
        "gpu_name": properties.name,
        "gpu_memory_bytes": properties.total_memory,
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "cpus": len(os.sched_getaffinity(0)),
    }


def stack() -> dict[str, str]:
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": ".".join(map(str, sys.version_info[:3])), **installed}


def summary(result: dict[str, Any]) -> str:
    if "outcome" in result:
        return str(result["outcome"])
    return ", ".join(f"{name} {max(sizes.values()) / 2**20:.0f} MiB" for name, sizes in result["phases"].items())


def write(journal: Path) -> int:
    entries = list(read_journal(journal).values())
    try:
        name = next(entry["machine"]["gpu_name"] for entry in entries if entry["recordable"])
        identity = f"gpu-{'-'.join(name.casefold().replace('nvidia', '').split())}-{datetime.date.today().isoformat()}"
        text = as_yaml(identity, entries)
    except (StopIteration, ValueError) as error:
        print(str(error) or "nothing to record: no row of this journal comes from a GPU", file=sys.stderr)
        return 1
    path = ROOT / "rules" / "measurements" / f"{identity}.yaml"
    path.write_text(text, "utf-8")
    print(f"{path}: now `kb rules validate`")
    return 0


if __name__ == "__main__":
    sys.exit(main())
