"""Host memory: a ledger apart from the GPU's, in the ranges of the field notes."""

from collections.abc import Mapping

from kb.core.memory_report import HostLedger, Term
from kb.core.setup import TrainingSetup

TOKEN_ID = 8
TENSORS_A_SAMPLE = 2  # ids and mask; labels are counted by their own length


def host_ledger(
    setup: TrainingSetup,
    *,
    constants: Mapping[str, float],
    checkpoint_bytes: int,
    saved_bytes: int,
    offloaded_bytes: int,
    gathered_bytes: int,
    limit_bytes: int | None,
) -> HostLedger:
    """The larger of two moments: loading the model before the workers start, and saving a checkpoint beside them.

    Args:
        checkpoint_bytes: the weights' files; loading takes them times ``model_load_factor``.
        saved_bytes: what a checkpoint serialises in host memory.
        offloaded_bytes: parameters and optimizer states that ZeRO keeps in host memory.
        gathered_bytes: predictions that ``eval_accumulation_steps`` moves to the host.
    """
    low_base, base = constants["host_base_low_bytes"], constants["host_base_high_bytes"]
    workers = setup.dataloader_num_workers
    loading = round(checkpoint_bytes * constants["model_load_factor"])
    running: dict[str, int] = {
        "host_base": round(base),
        "workers": round(workers * constants["worker_high_bytes"]),
        "pinned": pinned_bytes(setup),
        "checkpoint_save": saved_bytes,
        "offloaded": offloaded_bytes,
        "gathered": gathered_bytes,
        "host_overhead": round(constants["host_overhead_high_bytes"]),
    }
    start = {"host_base": round(base), "model_load": loading}
    low = low_base + workers * constants["worker_low_bytes"] + running["pinned"] + offloaded_bytes
    chosen = max(running, start, key=lambda terms: sum(terms.values()))
    terms = tuple(Term(name, size) for name, size in chosen.items() if size)
    return HostLedger(
        terms=terms,
        low_bytes=round(max(low, low_base + checkpoint_bytes)),
        peak_bytes=sum(term.bytes for term in terms),
        limit_bytes=limit_bytes,
    )


def pinned_bytes(setup: TrainingSetup) -> int:
    """Page-locked batches in flight: prefetch factor × workers, or one without workers."""
    if not setup.dataloader_pin_memory:
        return 0
    batches = max(setup.dataloader_num_workers * setup.dataloader_prefetch_factor, 1)
    tokens = TENSORS_A_SAMPLE * setup.max_source_length + setup.max_target_length
    return batches * max(setup.per_device_train_batch_size, 1) * tokens * TOKEN_ID
