"""A training step's time, as a band: operations and bytes at the GPU's claimed rates, times what runs took over that.

A roofline of two slopes: matrix products at the tensor cores' rate, and what is kept for backward, the weights and the
optimizer's states at the memory's. Runs take several times their sum (kernels that read and write more than they must,
launches, loading); the band is what was measured. Communication between GPUs is not in it.
"""

from collections.abc import Mapping
from typing import Literal

from kb.core.hardware import Gpu
from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory import engine
from kb.memory.engine.faults import NotFollowedError
from kb.memory.parameters import count
from kb.memory.states import FP32, HALF, States, as_run, share_of, states_of

PRODUCT = 2  # operations of one multiplication and addition
ADAMW_PASSES = 7  # weights, gradients and two moments read; weights and moments written
DEQUANTIZED_BYTES = 4.5  # of a 4-bit weight, each time it is used: read packed, written in half, read again


class Work(NamedTuple):
    """What one optimizer step asks of one GPU."""

    operations: float
    bytes: float
    layers: int  # passed, all micro-steps counted


class Throughput(NamedTuple):
    """One optimizer step and what it makes of the effective batch. ``bound`` is the longer side of the roofline.

    The rates are claimed and the factors over them measured on ``measured_on`` alone; the result is computed.
    """

    step_seconds_low: float
    step_seconds_high: float
    samples_per_second_low: float
    samples_per_second_high: float
    roofline_seconds: float
    operations: float
    bytes: float
    bound: Literal["compute", "memory"]
    measured_on: str = "t4"
    status: Literal["computed"] = "computed"


def throughput_of(
    setup: TrainingSetup, architecture: Architecture, gpu: Gpu | None, constants: Mapping[str, float]
) -> Throughput | None:
    """The band of a training step's time on one GPU of a run.

    None where it is not known: no training, no rates, no rate for the arithmetic (fp32 products do not run at the
    tensor cores' 16-bit rate, and bf16 is emulated before compute capability 8.0), or a model whose forward pass the
    memory engine does not follow.

    Raises:
        KeyError: a constant is missing.
    """
    if not setup.do_train or gpu is None or not gpu.tensor_flops or not gpu.memory_bandwidth:
        return None
    if not _on_tensor_cores(setup, gpu):
        return None
    try:
        work = work_of(setup, architecture)
    except NotFollowedError:
        return None
    compute, memory = work.operations / gpu.tensor_flops, work.bytes / gpu.memory_bandwidth
    roofline = compute + memory
    low = roofline * constants["step_over_roofline_low"]
    eager = "_eager" if setup.attn_implementation == "eager" else ""
    high = max(roofline * constants[f"step_over_roofline_high{eager}"], work.layers * constants["step_layer_seconds"])
    samples = setup.effective_batch_size
    return Throughput(
        step_seconds_low=low,
        step_seconds_high=high,
        samples_per_second_low=samples / high,
        samples_per_second_high=samples / low,
        roofline_seconds=roofline,
        operations=work.operations,
        bytes=work.bytes,
        bound="compute" if compute >= memory else "memory",
    )


def _on_tensor_cores(setup: TrainingSetup, gpu: Gpu) -> bool:
    half = setup.autocast or setup.weights != "fp32"
    bf16 = setup.bf16 or (setup.weights == "bf16" and not setup.fp16)
    return half and (gpu.native_bf16 or not bf16)


class _Pass(NamedTuple):
    """One micro-step's tokens."""

    arch: Architecture
    batch: int
    source: int  # tokens of a sample
    target: int

    @property
    def inner(self) -> int:
        return self.arch.num_heads * self.arch.d_kv

    @property
    def source_tokens(self) -> int:
        return self.batch * self.source

    @property
    def target_tokens(self) -> int:
        return self.batch * self.target


