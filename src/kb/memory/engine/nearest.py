"""A run that the engine does not follow → the nearest one that it follows, and what that takes for granted.

Each row of the table answers one refusal of :func:`~kb.memory.engine.report.why_not`, by its name: with another setting
(``assumed`` says which), or by following the run though nothing was compared with the real code there. What DeepSpeed,
PEFT and torch do is said where the engine follows it; here is why one run stands for another.

Tensor parallelism leaves fewer heads and a narrower feed-forward on one GPU. transformers splits q, k, v and the
feed-forward's first layers by columns, their last ones by rows (``base_model_tp_plan`` of configuration_llama.py and
its kin, 5.23.0); embeddings and norms are whole on every GPU. Sums between GPUs are made in place, of an activation
that is there already.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import Assumption, TrainingSetup
from kb.memory.engine.deepspeed import REDUCE_BUCKET
from kb.memory.engine.families.decoder_experts import STEP, TYPES, WRAPPED
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.optimizers import KNOWN
from kb.memory.engine.report import why_not
from kb.memory.parameters import UnknownTargetsError, adapter_parameters, count, targets_for

MOST_STEPS = 24  # refusals one behind the other; more would be a circle
APART = ("t5", "decoder")  # families whose heads are as wide as d_kv says, however many there are


class Run(NamedTuple):
    """What a row changes."""

    setup: TrainingSetup
    architecture: Architecture


class Nearest(NamedTuple):
    """A run that the engine follows, and what was put in the place of what."""

    setup: TrainingSetup
    architecture: Architecture
    assumed: tuple[Assumption, ...]


class Row(NamedTuple):
    """``what`` is refused, by its name: other names are parted by ``|``, and ``*`` is any text. ``put`` makes another
    run of it, None where there is none.

    ``named`` is the fact that an assumption is about; ``value`` reads it off the new run.
    """

    what: str
    put: Callable[[Run, str], Run | None]
    named: str
    value: Callable[[Run], Any]
    reason: str  # a key of i18n under `assumption.`
    of_all: bool = False  # also of a trainer's own loss, and of types that the engine alone knows


def nearest(setup: TrainingSetup, architecture: Architecture) -> Nearest:
    """The nearest run that :func:`why_not` passes: the run itself, where it does. Where a trainer brings its own loss
    or the engine alone knows the type, only a row ``of_all`` stands for what it refuses.

    Raises:
        NotFollowedError: by the name of what has no nearest run.
    """
    run, assumed = Run(setup, architecture), list[Assumption]()
    for _ in range(MOST_STEPS):
        what = why_not(run.setup, run.architecture)
        if what is None:
            return Nearest(run.setup, run.architecture, tuple(assumed))
        known = setup.post is None and not architecture.engine
        row = next((row for row in ROWS if (known or row.of_all) and is_like(what, row.what)), None)
        found = None if row is None else row.put(run, what)
        if row is None or found is None or found == run:
            break
        run, uncompared = found, found.setup.uncompared != run.setup.uncompared
        value = row.value(run)
        reason = "uncompared" if uncompared else row.reason
        made = Assumption(row.named, list(value) if isinstance(value, tuple) else value, reason)
        assumed += [made] if made not in assumed else []
    raise NotFollowedError(what or "")


def not_near(setup: TrainingSetup, architecture: Architecture) -> str | None:
    """By its name, what nothing stands for; None where there is a nearest run."""
    try:
        nearest(setup, architecture)
    except NotFollowedError as error:
        return error.what
    return None


def _followed(run: Run, what: str) -> Run:
    """As it is, though nothing was compared."""
    return run._replace(setup=run.setup._replace(uncompared=(*run.setup.uncompared, what)))


def _set(**fields: Any) -> Callable[[Run, str], Run]:
    """Settings of the run."""
    return lambda run, _: run._replace(setup=run.setup._replace(**fields))


def _spread(**fields: Any) -> Callable[[Run, str], Run]:
    """How it is spread over GPUs."""
    return lambda run, _: run._replace(setup=run.setup._replace(spread=run.setup.spread._replace(**fields)))


def _of(name: str) -> Callable[[Run], Any]:
    """A setting of the new run."""
    return lambda run: getattr(run.setup, name)


def _of_spread(name: str) -> Callable[[Run], Any]:
    return lambda run: getattr(run.setup.spread, name)


def _fused_of_shards(run: Run, what: str) -> Run:
    """The output layer's weight is whole while the kernel reads it: of ZeRO-3 as a parameter that another module reads
    (``register_external_parameter``), of FSDP in its unit. One that trains beside adapters lies in no unit that has
    run, and its loss is counted with whole logits."""
    setup = run.setup
    if setup.fsdp and setup.method != "full" and setup.modules_to_save:
        return _set(fused_loss=False, liger_kernels=None)(run, what)
    return _followed(run, what)


def _in_bf16(run: Run, _: str) -> Run:
    """As wide, and without a loss scaler, which keeps numbers (runtime/fp16/loss_scaler.py of DeepSpeed 0.19.8)."""
    setup = run.setup
    weights = "bf16" if setup.weights == "fp16" else setup.weights
    return run._replace(setup=setup._replace(fp16=False, bf16=setup.bf16 or setup.fp16, weights=weights))


def _known_optimizer(run: Run, what: str) -> Run:
    """AdamW where the optimizer is unknown; FSDP's steps over shards, where only those were not compared."""
    return _followed(run, what) if run.setup.optim in KNOWN else _set(optim="adamw_torch")(run, what)


