"""How a model is built and run: what of a setup the engine's modules ask for."""

import re
from collections.abc import Callable

from kb.core.model import OF_UNSLOTH
from kb.core.record import NamedTuple
from kb.core.setup import NEWEST_LIGER, EarlierRelease, Images, PackedOn, PostTraining, TrainingSetup
from kb.memory.engine.faults import refuse
from kb.memory.engine.tensor import BF16, F16, F32, I8

# How transformers names its tables of words and positions.
TABLES = (
    "embed_tokens", "embed_in", "wte", "wpe", "shared", "embed_positions", "word_embeddings", "position_embeddings",
    "token_type_embeddings", "tok_embeddings", "word_embedding", "rel_embeddings", "relative_attention_bias",
)  # fmt: skip
OF_FSDP = ("adamw_torch_fused", "adamw_torch", "adamw_hf", "sgd", "none")  # optimizers whose steps on shards are known
TYPES = {"fp32": F32, "fp16": F16, "bf16": BF16}


class Adapters(NamedTuple):
    """LoRA: ``wraps`` says of a path whether its module is a target, ``whole`` whether it is trained itself."""

    wraps: Callable[[str], bool]
    whole: Callable[[str], bool]
    rank: int
    dropout: float
    dtype: str | None = None  # what a trainer casts them to after PEFT
    dora: bool = False
    tokens: int = 0  # rows of the words' table that train by themselves


class Quantization(NamedTuple):
    """bitsandbytes' 4 bits, or 8 where ``eight``. ``compute`` is the 16-bit type of loading, and in 4 bits of products;
    ``prepare`` widens what is not packed, of which ``half_tables`` narrows embeddings and output layer again;
    ``storage`` is the type that packed weights are seen in, ``packed_on`` where they wait for FSDP."""

    compute: str
    double: bool
    prepare: bool
    half_tables: bool = False
    eight: bool = False
    storage: str = I8
    packed_on: PackedOn = "gpu"


class Fused(NamedTuple):
    """A loss without whole logits, as Liger computes it: by which release, and whether evaluation goes without too."""

    release: tuple[int, ...]
    evaluates: bool
    named: bool = False  # it is Liger's, which some types of models have none of
    layers: bool = False  # the layers are Liger's too


class Options(NamedTuple):
    """``dtype`` is that of the weights as loaded; ``autocast`` that of products, where the Trainer's autocast is on."""

    dtype: str = F32
    autocast: str | None = None
    widened: bool = True  # outputs are made fp32 after autocast
    checkpointing: bool = False
    reentrant: bool = False
    eager: bool = False
    flash: bool = False
    padded: bool = True
    adapters: Adapters | None = None
    quantization: Quantization | None = None
    images: Images | None = None
    frozen: tuple[str, ...] = ()  # parts of a path: nothing there trains, nor gets an adapter
    checkpoints_trained: bool = False  # as LLaMA-Factory: of layers, those that have something to train
    frozen_dtype: str | None = None  # of that, where it is not ``dtype``
    fused: Fused | None = None
    unsloth: bool = False  # its kernels run in the place of transformers' and PEFT's
    offloads: bool = False  # what goes into checkpointed layers waits on the host
    earlier: EarlierRelease = EarlierRelease()


