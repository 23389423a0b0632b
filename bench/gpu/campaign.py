"""Measures GPU memory as users meet it: the Trainer, real models with random weights, one process to a trial.

    make bench-gpu                                # in an environment of its own; a GPU with CUDA
    python bench/gpu/campaign.py --hours 2        # stops in time; run again to go on where it stopped
    python bench/gpu/campaign.py --workers 8 --most 8GiB    # side by side on one large GPU, small trials only
    python bench/gpu/campaign.py --workers 8 --room 70GiB   # as many as fit there together
    python bench/gpu/campaign.py --unmeasured     # whole models that no file of rules/measurements has
    python bench/gpu/campaign.py --large          # adapters on models of 1.3 to 14 billion parameters, models that see
    python bench/gpu/campaign.py --generation     # hundreds of new tokens; give each kind its own --journal
    python bench/gpu/campaign.py --device cpu --tiny --no-write   # tries the way on a CPU; nothing is recorded

Each trial's result goes to a journal at once, so that nothing is lost; in the end the journal's rows become
rules/measurements/gpu-<name>-<date>.yaml. Trials come in a fixed shuffled order: any beginning of it is spread evenly.
torch's figures are the process's own, so that trials beside one another change none; one that met a full GPU is left
out.
"""

import argparse
import datetime
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import trial as one
from gpu_rows import append, as_yaml, limited, read_journal
from gpu_trials import Trial, large, long_generation, shuffled, trials, trials_from, unmeasured

from kb.core.setup_json import setup_from
from kb.core.units import parse_bytes
from kb.memory import architecture_from_config, parameter_count
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.predict import record_runs
from kb.torch_runs.probe.worker import stack

ROOT = Path(__file__).resolve().parents[2]
JOURNAL = ROOT / "bench" / "results" / "gpu-journal.jsonl"
# Imported once, before the processes of the trials are forked. None of them touches CUDA, as bitsandbytes does when it
# is imported, and with it PEFT and the Trainer.
IMPORTED = ["torch", "accelerate", "transformers.modeling_utils", "transformers.generation.utils", "trial"]
TIMEOUT_SECONDS = 300
SEED = 7
LONGEST_WAIT_SECONDS = 3600.0
CONTEXT = 700 << 20  # of a process on the GPU beside what torch reserves
CAPABILITY = (9, 0)  # for the size by which small trials are chosen, whatever GPU there is


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny models and two sizes: tries the way, measures nothing"
    )
    parser.add_argument("--only", default="", help="what a trial's id must hold: a model, a phase, a setting")
    parser.add_argument("--trials", type=Path, help="these trials alone, as bench/gpu/limits.py wrote them")
    parser.add_argument("--unmeasured", action="store_true", help="models of full depth that no campaign had")
    parser.add_argument("--large", action="store_true", help="1.3 to 14 billion parameters; models that see, hear")
    parser.add_argument("--generation", action="store_true", help="runs that generate hundreds of tokens")
    parser.add_argument("--limit", type=int, help="trials at most")
    parser.add_argument("--hours", type=float, help="stop when so much time has passed")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, help=f"seconds a trial ({TIMEOUT_SECONDS})")
    parser.add_argument("--workers", type=int, default=1, help="trials side by side")
    parser.add_argument("--room", type=parse_bytes, help="trials side by side take no more than so much together")
    parser.add_argument("--most", type=parse_bytes, help="leave out trials that kb expects to reserve more")
    parser.add_argument("--acts", type=Path, help="a folder for what each trial's allocator was asked")
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
    if options.trials:
        given = trials_from(options.trials)
    elif options.unmeasured:
        given = unmeasured()
    elif options.large:
        given = large()
    elif options.generation:
        given = long_generation()
    else:
        given = trials(tiny=options.tiny)
    wanted = [each for each in given if options.only in each.id and each.id not in done]
    wanted = (wanted if options.trials else shuffled(wanted, SEED))[: options.limit]
    stop = time.monotonic() + options.hours * 3600 if options.hours else float("inf")
    room = Room(options.room) if options.room else None
    lock, count = threading.Lock(), iter(range(1, len(wanted) + 1))
    context = multiprocessing.get_context("forkserver" if sys.platform != "win32" else "spawn")
    if sys.platform != "win32":
        context.set_forkserver_preload(IMPORTED)
    if options.acts:
        options.acts.mkdir(parents=True, exist_ok=True)

    def work(trial: Trial) -> None:
        if time.monotonic() > stop:
            return
        need = expected(trial) if options.most or room else 0
        if need is None or (options.most and need > options.most) or (room and not room.take(need, stop)):
            return
        acts = options.acts / f"{len(done)}-{wanted.index(trial)}.z" if options.acts else None
        result = run_trial(context, trial, options.device, options.timeout, acts)
        if room:
            room.give_back(need)
        entry = {
            "id": trial.id,
            "trial": trial._asdict(),
            "date": datetime.date.today().isoformat(),
            "machine": machine,
            "stack": stack(),
            "large": options.large,
            "recordable": options.device == "cuda" and not options.tiny,
            "result": result,
            **({"acts": acts.name} if acts else {}),
        }
        with lock:
            append(options.journal, entry)
            print(f"{next(count)}/{len(wanted)} {trial.id}: {summary(result)}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(work, wanted))


def run_trial(context: Any, trial: Trial, device: str, timeout: float, acts: Path | None) -> dict[str, Any]:
    """The child's result; ``outcome`` says why there is none."""
    with tempfile.TemporaryDirectory() as folder:  # goes with a trial that is killed, too: it may hold all its weights
        return _run_in(folder, context, trial, device, timeout, acts)


def _run_in(folder: str, context: Any, trial: Trial, device: str, timeout: float, acts: Path | None) -> dict[str, Any]:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=one.answer, args=(theirs, trial._asdict(), device, acts, folder))
    process.start()
    theirs.close()
    try:
        result: dict[str, Any] = ours.recv() if ours.poll(timeout) else {"outcome": "time"}
    except EOFError:
        process.join(10)
        result = {"outcome": "failed", "error": f"exit code {process.exitcode}"}
    if process.is_alive():
        process.join(0 if result == {"outcome": "time"} else 10)
        process.kill()
    process.join()
    return result