def _dora(run: Run, what: str) -> Run:
    """4 bits are followed, and FSDP2; where hooks lie around each of LoRA's matrices, DoRA asks these past them. PEFT
    0.21 says itself that it does not copy weights of 8 bits (``update_layer``, tuners/lora/dora.py)."""
    setup = run.setup
    sharded = setup.zero_stage == 3 or (setup.fsdp and (setup.spread.fsdp_version == 1 or setup.packs))
    eight = setup.load_in_8bit and not setup.load_in_4bit
    if sharded or eight or (setup.fsdp and run.architecture.family != "decoder"):
        return _set(use_dora=False)(run, what)
    return _followed(run, what)


def _one_type(run: Run, what: str) -> Run:
    """Packed weights in the type that is computed in, and beside them nothing wider: what FSDP can flatten."""
    setup = run.setup
    half = "fp16" if setup.fp16 else "bf16" if setup.bf16 else "fp16" if setup.weights == "fp16" else "bf16"
    prepare = setup.prepare_for_kbit and setup.spread.fsdp_version > 1
    return _set(bnb_4bit_quant_storage=half, weights=half, prepare_for_kbit=prepare)(run, what)


def _packed_by_zero(run: Run, what: str) -> Run:
    """Beside adapters packed weights are followed. Alone they cannot train (transformers/trainer.py refuses): whole."""
    if run.setup.do_train and run.setup.method == "full":
        run = _set(zero_stage=0)(run, what)
        return _spread(deepspeed=False)(run, what)
    return _followed(run, what)


def _family_of_fsdp(run: Run, what: str) -> Run:
    """FSDP2 of a family whose units are not known is FSDP1 of the same layers; that is followed for all."""
    return _spread(fsdp_version=1)(run, what) if run.setup.spread.fsdp_version > 1 else _followed(run, what)


def _contiguous(run: Run, _: str) -> Run:
    """Gradients are joined when the bucket is full (``buffered_reduce_fallback``, stage_1_and_2.py): no more than all
    of them at once, where a contiguous bucket is taken whole."""
    setup, spread = run.setup, run.setup.spread
    trained = count(run.architecture).total
    if setup.method != "full" and not setup.modules_to_save:
        with suppress(UnknownTargetsError):
            trained = adapter_parameters(run.architecture, setup.lora_target_modules, setup.lora_r)
    bucket = min(REDUCE_BUCKET if spread.reduce_bucket is None else spread.reduce_bucket, max(trained, 1))
    return run._replace(setup=setup._replace(spread=spread._replace(contiguous_gradients=True, reduce_bucket=bucket)))


def one_share(architecture: Architecture, size: int) -> Architecture:
    """The architecture whose parameters and activations are those of one of ``size`` GPUs.

    What does not divide evenly is rounded up. The output layer is counted whole. Heads of BART and of encoders are as
    wide as the model's width has it, and stay: their feed-forwards alone are split.
    """
    a = architecture
    narrower = a._replace(d_ff=_part(a.d_ff, size), shared_ff=_part(a.shared_ff, size))
    if a.expert_ff:
        narrower = narrower._replace(expert_ff=_part(_part(a.expert_ff, size), STEP) * STEP)
    if a.family not in APART:
        return narrower
    keys = max(_part(a.kv_heads or a.num_heads, size), 1)
    queries = _part(_part(a.num_heads, size), keys) * keys  # as many for each key
    return narrower._replace(num_heads=queries, kv_heads=None if a.kv_heads is None else keys)


