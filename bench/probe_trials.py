"""How many trials does ``kb probe max-batch`` need, and how many would ``auto_find_batch_size``? On scripted cards.

    python bench/probe_trials.py                 # a minute; writes bench/results/probe-trials.md

Each card runs what kb predicts times a deviation; the search does not know the deviation. accelerate's own search
begins at 128, its default, and at the power of two above the largest batch, the best that a user could have guessed.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kb.advice.batches import Seen, Sought, seek, tried_by_accelerate
from kb.advice.fit.estimator import Estimator, on_gpu
from kb.core.setup import TrainingSetup
from kb.knowledge import load_catalog
from kb.memory.search import LARGEST_BATCH, largest_within

RESULT = Path(__file__).resolve().parent / "results" / "probe-trials.md"
MODELS = ("t5-base", "mt5-base", "kobart")
GPUS = ("t4", "rtx-3090", "a100-80gb")
DEVIATIONS = (0.93, 0.97, 1.0, 1.03, 1.07)
NEWEST = (1, 15, 0)  # accelerate's version: it multiplies by 0.9
START = 128
SETUP = TrainingSetup(do_eval=True, predict_with_generate=True, bf16=True, generation_max_length=128)


class Case(NamedTuple):
    model: str
    gpu: str
    deviation: float
    found: Sought
    true: int


def main() -> int:
    cases = list(_cases())
    lines = [
        "# Trials until the largest batch is known",
        "",
        f"kb's prediction times a deviation is the truth; {', '.join(MODELS)} on {', '.join(GPUS)}, bf16, 512 → 128, "
        f"training, evaluation and generation. Written by bench/probe_trials.py.",
        "",
        "auto_find_batch_size (accelerate 1.15 multiplies by 0.9) never tries more than it begins with: where more",
        "than 128 fit it stops at 128 after one trial.",
        "",
        "| deviation | kb probe, mean (most) | found exactly | auto_find from 128 | from the next power of two |",
        "|---|---|---|---|---|",
    ]
    for deviation in DEVIATIONS:
        rows = [case for case in cases if case.deviation == deviation]
        own = [len(case.found.trials) for case in rows]
        exact = sum(case.found.largest == case.true for case in rows)
        theirs = [len(tried_by_accelerate(START, case.true, NEWEST)) for case in rows]
        guessed = [len(tried_by_accelerate(1 << case.true.bit_length(), case.true, NEWEST)) for case in rows]
        lines.append(
            f"| {deviation - 1:+.0%} | {statistics.mean(own):.1f} ({max(own)}) | {exact} of {len(rows)} "
            f"| {statistics.mean(theirs):.1f} ({max(theirs)}) | {statistics.mean(guessed):.1f} ({max(guessed)}) |"
        )
    RESULT.write_text("\n".join([*lines, ""]), "utf-8")
    print("\n".join(lines))
    return 0


def _cases() -> Iterator[Case]:
    catalog = load_catalog()
    for name in MODELS:
        for gpu in GPUS:
            estimator = Estimator(catalog.models[name], on_gpu(catalog.gpus[gpu]), catalog.constants)
            limit = estimator.usable_bytes or 0
            predicted: dict[int, int] = {}

            def expected(batch: int, estimator: Estimator = estimator, predicted: dict[int, int] = predicted) -> int:
                if batch not in predicted:
                    setup = SETUP._replace(per_device_train_batch_size=batch, per_device_eval_batch_size=batch)
                    predicted[batch] = max(phase.process_used_bytes for phase in estimator.predict(setup).phases)
                return predicted[batch]

            for deviation in DEVIATIONS:
                true = largest_within(
                    lambda batch, off=deviation: round(expected(batch) * off), limit, 1, LARGEST_BATCH
                )
                start = max(largest_within(expected, limit, 1, LARGEST_BATCH), 1)
                yield Case(name, gpu, deviation, _searched(start, expected, limit, deviation), true)


def _searched(start: int, expected: Callable[[int], int], limit: int, deviation: float) -> Sought:
    seeking = seek(start, expected=expected, limit_bytes=limit)
    batch = next(seeking)
    try:
        while True:
            size = round(expected(batch) * deviation)
            batch = seeking.send(Seen(batch, size <= limit, size if size <= limit else None))
    except StopIteration as ended:
        found: Sought = ended.value
        return found


if __name__ == "__main__":
    sys.exit(main())
