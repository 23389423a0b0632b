"""A trial of the host: a real DataLoader with so many workers; what they hold, and the samples they give a second.

A sample is text that becomes ids by a dictionary, in Python, as a tokenizer's caller does it. What a sample costs in a
run of one's own may differ: that run itself can be tried instead.

``python -m kb.torch_runs.probe.loader_worker TRIAL EVENTS``; started by :mod:`kb.torch_runs.probe.running`.
"""

import contextlib
import json
import random
import sys
import time
from typing import Any

import psutil
import torch

from kb.core.setup import TrainingSetup
from kb.core.setup_json import setup_from
from kb.torch_runs.probe.events import HOST_WORDS, Teller
from kb.torch_runs.probe.tree_watch import Sizes, sizes
from kb.torch_runs.probe.trial import trial_from
from kb.torch_runs.probe.worker import stack

SAMPLES, WORDS, SEED = 4000, 32_000, 0
FIRST_ID = 3
LEAST_SECONDS, LEAST_BATCHES = 2.0, 10


def main(trial_path: str, events_path: str) -> int:
    with open(trial_path, encoding="utf-8") as stream:
        trial = trial_from(json.load(stream))
    teller = Teller(events_path)
    teller.begin("loader")
    teller.fact(stack=stack())
    try:
        rate, host = _run(setup_from(trial.setup), trial.steps)
    except (MemoryError, RuntimeError, OSError) as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        short = isinstance(error, MemoryError) or HOST_WORDS.search(said)
        teller.fault("oom" if short else "crash", said, "host" if short else None)
        return 0
    teller.fact(samples_per_second=round(rate, 1), host=host)
    teller.done()
    return 0


class Texts(torch.utils.data.Dataset[Any]):
    """Texts of random words, each as long as the setup lets it be."""

    def __init__(self, setup: TrainingSetup) -> None:
        draw = random.Random(SEED)
        self.lengths = (setup.max_source_length, setup.max_target_length)
        self.ids = {f"w{number}": number + FIRST_ID for number in range(WORDS)}
        words = list(self.ids)
        self.rows = [" ".join(draw.choices(words, k=sum(self.lengths))) for _ in range(SAMPLES)]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> dict[str, list[int]]:
        ids = [self.ids[word] for word in self.rows[number].split()]
        source = ids[: self.lengths[0]]
        return {"input_ids": source, "attention_mask": [1] * len(source), "labels": ids[self.lengths[0] :]}


def collate(rows: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Lists to tensors, as transformers' default collator does it."""
    return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


def _run(setup: TrainingSetup, batches: int) -> tuple[float, dict[str, Any]]:
    """Samples a second once the queues are full, and the processes' sizes at the end of that time."""
    workers = setup.dataloader_num_workers
    options: dict[str, Any] = {"num_workers": workers}
    if workers:
        options |= {"prefetch_factor": setup.dataloader_prefetch_factor, "persistent_workers": True}
    batch = setup.per_device_train_batch_size
    loader = torch.utils.data.DataLoader(Texts(setup), batch_size=batch, shuffle=True, collate_fn=collate, **options)
    source = _endless(loader)
    for _ in range(1 + workers * setup.dataloader_prefetch_factor):
        next(source)
    done, start = 0, time.perf_counter()
    while done < max(batches, LEAST_BATCHES) or time.perf_counter() - start < LEAST_SECONDS:
        next(source)
        done += 1
    rate = done * batch / (time.perf_counter() - start)
    return rate, _sizes(workers)


def _endless(loader: Any) -> Any:
    while True:
        yield from loader


def _sizes(workers: int) -> dict[str, Any]:
    """Of the main process, of the median worker, and of all together."""
    found: dict[str, Any] = {"main": sizes()}
    below: list[Sizes] = []
    for child in psutil.Process().children() if workers else []:
        with contextlib.suppress(psutil.Error, OSError):
            if "resource_tracker" not in " ".join(child.cmdline()):
                below.append(sizes(child.pid))
    if below:
        below.sort(key=lambda row: row["uss_bytes"])
        found["worker"] = below[len(below) // 2]
    whole = [found["main"], *below]
    found["total_pss_bytes"] = sum(row.get("pss_bytes", row["uss_bytes"]) for row in whole)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
