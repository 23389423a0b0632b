"""Why there is no prediction for a unit, where there is none: a key of i18n under ``note.``, and its values. What of a
run no prediction covers is named as its config does."""

import re
from collections.abc import Iterator, Mapping

from kb import memory
from kb.advice.run.named_model import packed_by_name
from kb.advice.run.run_kind import KERNELS, weight_type
from kb.advice.run.settings_reader import SettingsReader, uses_fsdp
from kb.core.document import KIND_OPEN, NO_SUCH_RUN, RUN_ELSEWHERE, SEVERAL_WAYS, Setting, Unit
from kb.core.expression import is_unknown
from kb.core.model import Architecture, Model
from kb.core.setup import TORCHAO, PostKind, TrainingSetup
from kb.core.text import UserError
from kb.core.typed import Any, get_args
from kb.memory import UnsupportedArchitectureError

PROCESSES, PIXELS = "launch.num_processes", "data.image_max_pixels"
Note = tuple[str, Mapping[str, Any]]
CPU_ONLY = ("training.use_cpu", "training.no_cuda", "accelerate.use_cpu", "launch.cpu")  # of which any keeps to the CPU
TRAINER = "script.trainer"
RANKING = ("ranking", "cached_ranking")  # losses of sentence-transformers that are followed
# Said by what is called; nobody writes them.
OF_CALLS = ("model.loader", "model.fused_loss", "model.fused_evaluation", "training.offloaded_checkpoints")
QUANTIZED_ALONE: Note = ("quantized_alone", {})
MOST_NAMED = 4  # settings in one sentence
# Notes that are errors as they stand, where a prediction was asked for.
NO_MODEL_OF_THE_RUN = (
    "cpu_only", "ddp_refuses", "ddp_refuses_named", "deepspeed_not_read", "engine_not_followed", "gpus_not_counted",
    "gpus_not_said", "loads_no_model", "method_open", "model_open", "no_such_run", "no_training_call", "not_modelled",
    "pictures_not_said", "preference_not_predicted", "preference_of_command", "quantized_alone", "run_by_engine",
    "run_perhaps_by_engine", "runs_nothing", "server", "server_no_decoder", "several_ways", "trainer_not_followed",
    "trainer_not_predicted", "width_open",
)  # fmt: skip
# Releases of TRL whose losses are followed: from the first to before the second, and from the third (trl-wheels).
TRL_READ = ((0, 15), (1, 9), (1, 15))
_SPELT = {
    "distillation": "Distillation",
    "nash_md": "Nash-MD",
    "online_dpo": "Online DPO",
    "reward": "Reward",
    "simpo": "SimPO",
}


def why_no_prediction(
    unit: Unit,
    setup: TrainingSetup,
    *,
    known: bool,
    architecture: Architecture | None = None,
    fault: UserError | None = None,
    given: Mapping[str, Any] = {},
) -> Note | None:
    """The reason, None where nothing stands in the way.

    Args:
        known: whether the model is known.
        architecture: its architecture, where it is known.
        fault: why the ``config.json`` of the model's folder cannot be used, where there is one.
        given: what the project says of its runs.
    """
    if unit.sets_up_nothing:
        return "no_model_named", {}
    named = unit.settings.get("launch.run_config")
    if "launch.run_config" in unit.unread and named is not None:
        path = str(named.value)
        return "config_not_read" if set(path) & set("./\\$") else "config_in_code", {"path": path}
    trainer = unit.settings.get(TRAINER)
    named_trainer = given.get(TRAINER) if trainer is None else trainer.value
    if TRAINER in setup.unresolved and isinstance(named_trainer, str):
        said = str(trainer.path[-1]) if trainer is not None else TRAINER
        return _trainer_note(named_trainer, said, of_command=bool(unit.program))
    if setup.unmodelled:
        return _cpu_note(unit) or _note_of_program(unit) or ("not_modelled", {"named": ", ".join(setup.unmodelled)})
    speaks = next((unit.settings[name] for name in ("run.adapter", "run.quantized") if name in unit.settings), None)
    kind_open = "lora.enabled" not in unit.settings or _why(unit, "lora.enabled") == KIND_OPEN
    if known and "lora.enabled" in setup.unresolved and speaks is not None and kind_open:
        return "method_open", {"named": str(speaks.value)}
    if known and "quantization.load_in_4bit" in setup.unresolved and "run.quantized" in unit.settings:
        return "width_open", {"named": str(unit.settings["run.quantized"].value)}
    differing = {name: unit.settings.get(name) for name in setup.unresolved if _why(unit, name) == SEVERAL_WAYS}
    if known and differing:
        return "several_ways", {"settings": _listed(differing)}
    if known and PROCESSES in setup.unresolved and {PROCESSES, "deepspeed.zero_stage"}.issuperset(setup.unresolved):
        if not (setup.do_train or setup.do_eval or setup.do_predict):
            return None  # nothing runs whose GPUs could be counted
        word = unit.settings.get(PROCESSES)
        key = "gpus_not_counted" if word is not None and word.path else "gpus_not_said"
        return key, {"said": str(word.path[-1])} if key == "gpus_not_counted" and word is not None else {}
    if known and setup.unresolved == ("deepspeed.zero_stage",) and unit.unread:
        return "deepspeed_not_read", {"path": str(unit.settings[unit.unread[0]].value)}
    if known and setup.unresolved == (PIXELS,):
        return "pictures_not_said", {"model": setup.model_name}
    if setup.unresolved and (known or "model.name" in setup.unresolved):
        return _open_note(unit, setup)
    if known and trains_packed(setup):
        return QUANTIZED_ALONE
    if known and not (setup.do_train or setup.do_eval or setup.do_predict):
        return "runs_nothing", {}
    if known:
        return _engine_note(setup, architecture)
    if fault is not None:
        return fault.key.replace("model_config.", "model_config_"), dict(fault.values)
    return ("model_not_known", {"model": setup.model_name}) if setup.model_name else ("no_model_named", {})


