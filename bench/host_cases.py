"""What bench/host.py measures, one case to a process. A case returns rows of rules/measurements, sizes in bytes."""

import atexit
import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil

Row = dict[str, Any]
SOURCE, TARGET, INT64 = 512, 128, 8
SAMPLES = 20_000
BATCH = 16
EPOCHS = 5
T5_BASE = {
    "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "vocab_size": 32128,
    "feed_forward_proj": "relu",
}  # fmt: skip


def sizes(pid: int | None = None) -> Row:
    """Resident, proportional and unique set of a process, and what of the proportional set no one can take back."""
    info = psutil.Process(pid).memory_full_info()
    anonymous, shared = 0, 0
    with open(f"/proc/{pid or os.getpid()}/smaps_rollup", encoding="ascii") as stream:
        for line in stream:
            name, _, value = line.partition(":")
            if name in ("Pss_Anon", "Pss_Shmem"):
                amount = int(value.split()[0]) * 1024
                anonymous += amount if name == "Pss_Anon" else 0
                shared += amount if name == "Pss_Shmem" else 0
    return {"rss_bytes": info.rss, "pss_bytes": info.pss, "uss_bytes": info.uss, "anonymous_bytes": anonymous,
            "shared_bytes": shared}  # fmt: skip


@contextmanager
def peak(row: Row) -> Iterator[None]:
    """Adds to ``row`` the highest unique, proportional and anonymous sets while the block runs, above those before."""
    gc.collect()
    before, highest, done = sizes(), {"uss_bytes": 0, "pss_bytes": 0, "anonymous_bytes": 0}, threading.Event()

    def watch() -> None:
        while not done.is_set():
            now = sizes()
            for name in highest:
                highest[name] = max(highest[name], now[name] - before[name])
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    after = sizes()
    row.update({name: max(after[name] - before[name], 0) for name in ("rss_bytes", "pss_bytes", "uss_bytes")})
    row["anonymous_bytes"] = max(after["anonymous_bytes"] - before["anonymous_bytes"], 0)
    row["peak_uss_bytes"], row["peak_pss_bytes"] = highest["uss_bytes"], highest["pss_bytes"]
    row["peak_anonymous_bytes"] = highest["anonymous_bytes"]


def imports(case: str) -> list[Row]:
    if case != "python":
        import torch  # noqa: F401
    if case in ("trainer", "trainer-datasets"):
        from transformers import Seq2SeqTrainer, T5ForConditionalGeneration  # noqa: F401
    if case == "trainer-datasets":
        import datasets  # noqa: F401
    return [{"what": "import", "case": case, **sizes()}]


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


def model_load(case: str) -> list[Row]:
    """T5-base read by ``from_pretrained`` from safetensors or from torch's pickle, in the file's type or another."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    with tempfile.TemporaryDirectory(prefix="kb-host-") as folder:
        _write_model(folder, pickled=case.startswith("pickle"))
        options: Row = {"dtype": torch.bfloat16} if case.endswith("bf16") else {"dtype": torch.float32}
        if case == "safetensors-read":
            options["disable_mmap"] = True
        row: Row = {"what": "model-load", "case": case}
        T5ForConditionalGeneration(T5Config(**{**T5_BASE, "num_layers": 1, "vocab_size": 64}))  # imports done
        with peak(row):
            model = T5ForConditionalGeneration.from_pretrained(folder, use_safetensors="pickle" not in case, **options)
        row["payload_bytes"] = sum(each.numel() for each in model.parameters()) * 4
    return [row]


def _write_model(folder: str, *, pickled: bool) -> None:
    """In a process of its own, so that this one has not held the weights before."""
    import subprocess
    import sys

    code = (
        "import sys, torch; from transformers import T5Config, T5ForConditionalGeneration\n"
        f"model = T5ForConditionalGeneration(T5Config(**{T5_BASE!r}))\n"
        "folder = sys.argv[1]; model.config.save_pretrained(folder)\n"
        + (
            "torch.save(model.state_dict(), folder + '/pytorch_model.bin')"
            if pickled
            else "model.save_pretrained(folder)"
        )
    )
    subprocess.run(
        [sys.executable, "-c", code, folder], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def save(case: str) -> list[Row]:
    """A model on the CPU written as safetensors, or its AdamW states by torch.save."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(T5Config(**T5_BASE))
    row: Row = {"what": "save", "case": case, "payload_bytes": sum(each.numel() for each in model.parameters()) * 4}
    with tempfile.TemporaryDirectory(prefix="kb-host-") as folder:
        if case == "safetensors":
            with peak(row):
                model.save_pretrained(folder)
        else:
            optimizer = _stepped(model)
            row["payload_bytes"] *= 2
            with peak(row):
                torch.save(optimizer.state_dict(), os.path.join(folder, "optimizer.pt"))
    return [row]


def optimizer(case: str) -> list[Row]:
    """Gradients and AdamW states in host memory, as offloading keeps them: after the first step, above the weights."""
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(T5Config(**T5_BASE))
    row: Row = {
        "what": "optimizer",
        "case": case,
        "payload_bytes": sum(each.numel() for each in model.parameters()) * 4,
    }
    with peak(row):
        kept = _stepped(model, foreach=case == "adamw-foreach")
    assert kept is not None
    return [row]


def _stepped(model: Any, *, foreach: bool = False) -> Any:
    import torch

    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    made = torch.optim.AdamW(model.parameters(), foreach=foreach)
    made.step()
    return made


CASES: dict[str, Callable[[], list[Row]]] = {
    **{f"import-{case}": lambda case=case: imports(case)
       for case in ("python", "torch", "trainer", "trainer-datasets")},
    **{f"dataset-{case}": lambda case=case: dataset(case) for case in ("list", "array", "arrow")},
    **{f"workers-{form}-{n}": lambda form=form, n=n: loader(form, n)
       for form, numbers in (("list", (1, 2, 4)), ("array", (4,)), ("arrow", (1, 4, 8))) for n in numbers},
    "workers-arrow-spawn": lambda: loader("arrow", 2, "spawn"),
    "workers-arrow-forkserver": lambda: loader("arrow", 2, "forkserver"),
    "prefetch-2": lambda: loader("array", 2, prefetch=2, batch=512),
    "prefetch-8": lambda: loader("array", 2, prefetch=8, batch=512),
    **{f"load-{case}": lambda case=case: model_load(case)
       for case in ("safetensors", "safetensors-read", "safetensors-bf16", "pickle", "pickle-bf16")},
    **{f"save-{case}": lambda case=case: save(case) for case in ("safetensors", "optimizer")},
    **{f"optimizer-{case}": lambda case=case: optimizer(case) for case in ("adamw", "adamw-foreach")},
}  # fmt: skip
