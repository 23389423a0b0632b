"""Bytes of a model that stay from step to step: weights, adapters, gradients, optimizer states, and a saved checkpoint.

The memory engine follows what of these lies on a GPU, to the byte. Here are the whole model's, from parameter counts:
what the host keeps of them where a run offloads, and what a step's time takes from them.
"""

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.counts import Counts, count
from kb.memory.linear import LinearModule, UnknownTargetsError, match_targets

NF4_BLOCK = 64  # weights to one fp32 absmax; bitsandbytes' default for 4-bit
DOUBLE_QUANT_BLOCK = 256  # absmax values to one second-level fp32 absmax
OPTIMIZER_BLOCK = 256  # state values to one fp32 absmax in the 8-bit optimizers
FP32, HALF = 4, 2
LION = ("lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit")  # one moment
# bitsandbytes keeps states of 32 bits, whatever the weights are (``Optimizer1State.init_state``, optim/optimizer.py).
WIDE_STATES = ("lion_32bit", "paged_lion_32bit", "paged_adamw_32bit", "paged_adamw")


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
    quantized = setup.load_in_4bit or setup.load_in_8bit or setup.method == "qlora"
    prepared = quantized and setup.prepare_for_kbit and not setup.half_tables
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
    if arch.family == "encoder":  # imported where used, as only these models need it
        if arch.engine:
            from kb.memory.engine import inventory as parts
        else:
            from kb.memory import encoder_parts as parts  # type: ignore[no-redef]

        whole += parts.trained_whole(arch)
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
    if "8bit" in name:
        wide = counts.embedding + counts.positions if setup.method == "full" else 0  # Trainer keeps these in 32 bits
        narrow = trainable - wide
        states = moments * (FP32 * wide + narrow + FP32 * narrow // OPTIMIZER_BLOCK)
    else:
        states = moments * (FP32 if name in WIDE_STATES else width) * trainable
    return (0, states) if name.startswith("paged") else (states, 0)
