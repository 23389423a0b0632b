"""What many GPUs change: shared-out states, gathered parameters, buffers to communicate with, and what the host gets.

Sources: torch 2.13.0 (DistributedDataParallel, FSDP1, FSDP2), DeepSpeed 0.19.8 (runtime/zero), accelerate 1.15.
Communicators of NCCL lie outside torch's allocator and are not in here.
"""

from typing import TYPE_CHECKING

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.closed_zero import REDUCE_BUCKET, flattened, moments, ranks_of_a_node, width_of, zero_shared_out
from kb.memory.counts import Counts, count

if TYPE_CHECKING:  # closed_states.py hands its result on to this module
    from kb.memory.closed_states import States

FP32, HALF = 4, 2


class Units(NamedTuple):
    """Parameters of FSDP's units: the largest layer, and the root, which holds all that no layer does."""

    layer: int
    root: int


def units(counts: Counts, architecture: Architecture) -> Units:
    layers = max(architecture.encoder_layers + architecture.decoder_layers, 1)
    sizes = [
        weights // number
        for weights, number in (
            (counts.encoder_linear, architecture.encoder_layers),
            (counts.decoder_linear, architecture.decoder_layers),
        )
        if number
    ]
    inside = counts.block_linear + counts.biases + counts.experts
    return Units(layer=max(sizes, default=0) + (counts.biases + counts.experts) // layers, root=counts.total - inside)


def shared_out(setup: TrainingSetup, states: "States", architecture: Architecture) -> "States":
    """The states of one GPU, and of one node's host memory, from those of the whole model. Shards are taken as even.

    Args:
        setup: as :func:`kb.memory.parallel.as_run` gives it.
    """
    counts = count(architecture)
    if setup.spread.tensor_parallel > 1:
        states = _split_tensors(states, counts, setup.spread.tensor_parallel)
    ranks = setup.data_parallel_size
    if setup.fsdp:
        return _fsdp(setup, states, counts, units(counts, architecture), ranks)
    if setup.zero_stage > 0:
        return zero_shared_out(setup, states, counts, ranks)
    if setup.spread.deepspeed:
        return _deepspeed_alone(setup, states, ranks)
    return states._replace(buckets=0 if ranks == 1 or setup.spread.gradient_as_bucket_view else states.gradients)


def _split_tensors(states: "States", counts: Counts, size: int) -> "States":
    """Tensor parallelism divides the blocks' linear layers; embeddings, norms and the output layer stay whole."""
    share = (counts.total - counts.block_linear * (1 - 1 / size)) / counts.total

    def part(amount: int) -> int:
        return round(amount * share)

    return states._replace(
        parameters=part(states.parameters),
        quantization=states.quantization // size,
        gradients=part(states.gradients),
        gradient_share=states.gradient_share / size,
        optimizer=part(states.optimizer),
        step_temporaries=part(states.step_temporaries),
        trainable=part(states.trainable),
    )


def _deepspeed_alone(setup: TrainingSetup, states: "States", ranks: int) -> "States":
    """DeepSpeed without ZeRO: fp32 masters and states on every GPU, gradients reduced in buckets; offload is idle."""
    width = width_of(setup)
    bucket = min(REDUCE_BUCKET, states.trainable) * width if ranks > 1 else 0
    master = FP32 * states.trainable if width == HALF else 0
    return states._replace(
        adapters=states.adapters * width // FP32, optimizer=moments(setup, states, width) + master, buckets=bucket
    )


def _fsdp(setup: TrainingSetup, states: "States", counts: Counts, unit: Units, ranks: int) -> "States":
    """FSDP: shards of everything; the root and a layer or two gathered; one unit's gradients until they are reduced.

    The root stays whole from forward to backward. While a layer computes, the next one's gather is under way; FSDP2
    copies out of the gathered buffer, and into one to reduce from. Without wrapping, the model is one unit.
    """
    spread, width = setup.spread, width_of(setup)
    wider = FP32 if spread.wide_shards else width  # of what trains, and of the shards
    full = setup.method == "full"
    copies = 1 if spread.fsdp_version == 1 else 2
    layer, root = (unit.layer, unit.root) if spread.fsdp_wrapped else (0, counts.total)
    resting = root + layer if spread.fsdp_reshard else counts.total
    ahead = copies * (layer or (counts.total if copies == 2 else 0))
    shared = ranks > 1 or setup.offload_param

    def shard(amount: int, *, wide: bool) -> int:
        return (amount * wider // width if wide else amount) // ranks

    weights = flattened(setup, states, counts, frozen_too=True)
    parameters, adapters = shard(weights, wide=True), states.adapters // ranks
    gradients, optimizer = shard(states.gradients, wide=full), shard(states.optimizer, wide=full)
    states = states._replace(
        quantization=states.quantization // ranks,
        parameters=parameters,
        adapters=adapters,
        gradients=gradients,
        gradient_share=gradients / states.gradients if states.gradients else 0.0,
        optimizer=optimizer,
        step_temporaries=shard(states.step_temporaries, wide=full),
        buckets=min(root + copies * layer, states.trainable) * width if shared else 0,
        gathered=round(weights * (resting + ahead) / counts.total) if shared else 0,
        on_host=states.on_host * ranks_of_a_node(setup),
    )
    return _off_the_gpu(setup, states) if setup.offload_param else states


def _off_the_gpu(setup: TrainingSetup, states: "States") -> "States":
    """FSDP's offload: shards, their gradients and the optimizer's states all live on the host."""
    moved = states.parameters + states.adapters + states.gradients + states.optimizer
    return states._replace(
        parameters=0, adapters=0, gradients=0, gradient_share=0.0, optimizer=0, step_temporaries=0,
        on_host=states.on_host + moved * ranks_of_a_node(setup),
    )  # fmt: skip
