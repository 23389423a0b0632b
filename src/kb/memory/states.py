"""Bytes of a model that stay from step to step: weights, adapters, gradients, optimizer states, and a saved checkpoint;
and what sharing a run out over GPUs, or offloading it to the host, makes of them.

The memory engine follows what of these lies on a GPU, to the byte. Here are the whole model's, from parameter counts:
what the host keeps of them, and what a step's time takes from them. Sources: torch 2.13.0 (FSDP1, FSDP2), DeepSpeed
0.19.8 (runtime/zero/stage_1_and_2.py, stage3.py), accelerate 1.15.
"""

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TORCHAO, TrainingSetup
from kb.memory.parameters import Counts, LinearModule, UnknownTargetsError, count, match_targets, stack_of

NF4_BLOCK = 64  # weights to one fp32 absmax; bitsandbytes' default for 4-bit
DOUBLE_QUANT_BLOCK = 256  # absmax values to one second-level fp32 absmax
OPTIMIZER_BLOCK = 256  # state values to one fp32 absmax in the 8-bit optimizers
FP32, HALF = 4, 2
LION = ("lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit")  # one moment
# bitsandbytes keeps states of 32 bits, whatever the weights are (``Optimizer1State.init_state``, optim/optimizer.py).
WIDE_STATES = ("lion_32bit", "paged_lion_32bit", "paged_adamw_32bit", "paged_adamw")
SUB_GROUP = 1_000_000_000  # elements of an optimizer's step in ZeRO-3 (sub_group_size), DeepSpeed's default
DISK_BUFFERS, DISK_BUFFER = 5, 100_000_000  # of parameters on NVMe: buffer_count × buffer_size
STATES_SWAPPED = 4  # of the optimizer's on NVMe: buffer_count


class States(NamedTuple):
    """Bytes of the model's states.

    ``trainable`` counts parameters, ``targets`` are the modules that LoRA wraps, ``paged`` is what a paged optimizer
    keeps in host memory, and ``saved`` what a checkpoint of the model holds.
    """

    parameters: int
    adapters: int
    quantization: int
    gradients: int
    optimizer: int
    trainable: int
    targets: tuple[LinearModule, ...]
    paged: int
    saved: int


def states_of(setup: TrainingSetup, arch: Architecture) -> States:
    """The model states of a setup, from parameter counts, before they are shared out between GPUs.

    A trainable parameter has a gradient and two AdamW moments in its own type: 16 bytes in fp32, weights included.
    Adapters are fp32 (peft's ``autocast_adapter_dtype``); a module to save is copied and trained whole, in the type
    that it has by then. Trainers may cast both.
    """
    counts = count(arch)
    weight = FP32 if setup.weights == "fp32" else HALF
    narrow, wide = _trained_widths(setup, weight)
    targets, whole = _targets(setup, arch)
    magnitudes = 1 if setup.use_dora else 0  # DoRA's vector, one for each output
    adapters = sum(
        (setup.lora_r * (m.in_features + m.out_features) + magnitudes * m.out_features) * m.number for m in targets
    )
    parameters, quantization = _weights(setup, counts, weight)
    if setup.method == "full":
        trainable, copied = counts.total, 0
        gradients = weight * trainable
        optimizer, paged = _optimizer(setup, arch, trainable, weight)
    else:
        trainable, copied = adapters + whole, narrow * adapters + wide * whole
        gradients = copied
        parts = ((trainable, narrow),) if wide == narrow else ((adapters, narrow), (whole, wide))
        optimizer, paged = map(sum, zip(*(_optimizer(setup, arch, *part) for part in parts), strict=True))
    return States(
        parameters=parameters,
        adapters=copied,
        quantization=quantization,
        gradients=gradients,
        optimizer=optimizer,
        trainable=trainable,
        targets=targets,
        paged=paged,
        saved=parameters if setup.method == "full" else copied + _saved_tables(counts, targets),
    )


