"""What many GPUs change in a run's settings and in the states of one of them, and what offloading puts on the host.

Sources: torch 2.13.0 (FSDP1, FSDP2), DeepSpeed 0.19.8 (runtime/zero/stage_1_and_2.py, stage3.py), accelerate 1.15.
What lies on the GPU the memory engine follows; here is what the host and a step's time ask for.
"""

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.counts import Counts, count
from kb.memory.states import FP32, HALF, States

SUB_GROUP = 1_000_000_000  # elements of an optimizer's step in ZeRO-3 (sub_group_size), DeepSpeed's default
DISK_BUFFERS, DISK_BUFFER = 5, 100_000_000  # of parameters on NVMe: buffer_count × buffer_size
STATES_SWAPPED = 4  # of the optimizer's on NVMe: buffer_count


def ranks_of_a_node(setup: TrainingSetup) -> int:
    """Processes on one node, as even as they come."""
    return -(-max(setup.world_size, 1) // max(setup.spread.nodes, 1))


def as_run(setup: TrainingSetup) -> TrainingSetup:
    """The setup as DeepSpeed and FSDP run it: mixed precision is a model cast to half, not autocast over fp32 weights.

    DeepSpeed casts the module itself and has fp32 masters in the optimizer; FSDP keeps fp32 shards and gathers them in
    half. Both leave no layer wide, as ``bf16`` says here (``fp16`` would mean T5's ``wo`` kept in fp32 by loading).
    """
    if not setup.autocast or not (setup.spread.deepspeed or setup.zero_stage > 0 or setup.fsdp):
        return setup
    packed = setup.load_in_4bit or setup.load_in_8bit or setup.method == "qlora"
    wide = setup.fsdp and not packed and (setup.weights == "fp32" or setup.method == "full")
    return setup._replace(
        weights="bf16", fp16=False, bf16=False, prepare_for_kbit=False, spread=setup.spread._replace(wide_shards=wide)
    )


class Share(NamedTuple):
    """What is one GPU's: bytes of the base weights, trained parameters (as many of them as it has whole, or shares with
    others by data alone); and bytes that offloading and paging put into one node's host memory."""

    parameters: int
    trainable: int
    on_host: int


def share_of(setup: TrainingSetup, states: States, architecture: Architecture) -> Share:
    """One GPU's and one node's share of a whole model's states. Shards are taken as even.

    Args:
        setup: as :func:`as_run` gives it.
    """
    counts = count(architecture)
    if setup.spread.tensor_parallel > 1:
        states = _split_tensors(states, counts, setup.spread.tensor_parallel)
    parameters, on_host = states.parameters, states.paged
    if setup.fsdp:
        parameters, on_host = _fsdp(setup, states, counts)
    elif setup.zero_stage > 0:
        parameters, on_host = _zero(setup, states, counts)
    return Share(parameters, states.trainable, on_host)


def _split_tensors(states: States, counts: Counts, size: int) -> States:
    """Tensor parallelism divides the blocks' linear layers; embeddings, norms and the output layer stay whole."""
    share = (counts.total - counts.block_linear * (1 - 1 / size)) / counts.total

    def part(amount: int) -> int:
        return round(amount * share)

    return states._replace(
        parameters=part(states.parameters),
        quantization=states.quantization // size,
        gradients=part(states.gradients),
        optimizer=part(states.optimizer),
        trainable=part(states.trainable),
    )


def _width_of(setup: TrainingSetup) -> int:
    """Bytes of one weight, and of one gradient, as the run computes."""
    return FP32 if setup.weights == "fp32" else HALF


def _flattened(setup: TrainingSetup, states: States, counts: Counts, *, frozen_too: bool) -> int:
    """Bytes of the weights in one flat buffer, which leaves no remainders of blocks; packed ones as they are."""
    packed = setup.load_in_4bit or setup.load_in_8bit or setup.method == "qlora"
    if packed or (setup.method != "full" and not frozen_too):
        return states.parameters
    return _width_of(setup) * counts.total


def _fsdp(setup: TrainingSetup, states: States, counts: Counts) -> tuple[int, int]:
    """FSDP: shards of everything, which offloading moves to the host with their gradients and the optimizer's states.

    Bytes of one GPU's base weights, and of one node's host memory.
    """
    ranks, width, full = setup.data_parallel_size, _width_of(setup), setup.method == "full"
    wider = FP32 if setup.spread.wide_shards else width  # of what trains, and of the shards

    def shard(amount: int, *, wide: bool) -> int:
        return (amount * wider // width if wide else amount) // ranks

    parameters, on_host = shard(_flattened(setup, states, counts, frozen_too=True), wide=True), states.paged
    if setup.offload_param:
        trained = shard(states.gradients, wide=full) + shard(states.optimizer, wide=full)
        on_host += parameters + states.adapters // ranks + trained
        parameters = 0
    return parameters, on_host * ranks_of_a_node(setup)


def _zero(setup: TrainingSetup, states: States, counts: Counts) -> tuple[int, int]:
    """ZeRO: stage 3 shares out the parameters; every stage the optimizer's states and their fp32 masters, which are a
    copy even of fp32 weights.

    Bytes of one GPU's base weights, and of one node's host memory.
    """
    third, width, ranks = setup.zero_stage == 3, _width_of(setup), setup.data_parallel_size
    share, on_host = states.trainable // ranks, states.paged
    if setup.offload_optimizer:
        part = setup.spread.optimizer_offload_ratio if third else 1.0  # the ratio is for stage 3 alone
        optimizer = FP32 * share + _moments(setup, states, width) // ranks
        on_host += _offloaded(setup, counts, states.trainable, round(optimizer * part))
    parameters = _flattened(setup, states, counts, frozen_too=third)
    if third and setup.offload_param:
        shards = (parameters + states.adapters * width // FP32 + states.quantization) // ranks
        on_host += width * DISK_BUFFERS * DISK_BUFFER if setup.spread.params_on_disk else shards
        parameters = 0
    return parameters // (ranks if third else 1), on_host * ranks_of_a_node(setup)


def _moments(setup: TrainingSetup, states: States, width: int) -> int:
    """The optimizer's states over fp32 masters: twice as wide as over half weights, but for the 8-bit optimizers'."""
    narrow = "8bit" in setup.optim or setup.optim == "adafactor" or setup.method != "full"
    return states.optimizer if narrow else states.optimizer * FP32 // width


def _offloaded(setup: TrainingSetup, counts: Counts, trained: int, optimizer: int) -> int:
    """Host bytes of one rank's offloaded optimizer: masters and states, fp32 gradients, and the 16-bit buffers to and
    fro (stages 1 and 2: the updated weights, one gradient, and the accumulated ones; stage 3: the gradients)."""
    width, share = _width_of(setup), trained // setup.data_parallel_size
    if setup.spread.optimizer_on_disk:
        return STATES_SWAPPED * FP32 * min(share, SUB_GROUP) + width * share
    if setup.zero_stage == 3:
        return optimizer + (FP32 + width) * share
    largest = min(max(counts.embedding, counts.head), trained)
    accumulated = width * share if setup.gradient_accumulation_steps > 1 else 0
    return optimizer + (FP32 + width) * share + width * largest + accumulated