def _part(amount: int, size: int) -> int:
    return -(-amount // size)


def _split(run: Run, _: str) -> Run:
    """One GPU's share of the tensors; the others of its group see the same samples."""

    setup, size = run.setup, run.setup.spread.tensor_parallel
    spread = setup.spread._replace(tensor_parallel=1)
    fewer = setup._replace(spread=spread, world_size=max(setup.world_size // size, 1))
    return Run(fewer, one_share(run.architecture, size))


def _without_table(run: Run, what: str) -> Run | None:
    """A table that trains whole is followed. Adapters of a table are counted by a higher rank of the others."""
    name, targets = what.removeprefix("LoRA on "), run.setup.lora_target_modules
    if isinstance(targets, str) or name not in (targets or ()):
        return _followed(run, what)
    return _with(run, tuple(target for target in targets or () if target != name))


def _without_experts(run: Run, _: str) -> Run | None:
    """Attention's projections for all linear layers, and of a list what no expert holds."""
    targets = run.setup.lora_target_modules
    kept: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    if isinstance(targets, tuple) and "all-linear" not in targets:
        kept = tuple(name for name in targets if not _of_experts(name)) or kept
    return _with(run, kept)


def _with(run: Run, targets: tuple[str, ...]) -> Run | None:
    """The run with other targets, and as many parameters of adapters: a rank that is so much higher."""
    setup, architecture = run.setup, run.architecture
    try:
        left = adapter_parameters(architecture, targets or None, 1)
        asked = adapter_parameters(architecture, setup.lora_target_modules, 1)
    except UnknownTargetsError:
        return None
    if architecture.experts and _names_experts(architecture, setup.lora_target_modules):
        layers = architecture.decoder_layers - architecture.dense_layers
        asked += layers * architecture.experts * (2 * architecture.d_model + 3 * architecture.expert_ff)
    rank = -(-setup.lora_r * max(asked, left) // left) if left else setup.lora_r
    return run._replace(setup=setup._replace(lora_target_modules=targets or None, lora_r=rank))


def _names_experts(architecture: Architecture, targets: tuple[str, ...] | str | None) -> bool:
    """Whether a list names projections of experts; all linear layers have none (their weights are no layers)."""
    return architecture.model_type in TYPES and isinstance(targets, tuple) and any(map(_of_experts, targets))


def _of_experts(name: str) -> bool:
    return name.rpartition(".")[2] in WRAPPED


def _some_targets(run: Run, what: str) -> Run:
    """PEFT refuses: what it adapts of types that it knows, else all linear layers."""
    return _set(lora_target_modules=targets_for(run.architecture))(run, what)


def _architecture(**fields: Any) -> Callable[[Run, str], Run]:
    return lambda run, _: run._replace(architecture=run.architecture._replace(**fields))


def _rounded_experts(run: Run, what: str) -> Run | None:
    """``grouped_mm`` takes rows of whole 16 bytes: as many as that needs."""
    wide = -(-run.architecture.expert_ff // STEP) * STEP
    return _architecture(expert_ff=wide)(run, what)


def is_like(name: str, names: str) -> bool:
    """Whether a name is one of ``names``, which are parted by ``|``; ``*`` is any text."""
    return any(_fits(name, each.split("*")) for each in names.split("|"))


def _fits(name: str, parts: list[str]) -> bool:
    first, *rest = parts
    if not rest:
        return name == first
    if not (name.startswith(first) and name.endswith(rest[-1])):
        return False
    at = len(first)
    for part in rest[:-1]:
        found = name.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return at + len(rest[-1]) <= len(name)


ROWS = (
    Row("FSDP with use_liger_kernel|ZeRO-3 with use_liger_kernel", _fused_of_shards, "training.fused_loss",
        _of("fused_loss"), "whole_logits"),
    Row("optim *|FSDP with optim *", _known_optimizer, "training.optim", _of("optim"), "optimizer_as_adamw"),
    Row("*with use_dora|use_dora of *", _dora, "lora.use_dora", _of("use_dora"), "dora_norms"),
    Row("FSDP1 in fp16|ZeRO in fp16|DeepSpeed in fp16", _in_bf16, "training.bf16", lambda run: True, "fp16_as_bf16"),
    # FSDP
    Row("FSDP on one GPU", _set(fsdp=False), "parallel.fsdp", _of("fsdp"), "no_shards_of_one"),
    Row("FSDP of 8 bits|FSDP of 4 bits without adapters", _set(fsdp=False), "parallel.fsdp", _of("fsdp"),
        "packed_whole"),
    Row("FSDP* of 4 bits *", _one_type, "quantization.bnb_4bit_quant_storage", _of("bnb_4bit_quant_storage"),
        "packed_as_computed"),
    Row("FSDP1 without reshard_after_forward", _followed, "parallel.fsdp", _of("fsdp"), "uncompared"),
    Row("FSDP with modules_to_save|FSDP with predict_with_generate", _followed, "parallel.fsdp", _of("fsdp"),
        "uncompared"),
    Row("FSDP of *", _family_of_fsdp, "parallel.fsdp_version", _of_spread("fsdp_version"), "fsdp2_as_fsdp1"),
    # DeepSpeed
    Row("ZeRO with offload_param", _set(offload_param=False), "parallel.offload_param", _of("offload_param"),
        "only_zero3"),
    Row("ZeRO without contiguous_gradients", _contiguous, "parallel.reduce_bucket_size",
        _of_spread("reduce_bucket"), "bucket_of_gradients"),
    Row("ZeRO-3 on NVMe", _spread(optimizer_on_disk=False, params_on_disk=False), "parallel.offload_device",
        lambda run: "cpu", "nvme_as_host"),
    Row("ZeRO of 4 bits|ZeRO of 8 bits", _packed_by_zero, "parallel.zero_stage", _of("zero_stage"), "packed_whole"),
    Row("ZeRO of *|ZeRO on *|ZeRO with *|ZeRO without *", _followed, "parallel.zero_stage", _of("zero_stage"),
        "uncompared"),
    Row("ZeRO-3 of *|ZeRO-3 on *|ZeRO-3 with *|ZeRO-3 without *", _followed, "parallel.zero_stage", _of("zero_stage"),
        "uncompared"),
    Row("tensor_parallel", _split, "parallel.tensor_parallel", _of_spread("tensor_parallel"), "tensors_split"),
    # what is adapted
    Row("lora_target_modules", _some_targets, "lora.target_modules", _of("lora_target_modules"), "no_default_targets",
        of_all=True),
    Row("LoRA on experts of *", _without_experts, "lora.r", _of("lora_r"), "adapters_by_rank"),
    Row("LoRA on *", _without_table, "lora.r", _of("lora_r"), "adapters_by_rank"),
    # how the model computes
    Row("flash_attention_2", _set(attn_implementation="sdpa"), "training.attn_implementation",
        _of("attn_implementation"), "no_flash_of_the_type"),
    Row("Unsloth's layers of *", _set(unsloth=False), "model.loader", lambda run: "transformers", "unsloth_layers",
        of_all=True),
    Row("offloaded checkpoints of *", _set(offloads_checkpoints=False), "training.offloaded_checkpoints",
        _of("offloads_checkpoints"), "checkpoints_on_gpu"),
    Row("use_reentrant of *", _set(use_reentrant=False), "training.use_reentrant", _of("use_reentrant"),
        "reentrant_as_not"),
    Row("gradient_checkpointing of *", _set(gradient_checkpointing=False), "training.gradient_checkpointing",
        _of("gradient_checkpointing"), "no_checkpointing_of_the_type"),
    Row("output_router_logits of *", _architecture(router_loss=False), "model.output_router_logits",
        lambda run: run.architecture.router_loss, "router_loss_left_out"),
    Row("experts of *", _rounded_experts, "model.moe_intermediate_size", lambda run: run.architecture.expert_ff,
        "experts_rounded"),
    Row("* new tokens", _followed, "generation.max_new_tokens",
        lambda run: max(run.setup.generation_max_length, run.setup.inference_max_length), "uncompared"),
    Row("exaone", _followed, "model.model_type", lambda run: run.architecture.model_type, "uncompared"),
)  # fmt: skip
