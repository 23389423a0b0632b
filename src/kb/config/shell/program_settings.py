"""A command with what the program that it starts says of a run: the defaults of its own flags, and how it places the
model.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb.config.dialect.dialects import LAST, Target
from kb.config.python.declared import LITERAL, UNTOLD, Default, as_default, declared, set_anyway
from kb.config.python.expressions import Expressions
from kb.config.python.held import UnknownValueError
from kb.config.python.names import Names
from kb.config.python.places import END
from kb.config.python.source_says import (
    LOSS_ONLY,
    OF_METRICS,
    POSITIONS,
    asks_for_metrics,
    device_map_of,
    flag_of_model,
    has_own_loop,
    head_of,
    keeps_no_logits,
    loaded,
    loaded_elsewhere,
    resizes_positions,
)
from kb.config.python.syntax import parsed
from kb.config.shell.arguments import Argument
from kb.config.shell.flags import Flag, Speller, known_when_run, setting_of
from kb.config.text.source import Places
from kb.core.document import REWRITTEN, RUN_ELSEWHERE, Setting, Unit
from kb.core.expression import Unknown, is_unknown
from kb.core.program import SEVERAL_HAVE_IT, Program, hints_at_trainer, trainers_of

BROUGHT = (
    "data.", "lora.", "quantization.", "model.name", "model.torch_dtype", "model.attn_implementation",
    "training.per_device_", "training.gradient_", "training.optim", "training.bf16", "training.fp16", "training.do_",
    "training.dataloader_", "training.predict_with_generate", "training.metric_for_best_model",
    "training.eval_accumulation_steps", "training.max_steps", "training.num_train_epochs",
)  # fmt: skip
"""What counts where the command leaves it out: what a run takes rests on it. Of a default that only wants to be tidied,
such as a warm-up that its schedule does not have, nobody wants to hear in a command that does not say it.
"""
# What says a thing only where the first of its group is on: rank 8 of adapters that nobody asked for is no adapter.
SWITCHED = {
    "lora.": ("lora.enabled",),
    "quantization.": ("quantization.load_in_4bit", "quantization.load_in_8bit"),
}
MODEL = "model.name"
OF_COMMANDS = "command"  # the format of a program that may train nothing: of its defaults nobody asked
DEVICE_MAP, NOT_MODELLED, OWN_LOOP = "model.device_map", "run.not_modelled", "run.own_loop"
BY_ENGINE, PERHAPS, LOADS_NONE = RUN_ELSEWHERE
CALLS_DEEPSPEED, TASK_TYPE = "script.calls_deepspeed", "lora.task_type"
# A program that compares the word with its own: ``cfg["task_type"].lower() == "seq2seq_lm"``.
_CHOOSES_TYPE = r"""task_type["']?[\])]*(?:\.\w+\(\))?[ \t]*(?:==|in\b)"""
_CLASSIFIES = r"""task_type[ \t]*=[ \t]*(?:\w+\.)?["']?SEQ_CLS\b"""
# Of two that cannot both be on, what the command says of one leaves out the other, but where a library's own class of
# arguments is given both as they are.
PAIRS = {
    "training.fp16": "training.bf16", "training.bf16": "training.fp16",
    "quantization.load_in_4bit": "quantization.load_in_8bit", "quantization.load_in_8bit": "quantization.load_in_4bit",
}  # fmt: skip
TRAINER, PLAIN = "script.trainer", frozenset(("sft",))  # of TRL's, what trains as the Trainer does
UNMODELLED = ("run.quantized", NOT_MODELLED)
# Libraries that split a model over GPUs by themselves, whatever the command says.
_SPLITS = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(tensor_parallel|colossalai|megatron|fairscale|parallelformers|oslo|alpa)\b", re.M
)

# Libraries that run, evaluate or quantize a model by themselves; those that ask one elsewhere; and what loads one.
_ENGINES = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(vllm|sglang|lmdeploy|llama_cpp|ctranslate2|exllamav[23]|tensorrt_llm|mlx_lm|mlc_llm"
    r"|onnxruntime|openvino_genai|lighteval|lm_eval|llmcompressor|gptqmodel|auto_gptq|awq|auto_round|modelopt)\b",
    re.M,
)
_LOADS = re.compile(
    r"(?<!okenizer)(?<!okenizerFast)(?<!rocessor)(?<!onfig)(?<!xtractor)(?<!\bLlama)\.from_(?:pretrained|config)\(|\bpipeline\("
    r"|\b(?:SentenceTransformer|CrossEncoder)\(|\bload_(?:pretrained_)?model\w*\(|\btorch\.load\("
)

