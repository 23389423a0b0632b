"""What a trainer makes of a quantized model and its adapters before the first step: which type everything trains in.

Read in the trainers' own code: TRL 0.12 to 1.16 (``trainer/*_trainer.py``, ``models/utils.py``), Axolotl 0.18
(``loaders/model.py``: norms, embeddings and output layer go back to ``torch_dtype`` after PEFT's preparation),
LLaMA-Factory (``model/adapter.py``: what trains is cast to fp32, nothing is prepared) and unsloth_zoo
(``training_utils.py``).
"""

from collections.abc import Mapping

from kb.advice.question import Loads
from kb.advice.settings_reader import SettingsReader
from kb.core.document import Unit
from kb.core.facts import VersionOf
from kb.core.record import NamedTuple
from kb.core.setup import Assumption, TrainedType

# The release of TRL from which a trainer leaves a quantized model as it was loaded and casts what trains to bf16.
AS_LOADED = {"sft": (0, 26), "reward": (0, 26), "grpo": (0, 26), "rloo": (0, 26), "dpo": (0, 29), "kto": (1, 8),
             "preference": (0, 29)}  # fmt: skip
NEVER = ("orpo", "cpo", "simpo")  # these still prepare it in the newest release that was read
# The release from which a trainer prepares a model too that the program gave its adapters itself; others do not.
PREPARES_ADAPTED = {"sft": (0, 20), "reward": (0, 22), "grpo": (0, 22), "rloo": (0, 22)}
OWN_ADAPTERS = ("get_peft_model", "PeftModel", "AutoPeftModel")  # what a program calls for them
OPEN = "quantization.prepared"  # what is assumed where neither trainer nor script says it


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


def preparation_of(
    read: SettingsReader, unit: Unit, trainer: str, *, quantized: bool, bf16: bool, versions: VersionOf
) -> Preparation:
    """What becomes of the types of a run with adapters.

    Args:
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
        return _of_trl(read, trainer or "sft", bf16, versions)
    said = read.value(OPEN)
    if said is None:
        read.assumed.append(Assumption(name=OPEN, value=True, reason="script_prepares"))
    return Preparation(said is not False)


def _of_trl(read: SettingsReader, trainer: str, bf16: bool, versions: VersionOf) -> Preparation:
    prepared = read.value(OPEN) is True  # by the program itself
    older = Preparation(True, half_tables=bf16 and trainer != "reward")
    since = AS_LOADED.get(trainer, AS_LOADED["sft"])
    release = versions("trl", since)
    if read.value("run.adapter") in OWN_ADAPTERS:
        prepares = PREPARES_ADAPTED.get(trainer)
        if trainer in NEVER or (release is not None and release < (prepares or since)):
            return Preparation(prepared)
    if trainer in NEVER:
        return older
    if release is None and not prepared:
        read.assumed.append(Assumption(name=OPEN, value=False, reason="release_of_trainer"))
    return older if release is not None and release < since else Preparation(prepared, trained_type="bf16")