def work_of(setup: TrainingSetup, architecture: Architecture) -> Work:
    """Operations and bytes of one optimizer step on one GPU, and the layers it passes.

    Raises:
        NotFollowedError: the memory engine does not follow the model's forward pass.
    """
    run = as_run(setup)
    states = states_of(run, architecture)
    source, target = max(run.max_source_length, 1), max(run.max_target_length, 1)
    if architecture.family in ("decoder", "encoder"):
        target = source
    one = _Pass(architecture, max(run.per_device_train_batch_size, 1), source, target)
    steps = max(run.gradient_accumulation_steps, 1)
    split = max(run.spread.tensor_parallel, 1)
    operations, moved = _operations(run, states, one) / split, _moved(run, one) / split
    width = FP32 if run.method != "full" or run.weights == "fp32" or run.zero_stage else HALF
    trainable = share_of(run, states, architecture).trainable
    shards = run.data_parallel_size if run.fsdp or run.zero_stage else 1
    update = 0 if run.offload_optimizer else ADAMW_PASSES * width * trainable / shards
    layers = architecture.encoder_layers + architecture.decoder_layers
    return Work(operations=steps * operations, bytes=steps * moved + update, layers=steps * layers)


def _operations(setup: TrainingSetup, states: States, one: _Pass) -> float:
    """Of one micro-step's matrix products: forward, twice as much backward (once for frozen weights), and the blocks
    once more where checkpointing makes them again."""
    blocks, head = _forward(one)
    again = 1 if setup.gradient_checkpointing else 0
    backward = 1 if setup.method != "full" else 2
    scores = _scores(one)
    total = (1 + backward + again) * blocks + (1 + backward) * head + (3 + again) * scores
    adapters = sum(
        setup.lora_r
        * (module.in_features + module.out_features)
        * module.number
        * (one.source_tokens if module.stack == "encoder" else one.target_tokens)
        for module in states.targets
        if module.kind == "linear"
    )
    return total + PRODUCT * (3 + again) * adapters


def _forward(one: _Pass) -> tuple[float, float]:
    """The blocks' linear layers, and the output layer. Cross-attention's keys and values read source tokens."""
    arch, counts = one.arch, count(one.arch)
    experts = counts.experts * arch.experts_per_token / arch.experts if arch.experts else 0
    cross = 2 * arch.d_model * one.inner * arch.decoder_layers if arch.family in ("t5", "bart") else 0
    linear = counts.encoder_linear * one.source_tokens + (counts.decoder_linear - cross + experts) * one.target_tokens
    output = arch.vocab_size * arch.d_model * one.target_tokens
    if arch.family == "encoder":
        linear *= arch.encoder_layers if arch.shared_layers else 1  # ALBERT runs its one layer many times
        output = arch.vocab_size * (arch.embedding_size or arch.d_model) * one.source_tokens * (arch.head == "masked")
    return PRODUCT * (linear + cross * one.source_tokens), PRODUCT * output


def _scores(one: _Pass) -> float:
    """Queries by keys and probabilities by values, in every attention."""
    arch = one.arch
    encoder = arch.encoder_layers * one.source**2
    decoder = arch.decoder_layers * one.target**2
    if arch.family in ("t5", "bart"):
        decoder += arch.decoder_layers * one.target * one.source
    return 2.0 * PRODUCT * one.batch * one.inner * (encoder + decoder)


def _moved(setup: TrainingSetup, one: _Pass) -> float:
    """Bytes of one micro-step that cannot be spared: what is kept is written and read (twice where it is made again),
    logits go both ways twice, and each pass reads the weights."""
    kept = engine.kept_of(setup, one.arch)
    again = 2 if setup.gradient_checkpointing else 1
    width: float = FP32 if setup.weights == "fp32" and not setup.autocast else HALF
    if setup.packs:
        width = DEQUANTIZED_BYTES
    return one.batch * (2 * again * kept.layers + 4 * kept.loss) + 3 * width * count(one.arch).block_linear
