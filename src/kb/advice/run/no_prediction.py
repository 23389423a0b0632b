"""Why there is no prediction for a unit, where there is none: a key of i18n under ``note.``, and its values."""

import re
from collections.abc import Mapping

from kb.advice.run.named_model import packed_by_name
from kb.core.document import KIND_OPEN, NO_SUCH_RUN, RUN_ELSEWHERE, SEVERAL_WAYS, Setting, Unit
from kb.core.expression import is_unknown
from kb.core.model import Architecture, Model
from kb.core.setup import PostKind, TrainingSetup
from kb.core.text import UserError
from kb.core.typed import Any, get_args
from kb.memory import UnsupportedArchitectureError

PROCESSES, PIXELS = "launch.num_processes", "data.image_max_pixels"
Note = tuple[str, Mapping[str, Any]]
CPU_ONLY = ("training.use_cpu", "training.no_cuda", "accelerate.use_cpu", "launch.cpu")  # of which any keeps to the CPU
TRAINER = "script.trainer"
# Said by what is called; nobody writes them.
OF_CALLS = ("model.loader", "model.fused_loss", "model.fused_evaluation", "training.offloaded_checkpoints")
QUANTIZED_ALONE: Note = ("quantized_alone", {})
MOST_NAMED = 4  # settings in one sentence
# Notes that are errors as they stand, where a prediction was asked for.
NO_MODEL_OF_THE_RUN = (
    "cpu_only", "ddp_refuses", "ddp_refuses_named", "deepspeed_not_read", "engine_not_followed", "gpus_not_counted",
    "gpus_not_said", "loads_no_model", "method_open", "no_such_run", "no_training_call", "not_modelled",
    "pictures_not_said", "preference_not_predicted", "preference_of_command", "quantized_alone", "run_by_engine",
    "run_perhaps_by_engine", "server", "server_no_decoder", "several_ways", "trainer_not_followed",
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
        return "unresolved_values", {"settings": _listed({"model.name": setting})}
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
    return "unresolved_values", {"settings": _listed(found)}


def trains_packed(setup: TrainingSetup) -> bool:
    """Whether quantized weights are to be trained without an adapter, which the Trainer refuses."""
    return setup.do_train and setup.method == "full" and (setup.load_in_4bit or setup.load_in_8bit)


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
    return _engine().why_not(setup, architecture)  # type: ignore[no-any-return]


def _engine() -> Any:
    """What the memory engine refuses, and what stands for it; few models need it."""
    from kb.memory.engine import nearest

    return nearest


def _engine_note(setup: TrainingSetup, architecture: Architecture | None) -> Note | None:
    """What of the run the memory engine does not follow, where nothing that it follows is near."""
    if architecture is None or not (architecture.engine or setup.post):
        return None
    what, kind = _engine().not_near(setup, architecture), architecture.model_type
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