# What may put numbers in the place of DeepSpeed's ``auto``: Accelerate, or the program itself, which reads the file.
_FILLS = re.compile(
    r"ccelerat|\bopen\([^\n)]*(?:ds_|deepspeed)|_batch_size_per_gpu|HfDeepSpeedConfig|train_batch_size['\"]\]"
)


OF_LENGTHS = ("data.max_", "trl.max_")
# All flags at once: vars(args), asdict(args), args.__dict__, **args, or one by a name that is not written there.
_WHOLE = r"\b(?:vars|asdict|getattr|setattr|to_dict)\s*\(|__dict__|\*\*\s*\w*(?:arg|conf|cfg|opt|param|flag)"


def with_program(unit: Unit, programs: Sequence[Program], speller: Speller) -> Unit:
    """The unit of a command with what its program says; what the command says itself wins.

    A finding about one of these settings is shown where the command begins, and names the program. A default that is
    there and cannot be told is unknown.

    Args:
        programs: the sources of the program, where they were found.
        speller: the dialect of the unit's flags.
    """
    if len(programs) != 1:
        return unit
    program = programs[0]
    place = unit.span.beginning()
    naming = Setting(None, place, unit.span, (unit.program,), joined=unit.program)
    defaults = _with_names_meant(declared(program.own, program.imported), program)
    settings = dict(_defaults(unit, program, defaults, speller, naming))
    settings |= _unmodelled(unit, defaults, speller, naming)
    settings |= _loaded(unit, program, naming)
    settings |= _model_by_own_flag(unit, program, defaults, naming)
    placed, splits = device_map_of(program.own), _SPLITS.search(program.text)
    if placed is not None and unit.launcher in ("python", None):  # under another launcher its code does otherwise
        settings[DEVICE_MAP] = naming._replace(value=placed, path=("device_map",))
    head = head_of(program.text)
    if head is not None:
        settings["model.head"] = naming._replace(value=head, path=("from_pretrained",))
    asked = {name: each.value for name, each in {**settings, **unit.settings}.items()}
    if not asks_for_metrics(asked) and keeps_no_logits(program.text):
        settings[LOSS_ONLY] = naming._replace(value=True, path=("compute_metrics",))
    if re.search(_CLASSIFIES, program.text) is not None:
        settings[TASK_TYPE] = naming._replace(value="SEQ_CLS", path=("task_type",))
    elif "LoraConfig(" in program.text:  # the program's own, of whatever type, not one made of TRL's ModelConfig
        settings[TASK_TYPE] = naming._replace(value=known_when_run(TASK_TYPE), path=("task_type",))
    other = _other_engine(unit, program)
    if splits is not None:
        settings[NOT_MODELLED] = naming._replace(value=f"{splits[1]} ({unit.program})")
    elif other is not None:
        settings[NOT_MODELLED] = naming._replace(value=other[1], path=(other[0],))
    if resizes_positions(program.text):
        unknown = known_when_run(POSITIONS)
        settings[POSITIONS] = naming._replace(value=unknown)
    if has_own_loop(program.text):
        settings[OWN_LOOP] = naming._replace(value=True)
        if "deepspeed.initialize(" in program.text and _FILLS.search(program.text) is None:
            settings[CALLS_DEEPSPEED] = naming._replace(value=True, path=("deepspeed.initialize",))
    trainers, hinted = trainers_of(program.text), unit.settings.get(TRAINER)
    vaguely = hinted is not None and hinted.value == SEVERAL_HAVE_IT
    if trainers - PLAIN and (vaguely or not hints_at_trainer(hinted, program.text)):
        told = known_when_run(TRAINER)
        settings[TRAINER] = naming._replace(
            value=next(iter(trainers)) if len(trainers) == 1 else told, path=("Trainer",)
        )
    kept = {name: each for name, each in settings.items() if name not in OF_METRICS}
    said = {name: each for name, each in _said(unit, program, defaults).items() if name != TRAINER or name not in kept}
    both = {**kept, **said}
    silent = unit.dialect == OF_COMMANDS and program.trains and not any(name.startswith("training.") for name in both)
    by_file = re.search(r"\.parse_(?:json|yaml)_file\(", program.own) and "_into_dataclasses(" not in program.own
    left = ("training.", "trl.") if by_file else ("training.",) if silent else ()  # to the file that a flag names
    return unit._replace(settings=both, hidden=(*unit.hidden, *left))


