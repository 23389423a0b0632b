"""What kind of run it is: trained or not, and in which type weights are loaded and, before the first step, everything
trains.

What a trainer makes of a quantized model and its adapters was read in the trainers' own code: TRL 0.12 to 1.16
(``trainer/*_trainer.py``, ``models/utils.py``), Axolotl 0.18 (``loaders/model.py``: norms, embeddings and output layer
go back to ``torch_dtype`` after PEFT's preparation), LLaMA-Factory (``model/adapter.py``: what trains is cast to fp32,
nothing is prepared) and unsloth_zoo (``training_utils.py``).
"""

from collections.abc import Mapping

from kb import memory
from kb.advice.question import Loads
from kb.advice.run.settings_reader import SettingsReader, loaded_by_unsloth, uses_fsdp
from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.core.facts import VersionOf
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.core.setup import (
    Assumption,
    Attention,
    EarlierRelease,
    PackedOn,
    PostTraining,
    QuantStorage,
    TrainedType,
    TrainingSetup,
    WeightType,
)
from kb.core.typed import Any
from kb.memory.releases import COMPARED, SDPA_SINCE, boundaries_of, earlier_release, has_sdpa

KERNELS: Mapping[str, Attention] = {
    "eager": "eager",
    "sdpa": "sdpa",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
    "flash": "flash",
}
WEIGHT_TYPES: Mapping[str, WeightType] = {
    "float16": "fp16",
    "fp16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float32": "fp32",
    "fp32": "fp32",
}
NAMES: Mapping[WeightType, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
OWN_TYPE_SINCE = (5,)  # transformers: from_pretrained keeps the checkpoint's type where no other is named
DTYPE = "model.torch_dtype"
OWN, COMPUTED = "auto", "compute"  # defaults of formats: the checkpoint's type, the type of the arithmetic
PACKED_BY = ("quantization.load_in_4bit", "quantization.load_in_8bit")
OF_LOADERS: Mapping[str, str | None] = {"transformers": None, "unsloth": "bfloat16"}  # by what a program calls


def weight_type(name: Any) -> WeightType | None:
    """``torch.bfloat16`` or ``bf16`` → ``bf16``; None where it is no type of weights, such as ``auto``."""
    return WEIGHT_TYPES.get(str(name).removeprefix("torch."))


def checkpoint_dtype(model: Model | None) -> str | None:
    """The type that the model's checkpoint stores, in PyTorch's name for it; None where it is not known."""
    if model is None or model.weights_dtype is None or model.guessed_from:
        return None
    return NAMES[model.weights_dtype]


def weights_of(
    read: SettingsReader, model: Model | None, given: Mapping[str, Any], transformers: tuple[int, ...] | None
) -> WeightType:
    """The type that the run loads the model's weights in; what no config says of it is listed as assumed.

    The newest release is assumed where it is not known, and a checkpoint whose type nobody recorded counts as fp32. Of
    a checkpoint in fp32 nothing is listed where it is loaded so.

    Args:
        given: what the project says of itself; it may name the checkpoint's type.
    """
    named = read.value(DTYPE)
    found = weight_type(named)
    if found is not None:
        return found
    own = weight_type(given.get("model.checkpoint_dtype")) or (model.weights_dtype if model is not None else None)
    usual, reason = (OWN, "checkpoint_own_type") if named is not None else _usual(read, transformers)
    loaded: WeightType = weight_type(usual) or "fp32"
    if usual == COMPUTED:
        loaded = "fp16" if read.or_default("training.fp16") else "bf16"
    if usual == OWN:
        loaded, reason = (own, reason) if own is not None else ("fp32", "checkpoint_type_not_recorded")
    if model is not None and (loaded, own) != ("fp32", "fp32"):
        read.or_assume(DTYPE, None, NAMES[loaded], reason)
    return loaded


def attention_of(read: SettingsReader, model: Model | None, versions: VersionOf) -> Attention:
    """The kernel that the config names, else the default of the release at hand; of the newest where it is unknown."""
    name, model_type = "model.attn_implementation", model.architecture.model_type if model is not None else ""
    written = str(read.value(name))
    named = KERNELS.get(written) or ("flash" if "flash" in written else None)  # a kernel of the hub: …/vllm-flash-attn3
    since = SDPA_SINCE.get(model_type)
    release = versions("transformers", since) if since is not None else None
    if release is not None and not has_sdpa(model_type, release):
        return read.or_assume(name, named, "eager", "attention_of_release")  # type: ignore[no-any-return]
    return read.or_assume(name, named, "sdpa", "library_default")  # type: ignore[no-any-return]


def earlier_of(read: SettingsReader, model: Model | None, versions: VersionOf) -> EarlierRelease:
    """What a model does otherwise under the release at hand; nothing where it is unknown: the newest counts.

    It is listed where nobody compared the release with its code.
    """
    model_type = model.architecture.model_type if model is not None else ""
    release = versions("transformers", *boundaries_of(model_type)) if model_type else None
    if release is None:
        return EarlierRelease()
    if release < COMPARED:
        shown = f"<{'.'.join(map(str, COMPARED))}"
        read.assumed.append(Assumption(name="transformers.release", value=shown, reason="uncompared"))
    return earlier_release(model_type, release)


def _usual(read: SettingsReader, transformers: tuple[int, ...] | None) -> tuple[str, str]:
    """What is loaded where no type is named, and why: the format's default, else that of transformers."""
    loader = read.value("model.loader")
    usual = OF_LOADERS.get(loader, read.default(DTYPE))
    if usual is not None:
        newest = loader is None and read.default_is_open(DTYPE)
        return usual, "trainer_default_newest" if newest else "trainer_default"
    if transformers is None:
        return OWN, "checkpoint_own_type_newest"
    if transformers >= OWN_TYPE_SINCE:
        return OWN, "checkpoint_own_type"
    # update_torch_dtype of quantizer_bnb_4bit.py and quantizer_bnb_8bit.py in every release of transformers 4
    packed = read.value("quantization.load_in_4bit") is True or read.value("quantization.load_in_8bit") is True
    return ("float16", "transformers_4_quantized") if packed else ("float32", "transformers_4_default")


def assume_whole_experts(read: SettingsReader, model: Model | None, transformers: tuple[int, ...] | None) -> None:
    """Name the newest release as assumed where it decides whether bitsandbytes packs a mixture's experts.

    Up to transformers 4 each expert is a module of linear layers, which loading in 4 or 8 bits packs; from 5 on a
    layer's experts are one parameter, which it passes over (modeling_qwen2_moe.py, modeling_mixtral.py and
    modeling_qwen3_moe.py of 4.57 and 5.23).
    """
    if transformers is not None or model is None or not model.architecture.experts:
        return
    if not any(read.value(name) is True for name in PACKED_BY):
        return
    if model.architecture.model_type in memory.MIXTURES:
        read.assumed.append(Assumption(name="transformers.release", value="5", reason="experts_left_whole"))


# Arguments of the Trainer that say nothing of training: an evaluation, a generation or any other script takes them too.
OF_ANY_RUN = frozenset(
    f"training.{name}"
    for name in (
        "output_dir", "overwrite_output_dir", "seed", "data_seed", "fp16", "bf16", "tf32", "fp16_full_eval",
        "bf16_full_eval", "per_device_eval_batch_size", "eval_accumulation_steps", "do_eval", "do_predict",
        "predict_with_generate", "prediction_loss_only", "generation_max_length", "generation_num_beams",
        "generation_config", "generation_max_new_tokens", "report_to", "run_name", "logging_dir", "log_level",
        "logging_strategy", "logging_steps", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_drop_last",
        "dataloader_prefetch_factor", "dataloader_persistent_workers", "deepspeed", "fsdp", "fsdp_config",
        "remove_unused_columns", "local_rank", "disable_tqdm", "use_cpu", "no_cuda", "torch_compile", "label_names",
        "push_to_hub", "include_inputs_for_metrics", "include_for_metrics", "batch_eval_metrics",
        "metric_for_best_model",
    )
)  # fmt: skip
# Those that only a run which trains has a use for, whatever its script is called.
OF_TRAINING_ALONE = ("training.do_train", "training.learning_rate", "training.num_train_epochs", "training.max_steps")
# What a program says by a method of the model itself: model.gradient_checkpointing_enable().
_ON_THE_MODEL = ("training.gradient_checkpointing", "training.activation_checkpointing")
FREE = ("hf", "command", "command-training")  # dialects whose programs may do anything else
# Words in the name of a script that does something else than train.
OTHERWISE = frozenset((
    "analyze", "analyse", "analysis", "preprocess", "prepare", "tokenize", "convert", "export", "merge", "eval",
    "evaluate", "evaluation", "generate", "generation", "inference", "infer", "predict", "quantize", "serve",
    "benchmark", "download", "chat",
))  # fmt: skip


def says_training(unit: Unit) -> bool:
    """Whether anything is said of a Trainer; ``--fp16`` beside an inference batch says nothing of it."""
    silent = ("training.output_dir", "training.seed") if unit.dialect == "command" else ()  # any script has these
    if silent and "inference.batch_size" in unit.settings:
        return "training.do_train" in unit.settings
    return any(name.startswith("training.") and name not in silent for name in unit.settings)


def only_loads(unit: Unit) -> bool:
    """Whether a program does no more than load a model to train: another module says with which arguments, and which
    of its weights.
    """
    said = [name for name in unit.settings if name.startswith("training.")]
    return unit.path.endswith((".py", ".ipynb")) and bool(said) and all(name in _ON_THE_MODEL for name in said)


def trains(unit: Unit) -> bool:
    """Whether the run trains, as far as its arguments tell; ``do_train`` is asked elsewhere.

    A command without an argument for training trains nothing. Nor does one for no epoch at all, which is
    how scripts that quantize a trained model are called.
    """
    if not says_training(unit) or _no_epochs(unit):
        return False
    if unit.dialect not in FREE or unit.script is None:
        return True
    named = [name for name in unit.settings if name.startswith("training.") and name not in OF_ANY_RUN]
    if any(name in unit.settings for name in OF_TRAINING_ALONE):
        return True
    return bool(named) and not _otherwise(unit.script)


def _no_epochs(unit: Unit) -> bool:
    epochs, steps = (unit.settings.get(f"training.{name}") for name in ("num_train_epochs", "max_steps"))
    if epochs is None or is_unknown(epochs.value) or not isinstance(epochs.value, int | float) or epochs.value > 0:
        return False
    return steps is None or (isinstance(steps.value, int) and steps.value <= 0)


def _otherwise(script: str | None) -> bool:
    """Whether the script's name says that it does something else."""
    words = set((script or "").casefold().removesuffix(".py").replace("-", "_").replace(".", "_").split("_"))
    return not words.isdisjoint(OTHERWISE) and "train" not in words


# The release of TRL from which a trainer leaves a quantized model as it was loaded and casts what trains to bf16.
AS_LOADED = {"sft": (0, 26), "reward": (0, 26), "grpo": (0, 26), "rloo": (0, 26), "dpo": (0, 29), "kto": (1, 8),
             "preference": (0, 29)}  # fmt: skip
ALWAYS_PREPARED = ("orpo", "cpo", "simpo")  # these still prepare it in the newest release that was read
# The release from which a trainer prepares a model too that the program gave its adapters itself; others do not.
PREPARES_ADAPTED = {"sft": (0, 20), "reward": (0, 22), "grpo": (0, 22), "rloo": (0, 22)}
OWN_ADAPTERS = ("get_peft_model", "PeftModel", "AutoPeftModel")  # what a program calls for them
# The release of PEFT from which adapters on weights in 16 bits are fp32 (``autocast_adapter_dtype``, tuners_utils.py);
# before, they have the type of the weights (``LoraLayer.update_layer``).
ADAPTERS_IN_FP32 = (0, 12)
# Trainers whose ``disable_dropout`` is on by default (TRL, LLaMA-Factory).
UNDROPPED = ("dpo", "kto", "orpo", "cpo", "reward")
REWARD_UNDROPPED = (0, 14)
STORAGE = "quantization.bnb_4bit_quant_storage"
TARGETS, EVERY_LINEAR = "lora.target_modules", "all-linear"
_OF_EXPRESSIONS = frozenset(r"\^$*+?()[]{}|")
PREPARED = "quantization.prepared"  # what is assumed where neither trainer nor script says it


def rank_of(read: SettingsReader, unit: Unit, constants: Mapping[str, float]) -> int:
    """The adapters' rank. That of TRL's ModelConfig, where its ``use_peft`` makes them; else PEFT's."""
    rank = read.number("lora.r")
    if rank is None and _by_command(read, unit):
        return int(constants["trl_lora_r"])
    return read.number_or_default("lora.r") if rank is None else rank


def targets_of(read: SettingsReader, model: Model | None, dialect: str | None) -> tuple[str, ...] | None:
    """The modules that get an adapter; None leaves them to PEFT.

    Among other names ``all-linear`` is to PEFT that of a module that is not there; ms-swift means every linear layer.
    One text is a regular expression of a whole name; where it is none, a rule says so.
    """
    usual, written = read.default(TARGETS), read.as_written(TARGETS)
    named: tuple[str, ...] | None = read.value(TARGETS)
    if isinstance(written, str) and model is not None and set(written) & _OF_EXPRESSIONS:
        named = memory.names_of_pattern(model.architecture, written)
        if named is not None:
            read.unresolved.pop(TARGETS, None)
    if named is not None and len(named) > 1 and EVERY_LINEAR in named:
        read.unresolved |= {TARGETS: None} if dialect == "ms-swift" else {}
        named = tuple(name for name in named if name != EVERY_LINEAR)
    return (str(usual),) if named is None and usual is not None else named


def dropout_of(
    read: SettingsReader, unit: Unit, constants: Mapping[str, float], post: PostTraining | None, versions: VersionOf
) -> float:
    """The adapters' dropout, by the same defaults. Trainers of preferences turn it off unless they are told not to
    (``disable_dropout``); so does that of reward models from TRL 0.14."""
    off = read.value("trl.disable_dropout")
    if off is None and post is not None and post.kind in UNDROPPED:
        release = versions("trl", REWARD_UNDROPPED)
        off = post.kind != "reward" or release is None or release >= REWARD_UNDROPPED
    if off:
        return 0.0
    if read.value("lora.lora_dropout") is None and _by_command(read, unit):
        return constants["trl_lora_dropout"]
    return float(read.or_default("lora.lora_dropout"))


def _by_command(read: SettingsReader, unit: Unit) -> bool:
    switched = read.key("lora.enabled").lstrip("-").replace("-", "_") == "use_peft"  # not by a call of the program
    return unit.dialect == "trl" and switched and bool(read.value("lora.enabled"))


# The release of transformers before which 4-bit weights go to the host, each as soon as it is packed, while FSDP is on
# (modeling_utils.py of 4.46, 4.51, 4.57 and 5.0); from 5 on they stay on each GPU until FSDP shards them.
PACKED: Mapping[tuple[int, ...], PackedOn] = {(4, 51): "host", (5,): "warmed"}
STORAGES: Mapping[str, QuantStorage] = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16", "float32": "fp32",
    "fp32": "fp32", "float": "fp32",
}  # fmt: skip


