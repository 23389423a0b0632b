"""Where the memory engine and the simulation (level 1) part: the first acts of the allocator that differ.

    python bench/engine_diff.py '{"model_type": "llama", "hidden_size": 256, …}' method=lora bf16=true
    python bench/engine_diff.py --model t5-small --layers 2 per_device_train_batch_size=4 --context 12

Settings are those of TrainingSetup. Both run the same steps; both logs are laid side by side until they part. Within a
run of frees the order is not compared: it decides nothing. Needs torch and transformers.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from kb.core.setup import EarlierRelease, TrainingSetup
from kb.core.setup_json import setup_from
from kb.memory import architecture_from_config
from kb.memory.engine.allocator import rounded
from kb.memory.engine.predict import record_runs
from kb.memory.engine.world import Recording
from kb.memory.releases import earlier_release

ROOT = Path(__file__).resolve().parents[1]
Act = tuple[str, int, str]  # "+" or "-", the bytes asked for, where


def simulated(config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int]) -> tuple[list[Act], Any]:
    """What level 1's allocator was asked, act by act, and the peaks of its phases."""
    from kb.torch_runs.simulation.job import Job
    from kb.torch_runs.simulation.simulator import runs_of
    from kb.torch_runs.simulation.timeline import peaks_of

    acts: list[Act] = []
    peaks: dict[str, tuple[int, int]] = {}
    for run in runs_of(Job(setup, config, capability)):
        acts += acts_of(run.events)
        found = peaks_of(run.events)
        peaks |= {name: (one.allocated_bytes, one.reserved_bytes) for name, one in found.items() if name != "save"}
    return acts, peaks


def acts_of(events: Iterable[Any]) -> list[Act]:
    """A simulation's events as acts."""
    acts: list[Act] = []
    sizes: dict[int, int] = {}
    for event in events:
        if event.action == "alloc":
            sizes[event.address] = event.requested
            acts.append(("+", event.requested, f"{event.phase} {event.module} {event.op}"))
        elif event.action == "free":
            acts.append(("-", sizes[event.address], event.phase))
    return acts


class Traced(Recording):
    """A recording that remembers who asked."""

    watches = True

    def __init__(self) -> None:
        super().__init__()
        self.callers: dict[int, str] = {}

    def watch(self, number: int) -> None:
        frame, names = sys._getframe(2), []
        while frame is not None and len(names) < 4:
            if frame.f_code.co_name not in ("__init__", "new", "like", "ask"):
                names.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            frame = frame.f_back  # type: ignore[assignment]
        self.callers[number] = " < ".join(names)


def followed(config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int]) -> tuple[list[Act], Any]:
    """The same of the engine, under the transformers that is installed where the setup names no other."""
    architecture = architecture_from_config(config)
    if setup.earlier == EarlierRelease():
        setup = setup._replace(earlier=earlier_release(architecture.model_type, installed_release()))
    recordings = record_runs(setup, architecture, capability, kind=Traced)
    acts: list[Act] = []
    peaks: dict[str, tuple[int, int]] = {}
    for recording in recordings:
        for number, entry in enumerate(recording.log):
            if entry >= 0:
                acts.append(("+", entry, recording.callers.get(number, "asked for again")))  # type: ignore[attr-defined]
            else:
                acts.append(("-", recording.log[~entry], ""))
        peaks |= {name: (peak.allocated, peak.reserved) for name, peak in recording.phases.items()}
    return acts, peaks


def installed_release() -> tuple[int, ...]:
    """Of transformers, the first two numbers."""
    return tuple(map(int, metadata.version("transformers").split(".")[:2]))


def canonical(acts: Sequence[Act]) -> list[Act]:
    """Runs of frees by size, largest first."""
    out: list[Act] = []
    run: list[Act] = []
    for act in acts:
        if act[0] == "-":
            run.append(act)
            continue
        out += [*sorted(run, key=lambda act: -act[1]), act]
        run = []
    return out + sorted(run, key=lambda act: -act[1])


def parted(wanted: Sequence[Act], found: Sequence[Act]) -> int | None:
    """The number of the first act that differs; None where they are alike. Frees at the very end are the process's."""
    wanted, found = until_last_request(wanted), until_last_request(found)
    for at, (one, other) in enumerate(zip(wanted, found, strict=False)):
        if (one[0], rounded(one[1])) != (other[0], rounded(other[1])):
            return at
    return None if len(wanted) == len(found) else min(len(wanted), len(found))


def until_last_request(acts: Sequence[Act]) -> Sequence[Act]:
    """The acts without the frees at their very end."""
    end = max((at for at, act in enumerate(acts) if act[0] == "+"), default=-1)
    return acts[: end + 1]


def compare(config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int], shown: int) -> bool:
    """Print the peaks and, where they part, both logs around it; whether they are alike."""
    wanted, peaks = simulated(config, setup, capability)
    found, own = followed(config, setup, capability)
    for name, (allocated, reserved) in peaks.items():
        mine = own.get(name, (0, 0))
        same = "=" if mine == (allocated, reserved) else "!"
        print(f"{same} {name:9} allocated {allocated:>14,} {mine[0]:>14,}   reserved {reserved:>14,} {mine[1]:>14,}")
    compare_acts(wanted, found, shown)
    return all(own.get(name) == peak for name, peak in peaks.items())


def compare_acts(wanted: Sequence[Act], found: Sequence[Act], shown: int) -> None:
    """Print both logs around the first act that differs."""
    one, other = canonical(wanted), canonical(found)
    at = parted(one, other)
    if at is None or not shown:
        return
    print(f"they part at act {at} of {len(one)} and {len(other)}")
    for number in range(max(0, at - shown // 2), at + shown):
        left = one[number] if number < len(one) else ("", 0, "")
        right = other[number] if number < len(other) else ("", 0, "")
        sign = " " if left[0] == right[0] and rounded(left[1]) == rounded(right[1]) else "!"
        print(f"{sign} {left[0]}{left[1]:>12,} {left[2][-60:]:60} | {right[0]}{right[1]:>12,} {right[2]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("config", nargs="?", help="a config.json's content")
    parser.add_argument("settings", nargs="*", help="name=value, of TrainingSetup; values are YAML")
    parser.add_argument("--model", help="an id of rules/models")
    parser.add_argument("--layers", type=int, help="fewer layers than that")
    parser.add_argument("--capability", default="8.6")
    parser.add_argument("--context", type=int, default=16, help="acts to show")
    options = parser.parse_intermixed_args()
    settings = list(options.settings)
    if options.model:
        settings = [*([options.config] if options.config else []), *settings]
        config = yaml.safe_load((ROOT / "rules/models" / f"{options.model}.yaml").read_text("utf-8"))["architecture"]
    else:
        config = json.loads(options.config)
    if options.layers:
        config |= {name: options.layers for name in config if name.endswith(("layers", "n_layer"))}
    given = {name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in settings)}
    major, minor = map(int, options.capability.split("."))
    return 0 if compare(config, setup_from(given), (major, minor), options.context) else 1


if __name__ == "__main__":
    sys.exit(main())
