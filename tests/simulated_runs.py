"""What the allocator is asked for in small runs of the real code: simulated once, recorded, and simulated again by few.

A simulation of torch and transformers takes a second, the memory engine's answer a hundredth of that; what the first
gives changes only with the releases and with ``kb.torch_runs``. So ``tests/data/simulated_runs.json`` keeps the peaks
of every run and a digest of its acts. Simulated all the same are: the cheapest runs that have among them every method,
precision, optimizer and switch, and one in each wrapper; every run where other releases are installed; and all of them
with ``--exhaustive``. What is not recorded of the releases that are, or is behind, fails: else it would be simulated
time and again, and nobody would see it. ``KB_RECORD=1`` records it.
"""

import copy
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from kb.core.setup import TrainingSetup
from simulation_needs import PACKAGES

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from engine_diff import Act, canonical, followed, parted, simulated, until_last_request

from kb.memory import architecture_from_config
from kb.memory.engine.allocator import rounded
from kb.memory.engine.families import model_class

RECORD = Path(__file__).parent / "data" / "simulated_runs.json"
LOCK = Path(__file__).parents[1] / "build" / "simulated_runs.lock"
AMPERE = (8, 6)
Acts = list[Act]
Peaks = dict[str, tuple[int, int]]
Simulate = Callable[[Mapping[str, Any], TrainingSetup, tuple[int, int]], tuple[Acts, Peaks]]


class Recorded(NamedTuple):
    """A run of the real code: how many acts up to its last request and their digest, and the peaks of its phases."""

    about: str
    acts: int
    digest: str
    peaks: Peaks


def same_acts(
    config: Mapping[str, Any],
    setup: TrainingSetup,
    capability: tuple[int, int] = AMPERE,
    *,
    simulate: Simulate = simulated,
    wrapped: str = "",
) -> None:
    """The engine asks for the same blocks in the same order as the real code, and peaks where it does.

    ``simulate`` runs the real code; ``wrapped`` names what it puts around the model.
    """
    known = recorded_run(config, setup, capability, wrapped)
    found, own = followed(config, setup, capability)
    if known and digest(found) == (known.acts, known.digest) and known.peaks.items() <= own.items():
        return
    wanted, peaks = run_again(config, setup, capability, simulate=simulate, wrapped=wrapped)
    one, other = canonical(wanted), canonical(found)
    at = parted(one, other)
    assert at is None, (one[at - 3 : at + 3], other[at - 3 : at + 3])
    assert {phase: own[phase] for phase in peaks} == peaks


def peaks_of(
    config: Mapping[str, Any],
    setup: TrainingSetup,
    capability: tuple[int, int] = AMPERE,
    *,
    simulate: Simulate = simulated,
    wrapped: str = "",
) -> Peaks:
    """Bytes allocated and reserved of the real code's phases, as recorded or as simulated now."""
    known = recorded_run(config, setup, capability, wrapped)
    return known.peaks if known else run_again(config, setup, capability, simulate=simulate, wrapped=wrapped)[1]


def recorded_run(
    config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int], wrapped: str
) -> Recorded | None:
    """What is recorded of a run, where that counts here; None: it is to be simulated."""
    key = key_of(config, setup, capability, wrapped)
    if os.environ.get("KB_RECORD") or os.environ.get("KB_EXHAUSTIVE") or key in simulated_again():
        return None
    return recorded().get(key)


def run_again(
    config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int], *, simulate: Simulate, wrapped: str
) -> tuple[Acts, Peaks]:
    """Simulate a run; what is recorded of it must be the same, or is recorded now."""
    acts, peaks = simulate(copy.deepcopy(config), setup, capability)  # transformers writes into what lies within it
    key, now = key_of(config, setup, capability, wrapped), Recorded(about(config, setup, wrapped), *digest(acts), peaks)
    if os.environ.get("KB_RECORD"):
        _record(key, now)
        return acts, peaks
    known = recorded().get(key)
    if recorded():
        # a kernel's scratch and cuBLAS's workspace are the engine's formulas there too: such a change is no record's
        assert known == now, f"what is recorded of the real code is behind: {now.about}; KB_RECORD=1 records it"
    return acts, peaks