class Room:
    """A GPU's memory, shared among trials that run side by side."""

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self.changed = threading.Condition()

    def take(self, need: int, until: float) -> bool:
        """Wait until there is room; False where there never is, or the time is over."""
        with self.changed:
            while self.free < need:
                left = min(until - time.monotonic(), LONGEST_WAIT_SECONDS)
                if need > self.size or left <= 0 or not self.changed.wait(left):
                    return False
            self.free -= need
        return True

    def give_back(self, need: int) -> None:
        with self.changed:
            self.free += need
            self.changed.notify_all()


def expected(trial: Trial) -> int | None:
    """Bytes that kb expects a trial's process to take, with its model as it is first drawn; None of one that it does
    not follow."""
    try:
        setup, architecture = setup_from(trial.setup), architecture_from_config(trial.config)
        recordings = record_runs(setup, architecture, CAPABILITY)
    except NotFollowedError:
        return None
    highest = max(peak.reserved for recording in recordings for peak in recording.phases.values())
    drawn = parameter_count(architecture) * (4 if setup.weights == "fp32" and not setup.packs else 2)
    return max(highest, drawn) + CONTEXT


def machine_of(device: str) -> dict[str, Any]:
    """The GPU as the driver names it; of the CPU path, that there is none. CUDA is left alone: trials are forked.

    Raises:
        RuntimeError: no GPU is found.
    """
    if device == "cpu":
        return {"gpu_name": "none"}
    import pynvml

    try:
        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError as error:
        raise RuntimeError(f"no GPU is found: {error}") from None
    return {
        "gpu_name": str(name),
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    }


def summary(result: dict[str, Any]) -> str:
    if "outcome" in result:
        return " ".join(str(result[name]) for name in ("outcome", "error") if name in result)
    return ", ".join(f"{name} {max(sizes.values()) / 2**20:.0f} MiB" for name, sizes in result["phases"].items())


def write(journal: Path) -> int:
    entries = list(read_journal(journal).values())
    try:
        name = next(entry["machine"]["gpu_name"] for entry in entries if entry["recordable"])
        held = limited(entries)
        kind = {"": "gpu", "train": "limits", "generate": "limits-generate"}[held]
        if not held and all(entry["trial"]["phases"] == ["generate"] for entry in entries):
            kind = "generation"
        if entries[0].get("large"):
            kind = "large"
        identity = (
            f"{kind}-{'-'.join(name.casefold().replace('nvidia', '').split())}-{datetime.date.today().isoformat()}"
        )
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