def _with_names_meant(defaults: Mapping[str, Default], program: Program) -> Mapping[str, Default]:
    """The defaults with those that the source writes by names or sums: ``default=MAX_LENGTH``, ``default=2 * 1024``."""
    open_ = {name: each for name, each in defaults.items() if not each.can_be_told and each.value is not None}
    text = program.own if declared(program.own) else program.imported
    tree = parsed(text) if open_ else None
    if tree is None:
        return defaults
    names = Names(tree)
    source = Expressions(names, {}, text)
    found = dict(defaults)
    for name, each in open_.items():
        if each.value is not None and names.are_bound_again(each.value):  # a flag takes the value where it is declared
            continue
        source.shared.by_default = False
        try:
            value = source.read(each.value, END).data if each.value is not None else None
        except UnknownValueError:
            continue
        made_of_text = isinstance(value, str) and each.made not in ("str", LITERAL)
        if not made_of_text and not source.shared.by_default:  # the environment may have another
            told = as_default(value)
            found[name] = each._replace(text=told.text, can_be_told=told.can_be_told)
    return found


def _other_engine(unit: Unit, program: Program) -> tuple[str, str] | None:
    """What runs the model of a command that trains nothing, and why that is not modelled: its program has another do
    it, or may, or loads none itself. What transformers' ``generate`` takes follows from the flags of none of these.
    """
    if unit.dialect != OF_COMMANDS or program.trains:
        return None
    engine, loads = _ENGINES.search(program.text), _LOADS.search(program.text) is not None
    if engine is not None:
        return PERHAPS if loads else BY_ENGINE, engine[1]
    return None if loads else (LOADS_NONE, unit.program)


def _said(unit: Unit, program: Program, defaults: Mapping[str, Default]) -> Mapping[str, Setting]:
    """What the command says, less what its program makes another value of, and lengths that it cuts no row by."""
    changed = set_anyway(program.own)

    def told(name: str, setting: Setting) -> Setting:
        key = str(setting.path[-1]) if setting.path else ""
        flag = key[2:].replace("-", "_") if key.startswith("--") else ""
        unread = (
            flag in defaults and name.startswith(OF_LENGTHS) and _is_left_unread(flag, defaults[flag], program.text)
        )
        own = name == TASK_TYPE and re.search(_CHOOSES_TYPE, program.text) is not None
        if flag not in changed and not unread and not own:
            return setting
        return setting._replace(value=Unknown(frozenset((name,)), REWRITTEN))

    return {name: told(name, each) for name, each in unit.settings.items()}


def _is_left_unread(name: str, default: Default, text: str) -> bool:
    """Whether a program that declares a flag never names it again, nor hands on all of its flags at once: what a
    command says by it comes to nothing. A field of a class that is built on the library's own is read there."""
    flag = re.escape(name).replace("_", "[-_]")
    named = list(re.finditer(rf"(?<!\w){flag}(?!\w)", text))
    if len(named) != 1 or re.search(_WHOLE, text) is not None:
        return False
    bases = re.findall(r"(?m)^class[ \t]+\w+[ \t]*(?:\(([^)]*)\))?[ \t]*:", text[: named[0].start()])
    return not default.of_class or bases[-1:] == [""]


