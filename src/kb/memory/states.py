"""Bytes that stay from step to step: parameters, adapters, quantization state, gradients, optimizer states."""

from dataclasses import dataclass

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.counts import Counts, count
from kb.memory.linear import LinearModule, UnknownTargetsError, match_targets
from kb.memory.remainders import weights_remainder

NF4_BLOCK = 64  # weights to one fp32 absmax; bitsandbytes' default for 4-bit
DOUBLE_QUANT_BLOCK = 256  # absmax values to one second-level fp32 absmax
OPTIMIZER_BLOCK = 256  # state values to one fp32 absmax in the 8-bit optimizers
FP32, HALF = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes on one GPU. ``trainable`` counts parameters; ``largest_trainable`` that of the largest tensor."""

    parameters: int
    adapters: int
    quantization: int
    gradients: int
    optimizer: int
    buckets: int  # data-parallel copies of the gradients
    step_temporaries: int  # what the optimizer's step holds on top
    trainable: int
    rank: int = 0
    targets: tuple[LinearModule, ...] = ()
    unmatched: tuple[str, ...] = ()

    @property
    def cast_adapters(self) -> int:
        """Adapter parameters that autocast copies: those of linear layers, not of embeddings."""
        embeddings = sum((m.in_features + m.out_features) * m.count for m in self.targets if m.kind == "embedding")
        return self.trainable - self.rank * embeddings if self.targets else 0

    @property
    def weights(self) -> int:
        return self.parameters + self.adapters + self.quantization

    @property
    def resident(self) -> int:
        """Between steps of training: weights and optimizer states; gradients are set to None."""
        return self.weights + self.optimizer


def states_of(setup: TrainingSetup, arch: Architecture) -> States:
    """The model states of a setup, from parameter counts (04-memory, "Closed forms").

    A trainable parameter has a gradient and two AdamW moments in its own type: 16 bytes in fp32, weights included.
    """
    counts = count(arch)
    weight = FP32 if setup.weights == "fp32" else HALF
    targets: tuple[LinearModule, ...] = ()
    unmatched: tuple[str, ...] = ()
    adapters = 0
    if setup.method != "full":
        try:
            targets, unmatched = match_targets(arch, setup.lora_target_modules)
        except UnknownTargetsError:
            targets, unmatched = (), setup.lora_target_modules or ()
        adapters = sum(setup.lora_r * (m.in_features + m.out_features) * m.count for m in targets)
    parameters, quantization = _weights(setup, counts, weight)
    packed = setup.load_in_4bit or setup.method == "qlora"
    remainders = weights_remainder(arch, FP32 if packed and setup.prepare_for_kbit else weight, packed)
    if setup.method == "full":
        trainable, width, largest = counts.total, weight, counts.embedding
    else:
        trainable, width = adapters, FP32
        largest = max((setup.lora_r * max(m.in_features, m.out_features) for m in targets), default=0)
    gradients = width * trainable
    optimizer, temporaries = _optimizer(setup.optim, trainable, width, largest, counts, setup.method == "full", arch)
    return _shared_out(
        setup,
        States(
            parameters=parameters + remainders,
            adapters=FP32 * adapters,
            quantization=quantization,
            gradients=gradients,
            optimizer=optimizer,
            buckets=0,
            step_temporaries=temporaries,
            trainable=trainable,
            rank=setup.lora_r,
            targets=targets,
            unmatched=unmatched,
        ),
    )


def _weights(setup: TrainingSetup, counts: Counts, weight: int) -> tuple[int, int]:
    """Bytes of the base weights and of their quantization state."""
    if setup.load_in_8bit:
        rest = FP32 if setup.prepare_for_kbit and setup.method != "full" else HALF
        return counts.quantizable + rest * (counts.total - counts.quantizable), 0
    if not (setup.load_in_4bit or setup.method == "qlora"):
        return weight * counts.total, 0
    rest = FP32 if setup.prepare_for_kbit or weight == FP32 else HALF
    packed = counts.quantizable
    blocks = packed // NF4_BLOCK
    absmax = blocks + FP32 * blocks // DOUBLE_QUANT_BLOCK if setup.bnb_4bit_use_double_quant else FP32 * blocks
    return packed // 2 + rest * (counts.total - packed), absmax


def _optimizer(
    name: str, trainable: int, width: int, largest: int, counts: Counts, full: bool, arch: Architecture
) -> tuple[int, int]:
    """Bytes of the optimizer's states, and of what its step holds on top of everything."""
    if "8bit" in name:
        wide = counts.embedding + counts.positions if full else 0  # Trainer keeps embeddings' states in 32 bits
        states = 8 * wide + 2 * (trainable - wide) + 2 * FP32 * (trainable - wide) // OPTIMIZER_BLOCK
        return (0 if "paged" in name else states), 0
    if name == "adafactor":
        return FP32 * trainable // max(min(arch.d_model, arch.d_ff), 1) * 2, 4 * FP32 * largest
    if name in ("sgd", "none"):
        return 0, 0
    states = 0 if "paged" in name else 2 * width * trainable
    if name == "adamw_torch_fused" or "paged" in name or "bnb" in name:
        return states, 0
    if name == "adamw_hf":  # a loop over the tensors: square root and quotient of one
        return states, 2 * width * largest
    # foreach: one list of square roots as long as the parameters
    return states, width * trainable


def _shared_out(setup: TrainingSetup, states: States) -> States:
    """Data parallelism: plain division by the world size for what a stage shards (assumed even)."""
    world = max(setup.world_size, 1)
    stage = 3 if setup.fsdp else setup.zero_stage
    if world == 1 and not (setup.offload_optimizer or setup.offload_param):
        return states
    over = (world if stage >= 1 else 1, world if stage >= 2 else 1, world if stage >= 3 else 1)
    return States(
        parameters=0 if setup.offload_param else states.parameters // over[2],
        adapters=states.adapters // over[2],
        quantization=states.quantization // over[2],
        gradients=states.gradients // over[1],
        optimizer=0 if setup.offload_optimizer else states.optimizer // over[0],
        buckets=states.gradients if world > 1 and stage == 0 else 0,
        step_temporaries=0 if setup.offload_optimizer else states.step_temporaries // over[0],
        trainable=states.trainable,
        rank=states.rank,
        targets=states.targets,
        unmatched=states.unmatched,
    )
