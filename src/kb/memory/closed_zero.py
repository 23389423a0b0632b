"""ZeRO: what DeepSpeed shares out by stage, the buffers it communicates with, and what offloading puts on the host.

Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, stage3.py and partitioned_param_coordinator.py.
"""

from typing import TYPE_CHECKING

from kb.core.setup import TrainingSetup
from kb.memory.counts import Counts

if TYPE_CHECKING:  # closed_states.py hands its result on to closed_parallel.py
    from kb.memory.closed_states import States

FP32, HALF = 4, 2
# DeepSpeed's defaults, in elements
REDUCE_BUCKET = 500_000_000
PREFETCH_BUCKET = 50_000_000
MAX_LIVE = 1_000_000_000
MAX_REUSE_DISTANCE = 1_000_000_000
SUB_GROUP = 1_000_000_000
DISK_BUFFERS, DISK_BUFFER = 5, 100_000_000  # of parameters on NVMe: buffer_count × buffer_size
STATES_SWAPPED = 4  # of the optimizer's on NVMe: buffer_count


def ranks_of_a_node(setup: TrainingSetup) -> int:
    """Processes on one node, as even as they come."""
    return -(-max(setup.world_size, 1) // max(setup.spread.nodes, 1))


def moments(setup: TrainingSetup, states: "States", width: int) -> int:
    """The optimizer's states over fp32 masters: twice as wide as over half weights, but for the 8-bit optimizers'."""
    narrow = "8bit" in setup.optim or setup.optim == "adafactor" or setup.method != "full"
    return states.optimizer if narrow else states.optimizer * FP32 // width


def width_of(setup: TrainingSetup) -> int:
    """Bytes of one weight, and of one gradient, as the run computes."""
    return FP32 if setup.weights == "fp32" else HALF


def flattened(setup: TrainingSetup, states: "States", counts: Counts, *, frozen_too: bool) -> int:
    """Bytes of the weights in one flat buffer, which leaves no remainders of blocks; packed ones as they are."""
    packed = setup.load_in_4bit or setup.load_in_8bit or setup.method == "qlora"
    if packed or (setup.method != "full" and not frozen_too):
        return states.parameters
    return width_of(setup) * counts.total


def zero_shared_out(setup: TrainingSetup, states: "States", counts: Counts, ranks: int) -> "States":
    """ZeRO: stage 1 divides the optimizer's states and the fp32 masters, 2 the gradients too, 3 the parameters too.

    The masters are a copy even of fp32 weights. Gradients pass through a contiguous bucket (two where communication
    overlaps in stages 1 and 2), taken whole before the first gradient comes. A step casts its gradients to fp32.
    """
    stage, width, trained = setup.zero_stage, width_of(setup), states.trainable
    share = trained // ranks
    held = width * (trained if stage == 1 else share)
    optimizer = FP32 * share + moments(setup, states, width) // ranks
    bucket = _bucket(setup, trained) * width
    work = min(share, SUB_GROUP) if stage == 3 else share
    temporaries = (FP32 + width) * work + states.step_temporaries * FP32 // (width * ranks)
    on_host = states.on_host
    if setup.offload_optimizer:
        part = setup.spread.optimizer_offload_ratio if stage == 3 else 1.0  # the ratio is for stage 3 alone
        on_host += _offloaded(setup, counts, trained, share, round(optimizer * part))
        optimizer, temporaries = round(optimizer * (1 - part)), round(temporaries * (1 - part))
        bucket += 0 if stage == 3 else width * _largest(counts, trained)
        held = held if stage == 1 else 0
    states = states._replace(
        parameters=flattened(setup, states, counts, frozen_too=stage == 3),
        adapters=states.adapters * width // FP32,
        gradients=held,
        gradient_share=held / states.gradients if states.gradients else 0.0,
        optimizer=optimizer,
        step_temporaries=temporaries,
        buckets=bucket,
        on_host=on_host,
    )
    if stage == 3:
        states = _shard_parameters(setup, states, counts, ranks)
    return states._replace(on_host=states.on_host * ranks_of_a_node(setup))


def _shard_parameters(setup: TrainingSetup, states: "States", counts: Counts, ranks: int) -> "States":
    shards = (states.parameters + states.adapters + states.quantization) // ranks
    gathered = _gathered(setup, counts, states.parameters + states.adapters) if ranks > 1 or setup.offload_param else 0
    if setup.offload_param:
        buffers = width_of(setup) * DISK_BUFFERS * DISK_BUFFER
        on_host = states.on_host + (buffers if setup.spread.params_on_disk else shards)
        return states._replace(parameters=0, adapters=0, quantization=0, gathered=gathered, on_host=on_host)
    return states._replace(
        parameters=states.parameters // ranks,
        adapters=states.adapters // ranks,
        quantization=states.quantization // ranks,
        gathered=gathered,
    )


def _bucket(setup: TrainingSetup, trained: int) -> int:
    """Elements of the buffers that gradients are reduced in."""
    spread = setup.spread
    size = REDUCE_BUCKET if spread.reduce_bucket is None else spread.reduce_bucket
    if not trained:
        return 0
    if not spread.contiguous_gradients:
        return min(size, trained)
    overlaps = setup.zero_stage < 3 and bool(spread.overlap_comm)  # its default is off below stage 3
    return 2 * size if overlaps else size


def _largest(counts: Counts, trained: int) -> int:
    return min(max(counts.embedding, counts.head), trained)


def _gathered(setup: TrainingSetup, counts: Counts, whole_bytes: int) -> int:
    """What ZeRO-3 holds of parameters made whole.

    A parameter is released after use unless it is used again within the reuse distance, counted in elements on the way
    forward and back: all of the last half distance stays from forward to backward. On top come the module at work and
    what is fetched ahead, which alone respects ``max_live_parameters``.
    """
    spread = setup.spread
    reuse = MAX_REUSE_DISTANCE if spread.max_reuse_distance is None else spread.max_reuse_distance
    ahead = PREFETCH_BUCKET if spread.prefetch_bucket is None else spread.prefetch_bucket
    most = MAX_LIVE if spread.max_live_parameters is None else spread.max_live_parameters
    held = min(counts.total, reuse // 2) + max(counts.embedding, counts.head)
    live = min(counts.total, held + min(ahead, max(most - held, 0)))
    return round(whole_bytes * live / counts.total)


def _offloaded(setup: TrainingSetup, counts: Counts, trained: int, share: int, optimizer: int) -> int:
    """Host bytes of one rank's offloaded optimizer: masters and states, fp32 gradients, and the 16-bit buffers to and
    fro (stages 1 and 2: the updated weights, one gradient, and the accumulated ones; stage 3: the gradients)."""
    width = width_of(setup)
    if setup.spread.optimizer_on_disk:
        return STATES_SWAPPED * FP32 * min(share, SUB_GROUP) + width * share
    if setup.zero_stage == 3:
        return optimizer + (FP32 + width) * share
    accumulated = width * share if setup.gradient_accumulation_steps > 1 else 0
    return optimizer + (FP32 + width) * share + width * _largest(counts, trained) + accumulated
