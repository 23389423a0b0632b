"""Facts of the run that follow from several settings at once: its lengths, its adapter and the modules that it names;
FSDP, DeepSpeed and the launcher.
"""

import re
from collections.abc import Callable, Mapping

from kb import memory
from kb.advice.run.named_model import may_be_stored_packed
from kb.core import document
from kb.core.document import Unit
from kb.core.expression import Unknown, is_unknown
from kb.core.facts import FactType, VersionOf
from kb.core.model import Model
from kb.core.setup import TrainingSetup
from kb.core.typed import Any


def eval_generations(setting: Callable[[str], Any]) -> Any:
    """Completions for each prompt in evaluation: its own number, else that of training."""
    own = setting("trl.num_generations_eval")
    return setting("trl.num_generations") if own is None else own


def is_calls(unit: Unit) -> bool:
    """Whether the settings are arguments of a program's own calls, with no config or command between."""
    return not unit.read_by and unit.script is None and unit.path.endswith((".py", ".ipynb"))


def of_trl(unit: Unit) -> bool:
    """Whether a script of TRL's own runs it (``trl sft``, ``trl/scripts/sft.py``), which makes a LoraConfig of its
    ModelConfig; of another program it is not known what it hands to PEFT."""
    return (unit.script or "").startswith("trl ") or "trl/scripts/" in unit.program


def says_torch_dtype(unit: Unit) -> bool:
    """Whether the weights' type is given under transformers' old name for it.

    Code that trains with TRL gives it to ``from_pretrained``, which takes both names, not to a class of TRL's; so
    does a program that has a flag of that name itself, or that reads a config by code of its own.
    """
    setting = unit.settings.get("model.torch_dtype")
    in_code = bool(unit.read_by) or is_calls(unit)
    if setting is None or (in_code and unit.dialect == "trl") or setting.joined.endswith(".py"):
        return False
    return str(setting.path[-1]).lstrip("-") == "torch_dtype"


def unknown_training_keys(unit: Unit, group: str) -> tuple[str, ...]:
    """Keys that lie directly in this group of settings and that no version of its class is known to have."""
    parts = [key.rpartition(".") for key in unit.unknown_keys]
    return tuple(name for parent, _, name in parts if parent == group)


_COMMON = ("Dropout", "Embedding", "Linear", "ModuleList")
_T5 = (
    *("Attention", "Block", "DenseActDense", "DenseGatedActDense", "ForConditionalGeneration"),
    *("LayerCrossAttention", "LayerFF", "LayerNorm", "LayerSelfAttention", "Stack"),
)
_T5_NAMES = (
    *("DenseReluDense", "EncDecAttention", "SelfAttention", "act", "block", "decoder", "dropout", "embed_tokens"),
    *("encoder", "final_layer_norm", "k", "layer", "layer_norm", "lm_head", "o", "q", "relative_attention_bias"),
    *("shared", "v", "wi", "wi_0", "wi_1", "wo"),
)
_BART_NAMES = (
    *("activation_fn", "decoder", "embed_positions", "embed_tokens", "encoder", "encoder_attn", "fc1", "fc2"),
    *("encoder_attn_layer_norm", "final_layer_norm", "k_proj", "layernorm_embedding", "layers", "lm_head", "model"),
    *("out_proj", "q_proj", "self_attn", "self_attn_layer_norm", "shared", "v_proj"),
)
_BART = (
    *("BartAttention", "BartDecoder", "BartDecoderLayer", "BartEncoder", "BartEncoderLayer", "BartModel"),
    *("BartForConditionalGeneration", "BartLearnedPositionalEmbedding", "BartScaledWordEmbedding", "LayerNorm"),
    *("GELUActivation", *_COMMON),
)
_ACTIVATIONS = ("NewGELUActivation", "GELUActivation", "ReLU", "SiLUActivation", *_COMMON)

