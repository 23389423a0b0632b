"""What a trainer makes of a quantized model and its adapters before the first step: which type everything trains in.

Read in the trainers' own code: TRL 0.12 to 1.16 (``trainer/*_trainer.py``, ``models/utils.py``), Axolotl 0.18
(``loaders/model.py``: norms, embeddings and output layer go back to ``torch_dtype`` after PEFT's preparation),
LLaMA-Factory (``model/adapter.py``: what trains is cast to fp32, nothing is prepared) and unsloth_zoo
(``training_utils.py``).
"""

from collections.abc import Mapping

from kb.advice.question import Loads
from kb.advice.run_kind import says_training
from kb.advice.settings_reader import SettingsReader, uses_fsdp
from kb.core.document import Unit
from kb.core.facts import VersionOf
from kb.core.record import NamedTuple
from kb.core.setup import Assumption, PackedOn, PostTraining, QuantStorage, TrainedType, TrainingSetup

# The release of TRL from which a trainer leaves a quantized model as it was loaded and casts what trains to bf16.
AS_LOADED = {"sft": (0, 26), "reward": (0, 26), "grpo": (0, 26), "rloo": (0, 26), "dpo": (0, 29), "kto": (1, 8),
             "preference": (0, 29)}  # fmt: skip
NEVER = ("orpo", "cpo", "simpo")  # these still prepare it in the newest release that was read
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
OPEN = "quantization.prepared"  # what is assumed where neither trainer nor script says it


def rank_of(read: SettingsReader, unit: Unit, constants: Mapping[str, float]) -> int:
    """The adapters' rank. That of TRL's ModelConfig, where its ``use_peft`` makes them; else PEFT's."""
    rank = read.number("lora.r")
    if rank is None and _by_command(read, unit):
        return int(constants["trl_lora_r"])
    return read.number_or_default("lora.r") if rank is None else rank


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
    return unit.dialect == "trl" and bool(read.value("lora.enabled"))


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
WRITTEN: Mapping[Loads, Preparation] = {
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
    if unit.dialect == "unsloth" or read.value("model.loader") == "unsloth":
        return Preparation(False, trained_type="fp32")
    if not quantized:
        return Preparation(False)
    if unit.dialect == "axolotl":
        return Preparation(False)
    if unit.dialect == "trl" or trainer in AS_LOADED or trainer in NEVER:
        return _of_trl(read, trainer or "sft", bf16, sharded, versions)
    said = read.value(OPEN)
    if said is None and sharded:
        return Preparation(False)
    if said is None:
        read.assumed.append(Assumption(name=OPEN, value=True, reason="script_prepares"))
    return Preparation(said is not False)


def _of_trl(read: SettingsReader, trainer: str, bf16: bool, sharded: bool, versions: VersionOf) -> Preparation:
    said = read.value(OPEN)
    prepared = said is True  # by the program itself
    older = Preparation(True, half_tables=bf16 and trainer != "reward")
    if sharded and trainer == "sft":  # ``is_sharded_qlora``: packed weights that wait on the host are left as they are
        older = Preparation(prepared)
    since = AS_LOADED.get(trainer, AS_LOADED["sft"])
    release = versions("trl", since)
    if read.value("run.adapter") in OWN_ADAPTERS:
        prepares = PREPARES_ADAPTED.get(trainer)
        if trainer in NEVER or (release is not None and release < (prepares or since)):
            return Preparation(prepared)
    if trainer in NEVER:
        return older
    if release is None and said is None:
        read.assumed.append(Assumption(name=OPEN, value=False, reason="release_of_trainer"))
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
