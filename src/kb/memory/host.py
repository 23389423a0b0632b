"""Host memory: a ledger apart from the GPU's, in the ranges of the field notes."""

from collections.abc import Mapping
from typing import NamedTuple

from kb.core.memory_report import HostLedger, Term
from kb.core.setup import TrainingSetup

TOKEN_ID = 8  # int64
TENSORS_A_SOURCE = 2  # ids and mask


class Loads(NamedTuple):
    """Bytes that pass through host memory.

    ``checkpoint`` is the model's files, ``saved`` what a checkpoint serialises, ``offloaded`` what ZeRO or a paged
    optimizer keeps there, ``gathered`` the predictions that evaluation moves there.
    """

    checkpoint: int
    saved: int
    offloaded: int
    gathered: int


def host_ledger(
    setup: TrainingSetup, loads: Loads, *, constants: Mapping[str, float], limit_bytes: int | None
) -> HostLedger:
    """The larger of two moments: the model being read, before the workers start; and a checkpoint saved beside them.

    The terms are the upper ends of the notes' ranges. The low end leaves out overhead and saving, and reads the model
    file by file as safetensors does.
    """
    workers = setup.dataloader_num_workers
    base = round(constants["host_base_high_bytes"])
    pinned = pinned_bytes(setup)
    reading = {"host_base": base, "model_load": round(loads.checkpoint * constants["model_load_factor"])}
    running = {
        "host_base": base,
        "workers": round(workers * constants["worker_high_bytes"]),
        "pinned": pinned,
        "checkpoint_save": loads.saved,
        "offloaded": loads.offloaded,
        "gathered": loads.gathered,
        "host_overhead": round(constants["host_overhead_high_bytes"]),
    }
    base_low = constants["host_base_low_bytes"] + loads.offloaded
    low = base_low + workers * constants["worker_low_bytes"] + pinned
    chosen = max(running, reading, key=lambda terms: sum(terms.values()))
    return HostLedger(
        terms=tuple(Term(name, size) for name, size in chosen.items() if size),
        low_bytes=round(low + loads.gathered),
        peak_bytes=sum(chosen.values()),
        limit_bytes=limit_bytes,
        base_low_bytes=round(base_low + loads.gathered),
    )


def pinned_bytes(setup: TrainingSetup) -> int:
    """Page-locked batches in flight: prefetch factor × workers, or one without workers."""
    if not setup.dataloader_pin_memory:
        return 0
    batches = max(setup.dataloader_num_workers * setup.dataloader_prefetch_factor, 1)
    tokens = TENSORS_A_SOURCE * setup.max_source_length + setup.max_target_length
    return batches * max(setup.per_device_train_batch_size, 1) * tokens * TOKEN_ID