def note_of_server(unit: Unit, model: Model | None, called: Mapping[str, str], fault: UserError | None) -> Note:
    """Where a server's memory is worked out; of one whose model nobody can name there, why not.

    Args:
        model: its model, perhaps guessed from the name.
        called: the names of the models that are known.
        fault: why the ``config.json`` of the model's folder cannot be used for training: a server's cache may follow.
    """
    setting = unit.settings.get("model.name")
    if setting is not None and is_unknown(setting.value):
        return "model_open", {"settings": _listed({"model.name": setting})}
    name = "" if setting is None or not isinstance(setting.value, str) else setting.value
    if not name and model is None:
        return "no_model_named", {}
    if model is not None and model.architecture.family != "decoder":
        return "server_no_decoder", {"model": name or model.name, "type": model.architecture.model_type}
    known = model is not None and not model.guessed_from
    if known or fault is not None or packed_by_name(name, called)[1]:
        return "server", {"path": unit.path}
    return "model_not_known", {"model": name}


def _open_note(unit: Unit, setup: TrainingSetup) -> Note:
    """Which values cannot be told, and whether the file or the program that reads it leaves them open."""
    found = {name: unit.settings.get(name) for name in setup.unresolved}
    strange = {name: each for name, each in found.items() if _why(unit, name) == NO_SUCH_RUN}
    if strange:
        return "no_such_run", {"settings": _listed(strange)}
    if not unit.keys and "training." in unit.hidden:  # of code that sets up no training itself
        return "no_training_call", {}
    left = [name for name in setup.unresolved if not (unit.maybe and name.startswith(unit.maybe))]
    if unit.reader == "script" and unit.hidden and left and all(name.startswith(unit.hidden) for name in left):
        absent = {name: each for name, each in found.items() if each is None}
        return "set_by_program", {"settings": _listed(absent or found)}
    return "model_open" if set(found) == {"model.name"} else "unresolved_values", {"settings": _listed(found)}


def trains_packed(setup: TrainingSetup) -> bool:
    """Whether quantized weights are to be trained without an adapter, which the Trainer refuses."""
    return setup.do_train and setup.method == "full" and (setup.load_in_4bit or setup.load_in_8bit)


def keeps_to_cpu(unit: Unit) -> bool:
    """Whether a setting says so; of those that are not known none does."""
    return _cpu_note(unit) is not None


def _cpu_note(unit: Unit) -> Note | None:
    """That a run keeps off the GPU, and the key that says so."""
    said = [unit.settings[name] for name in CPU_ONLY if name in unit.settings]
    return next((("cpu_only", {"said": str(each.path[-1])}) for each in said if each.value is True), None)


def _note_of_program(unit: Unit) -> Note | None:
    """That a command's program has another engine run its model, or loads none."""
    said = unit.settings.get("run.not_modelled")
    if said is None or said.path[0] not in RUN_ELSEWHERE:
        return None
    notes = ("run_by_engine", "run_perhaps_by_engine", "loads_no_model")
    return notes[RUN_ELSEWHERE.index(str(said.path[0]))], {"program": unit.program, "engine": str(said.value)}


