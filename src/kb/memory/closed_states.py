"""Bytes that stay from step to step: parameters, adapters, quantization state, gradients, optimizer states."""

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.closed_parallel import shared_out
from kb.memory.counts import Counts, count
from kb.memory.linear import LinearModule, UnknownTargetsError, match_targets
from kb.memory.remainders import own_segments_remainder, weights_remainder

NF4_BLOCK = 64  # weights to one fp32 absmax; bitsandbytes' default for 4-bit
DOUBLE_QUANT_BLOCK = 256  # absmax values to one second-level fp32 absmax
OPTIMIZER_BLOCK = 256  # state values to one fp32 absmax in the 8-bit optimizers
FP32, HALF = 4, 2
LION = ("lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit")  # one moment
# bitsandbytes keeps states of 32 bits, whatever the weights are (``Optimizer1State.init_state``, optim/optimizer.py).
WIDE_STATES = ("lion_32bit", "paged_lion_32bit", "paged_adamw_32bit", "paged_adamw")
FUSED = (
    "adamw_torch_fused", "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "paged_adamw", *LION,
)  # fmt: skip
KNOWN_OPTIMIZERS = (*FUSED, "adamw_torch", "adamw_hf", "adafactor", "sgd", "none")


class States(NamedTuple):
    """Bytes on one GPU, and what offloading or paging puts in host memory. ``trainable`` counts parameters."""

    parameters: int
    adapters: int
    quantization: int
    gradients: int
    optimizer: int
    step_temporaries: int  # what the optimizer's step holds on top
    trainable: int
    cast_adapters: int  # adapter parameters that autocast copies: those of linear layers
    targets: tuple[LinearModule, ...]
    unmatched: tuple[str, ...]
    buckets: int = 0  # what gradients are reduced in between GPUs
    gathered: int = 0  # parameters made whole again, of those that GPUs share out
    gradient_share: float = 1.0  # of all gradients, those kept on this GPU
    on_host: int = 0
    saved: int = 0  # what a checkpoint of the model holds
    load_temporaries: int = 0  # what widening quantized models' other weights takes above what is there in the end

    @property
    def weights(self) -> int:
        return self.parameters + self.adapters + self.quantization


def states_of(setup: TrainingSetup, arch: Architecture) -> States:
    """The model states of a setup, from parameter counts.

    A trainable parameter has a gradient and two AdamW moments in its own type: 16 bytes in fp32, weights included.
    Adapters are fp32 (peft's ``autocast_adapter_dtype``); a module to save is copied and trained whole, in the type
    that it has by then. Trainers may cast both.
    """
    counts = count(arch)
    weight = FP32 if setup.weights == "fp32" else HALF
    narrow, wide = _trained_widths(setup, weight)
    targets, unmatched, whole = _targets(setup, arch)
    magnitudes = 1 if setup.use_dora else 0  # DoRA's vector, one for each output
    sizes = [
        (m, (setup.lora_r * (m.in_features + m.out_features) + magnitudes * m.out_features) * m.number) for m in targets
    ]
    adapters = sum(size for _, size in sizes)
    if setup.method == "full":
        trainable, width, largest = counts.total, weight, counts.embedding
    else:
        trainable, width = adapters + whole, narrow
        largest = max([whole, *(setup.lora_r * max(m.in_features, m.out_features) for m in targets)])
    parameters, quantization = _weights(setup, arch, counts, weight)
    rest = own_segments_remainder(arch, width) if setup.method == "full" else 0
    if setup.method == "full" and width == HALF and arch.family == "encoder":
        # small matrices in half share segments, as the weights do
        rest = weights_remainder(arch, width, packed=False)
    optimizer, paged, temporaries = _optimizer(setup, arch, trainable, width, largest)
    copied = narrow * adapters + wide * whole
    if whole and wide != narrow and setup.method != "full":
        alike = (_optimizer(setup, arch, number, each, largest) for number, each in ((adapters, narrow), (whole, wide)))
        optimizer, paged, temporaries = (sum(values) for values in zip(*alike, strict=True))
    states = States(
        parameters=parameters,
        adapters=copied,
        quantization=quantization,
        gradients=(width * trainable if setup.method == "full" else copied) + rest,
        optimizer=optimizer + (2 * rest if optimizer >= 2 * width * trainable > 0 else 0),
        step_temporaries=temporaries,
        trainable=trainable,
        cast_adapters=sum(size for module, size in sizes if module.kind == "linear") if narrow == FP32 else 0,
        targets=targets,
        unmatched=unmatched,
        on_host=paged,
        load_temporaries=_load_temporaries(setup, arch, counts, copied, whole),
        saved=_saved(setup, counts, targets, parameters, copied),
    )
    return shared_out(setup, states, arch)