def options_of(setup: TrainingSetup, defaults: tuple[str, ...] | str | None) -> Options:
    """The options of a setup; ``defaults`` are PEFT's target modules for the model's type, where it has any.

    Raises:
        NotFollowedError: something that the engine does not follow.
    """
    _check(setup)
    adapters = quantization = None
    dtype = TYPES[setup.weights]
    autocast = F16 if setup.fp16 else BF16 if setup.bf16 else None
    trained_type, by_deepspeed = TYPES.get(setup.trained_type), bool(setup.zero_stage or unshared(setup))
    narrowed = by_deepspeed and autocast is not None
    if (setup.fsdp or by_deepspeed) and autocast:  # weights are cast; there is no autocast (accelerate)
        if not (setup.packs and setup.fsdp):
            dtype = trained_type = autocast
        if not setup.fsdp or setup.spread.fsdp_version > 1:  # FSDP1's weights are cast and autocast is on
            autocast = None
    if setup.packs:
        if dtype == F32:
            dtype = F16 if setup.fp16 else BF16
        quantization = _quantization(setup, dtype, prepares=not narrowed)  # DeepSpeed casts all of it back
    if setup.method != "full":
        targets = setup.lora_target_modules or defaults or ()  # PEFT itself refuses where neither says any
        adapters = Adapters(
            _outside(setup.frozen, _matcher(targets)),
            _matcher(setup.modules_to_save or ()),
            setup.lora_r,
            setup.lora_dropout,
            trained_type,
            setup.use_dora,
            setup.trained_tokens,
        )
    return Options(
        dtype=dtype,
        autocast=autocast,
        widened=setup.outputs_widened,
        checkpointing=setup.gradient_checkpointing,
        reentrant=setup.use_reentrant,
        eager=setup.attn_implementation == "eager",
        flash=setup.attn_implementation == "flash",
        # of packed sequences there is no mask, nor where Unsloth trains
        padded=setup.padded and setup.attn_implementation != "flash" and not (setup.unsloth and setup.do_train),
        adapters=adapters,
        quantization=quantization,
        images=setup.images,
        frozen=setup.frozen,
        checkpoints_trained=setup.checkpoints_trained,
        frozen_dtype=None if setup.fsdp or by_deepspeed else TYPES.get(setup.frozen_weights or ""),
        fused=_fused(setup),
        unsloth=setup.unsloth and setup.do_train,
        offloads=setup.gradient_checkpointing and setup.offloads_checkpoints,
        earlier=setup.earlier._replace(checkpoints_units=_checkpoints_units(setup)),
    )


def _quantization(setup: TrainingSetup, dtype: str, *, prepares: bool) -> Quantization:
    return Quantization(
        dtype,
        setup.bnb_4bit_use_double_quant,
        prepares and setup.prepare_for_kbit and setup.method != "full",
        setup.half_tables,
        setup.load_in_8bit and not setup.load_in_4bit,
        TYPES.get(setup.bnb_4bit_quant_storage, I8),
        setup.spread.packed_on if setup.fsdp else "gpu",
    )


def _checkpoints_units(setup: TrainingSetup) -> bool:
    """Whether FSDP1's units of layers run inside their checkpoints, and it matters: a checkpoint that is not reentrant
    runs nothing of FSDP a second time."""
    first = setup.fsdp and setup.spread.fsdp_version == 1
    return first and setup.earlier.checkpoints_units and setup.gradient_checkpointing and setup.use_reentrant


def unshared(setup: TrainingSetup) -> bool:
    """Whether DeepSpeed runs on several GPUs without ZeRO, so that each has all states."""
    return setup.spread.deepspeed and not setup.zero_stage and setup.world_size > 1


def _fused(setup: TrainingSetup) -> Fused | None:
    """How the loss is computed in pieces, where it is: a kernel that nobody names as Liger's newest."""
    if not setup.fused_loss:
        return None
    kernels = setup.liger_kernels
    if kernels is None:
        return Fused(NEWEST_LIGER, setup.fused_evaluation)
    skips = setup.fused_evaluation or (kernels.skips and setup.prediction_loss_only)
    return Fused(kernels.release, skips, named=True, layers=kernels.layers)


def _bits(setup: TrainingSetup) -> str:
    return "8 bits" if setup.load_in_8bit and not setup.load_in_4bit else "4 bits"


def _check(setup: TrainingSetup) -> None:
    """Refuse, by name, what no part of the engine follows."""
    refused = {
        f"use_dora of {_bits(setup)}": setup.use_dora and setup.packs,
        **_of_fsdp(setup),
        **_of_zero(setup),
        "tensor_parallel": setup.spread.tensor_parallel > 1 and setup.world_size > 1,
        **_of_fused(setup),
    }
    for name, refuses in refused.items():
        if refuses:
            refuse(name, setup)