def _defaults(
    unit: Unit, program: Program, defaults: Mapping[str, Default], speller: Speller, naming: Setting
) -> Iterator[tuple[str, Setting]]:
    """The settings that the program's own flags have where the command leaves them out."""
    found: dict[str, tuple[int, Setting]] = {}
    hands_on = program._replace(text=program.own, own_length=None).hands_on
    for name, flag in defaults.items():
        otherwise = any(each in unit.keys for other in flag.others for each in other.spelt)
        default = UNTOLD if otherwise else flag
        for target in speller.targets.get(name, []):
            fact = target.fact.name
            said = any(each in unit.keys for each in (name, *flag.spelt))
            if said or fact in unit.settings or fact == DEVICE_MAP or not fact.startswith(BROUGHT):
                continue
            if _left_out(fact, default, unit.settings, own_name=target.rank >= LAST):
                continue
            counts = fact.startswith("data.") or (fact == "training.max_steps" and not hands_on)
            if counts and not _is_read(name, program.text):
                continue
            value = _value(name, default, target)
            if value is not None and (fact not in found or target.rank < found[fact][0]):
                setting = naming._replace(value=value, path=(f"--{name}",), own_name=target.rank >= LAST)
                found[fact] = target.rank, setting
    brought = {fact: setting for fact, (_, setting) in found.items()}
    yield from ((fact, each) for fact, each in brought.items() if _counts(fact, brought, unit.settings))


def _value(name: str, default: Default, target: Target) -> Any:
    """What a flag's default means; None where it says nothing of the setting."""
    if not default.can_be_told:
        return known_when_run(target.fact.name)
    if default.text is None:
        return None
    flag = Flag(name, Argument(name, 0, 0), (Argument(default.text, 0, 0),), inline=True)
    setting, event = setting_of(flag, False, target, Places(""))
    return None if setting is None or event is not None else setting.value


def _left_out(fact: str, default: Default, said: Mapping[str, Setting], *, own_name: bool) -> bool:
    """Whether the command says the other of a pair, and the program need not hand both on."""
    other = said.get(PAIRS.get(fact, ""))
    return other is not None and other.value is True and (own_name or not default.of_class)


def _is_read(name: str, text: str) -> bool:
    """Whether the program takes a flag's value anywhere: as an attribute, or by its name in brackets or a call."""
    key = re.escape(name)
    return re.search(rf"""\.{key}\b|[\[(]["']{key}["']|[(,]\s*{key}\b|=\s*{key}\b""", text) is not None


def _loaded(unit: Unit, program: Program, naming: Setting) -> Iterator[tuple[str, Setting]]:
    """How the program loads its model by itself. What the command says stays: a flag of that name is for it. What a
    function of another module gives it is not known."""
    elsewhere = dict.fromkeys(loaded_elsewhere(program.own, program.imported))
    for name, value in {**elsewhere, **loaded(program.own)}.items():
        if name not in unit.settings and value is not False:
            told = known_when_run(name) if value is None else value
            yield name, naming._replace(value=told, path=("from_pretrained", name.rpartition(".")[2]))


def _model_by_own_flag(
    unit: Unit, program: Program, defaults: Mapping[str, Default], naming: Setting
) -> Mapping[str, Setting]:
    """The model, by the flag that the program loads it from, where that is called as no format calls it: ``--PLM``."""
    flag = flag_of_model(program.own) if MODEL not in unit.settings else None
    if flag is None:
        return {}
    said, default = unit.keys.get(flag), defaults.get(flag)
    if said is not None:
        return {MODEL: said} if isinstance(said.value, str) or is_unknown(said.value) else {}
    if default is None or not default.can_be_told or default.text is None or unit.dialect == OF_COMMANDS:
        return {}
    return {MODEL: naming._replace(value=default.text, path=(f"--{flag}",))}


def _unmodelled(
    unit: Unit, defaults: Mapping[str, Default], speller: Speller, naming: Setting
) -> Iterator[tuple[str, Setting]]:
    """What defaults say of things without a memory model: a switch that is on, a number of bits."""
    keys = [
        (name, each.text, speller.ignores(name)) for name, each in defaults.items()
        if name not in unit.keys and name not in speller.targets and each.text in ("True", "4", "8")
    ]  # fmt: skip
    for found in speller.unmodelled.among(keys):
        if found.to in UNMODELLED and found.to not in unit.settings:
            yield found.to, naming._replace(value=f"{found.text} ({unit.program})")


def _counts(fact: str, brought: Mapping[str, Setting], said: Mapping[str, Setting]) -> bool:
    for group, switches in SWITCHED.items():
        if fact.startswith(group) and fact not in switches:
            told = [said.get(each) or brought.get(each) for each in switches]
            on = [each.value is True for each in told if each is not None]
            return any(on) or (not on and any(name.startswith(group) for name in said))
    return True