def _why(unit: Unit, name: str) -> str:
    """Why a value is not known; empty where it is, or nothing is said."""
    return getattr(unit.settings[name].value, "reason", "") if name in unit.settings else ""


def _listed(settings: Mapping[str, Setting | None]) -> str:
    written = {name: each for name, each in settings.items() if name not in OF_CALLS} or settings
    keys = tuple(dict.fromkeys(_written_as(name, each) for name, each in written.items()))
    return ", ".join(keys[:MOST_NAMED]) + ("" if len(keys) <= MOST_NAMED else " …")


def _written_as(name: str, setting: Setting | None) -> str:
    """The key that a setting is written under; of an argument that is given by its place, the argument's name."""
    key = str(setting.path[-1]) if setting is not None and setting.path else ""
    if name == "model.name" and key in ("", "name"):
        return "pretrained_model_name_or_path"
    by_call = not key or key.isdigit()
    if (name == "lora.enabled" and by_call) or (name == PROCESSES and not re.search("^-|proc|gpu|node|size", key)):
        return name  # the last word of it, or the program that is started, says nothing
    return name.rpartition(".")[2] if by_call else key


def unfollowed(setup: TrainingSetup, architecture: Architecture) -> str | None:
    """What of a run the memory engine does not follow; None where it follows all of it."""
    return memory.why_not(setup, architecture)


def _engine_note(setup: TrainingSetup, architecture: Architecture | None) -> Note | None:
    """What of the run the memory engine does not follow, where nothing that it follows is near."""
    if architecture is None or not (architecture.engine or setup.post):
        return None
    what, kind = memory.not_near(setup, architecture), architecture.model_type
    said = None if what is None else what.removesuffix(f" of {kind}")  # the sentence names the type itself
    return None if said is None else ("engine_not_followed", {"type": kind, "what": said})


def refusal_of(error: UnsupportedArchitectureError) -> Note | None:
    """Why the memory engine does not follow a run, as a note; None where it says nothing more than its text."""
    if error.fault != "ddp_refuses":
        return (error.fault, error.values) if error.fault else None
    names = error.values["names"]
    return ("ddp_refuses_named", {"name": names[0]}) if names else ("ddp_refuses", {})


def unpredictable(error: UnsupportedArchitectureError, model: str) -> UserError:
    """The same as an error, where a prediction of ``model`` was asked for."""
    note = refusal_of(error)
    if note is None:
        return UserError("recommend.unsupported", model=model, reason=str(error))
    return UserError(f"note.{note[0]}", **note[1])


def _trainer_note(trainer: str, key: str, *, of_command: bool) -> Note:
    """That kb has no memory model of such a run, and the key that says which one it is."""
    if trainer == "preference":
        return "preference_of_command" if of_command else "preference_not_predicted", {"said": key, "script": "run.sh"}
    shown = {"trainer": _SPELT.get(trainer, trainer.upper()), "said": key}
    if trainer not in get_args(PostKind):
        return "trainer_not_predicted", shown
    first, until, again = (".".join(map(str, release)) for release in TRL_READ)
    return "trainer_not_followed", {**shown, "first": first, "until": until, "again": again}


ON_TPU = ("training.tpu_num_cores", "launch.tpu")
ADAMW = ("adam", "adamw", "torch.optim.adam", "torch.optim.adamw")  # other words for PyTorch's own
KNOWN_OPTIMIZERS = (
    "adamw_torch_fused", *TORCHAO, "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit",
    "paged_adamw", "lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit", "adamw_torch", "adamw_hf",
    "adafactor", "sgd", "none",
)  # fmt: skip
OPTIMIZERS_OF_DEEPSPEED = ("adam", "adamw", "cpuadam", "deepspeedcpuadam", "fusedadam")
LORA = ("lora", "dora", "rslora")
# Arguments of PEFT's LoraConfig by which it is not one rank on each target in each layer.
PLACED_OTHERWISE = (
    "lora.layers_to_transform", "lora.layer_replication", "lora.target_parameters", "lora.rank_pattern",
    "lora.exclude_modules",
)  # fmt: skip


# What in a checkpoint's name, between separators, says a format other than bitsandbytes': ``-GPTQ-Int4``, ``-AWQ``.
_SEPARATORS = str.maketrans("-_.", "///")
_QUANTIZED = frozenset(
    (
        *("gptq", "awq", "aqlm", "hqq", "eetq", "gguf", "exl2", "exl3", "mlx", "qat", "quip"),
        *("fp8", "mxfp4", "mxfp8", "nvfp4", "fp4", "int3", "int4", "int8"),
        *("w4a4", "w4a8", "w4a16", "w8a4", "w8a8", "w8a16"),
    )
)