class Preparation(NamedTuple):
    """As :class:`~kb.core.setup.TrainingSetup` has it."""

    prepare_for_kbit: bool
    half_tables: bool = False
    trained_type: TrainedType = "peft"


# What the trainer of a format that is written makes of 4-bit weights: by how it loads them.
OF_WRITTEN_FORMATS: Mapping[Loads, Preparation] = {
    "half": Preparation(False),
    "stored": Preparation(False, trained_type="fp32"),
    "trl": Preparation(False, trained_type="bf16"),
}


def with_preparation(
    setup: TrainingSetup, read: SettingsReader, unit: Unit, trainer: str, versions: VersionOf
) -> TrainingSetup:
    """The setup with what becomes of its weights and adapters before the first step, and where packed weights lie."""
    quantized = setup.method == "qlora" or bool(read.value("quantization.load_in_8bit"))
    sharded = shards_packed(read)
    prepared = Preparation(False)
    if setup.method != "full" and says_training(unit):
        prepared = preparation_of(
            read, unit, trainer, quantized=quantized, bf16=setup.bf16, sharded=sharded, versions=versions
        )
        if prepared.trained_type == "peft" and not quantized and setup.weights == "bf16":
            release = versions("peft", ADAPTERS_IN_FP32)
            if release is not None and release < ADAPTERS_IN_FP32:
                prepared = prepared._replace(trained_type="bf16")
    return setup._replace(
        prepare_for_kbit=prepared.prepare_for_kbit,
        half_tables=prepared.half_tables,
        trained_type=prepared.trained_type,
        bnb_4bit_quant_storage=storage_of(read),
        spread=setup.spread._replace(packed_on=_packed_on(read, versions)),
    )