def _trained_widths(setup: TrainingSetup, weight: int) -> tuple[int, int]:
    """Bytes of a number of the adapters, and of modules that are copied and trained whole."""
    if setup.trained_type != "peft":
        cast = FP32 if setup.trained_type == "fp32" else HALF
        return cast, cast
    prepared = setup.packs and setup.prepare_for_kbit and not setup.half_tables
    return FP32, FP32 if prepared else weight


def _saved_tables(counts: Counts, targets: tuple[LinearModule, ...]) -> int:
    """Bytes of the embeddings that PEFT saves beside adapters, where these are among the targets."""
    embeddings = any(module.kind == "embedding" for module in targets)
    return FP32 * (counts.embedding + counts.head) if embeddings else 0


def _targets(setup: TrainingSetup, arch: Architecture) -> tuple[tuple[LinearModule, ...], int]:
    """The modules that LoRA wraps, and the parameters of modules trained whole."""
    if setup.method == "full":
        return (), 0
    whole = 0
    if setup.modules_to_save:
        saved, _ = match_targets(arch, setup.modules_to_save)
        whole = sum(module.in_features * module.out_features * module.number for module in saved)
    if arch.family == "encoder":
        whole += stack_of(arch).trained_whole(arch)
    try:
        return match_targets(arch, setup.lora_target_modules)[0], whole
    except UnknownTargetsError:
        return (), whole


def _weights(setup: TrainingSetup, counts: Counts, weight: int) -> tuple[int, int]:
    """Bytes of the base weights, and of their quantization state.

    4-bit and 8-bit loading pack the blocks' linear layers but T5's ``wo``; peft's preparation widens the rest to fp32.
    """
    four, eight = setup.load_in_4bit or setup.method == "qlora", setup.load_in_8bit
    if not (four or eight):
        kept_wide = (FP32 - HALF) * counts.kept_wide if setup.weights == "fp16" else 0
        return weight * counts.total + kept_wide, 0
    prepared = setup.prepare_for_kbit and not setup.half_tables and setup.method != "full"
    rest = FP32 if weight == FP32 or prepared else HALF
    packed = counts.quantizable
    others = rest * (counts.total - packed)
    if eight and not four:
        return packed + others, 0
    blocks = packed // NF4_BLOCK
    absmax = blocks + FP32 * blocks // DOUBLE_QUANT_BLOCK if setup.bnb_4bit_use_double_quant else FP32 * blocks
    return packed // 2 + others, absmax


def _optimizer(setup: TrainingSetup, arch: Architecture, trainable: int, width: int) -> tuple[int, int]:
    """Bytes of the optimizer's states, and of those that are paged to the host. An unknown optimizer counts as AdamW in
    torch's default form."""
    name, counts = setup.optim, count(arch)
    moments = 1 if name in LION else 2
    if name in ("sgd", "none"):
        return 0, 0
    if name == "adafactor":  # a row and a column of second moments for each matrix
        return 2 * FP32 * trainable // min(arch.d_model, arch.d_ff), 0
    if name in TORCHAO:
        return moments * (trainable // TORCHAO[name] + FP32 * trainable // OPTIMIZER_BLOCK), 0
    if "8bit" in name:
        wide = counts.embedding + counts.positions if setup.method == "full" else 0  # Trainer keeps these in 32 bits
        narrow = trainable - wide
        states = moments * (FP32 * wide + narrow + FP32 * narrow // OPTIMIZER_BLOCK)
    else:
        states = moments * (FP32 if name in WIDE_STATES else width) * trainable
    return (0, states) if name.startswith("paged") else (states, 0)


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
    wide = setup.fsdp and not setup.packs and (setup.weights == "fp32" or setup.method == "full")
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
    parameters, on_host = states.parameters, states.paged * ranks_of_a_node(setup)
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
    if setup.packs or (setup.method != "full" and not frozen_too):
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

    parameters, on_host = shard(_flattened(setup, states, counts, frozen_too=True), wide=True), states.paged // ranks
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
    share, on_host = states.trainable // ranks, states.paged // ranks
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
    narrow = "8bit" in setup.optim or setup.optim in TORCHAO or setup.optim == "adafactor" or setup.method != "full"
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