# Every class that a module of the model has; FSDP may be told to wrap any of them.
MODULE_CLASSES: dict[str, tuple[str, ...]] = {
    **{
        family: (*(prefix + name for name in _T5), *_ACTIVATIONS)
        for family, prefix in (("t5", "T5"), ("mt5", "MT5"), ("umt5", "UMT5"))
    },
    "bart": _BART,
}
# Those that transformers itself keeps whole, ``_no_split_modules``.
LAYER_CLASSES: dict[str, tuple[str, ...]] = {
    "t5": ("T5Block",),
    "mt5": ("MT5Block",),
    "umt5": ("UMT5Block",),
    "bart": ("BartEncoderLayer", "BartDecoderLayer"),
}
# Every step of a module's path, numbers left out.
MODULE_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5_NAMES),
    "bart": _BART_NAMES,
}


_WITH_OTHER_HEADS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION")
HEAD = "lm_head"


# The weights of a mixture's experts, by the last part of their names (Mixtral, Qwen and most others).
EXPERT_PARTS = frozenset(("w1", "w2", "w3", "gate_proj", "up_proj", "down_proj", "gate_up_proj", "experts", "gate"))


# EXAONE 3's code lay beside its weights; transformers has it since 5.24, with Llama's names. Either may run there.
NAMED_ANEW = {"exaone": frozenset(("o_proj", "gate_proj", "up_proj", "down_proj"))}
SINCE = (5, 24)


