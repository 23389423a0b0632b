"""Runs at the edge of their memory: torch is held to so many bytes, as a smaller card would hold it, and the run either
ends or does not. What kb says of a card that is nearly large enough is judged by these.

    python bench/gpu/limits.py FILE               # draws the trials and asks the engine where each one's edge lies
    python bench/gpu/limits.py FILE --phase generate   # runs that generate and do not train
    python bench/gpu/campaign.py --trials FILE    # runs them

A limit lies just above or just below the least that the engine needs, or between that and what the run reserves where
nothing limits it: there PyTorch has to give cached blocks back.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from edges import GRAIN, edge_of, recorded
from gpu_trials import Trial, shuffled, trials

from kb.core.setup_json import setup_from
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.world import Recording

CAPABILITY = (9, 0)
SEED = 11
LEAST, MOST = 3 * 2**28, 7 * 2**30  # of what a run reserves: in a smaller one segments decide, larger ones take long
GROWN = 1.1
# Where a limit lies: the least that the run needs, times the first; then so far towards what it reserves unlimited.
PLACES = ((0.97, 0.0), (0.99, 0.0), (0.997, 0.0), (1.0, 0.0), (1.003, 0.0), (1.01, 0.0), (1.0, 0.3), (1.0, 0.7))


def limited(phase: str = "train", seed: int = SEED) -> Iterator[Trial]:
    """Trials that begin with ``phase``, each with a limit."""
    draw = random.Random(seed)
    for trial in shuffled([each for each in trials() if each.phases[0] == phase and not each.lengths], seed):
        try:
            recordings = recorded(setup_from(trial.setup), trial.config, CAPABILITY)
        except NotFollowedError:
            continue
        reserved = max(peak.reserved for recording in recordings for peak in recording.phases.values())
        if not LEAST <= reserved <= MOST or not all(grows(recording, phase) for recording in recordings):
            continue
        edge = edge_of(recordings)
        share, onward = draw.choice(PLACES)
        limit = int(edge * share + (reserved - edge) * onward)
        yield trial._replace(limit=-(-limit // GRAIN) * GRAIN if share >= 1 else limit // GRAIN * GRAIN)


def grows(recording: Recording, phase: str) -> bool:
    """Whether the phase needs more than the model alone, by enough for a limit to lie between."""
    return recording.phases[phase].allocated >= GROWN * recording.phases["load"].allocated


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--phase", choices=("train", "generate"), default="train", help="what the runs do (train)")
    parser.add_argument("--number", type=int, default=400, help="trials to draw (400)")
    options = parser.parse_args()
    with options.file.open("w", encoding="utf-8") as stream:
        for number, trial in enumerate(limited(options.phase)):
            if number == options.number:
                break
            stream.write(json.dumps(trial._asdict()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