def _trained_widths(setup: TrainingSetup, weight: int) -> tuple[int, int]:
    """Bytes of a number of the adapters, and of modules that are copied and trained whole."""
    if setup.trained_type != "peft":
        cast = FP32 if setup.trained_type == "fp32" else HALF
        return cast, cast
    quantized = setup.load_in_4bit or setup.load_in_8bit or setup.method == "qlora"
    prepared = quantized and setup.prepare_for_kbit and not setup.half_tables
    return FP32, FP32 if prepared else weight


def _saved(
    setup: TrainingSetup, counts: Counts, targets: tuple[LinearModule, ...], parameters: int, adapters: int
) -> int:
    """Bytes of a saved model: all of it, or the adapters, with the embeddings where these are among the targets."""
    if setup.method == "full":
        return parameters
    embeddings = any(module.kind == "embedding" for module in targets)
    return adapters + (FP32 * (counts.embedding + counts.head) if embeddings else 0)


def _targets(setup: TrainingSetup, arch: Architecture) -> tuple[tuple[LinearModule, ...], tuple[str, ...], int]:
    """The modules that LoRA wraps, the targets that match none, and the parameters of modules trained whole."""
    if setup.method == "full":
        return (), (), 0
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
        targets, unmatched = match_targets(arch, setup.lora_target_modules)
    except UnknownTargetsError:
        return (), setup.lora_target_modules or (), whole
    return targets, unmatched, whole


def _weights(setup: TrainingSetup, arch: Architecture, counts: Counts, weight: int) -> tuple[int, int]:
    """Bytes of the base weights, the remainders of their blocks with them, and of their quantization state.

    4-bit and 8-bit loading pack the blocks' linear layers but T5's ``wo``; peft's preparation widens the rest to fp32.
    """
    four, eight = setup.load_in_4bit or setup.method == "qlora", setup.load_in_8bit
    if not (four or eight):
        kept_wide = (FP32 - HALF) * counts.kept_wide if setup.weights == "fp16" else 0
        return weight * counts.total + kept_wide + weights_remainder(arch, weight, packed=False), 0
    prepared = setup.prepare_for_kbit and not setup.half_tables and setup.method != "full"
    rest = FP32 if weight == FP32 or prepared else HALF
    packed = counts.quantizable
    others = rest * (counts.total - packed) + weights_remainder(arch, rest, packed=True)
    if eight and not four:
        return packed + others, 0
    blocks = packed // NF4_BLOCK
    absmax = blocks + FP32 * blocks // DOUBLE_QUANT_BLOCK if setup.bnb_4bit_use_double_quant else FP32 * blocks
    return packed // 2 + others, absmax


def _load_temporaries(setup: TrainingSetup, arch: Architecture, counts: Counts, adapters: int, whole: int) -> int:
    """peft's preparation widens one weight after the other, from half to fp32: the table of tokens first, when the rest
    is half yet, an untied output layer last. The adapters come after that, and copies of modules to save; what is
    narrowed again is narrowed last."""
    if not (setup.load_in_4bit or setup.load_in_8bit or setup.method == "qlora"):
        return 0
    if setup.method == "full" or not setup.prepare_for_kbit:
        return 0
    wide = counts.total - counts.quantizable
    if setup.half_tables:
        return HALF * (wide + whole + max(counts.embedding, counts.head))
    first = HALF * (2 * counts.embedding - wide)
    return max(max(first, HALF * counts.head) - adapters, 0)


def _optimizer(
    setup: TrainingSetup, arch: Architecture, trainable: int, width: int, largest: int
) -> tuple[int, int, int]:
    """Bytes of the optimizer's states on the GPU and paged to the host, and of what its step holds on top.

    An unknown optimizer counts as AdamW in torch's default form.
    """
    name, counts = setup.optim, count(arch)
    moments = 1 if name in LION else 2
    if name in ("sgd", "none"):
        return 0, 0, 0
    if name == "adafactor":  # a row and a column of second moments for each matrix; its step works on one tensor
        copies = 4 if width == HALF else 2  # half weights and gradients are widened first
        return 2 * FP32 * trainable // min(arch.d_model, arch.d_ff), 0, copies * FP32 * largest
    if "8bit" in name:
        wide = counts.embedding + counts.positions if setup.method == "full" else 0  # Trainer keeps these in 32 bits
        narrow = trainable - wide
        states = moments * (FP32 * wide + narrow + FP32 * narrow // OPTIMIZER_BLOCK)
    else:
        states = moments * (FP32 if name in WIDE_STATES else width) * trainable
    if name.startswith("paged"):
        return 0, states, 0
    if name in FUSED:
        return states, 0, 0
    if name == "adamw_hf":  # a loop over the tensors: square root and quotient of one
        return states, 0, 2 * width * largest
    return states, 0, width * trainable  # foreach: the square roots of all of them
