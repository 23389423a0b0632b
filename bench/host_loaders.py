"""Datasets and real data loaders for bench/host.py: the main process, its workers, and the batches between them."""

import atexit
import gc
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import psutil
from host_sizes import Row, peak, sizes

SOURCE, TARGET, INT64 = 512, 128, 8
SAMPLES = 20_000
BATCH = 16
EPOCHS = 5
T5_BASE = {
    "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "vocab_size": 32128,
    "feed_forward_proj": "relu",
}  # fmt: skip


def tokenised(form: str, samples: int = SAMPLES) -> Any:
    """Ids, mask and labels: Python lists (what a tokenizer returns), a numpy array, or an Arrow file mapped."""
    import numpy

    rng = numpy.random.default_rng(0)
    if form == "list":
        rows = []
        for _ in range(samples):
            ids = rng.integers(300, 32000, SOURCE).tolist()
            rows.append(
                {"input_ids": ids, "attention_mask": [1] * SOURCE, "labels": rng.integers(300, 32000, TARGET).tolist()}
            )
        return rows
    if form == "array":
        return rng.integers(300, 32000, (samples, 2 * SOURCE + TARGET), dtype=numpy.int64)
    import datasets

    folder = tempfile.mkdtemp(prefix="kb-host-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def generate() -> Iterator[Row]:
        for _ in range(samples):
            yield {"input_ids": rng.integers(300, 32000, SOURCE, dtype=numpy.int32),
                   "attention_mask": numpy.ones(SOURCE, dtype=numpy.int8),
                   "labels": rng.integers(300, 32000, TARGET, dtype=numpy.int32)}  # fmt: skip

    datasets.disable_progress_bars()
    made = datasets.Dataset.from_generator(generate, cache_dir=folder)
    return made.with_format("numpy")


def dataset(case: str) -> list[Row]:
    import datasets  # noqa: F401
    import numpy  # noqa: F401

    row: Row = {
        "what": "dataset",
        "case": case,
        "samples": SAMPLES,
        "payload_bytes": SAMPLES * (2 * SOURCE + TARGET) * INT64,
    }
    with peak(row):
        kept = tokenised(case)
        gc.collect()
    del kept
    return [row]


def collate(rows: Any) -> Any:
    import numpy
    import torch

    if isinstance(rows[0], dict):
        return {
            name: torch.as_tensor(numpy.asarray([row[name] for row in rows], dtype=numpy.int64)) for name in rows[0]
        }
    return torch.as_tensor(numpy.stack(rows))


def loader(form: str, workers: int, start_method: str = "fork", prefetch: int = 2, batch: int = BATCH) -> list[Row]:
    """Main process and workers of a real DataLoader beside a T5-base with random weights: at the start, after an epoch,
    after five."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(T5Config(**T5_BASE))
    data = tokenised(form)
    gc.collect()
    shm_before = _shm_used()
    shared = {"case": form, "workers": workers, "start_method": start_method, "prefetch_factor": prefetch,
              "samples": SAMPLES, "payload_bytes": batch * (2 * SOURCE + TARGET) * INT64}  # fmt: skip
    made = torch.utils.data.DataLoader(
        data, batch_size=batch, shuffle=True, num_workers=workers, prefetch_factor=prefetch, persistent_workers=True,
        collate_fn=collate, multiprocessing_context=start_method,
    )  # fmt: skip
    batches = iter(made)
    next(batches)
    time.sleep(2)  # until the queues are full
    flight = {"what": "batches", "after": "start", **shared, **sizes(), "shared_bytes": _shm_used() - shm_before}
    rows = [*_workers(shared, "start"), flight]
    for _ in batches:
        pass
    rows += _workers(shared, "epoch")
    for _ in range(EPOCHS - 1):
        for _ in made:
            pass
    rows += _workers(shared, "epochs")
    assert model is not None
    return rows


def _shm_used() -> int:
    """Bytes of /dev/shm in use on the machine: batches are there between worker and main process, mapped by neither."""
    status = os.statvfs("/dev/shm")
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _workers(shared: Row, after: str) -> list[Row]:
    """The main process, and the median worker."""
    children = sorted(
        (sizes(child.pid) for child in _children(shared["start_method"])), key=lambda row: row["uss_bytes"]
    )
    rows = [{"what": "main", "after": after, **shared, **sizes()}]
    if children:
        rows.append({"what": "worker", "after": after, **shared, **children[len(children) // 2]})
    return rows


def _children(start_method: str) -> list[psutil.Process]:
    """The workers: this process's children, or those of the server that forks for it; never a helper."""
    own = [(child, " ".join(child.cmdline())) for child in psutil.Process().children()]
    if start_method == "forkserver":
        return [worker for child, command in own if "forkserver" in command for worker in child.children()]
    return [child for child, command in own if "resource_tracker" not in command]