def has_unsloths_layers(model_type: str, setup: TrainingSetup) -> bool:
    """Whether Unsloth's layers are followed: its code for the type, with LoRA, and without a dropout, which only
    releases of 2026 fuse."""
    return setup.unsloth_layers and model_type in OF_UNSLOTH and not setup.use_dora and not setup.lora_dropout


def check_tables(setup: TrainingSetup, followed: tuple[str, ...]) -> None:
    """Refuse, by name, adapters of tables, and copies of them that train. ``followed``: tables whose adapters are
    followed, by the last part of their names, where one GPU has all of the model.

    Raises:
        NotFollowedError: there is such an adapter or a copy.
    """
    if setup.method == "full":
        return
    plain = not (setup.fsdp or setup.zero_stage or setup.use_dora or setup.post)
    targets = setup.lora_target_modules if isinstance(setup.lora_target_modules, tuple) else ()
    for name in (*(targets or ()), *(setup.modules_to_save or ())):
        leaf = name.rpartition(".")[2]
        if leaf in TABLES and not (plain and leaf in followed):
            refuse(f"LoRA on {name}", setup)


def check_token_rows(setup: TrainingSetup, *, followed: bool) -> None:
    """Refuse, by name, rows of the words' table that train by themselves, where they are not ``followed``.

    Raises:
        NotFollowedError: there are some.
    """
    if not setup.trained_tokens or setup.method == "full":
        return
    plain = not (setup.fsdp or setup.zero_stage or unshared(setup) or setup.use_dora or setup.post or setup.fused_loss)
    if not (followed and plain and not setup.modules_to_save):
        refuse("trainable_token_indices", setup)


def _of_fused(setup: TrainingSetup) -> dict[str, bool]:
    """What reads the output layer's weight beside the layer itself is not followed where that is sharded."""
    return {
        "FSDP with use_liger_kernel": setup.fused_loss and setup.fsdp,
        "ZeRO-3 with use_liger_kernel": setup.fused_loss and setup.zero_stage == 3,
    }


def _of_fsdp(setup: TrainingSetup) -> dict[str, bool]:
    """What of a sharded run is not followed."""
    if not setup.fsdp:
        return {}
    return {
        **_of_fsdp1(setup),
        "FSDP on one GPU": setup.world_size < 2,
        **_of_packed_fsdp(setup),
        "FSDP with use_dora": setup.use_dora,
        "FSDP with modules_to_save": bool(setup.modules_to_save),
        "FSDP with predict_with_generate": setup.do_eval and setup.predict_with_generate,
        f"FSDP with optim {setup.optim}": setup.optim not in OF_FSDP,
        f"FSDP of {setup.post and setup.post.kind}": not _read_whole(setup.post) or _refers(setup.post),
    }


def _of_packed_fsdp(setup: TrainingSetup) -> dict[str, bool]:
    """FSDP1 flattens a unit of one floating type, and FSDP2 leaves integers whole (``fsdp2_prepare_model``), which it
    does not bring to the GPU. What is cast on the way to be gathered must not be packed weights.
    """
    if not setup.packs:
        return {}
    first, storage = setup.spread.fsdp_version == 1, setup.bnb_4bit_quant_storage
    computes = "bf16" if setup.bf16 else "fp16" if setup.fp16 else storage
    loaded = setup.weights if setup.weights != "fp32" else "fp16" if setup.fp16 else "bf16"
    integers = storage == "uint8"
    prepared = setup.prepare_for_kbit
    return {
        "FSDP of 8 bits": setup.load_in_8bit and not setup.load_in_4bit,
        "FSDP of 4 bits without adapters": setup.method == "full",
        "FSDP1 of 4 bits in uint8": first and integers,
        f"FSDP1 of 4 bits in {storage} beside {'fp32' if prepared else loaded}": first
        and not integers
        and storage != ("fp32" if prepared else loaded),
        "FSDP2 of 4 bits in uint8 on the host": not first and integers and setup.spread.packed_on != "gpu",
        f"FSDP of 4 bits in {storage} computing in {computes}": not integers and storage != computes,
        f"FSDP of 4 bits loaded in {loaded} computing in {computes}": setup.autocast and loaded != computes,
    }


