"""Host memory of one node: a ledger apart from the GPU's.

Two accounts of it stand side by side. The field notes' ranges, 15–20 GB and 1.5–2 GB a worker, come from one large host
and decide the verdict's range. What was measured (rules/measurements/host-*) is a floor: a forked worker shares its
parent's pages and holds a hundredth of that range of its own, as long as its dataset is not Python objects, whose pages
reading copies; CUDA's libraries and the dataset come on top.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kb.core.memory_report import HostLedger, Term
from kb.core.setup import TrainingSetup
from kb.memory.zero import ranks_of_a_node

TOKEN_ID = 8  # int64
TENSORS_A_SOURCE = 2  # ids and mask


class Loads(NamedTuple):
    """Bytes that pass through host memory.

    ``checkpoint`` is the model's files, ``saved`` what a checkpoint serialises, ``offloaded`` what ZeRO, FSDP or a
    paged optimizer keeps on the node, ``gathered`` the predictions that evaluation moves there.
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
    file by file as safetensors does. The notes' base is for the run; each further process of a node adds what one was
    measured to take.
    """
    ranks = ranks_of_a_node(setup)
    workers = ranks * setup.dataloader_num_workers
    more = round((ranks - 1) * constants["host_process_bytes"])
    base = round(constants["host_base_high_bytes"]) + more
    pinned = ranks * pinned_bytes(setup)
    reading = {"host_base": base, "model_load": round(ranks * loads.checkpoint * constants["model_load_factor"])}
    running = {
        "host_base": base,
        "workers": round(workers * constants["worker_high_bytes"]),
        "pinned": pinned,
        "checkpoint_save": loads.saved,
        "offloaded": loads.offloaded,
        "gathered": loads.gathered,
        "host_overhead": round(constants["host_overhead_high_bytes"]),
    }
    base_low = constants["host_base_low_bytes"] + more + loads.offloaded
    low = base_low + workers * constants["worker_low_bytes"] + pinned
    chosen = max(running, reading, key=lambda terms: sum(terms.values()))
    return HostLedger(
        terms=_terms(chosen),
        low_bytes=round(low + loads.gathered),
        peak_bytes=sum(chosen.values()),
        limit_bytes=limit_bytes,
        base_low_bytes=round(base_low + loads.gathered),
        measured=_terms(measured_floor(setup, loads, constants)),
    )


def measured_floor(setup: TrainingSetup, loads: Loads, constants: Mapping[str, float]) -> dict[str, int]:
    """What a node's host memory holds at least, by mechanism.

    A process with its imports; each worker's own pages; batches on their way, once in shared memory between worker and
    main process and once page-locked; a checkpoint being saved, as safetensors has every tensor of the GPU copied
    before it writes one (torch.save copies one at a time). Reading safetensors maps the file: none of it is held.
    """
    ranks = ranks_of_a_node(setup)
    flight = batches_bytes(setup) if setup.dataloader_num_workers else 0
    return {
        "host_process": round(ranks * constants["host_process_bytes"]),
        "workers": round(ranks * setup.dataloader_num_workers * constants["worker_private_bytes"]),
        "batches_in_flight": ranks * flight,
        "pinned": ranks * pinned_bytes(setup),
        "checkpoint_save": loads.saved,
        "offloaded": loads.offloaded,
        "gathered": loads.gathered,
    }


def pinned_bytes(setup: TrainingSetup) -> int:
    """Page-locked batches in flight."""
    return batches_bytes(setup) if setup.dataloader_pin_memory else 0


def batches_bytes(setup: TrainingSetup) -> int:
    """Batches made ahead: prefetch factor × workers, or one without workers."""
    batches = max(setup.dataloader_num_workers * setup.dataloader_prefetch_factor, 1)
    tokens = TENSORS_A_SOURCE * setup.max_source_length + setup.max_target_length
    return batches * max(setup.per_device_train_batch_size, 1) * tokens * TOKEN_ID


def _terms(terms: Mapping[str, int]) -> tuple[Term, ...]:
    return tuple(Term(name, size) for name, size in terms.items() if size)