def preparation_of(
    read: SettingsReader, unit: Unit, trainer: str, *, quantized: bool, bf16: bool, sharded: bool, versions: VersionOf
) -> Preparation:
    """What becomes of the types of a run with adapters.

    Args:
        sharded: whether FSDP shards 4-bit weights: units of one type, which preparation would make two.
        trainer: what the config says of the trainer (``sft``, ``dpo`` …); TRL's differ.
        quantized: whether bitsandbytes packs the weights.
        bf16: whether the Trainer computes under bf16 autocast.
        versions: the releases of libraries; of a TRL that is not known the newest is assumed, and listed.
    """
    if unit.dialect == "llamafactory":
        return Preparation(False, trained_type="peft" if read.value("llamafactory.pure_bf16") else "fp32")
    if loaded_by_unsloth(unit):
        return Preparation(False, trained_type="fp32")
    if not quantized:
        return Preparation(False)
    # Of torchtune and ms-swift (2.0 to 4.5) what is not packed stays in the type that it is loaded in.
    if unit.dialect in ("axolotl", "ms-swift", "torchtune"):
        return Preparation(False)
    if unit.dialect == "trl" or trainer in AS_LOADED or trainer in ALWAYS_PREPARED:
        return _of_trl(read, trainer or "sft", bf16, sharded, versions)
    said = read.value(PREPARED)
    if said is None and sharded:
        return Preparation(False)
    if said is None:
        said = not (read.value("run.adapter") == OWN_ADAPTERS[0] and not PREPARED.startswith(unit.hidden))
        reason = "script_prepares" if said else "not_prepared_here"
        read.assumed.append(Assumption(name=PREPARED, value=said, reason=reason))
    return Preparation(said is not False)