def _of_fsdp1(setup: TrainingSetup) -> dict[str, bool]:
    first = setup.spread.fsdp_version == 1
    return {
        "FSDP1 in fp16": first and (setup.fp16 or setup.weights == "fp16"),
        "FSDP1 without reshard_after_forward": first and not setup.spread.fsdp_reshard,
    }


def _of_zero(setup: TrainingSetup) -> dict[str, bool]:
    """What of a run with DeepSpeed is not followed."""
    if not setup.zero_stage:
        return {"DeepSpeed in fp16": unshared(setup) and (setup.fp16 or setup.weights == "fp16")}
    return {
        **_of_zero3(setup),
        "ZeRO with offload_param": setup.offload_param and setup.zero_stage < 3,
        f"ZeRO of {_bits(setup)}": setup.packs,
        "ZeRO in fp16": setup.fp16 or setup.weights == "fp16",
        "ZeRO without contiguous_gradients": not setup.spread.contiguous_gradients,
        "ZeRO with modules_to_save": bool(setup.modules_to_save),
        "ZeRO with adafactor": setup.optim == "adafactor",
        "ZeRO with predict_with_generate": setup.do_eval and setup.predict_with_generate,
    }


def _of_zero3(setup: TrainingSetup) -> dict[str, bool]:
    third = setup.zero_stage == 3
    return {
        "ZeRO-3 on one GPU": third and setup.data_parallel_size < 2,
        "ZeRO-3 with use_dora": third and setup.use_dora,
        "ZeRO-3 with adapters and offload": third
        and setup.method != "full"
        and (setup.offload_param or setup.offload_optimizer),
        "ZeRO-3 without training": third and not setup.do_train,
        "ZeRO-3 on NVMe": third and (setup.spread.optimizer_on_disk or setup.spread.params_on_disk),
        "ZeRO-3 with a part offloaded": third and setup.offload_optimizer and setup.spread.optimizer_offload_ratio != 1,
        "ZeRO-3 without optim": third and setup.optim == "none",
        f"ZeRO-3 of {setup.post and setup.post.kind}": third and not _read_whole(setup.post),
    }


def _read_whole(post: PostTraining | None) -> bool:
    """Whether a loss reads the output layer's weight as one that ZeRO-3 gathers for it, and something else generates
    what it reads; a plain loss calls the layer."""
    if post is None:
        return True
    fused = post.head == "fused" and post.liger is None and post.kind in ("sft", "dpo", "kto", "grpo", "rloo")
    return fused and not post.generated_rows


def _refers(post: PostTraining | None) -> bool:
    """Whether a reference stands beside the policy."""
    return post is not None and post.kind != "sft"


def _outside(frozen: tuple[str, ...], wraps: Callable[[str], bool]) -> Callable[[str], bool]:
    """``wraps`` of what is not frozen, by parts of its path (PEFT's ``exclude_modules``)."""
    if not frozen:
        return wraps
    return lambda path: wraps(path) and not any(part in path for part in frozen)


def _matcher(targets: tuple[str, ...] | str) -> Callable[[str], bool]:
    """As peft's ``check_target_module_exists``: a path, its end after a dot, or a regular expression for all of it.

    ``all-linear`` is every linear layer but the output layer, whose path is asked for as "".
    """
    if targets in ("all-linear", ("all-linear",)):
        return bool
    if isinstance(targets, str):
        pattern = re.compile(targets)
        return lambda path: pattern.fullmatch(path) is not None
    ends = tuple("." + target for target in targets)
    return lambda path: path in targets or path.endswith(ends)