def digest(acts: Sequence[Act]) -> tuple[int, str]:
    """The number of acts and their digest: equal where :func:`engine_diff.parted` finds no difference."""
    compared = until_last_request(canonical(acts))
    text = " ".join(f"{sign}{rounded(size)}" for sign, size, _ in compared)
    return len(compared), hashlib.sha256(text.encode()).hexdigest()[:20]


def key_of(config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int], wrapped: str) -> str:
    """Of all that a run is made of; a setting that is as by default does not count, so that new ones may come."""
    whole = repr((sorted(config.items()), sorted(_set(setup)), capability, wrapped))
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


def about(config: Mapping[str, Any], setup: TrainingSetup, wrapped: str) -> str:
    """A run in words: the engine's family, the head, what is around the model, each setting, with its value where it
    is no number, and the model's type."""
    heads = [re.sub(r".*?(?=For[A-Z])", "", name) for name in config.get("architectures", ())]
    words = [model_class(architecture_from_config(config)).__name__, *heads, *filter(None, [wrapped])]
    for name, value in sorted(_set(setup)):
        plain = isinstance(value, str | bool)
        words.append(f"{name}={value}" if plain else name)
    return " ".join([*words, f"({config['model_type']})"])


def _set(setup: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Each setting that is not as by default, those of records within too."""
    for name, value in zip(setup._fields, setup, strict=True):
        if value == setup._field_defaults.get(name, ...):
            continue
        if hasattr(value, "_field_defaults"):
            yield from _set(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def releases() -> dict[str, str]:
    """The installed releases of what is simulated, without the name of a build."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package).partition("+")[0]
        except metadata.PackageNotFoundError:
            found[package] = ""
    return found


@cache
def recorded() -> dict[str, Recorded]:
    """Every recorded run by its key; none where other releases are installed."""
    data = json.loads(RECORD.read_text("utf-8"))
    if data["releases"] != releases():
        return {}
    return {key: _read(run) for key, run in data["runs"].items()}


def _read(run: Mapping[str, Any]) -> Recorded:
    return Recorded(**{**run, "peaks": {phase: (peak[0], peak[1]) for phase, peak in run["peaks"].items()}})


@cache
def simulated_again() -> frozenset[str]:
    """The keys of the runs that are simulated in every run of the tests."""
    return frozenset(covering({key: (ways(run.about), run.acts) for key, run in recorded().items()}))


def ways(about: str) -> list[str]:
    """The words of a run that say how it runs: settings with a value that is no number (``method=lora``).

    Families and heads are the engine's matter, which is held against what is recorded of every run. What torch's own
    wrappers take seconds for is one way for each: FSDP2, FSDP1, DDP.
    """
    words = about.split()
    return [word for word in WRAPPED if word in words][:1] or [word for word in words if "=" in word]


WRAPPED = ("spread.fsdp_version", "fsdp", "ddp")  # the first is a setting that only runs in FSDP1 have


def covering(runs: Mapping[str, tuple[Iterable[str], int]]) -> list[str]:
    """Runs that have every word of all runs among them, by words and cost: the most new words for its cost first."""
    left = {word for words, _ in runs.values() for word in words}
    chosen: list[str] = []
    while left:
        best = max(sorted(runs), key=lambda key: len(left & set(runs[key][0])) / runs[key][1])
        chosen.append(best)
        left -= set(runs[best][0])
    return chosen


def _record(key: str, run: Recorded) -> None:
    """Write one run into the file, a line each; one worker of pytest at a time. Of other releases nothing stays."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(LOCK):
        data = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
        runs = data["runs"] if data.get("releases") == releases() else {}
        runs[key] = run._asdict()
        lines = ",\n".join(f"{json.dumps(each)}: {json.dumps(runs[each])}" for each in sorted(runs))
        RECORD.write_text(f'{{"releases": {json.dumps(releases())},\n"runs": {{\n{lines}\n}}}}\n', "utf-8")
