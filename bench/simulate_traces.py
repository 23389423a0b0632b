"""The simulator's evaluation and generation against the traces recorded in tests/data/traces: allocated and reserved.

    python bench/simulate_traces.py [evaluation|generation] [--every N]

All rows take about ten minutes on two cores; ``--every`` takes one row in N.
"""

import argparse
import json
import time
from pathlib import Path

from kb.core.setup import TrainingSetup
from kb.core.setup_json import setup_from
from kb.torch_runs.simulation.job import Job
from kb.torch_runs.simulation.simulator import runs_of
from kb.torch_runs.simulation.timeline import peaks_of

TRACES = Path(__file__).parent.parent / "tests" / "data" / "traces"
CAPABILITY = (8, 6)  # of the recorded traces
PHASES = {"evaluation": "evaluate", "generation": "generate"}


def setup_of(row: dict[str, object], kind: str) -> TrainingSetup:
    """A row's setup. The evaluation rows with predict_with_generate hold the label forward alone."""
    setup = setup_from(row)
    if kind == "evaluation" and setup.predict_with_generate:
        setup = setup._replace(predict_with_generate=False, prediction_loss_only=True)
    return setup


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("kind", nargs="?", choices=PHASES)
    arguments.add_argument("--every", type=int, default=1, metavar="N")
    asked = arguments.parse_args()
    for kind in [asked.kind] if asked.kind else PHASES:
        data = json.loads((TRACES / f"{kind}.json").read_text("utf-8"))
        errors = []
        for row in data["rows"][:: asked.every]:
            start = time.perf_counter()
            (run,) = runs_of(Job(setup_of(row["setup"], kind), data["models"][row["model"]], CAPABILITY))
            peak = peaks_of(run.events)[PHASES[kind]]
            allocated = peak.allocated_bytes / row["allocated"] - 1
            reserved = peak.reserved_bytes / row["reserved"] - 1
            errors.append(allocated)
            said = " ".join(f"{name}={value}" for name, value in row["setup"].items() if not name.startswith("do_"))
            seconds = time.perf_counter() - start
            print(f"{row['model']:12} {allocated:+8.3%} {reserved:+8.2%} {seconds:5.1f} s  {said}", flush=True)
        mean, worst = sum(map(abs, errors)) / len(errors), max(errors, key=abs)
        print(f"{kind}: {len(errors)} rows, allocated mean {mean:.3%}, worst {worst:+.3%}")


if __name__ == "__main__":
    main()