class AdapterFacts:
    """The providers of the ``lora.`` facts that no config says itself."""

    def __init__(
        self, unit: Unit, setup: TrainingSetup, model: Model | None, versions: Callable[..., tuple[int, ...] | None]
    ) -> None:
        self._unit, self._setup, self._model, self._versions = unit, setup, model, versions

    def providers(self) -> Mapping[str, Callable[[str], Any]]:
        return {
            "lora.unmatched_modules_to_save": lambda _: self._unmatched_to_save(),
            "lora.unmatched_patterns": lambda _: self._unmatched_patterns(),
            "lora.head_passed_over": lambda _: self._passed_over(),
            "lora.no_default_targets": lambda _: self._no_defaults(),
            "lora.targets_text": lambda _: self._targets_text(),
            "lora.target_names": lambda _: self._target_names(),
            "lora.unmatched_target_modules": lambda _: self._targets(1),
            "lora.matched_target_modules": lambda _: self._targets(0),
            "lora.known_modules": lambda _: self._modules(),
            "lora.suggested_target_modules": lambda _: self._suggested_targets(),
        }

    def _passed_over(self) -> bool:
        """Whether Liger's fused loss, which reads the weight of the output layer, passes over an adapter there."""
        setup = self._setup
        asked = setup.method != "full" and HEAD in (setup.lora_target_modules or ())
        fused = setup.do_train and setup.fused_loss and not setup.label_smoothing_factor
        return asked and fused and setup.liger_kernels is not None

    def _unmatched_to_save(self) -> Any:
        """The names that end no module's name, as PEFT compares them (0.21.2, ``_set_trainable``)."""
        named = self._unit.as_written("lora.modules_to_save")
        if named is None:
            return ()
        if not isinstance(named, tuple) or not all(isinstance(name, str) for name in named):
            return Unknown(frozenset(("lora.modules_to_save",)), "no list of names")
        if self._model is None:
            return Unknown(frozenset(("model.name",)), "model not known")
        known = MODULE_NAMES.get(self._model.architecture.model_type)
        if known is None or str(self._unit.as_written("lora.task_type")).upper() in _WITH_OTHER_HEADS:
            return None
        return tuple(name for name in named if not any(each.endswith(name.rpartition(".")[2]) for each in known))

    def _unmatched_patterns(self) -> Any:
        """The keys of rank_pattern and alpha_pattern that no targeted module's name ends with (PEFT 0.21.2)."""
        patterns = [self._unit.as_written(name) for name in ("lora.rank_pattern", "lora.alpha_pattern")]
        keys = [str(key) for pattern in patterns if isinstance(pattern, Mapping) for key in pattern]
        if not keys:
            return next((pattern for pattern in patterns if is_unknown(pattern)), ())
        if self._model is None:
            return Unknown(frozenset(("model.name",)), "model not known")
        from kb.core.patterns import unmatched  # few configs have such keys

        try:
            matched, _ = memory.match_targets(self._model.architecture, self._setup.lora_target_modules)
            paths = [path for module in matched for path in module.paths()]
            return unmatched(keys, paths)
        except ValueError as error:
            return Unknown(frozenset(("lora.target_modules",)), str(error))

    def _no_defaults(self) -> bool | None:
        if not of_trl(self._unit):
            return False
        return None if self._model is None else memory.default_targets(self._model.architecture) is None

    def _targets_text(self) -> Any:
        """The targets as PEFT is given them where that is one text; empty where they are a list."""
        targets = self._unit.as_written("lora.target_modules")
        if isinstance(targets, tuple):
            return (self._alone(targets) if of_trl(self._unit) else None) or ""
        return targets

    def _alone(self, targets: Any) -> str | None:
        """The one name of a list, where TRL's ModelConfig may be what hands it on: as text (``__post_init__``, 0.12 to
        1.16). A program of one's own may hand the list to PEFT itself."""
        may = self._unit.dialect == "trl" and not is_calls(self._unit) and not self._unit.read_by
        return targets[0] if may and isinstance(targets, tuple) and len(targets) == 1 else None

    def _target_names(self) -> Any:
        """The names in targets given as one text that is no regular expression."""
        text = self._targets_text()
        if not isinstance(text, str) or text in ("", "all-linear") or not re.fullmatch(r"[\w\s,]*", text):
            return text if text is None or is_unknown(text) else ()
        return tuple(text.replace(",", " ").split())

    def _targets(self, which: int) -> Any:
        targets = self._setup.lora_target_modules
        if self._model is None or self._setup.method == "full" or targets is None:
            return None
        alone = self._alone(targets)
        if alone not in (None, "all-linear") and (of_trl(self._unit) or re.fullmatch(r"[\w.]+", alone or "") is None):
            return Unknown(frozenset(("lora.target_modules",)), "one text, not a list")
        try:
            matched, missing = memory.match_targets(self._model.architecture, targets)
        except memory.UnknownTargetsError as error:
            return Unknown(reason=str(error))
        found = tuple(dict.fromkeys(module.name.rpartition(".")[2] for module in matched))
        if self._model.architecture.experts:  # one parameter of a layer from transformers 5 on, modules before
            missing = tuple(name for name in missing if name.rpartition(".")[2] not in EXPERT_PARTS)
        release = self._versions("transformers", SINCE)
        before = release is not None and release < SINCE
        anew = frozenset[str]() if before else NAMED_ANEW.get(self._model.architecture.model_type, frozenset())
        return (found, tuple(name for name in missing if name.rpartition(".")[2] not in anew))[which]

    def _suggested_targets(self) -> Any:
        """The LoRA targets that match, with T5's feed-forward input under the name that this model gives it, and
        without the commas of a list that a shell parts at its spaces: ``"q_proj", "v_proj"``."""
        named, missing = self._setup.lora_target_modules, self._targets(1)
        if not isinstance(named, tuple) or not isinstance(missing, tuple) or self._model is None:
            return None
        inputs = ("wi_0", "wi_1") if self._model.architecture.gated else ("wi",)
        suggested: dict[str, None] = {}
        modules = self._modules()
        for each in named:
            bare = each.strip(" ,'\"")
            name = bare if bare in modules else each
            wanted = self._model.architecture.family == "t5" and name in ("wi", "wi_0", "wi_1")
            suggested |= dict.fromkeys((name,) if name not in missing else inputs if wanted else ())
        return tuple(suggested) or None

    def _modules(self) -> Any:
        if self._model is None:
            return None
        names = (module.name.rpartition(".")[2] for module in memory.modules(self._model.architecture))
        return tuple(dict.fromkeys(names))


_WIDTHS = ("quantization.load_in_4bit", "quantization.load_in_8bit")


def prepared_in_vain(unit: Unit) -> document.Setting | None:
    """The call that has PEFT prepare a model which is loaded as it is, as far as the file says."""
    prepared, name = unit.settings.get("quantization.prepared"), unit.settings.get("model.name")
    if prepared is None or prepared.value is not True or name is None or not isinstance(name.value, str):
        return None
    loader = unit.settings.get("model.loader")
    if loader is not None and loader.value == "unsloth":  # its own function of that name
        return None
    if may_be_stored_packed(name.value):
        return None
    widths = [unit.settings[each].value for each in _WIDTHS if each in unit.settings]
    packed = any(value is not False for value in widths) or "run.quantized" in unit.settings
    return None if packed or any(each.startswith(unit.hidden) for each in _WIDTHS) else prepared