def _of_trl(read: SettingsReader, trainer: str, bf16: bool, sharded: bool, versions: VersionOf) -> Preparation:
    said = read.value(PREPARED)
    prepared = said is True  # by the program itself
    older = Preparation(True, half_tables=bf16 and trainer != "reward")
    if sharded and trainer == "sft":  # ``is_sharded_qlora``: packed weights that wait on the host are left as they are
        older = Preparation(prepared)
    since = AS_LOADED.get(trainer, AS_LOADED["sft"])
    release = versions("trl", since)
    handed = read.key("run.adapter") == "peft_config"  # the trainer makes of it adapters of its own
    if not handed and read.value("run.adapter") in OWN_ADAPTERS:
        prepares = PREPARES_ADAPTED.get(trainer)
        if trainer in ALWAYS_PREPARED or (release is not None and release < (prepares or since)):
            return Preparation(prepared)
    if trainer in ALWAYS_PREPARED:
        return older
    if release is None and said is None:
        read.assumed.append(Assumption(name=PREPARED, value=False, reason="release_of_trainer"))
    return older if release is not None and release < since else Preparation(prepared, trained_type="bf16")


def shards_packed(read: SettingsReader) -> bool:
    """Whether FSDP shards 4-bit weights: those that are stored in a floating type."""
    return uses_fsdp(read) and bool(read.value("quantization.load_in_4bit")) and storage_of(read) != "uint8"


def _packed_on(read: SettingsReader, versions: VersionOf) -> PackedOn:
    """Where ``from_pretrained`` leaves 4-bit weights that FSDP shards: see :data:`PACKED`."""
    if not (uses_fsdp(read) and read.value("quantization.load_in_4bit")):
        return "gpu"
    for before, where in PACKED.items():
        release = versions("transformers", before)
        if release is not None and release < before:
            return where
    if versions("transformers", (5,)) is None:
        read.assumed.append(Assumption(STORAGE, "gpu", "packed_on_each_gpu"))
    return "gpu"


def storage_of(read: SettingsReader) -> QuantStorage:
    """The type that packed weights are stored in; integers are all one to FSDP."""
    named = str(read.or_default(STORAGE)).removeprefix("torch.").casefold()
    return STORAGES.get(named, "uint8")
