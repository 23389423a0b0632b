"""Host memory of one node: a ledger apart from the GPU's, by measurement first.

The low end is what was measured (rules/measurements/host-*), summed by mechanism: a process with its imports, workers
that share their parent's pages, batches on their way, a checkpoint being saved. The high end adds what was published or
read elsewhere: a process with CUDA's libraries, a model file that is read and not mapped, and for each worker what the
original guide's one reading leaves it, since a worker that walks through Python objects copies their pages.

What passes through host memory stands here too: the model's files, checkpoints, what is offloaded, predictions.

The notes' own rule of thumb (15–20 GB and 1.5–2 GB a worker, from a server of 251 GB) stands beside it and decides
nothing.
"""

from collections.abc import Mapping

from kb.core.memory_report import HostLedger, Term
from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import PAIRED, TrainingSetup
from kb.memory.states import FP32, HALF, as_run, ranks_of_a_node, share_of, states_of

TOKEN_ID = 8  # int64
TENSORS_A_SOURCE = 2  # ids and mask


class Loads(NamedTuple):
    """Bytes that pass through host memory.

    ``checkpoint`` is the model's files, ``saved`` what a checkpoint serialises, ``offloaded`` what ZeRO, FSDP or a
    paged optimizer keeps on the node, ``inputs`` what waits there to go into checkpointed layers again, ``gathered``
    the predictions that evaluation moves there.
    """

    checkpoint: int
    saved: int
    offloaded: int
    inputs: int
    gathered: int


def host_ledger(
    setup: TrainingSetup, loads: Loads, *, constants: Mapping[str, float], limit_bytes: int | None
) -> HostLedger:
    """The measured floor, and the larger of two moments at its upper end: the model being read, before the workers
    start; and a checkpoint saved beside them.
    """
    ranks = ranks_of_a_node(setup)
    floor = measured_floor(setup, loads, constants)
    process = {"host_process": round(ranks * constants["host_process_high_bytes"])}
    reading = process | {"model_load": ranks * loads.checkpoint}
    workers = round(ranks * setup.dataloader_num_workers * constants["worker_observed_bytes"])
    # of the longest rows: what their layers get is there once, where rows are as long
    running = floor | process | {"workers": workers, "layer_inputs": loads.inputs}
    chosen = max(running, reading, key=lambda terms: sum(terms.values()))
    claimed = rule_of_thumb(setup, loads, constants)
    return HostLedger(
        terms=_terms(chosen),
        low_bytes=sum(floor.values()),
        peak_bytes=sum(chosen.values()),
        limit_bytes=limit_bytes,
        measured=_terms(floor),
        claimed_low_bytes=claimed[0],
        claimed_high_bytes=claimed[1],
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
        "pinned": ranks * batches_bytes(setup) if setup.dataloader_pin_memory else 0,  # page-locked, in flight
        "checkpoint_save": loads.saved,
        "offloaded": loads.offloaded,
        "gathered": loads.gathered,
    }


def rule_of_thumb(setup: TrainingSetup, loads: Loads, constants: Mapping[str, float]) -> tuple[int, int]:
    """What the original guide would count: a base process, its workers, the model read or a checkpoint saved, the rest.

    The notes' base is for the run; each further process of a node adds what one was measured to take.
    """
    ranks = ranks_of_a_node(setup)
    workers = ranks * setup.dataloader_num_workers
    more = (ranks - 1) * constants["host_process_bytes"] + loads.offloaded + loads.inputs + loads.gathered
    low = constants["host_base_low_bytes"] + workers * constants["worker_low_bytes"]
    running = workers * constants["worker_high_bytes"] + loads.saved + constants["host_overhead_high_bytes"]
    reading = ranks * loads.checkpoint * constants["model_load_factor"]
    high = constants["host_base_high_bytes"] + max(running, reading)
    return round(low + more), round(high + more)


def batches_bytes(setup: TrainingSetup) -> int:
    """Batches made ahead: prefetch factor × workers, or one without workers."""
    batches = max(setup.dataloader_num_workers * setup.dataloader_prefetch_factor, 1)
    tokens = TENSORS_A_SOURCE * setup.max_source_length + setup.max_target_length
    return batches * max(setup.per_device_train_batch_size, 1) * tokens * TOKEN_ID


def _terms(terms: Mapping[str, int]) -> tuple[Term, ...]:
    return tuple(Term(name, size) for name, size in terms.items() if size)


def loads_of(setup: TrainingSetup, architecture: Architecture) -> Loads:
    """Bytes that pass through host memory; the model's files are taken for one GPU's parameters as loaded."""
    run = as_run(setup)
    states = states_of(run, architecture)
    share = share_of(run, states, architecture)
    return Loads(
        checkpoint=share.parameters,
        saved=states.saved if run.do_train else 0,
        offloaded=share.on_host,
        inputs=checkpoints_bytes(setup, architecture),
        gathered=host_predictions(run, architecture) if run.do_eval else 0,
    )


def checkpoints_bytes(setup: TrainingSetup, architecture: Architecture) -> int:
    """Bytes of what goes into checkpointed layers, where that waits on the host: hidden states of every layer, of all
    of a node's processes, in 16 bits (unsloth_zoo/gradient_checkpointing.py stores fp32 so too)."""
    if not (setup.do_train and setup.gradient_checkpointing and setup.offloads_checkpoints):
        return 0
    paired = setup.post is not None and setup.post.kind in PAIRED
    rows = setup.per_device_train_batch_size * (2 if paired else 1)
    source = rows * setup.max_source_length * architecture.encoder_layers
    # a decoder alone reads what is called the source
    length = setup.max_target_length if architecture.encoder_layers else setup.max_source_length
    layers = source + rows * length * architecture.decoder_layers
    return ranks_of_a_node(setup) * layers * architecture.d_model * HALF


def host_predictions(setup: TrainingSetup, architecture: Architecture) -> int:
    """Bytes of predictions in host memory at the end of evaluation: fp32 logits of all samples, and what an
    encoder-decoder's encoder gave. 0 where the number of samples is unknown.

    Source: ``Trainer.evaluation_loop`` and ``nested_numpify`` (transformers/trainer.py, trainer_pt_utils.py).
    """
    if not setup.eval_samples or setup.prediction_loss_only or setup.predict_with_generate:
        return 0
    return FP32 * setup.eval_samples * _predicted(architecture, setup.max_source_length, setup.max_target_length)


def _predicted(arch: Architecture, source: int, target: int) -> int:
    """Elements that evaluation keeps for one sample."""
    if arch.family in ("t5", "bart"):
        return target * arch.vocab_size + source * arch.d_model
    if arch.family == "decoder" or arch.head == "masked":
        return source * arch.vocab_size
    return arch.labels if arch.head == "sequence" else source * arch.labels