class RunFacts:
    """``setting`` looks a setting up: the config's word, the project's, or the library's default."""

    def __init__(
        self, unit: Unit, setup: TrainingSetup, types: Mapping[str, FactType], setting: Callable[[str], Any]
    ) -> None:
        self._unit = unit
        self._setup = setup
        self._types = types
        self._setting = setting

    def providers(self) -> dict[str, Callable[[str], Any]]:
        return {
            "config.null_settings": lambda _: tuple(self._unit.nulls),
            "config.text_lists": lambda _: self._text_lists(),
            "generation.suppresses_forced_token": lambda _: self._suppresses_forced(),
            "run.tables_upcast": lambda _: self._setup.prepare_for_kbit and not self._setup.half_tables,
            "run.prepared_unquantized": lambda _: prepared_in_vain(self._unit) is not None,
            "run.trains": lambda _: self._trains(),
            "run.steps": lambda _: self._steps(),
            "run.says_epochs": lambda _: self._says("training.num_train_epochs"),
            "batch.counted": lambda _: self._counted(),
            "batch.gpus": lambda _: self._setup.world_size if self._setup.world_size > 1 else None,
        }

    def _counted(self) -> str | None:
        """The batch that training is predicted with; None of post-training, whose rows are of several kinds."""
        setup = self._setup
        whole = setup.post is None and setup.batch_known and setup.lengths is None
        return f"{setup.per_device_train_batch_size} × {setup.max_source_length:,}" if whole else None

    def _text_lists(self) -> tuple[str, ...]:
        """The lists that the config gives as one text, which Python goes through letter by letter."""
        settings, types = self._unit.settings.items(), self._types
        return tuple(name for name, each in settings if types[name].type == "list" and isinstance(each.value, str))

    def _trains(self) -> bool:
        """Whether the run trains: a script told to evaluate or predict trains only where it is told that too.

        TRL's scripts train whatever they are told.
        """
        train, *others = (self._setting(f"training.do_{phase}") for phase in ("train", "eval", "predict"))
        told = train is not None and not is_unknown(train)  # a program's parser may have a default that nobody reads
        alone = self._unit.dialect not in ("team", "trl") and not told and True in others
        return self._setup.do_train and not alone

    def _says(self, name: str) -> bool:
        """Whether somebody chose the setting for this run: what the program alone says, nobody did."""
        setting = self._unit.settings.get(name)
        if setting is None or setting.span.end == 0 or (setting.by_default and self._unit.script is None):
            return False
        return not setting.joined or not (setting.joined == self._unit.program or setting.joined.endswith(".py"))

    def _suppresses_forced(self) -> bool:
        """Whether ``suppress_tokens`` holds a token that is forced at the start or the end."""
        suppressed = self._setting("generation.suppress_tokens")
        forced = [self._setting(f"generation.forced_{end}_token_id") for end in ("bos", "eos")]
        return isinstance(suppressed, tuple) and any(token in suppressed for token in forced if token is not None)

    def _steps(self) -> Any:
        """Optimizer updates of the training run: ``max_steps``, or what epochs and samples come to (Trainer 5.23).

        A last, smaller accumulation counts as an update; before transformers 4.52 it did not.
        """
        most, samples = self._setting("training.max_steps"), self._setting("data.train_samples")
        epochs = self._setting("training.num_train_epochs")
        if isinstance(most, int) and most > 0:
            return most
        if not isinstance(samples, int) or samples < 1:
            return Unknown(frozenset(("data.train_samples",)))
        if not isinstance(epochs, int | float) or not self._setup.batch_known:
            return None
        batches = -(-samples // (self._setup.per_device_train_batch_size * self._setup.world_size))
        updates = -(-batches // self._setup.gradient_accumulation_steps)
        return -int(-epochs * updates // 1)


Setting = Callable[[str], Any]
"""A setting by name, of its own type: as written, else the default; None or Unknown where neither is known."""

FSDP2_BY_DEFAULT = (5, 10)  # transformers 5.9 takes fsdp_config.version for 1, 5.10 for 2
BEHIND_A_FILE = {
    "training.fsdp_config.": "training.fsdp_config",
    "training.accelerator_config.": "training.accelerator_config",
}
# What the Trainer writes over "auto" in a DeepSpeed file, and demands to be equal to a number there
# (transformers 5.23.0, integrations/deepspeed.py, trainer_config_process).
FILLED_FROM = {
    "deepspeed.train_micro_batch_size_per_gpu": ("training.per_device_train_batch_size",),
    "deepspeed.gradient_accumulation_steps": ("training.gradient_accumulation_steps",),
    "deepspeed.gradient_clipping": ("training.max_grad_norm",),
    "deepspeed.optimizer.params.lr": ("training.learning_rate",),
    "deepspeed.optimizer.params.eps": ("training.adam_epsilon",),
    "deepspeed.optimizer.params.weight_decay": ("training.weight_decay",),
    "deepspeed.scheduler.params.warmup_max_lr": ("training.learning_rate",),
    "deepspeed.fp16.enabled": ("training.fp16", "training.fp16_full_eval"),
    "deepspeed.bf16.enabled": ("training.bf16", "training.bf16_full_eval"),
}
NAMES_A_FILE = ("training.deepspeed", "deepspeed.config_file")
_SPARED_BY_BATCH_FINDER = ("deepspeed.train_micro_batch_size_per_gpu", "deepspeed.train_batch_size")


def stage_in_name(unit: Unit) -> int | None:
    """The ZeRO stage that a DeepSpeed file which cannot be read bears in its name: ``configs/ds_zero3.json``."""
    held = unit.settings.get(unit.unread[0]) if unit.unread else None
    found = re.search(r"(?:zero|stage|z)[-_]?([0-3])(?![0-9])", str(held.value).lower()) if held else None
    return int(found[1]) if found else None


def hidden_behind(unit: Unit, name: str) -> str | None:
    """The setting that names a file which may say ``name`` and was not read; None where the config says it all.

    One that may stand in arguments which cannot be told is hidden behind itself. A file whose name is only known when
    the run starts (``${DS_CONFIG}``) was not read either.
    """
    if unit.hidden and name.startswith(unit.hidden):
        return name
    if name.startswith("deepspeed."):
        open_ = (each for each in NAMES_A_FILE if each in unit.hidden or is_unknown(unit.as_written(each)))
        named = (*unit.unread, *open_)
        return named[0] if named and name not in named else None
    for group, setting in BEHIND_A_FILE.items():
        if name.startswith(group):
            held = unit.as_written(setting)
            return setting if isinstance(held, str) or is_unknown(held) else None
    return None


class DistributedFacts:
    """The providers of ``fsdp.``, and of the ``deepspeed.`` facts that no config says itself."""

    def __init__(self, unit: Unit, setting: Setting, model: Model | None, versions: VersionOf) -> None:
        self._unit, self._setting, self._model, self._versions = unit, setting, model, versions

    def providers(self) -> Mapping[str, Callable[[str], Any]]:
        return {
            "fsdp.enabled": lambda _: self._fsdp_enabled(),
            "fsdp.options": lambda _: self._fsdp_options(),
            "fsdp.version": lambda _: self._fsdp_version(),
            "fsdp.missing_wrap_classes": lambda _: self._missing_wrap_classes(),
            "model.layer_classes": lambda _: self._model and LAYER_CLASSES.get(self._model.architecture.model_type),
            "model.on_cpu": lambda _: self._on_cpu(),
            "deepspeed.joined": lambda _: self._joined(),
            "deepspeed.auto_values": lambda _: self._auto_values(),
            "deepspeed.disagreements": lambda _: self._disagreements(),
        }

    def _fsdp_enabled(self) -> Any:
        value = self._setting("training.fsdp")
        return (
            value.strip().lower() not in ("", "false") if isinstance(value, str) else False if value is None else value
        )

    def _fsdp_options(self) -> Any:
        value = self._setting("training.fsdp")
        if isinstance(value, str):
            return tuple(word for word in value.replace(",", " ").lower().split() if word not in ("true", "false"))
        return () if value is None else value

    def _fsdp_version(self) -> Any:
        said = self._setting("training.fsdp_config.version")
        if said is not None:
            return said
        transformers = self._versions("transformers", FSDP2_BY_DEFAULT)
        if transformers is None:
            return Unknown(frozenset(("versions.transformers",)), "FSDP's version was 1 by default, then 2")
        return 2 if transformers >= FSDP2_BY_DEFAULT else 1

    def _missing_wrap_classes(self) -> Any:
        """The named classes that no module of the model has: Accelerate refuses each of them."""
        name = "training.fsdp_config.transformer_layer_cls_to_wrap"
        written = self._unit.settings.get(name)
        text = written.value if written and isinstance(written.value, str) else None
        named = self._setting(name) if text is None else tuple(part.strip() for part in text.split(","))
        if named is None or is_unknown(named):
            return () if named is None else named
        if self._model is None:
            return Unknown(frozenset(("model.name",)), "model not known")
        known = MODULE_CLASSES.get(self._model.architecture.model_type)
        return None if known is None else tuple(name for name in named if name not in known)

    def _on_cpu(self) -> Any:
        """Whether the config itself puts some modules, but not all, on the CPU or the disk."""
        written = self._unit.settings.get("model.device_map")
        placed = written.value if written else None
        if isinstance(placed, Mapping):
            devices = {str(device) for device in placed.values()}
            return devices != {"cpu"} and bool(devices & {"cpu", "disk"})
        return placed if is_unknown(placed) else False

    def _joined(self) -> Any:
        """Whether a DeepSpeed file that the config names was read; unknown where it names one that was not."""
        if self._unit.unread:
            return Unknown(frozenset(self._unit.unread), "the file that it names was not read")
        return any(name in NAMES_A_FILE for name in self._unit.joined)

    def _auto_values(self) -> tuple[str, ...]:
        return tuple(name.removeprefix("deepspeed.") for name in self._unit.left_open if name.startswith("deepspeed."))

    def auto(self, name: str) -> Any:
        """What the Trainer puts in the place of an ``auto`` in the DeepSpeed file that the config names."""
        if name == "deepspeed.train_batch_size":
            return self._whole_batch()
        values = [self._setting(source) for source in FILLED_FROM.get(name, ())]
        unknown = next((value for value in values if is_unknown(value) or value is None), None)
        if not values or None in values or unknown is not None:
            return unknown
        return any(values) if isinstance(values[0], bool) else values[0]

    def _whole_batch(self) -> Any:
        parts = ("training.per_device_train_batch_size", "training.gradient_accumulation_steps", "launch.num_processes")
        product = 1
        for name in parts:
            value = self._setting(name)
            if not isinstance(value, int):
                return value if is_unknown(value) else Unknown(frozenset((name,)))
            product *= value
        return product

    def _disagreements(self) -> Any:
        """``gradient_accumulation_steps 2 ≠ 4`` for each number of the DeepSpeed file that is not the Trainer's."""
        joined = self._joined()
        if is_unknown(joined):
            return joined
        if not joined or "training.deepspeed" not in self._unit.settings:
            return ()
        spared = _SPARED_BY_BATCH_FINDER if self._setting("training.auto_find_batch_size") is True else ()
        found, undecided = [], None
        for name in (*FILLED_FROM, "deepspeed.train_batch_size"):
            setting = self._unit.settings.get(name)
            if setting is None or not setting.joined or name in spared:
                continue
            said, meant = self._setting(name), self.auto(name)
            if is_unknown(meant) or is_unknown(said):
                undecided = meant if is_unknown(meant) else said
            elif meant is None:
                undecided = Unknown(frozenset(FILLED_FROM.get(name, ())))
            elif meant != said:
                found.append(f"{name.removeprefix('deepspeed.')} {_shown(said)} ≠ {_shown(meant)}")
        return tuple(found) if found or undecided is None else undecided


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
