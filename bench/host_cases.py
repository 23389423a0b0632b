"""What bench/host.py measures, one case to a process. A case returns rows of rules/measurements, sizes in bytes."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

from host_loaders import T5_BASE, dataset, loader
from host_sizes import Row, peak, sizes


def imports(case: str) -> list[Row]:
    if case != "python":
        import torch  # noqa: F401
    if case in ("trainer", "trainer-datasets"):
        from transformers import Seq2SeqTrainer, T5ForConditionalGeneration  # noqa: F401
    if case == "trainer-datasets":
        import datasets  # noqa: F401
    return [{"what": "import", "case": case, **sizes()}]


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