def _quantized_name(name: str) -> str | None:
    """The first part of a checkpoint's name that says how its weights are packed, as the name writes it."""
    return next((part for part in name.translate(_SEPARATORS).split("/") if part.lower() in _QUANTIZED), None)


def unmodelled(read: SettingsReader, model: Model | None, *, trains: bool) -> tuple[str, ...]:
    """The things by name, each once, with the key that says so.

    Args:
        trains: whether the run trains: an optimizer matters only then.
    """
    found = (*_of_any(read, model), *(_of_training(read) if trains else ()))
    return tuple(dict.fromkeys(found))


def _of_any(read: SettingsReader, model: Model | None) -> Iterator[str]:
    told = read.value("run.not_modelled")
    ranks = read.value("embedding.columns") is not None or read.as_written("embedding.loss") in RANKING
    if told is not None and not (told == "sentence-transformers" and ranks):
        yield str(told)
    yield from read.beyond
    yield from (f"{name.partition('.')[2]} = true" for name in CPU_ONLY if read.value(name) is True)
    yield from (f"TPU ({read.key(name)})" for name in ON_TPU if read.value(name) not in (None, False, 0))
    name = read.value("model.name")
    kind = _quantized_name(name) if isinstance(name, str) else None
    widened = read.value("quantization.dequantize")
    if kind is None and model is not None and not (widened or model.guessed_from):
        kind = model.packed  # it stays so, or is widened where its kernels are missing
    if kind is not None:
        yield f"{kind} ({name or (model and model.name)})"
    elif widened is False:
        yield f"mxfp4 ({read.key('quantization.dequantize')})"
    dtype = read.value("model.torch_dtype")
    left_to_checkpoint = str(dtype).casefold().removeprefix("torch.") in ("auto", "none", "null", "")
    if not left_to_checkpoint and weight_type(dtype) is None:
        yield f"{dtype} ({read.key('model.torch_dtype')})"
    attention = read.value("model.attn_implementation")
    if attention is not None and str(attention) not in KERNELS and "flash" not in str(attention):
        yield f"{attention} ({read.key('model.attn_implementation')})"


# Groups of a config of a program's own that speak of another training than that of the batches beside them.
_OTHER_TRAINERS = frozenset(
    ("cpo", "distillation", "dpo", "gkd", "grpo", "kto", "orpo", "ppo", "reward", "rlhf", "rloo", "simpo")
)
_OFF = ("false", "0", "no", "off")  # as YAML and people write it


def other_trainers(unit: Unit) -> list[str]:
    """The names of such groups that hold any key and are not switched off."""
    said: dict[str, None] = {}
    off = set()
    for key, setting in unit.keys.items() if unit.dialect == "team" else ():
        name, _, inner = key.partition(".")
        if name.casefold() in _OTHER_TRAINERS and inner:
            said.setdefault(name)
            switch = inner in ("enabled", "enable", "active", "use", f"use_{name.casefold()}")
            off |= {name} if switch and str(setting.value).casefold() in _OFF else set()
    return [name for name in said if name not in off]


def _of_training(read: SettingsReader) -> Iterator[str]:
    optimizer = read.value("training.optim")
    # torchao's blocks are each shard's own
    shared = str(optimizer) in TORCHAO and (uses_fsdp(read) or read.value("deepspeed.zero_stage"))
    if optimizer is not None and (shared or optimizer_of(str(optimizer)) not in KNOWN_OPTIMIZERS):
        yield f"{optimizer} ({read.key('training.optim')})"
    of_deepspeed = read.value("deepspeed.optimizer.type")
    if of_deepspeed is not None and str(of_deepspeed).casefold() not in OPTIMIZERS_OF_DEEPSPEED:
        yield f"{of_deepspeed} ({read.key('deepspeed.optimizer.type')})"
    adapter = read.value("lora.peft_type")
    if adapter is not None and str(adapter).casefold().rpartition(".")[2] not in LORA:
        yield f"{adapter} ({read.key('lora.peft_type')})"
    for name in PLACED_OTHERWISE:
        placed = read.as_written(name)
        if is_unknown(placed) or placed:
            yield read.key(name)
    if str(read.value("accelerate.mixed_precision")).casefold() == "fp8":
        yield f"fp8 ({read.key('accelerate.mixed_precision')})"


def optimizer_of(name: str) -> str:
    """The Trainer's name of an optimizer that goes by another."""
    return "adamw_torch" if name.casefold() in ADAMW else name
