"""The settings of a unit as values: written, given or by default, and over how many processes they are spread."""

from collections.abc import Mapping

from kb.advice.facts.run_facts import NAMES_A_FILE, hidden_behind, stage_in_name
from kb.core.document import Unit, names_one_gpu, speaks_of_several_gpus
from kb.core.expression import is_unknown
from kb.core.facts import FactType, VersionOf, coerce, default_is_open, default_of
from kb.core.model import OF_UNSLOTH, Model
from kb.core.setup import Assumption, Method, Spread, TrainingSetup
from kb.core.typed import Any, Literal

# Types that Unsloth computes in fp32 where a GPU has no bf16: fp16 has too small a range (FORCE_FLOAT32, loader.py).
IN_FP32_WITHOUT_BF16 = ("gemma3", "gemma4", "glm4_moe", "gpt_oss", "qwen3_5", "qwen3_moe")
PASSED_OVER = 1024  # tokens: TRL's default, of which Unsloth cannot tell whether it was written
AWAY = "training.offloaded_checkpoints"
BY_HOOKS = ("activation_offloading", "enable_activation_offloading")  # OffloadActivations of torchtune, TRL, Axolotl
OFFLOADED_FROM = 512  # tokens of a sample: Unsloth leaves shorter ones on the GPU


class SettingsReader:
    """Settings by name, with the library's default behind them; remembers what was assumed.

    ``unresolved`` are the settings asked for whose value is unknown (``${BATCH}``, ``auto``) or beyond use (a batch of
    -5): a default in their place would be a guess. ``unread`` are those that name a file which could not be read.
    ``given`` is what the project says where the config says nothing; ``versions`` decides between defaults that moved.
    ``beyond`` names what of the run no memory model covers, where a reader of several settings together found it.
    """

    def __init__(
        self,
        unit: Unit,
        facts: Mapping[str, FactType],
        given: Mapping[str, Any] = {},
        versions: VersionOf = lambda library: None,
    ) -> None:
        self._unit = unit
        self._facts = facts
        self._versions = versions
        self._given = given
        self.unread = unit.unread
        self.assumed: list[Assumption] = []
        self.unresolved: dict[str, None] = {}
        self.beyond: list[str] = []
        self.named_for_one = names_one_gpu(unit.path)

    def written(self, name: str) -> bool:
        return name in self._unit.settings

    def as_written(self, name: str) -> Any:
        """The config's value as it stands there; None where it says none."""
        return self._unit.as_written(name)

    def key(self, name: str) -> str:
        """The key that a setting is written under; its own name where the project says it."""
        setting = self._unit.settings.get(name)
        return str(setting.path[-1]) if setting is not None and setting.path else name

    def by_own_name(self, name: str) -> bool:
        """Whether the key that says it is one that programs of their own have, so that what it means is a guess."""
        setting = self._unit.settings.get(name)
        return setting is not None and setting.own_name

    def value(self, *names: str) -> Any:
        """The first of ``names`` that the config says; None where it says none, or its value is unresolved."""
        for name in names:
            setting = self._unit.settings.get(name)
            value = self._given.get(name) if setting is None or setting.value is None else setting.value
            if value is None and setting is None and self._unit.hidden and name.startswith(self._unit.hidden):
                self.unresolved[name] = None
                return None
            if value is None:
                continue
            kind = self._facts[name].type
            if kind == "text" and isinstance(value, bool):  # `fsdp: true`; `false` says that there is none
                if not value:
                    continue
                value = "true"
            if kind == "list" and value == "all-linear":
                value = (value,)
            value = coerce(value, kind, name)
            if is_unknown(value):
                self.unresolved[name] = None
                return None
            return value
        return None

    def number(self, *names: str, least: int = 1) -> int | None:
        """As :meth:`value`, of a whole number; one below ``least`` cannot run and is unresolved."""
        for name in names:
            value = self.value(name)
            if value is not None and value < least:
                self.unresolved[name] = None
            if name in self.unresolved:
                return None
            if value is not None:
                return int(value)
        return None

    def or_default(self, name: str) -> Any:
        """The config's value, or the library's default."""
        value = self.value(name)
        return self.default(name) if value is None else value

    def decide(self, name: str, value: object) -> None:
        """What was assumed of a setting is not so, unless it is this value."""
        self.assumed[:] = [each for each in self.assumed if each.name != name or each.value == value]

    def assume_default(self, name: str) -> None:
        """A length that is only its program's default says nothing of the data."""
        setting = self._unit.settings.get(name)
        if setting and setting.joined and setting.joined == self._unit.program:
            self.assumed.append(Assumption(name=name, value=setting.value, reason="script_default"))

    def default(self, name: str) -> Any:
        """The library's default, in the release at hand or the newest."""
        return default_of(self._facts[name], self._versions)

    def default_is_open(self, name: str) -> bool:
        """Whether the default moved between releases, or is none that is known, and the release is not known."""
        fact = self._facts[name]
        return default_is_open(fact, self._versions) or default_of(fact, self._versions) is None

    def number_or_default(self, name: str, least: int = 1) -> int:
        """As :meth:`or_default`, of a whole number that has a default."""
        value = self.number(name, least=least)
        return int(self.default(name)) if value is None else value

    def or_assume(self, name: str, value: Any, fallback: Any, reason: str) -> Any:
        """``value``, or ``fallback``, which is then listed as assumed."""
        if value is not None:
            return value
        self.assumed.append(Assumption(name=name, value=fallback, reason=reason))
        return fallback


PROCESSES = "launch.num_processes"
DEVICE_MAP = "model.device_map"
BATCH = ("training.per_device_train_batch_size", "training.gradient_accumulation_steps")
CHECKPOINTING = "training.gradient_checkpointing"
AUTO = -1  # as the dialect reads it
STAGE_OF_ACCELERATE = 2  # where nothing says one (DeepSpeedPlugin.__post_init__ in accelerate/utils/dataclasses.py)
FSDP2_SINCE = (5, 12)  # transformers that take FSDP2, and wrap the layers, where fsdp_config does not say


def spread_of(read: SettingsReader, d_model: int | None, versions: VersionOf) -> Spread:
    """The settings of a run's distribution.

    Args:
        d_model: the model's hidden size, from which accelerate fills in buckets that are ``auto``.
        versions: the releases of libraries, where known.
    """
    transformers = versions("transformers", FSDP2_SINCE)
    named = any(read.written(name) for name in ("training.deepspeed", "deepspeed.config_file", "deepspeed.zero_stage"))
    ratio = read.value("deepspeed.offload_optimizer.ratio")
    contiguous = read.value("deepspeed.contiguous_gradients")
    options = str(read.value("training.fsdp") or "").replace(",", " ").split()
    old = transformers is not None and transformers < FSDP2_SINCE
    return Spread(
        nodes=read.number("launch.num_machines") or 1,
        tensor_parallel=read.number("training.parallelism_config.tp_size") or 1,
        deepspeed=named or by_accelerate(read),
        reduce_bucket=_elements(read, "deepspeed.reduce_bucket_size", d_model, 1.0),
        prefetch_bucket=_elements(read, "deepspeed.stage3_prefetch_bucket_size", d_model, 0.9),
        max_live_parameters=read.number("deepspeed.stage3_max_live_parameters", least=0),
        max_reuse_distance=read.number("deepspeed.stage3_max_reuse_distance", least=0),
        overlap_comm=read.value("deepspeed.overlap_comm"),
        contiguous_gradients=contiguous is None or bool(contiguous),
        optimizer_offload_ratio=1.0 if ratio is None else min(max(float(ratio), 0.0), 1.0),
        optimizer_on_disk=read.value("deepspeed.offload_optimizer.device") == "nvme",
        params_on_disk=read.value("deepspeed.offload_param.device") == "nvme",
        fsdp_version=read.number("training.fsdp_config.version", "accelerate.fsdp_version")
        or (1 if old or _of_accelerate(read) else 2),
        fsdp_reshard=_reshards(read, options),
        fsdp_wrapped=_wraps(read, options, old=old),
        fsdp_backward_prefetch=_prefetches(read),
        fsdp_forward_prefetch=True
        in (
            read.value("training.fsdp_config.forward_prefetch"),
            _of_accelerate(read) and read.value("accelerate.fsdp_forward_prefetch"),
        ),
        find_unused=read.or_default("training.ddp_find_unused_parameters"),
    )


def processes_of(read: SettingsReader, unit: Unit, told: int | None) -> int:
    """The processes of the run: as the user or the config says, else one, which is listed as assumed.

    What is made for several GPUs, and does not say how many, leaves them unresolved.
    """
    count = told or read.number(PROCESSES)
    placed = _placed(read)
    if placed == OFF_GPU or (placed == SPREAD and read.number("deepspeed.zero_stage", least=0) == 3):
        read.unresolved[DEVICE_MAP] = None  # what is left on the GPU is not modelled; ZeRO-3 refuses a device map
    elif placed == SPREAD and told != 1 and read.number(PROCESSES) in (None, 1):
        if told is not None:
            read.unresolved[DEVICE_MAP] = None  # how much of the model lies on each is not modelled
            return 1
        read.assumed.append(Assumption(name=DEVICE_MAP, value=read.value(DEVICE_MAP), reason="layers_on_one_gpu"))
        return 1
    elif placed == UNTOLD:
        read.assumed.append(Assumption(name=DEVICE_MAP, value=None, reason="device_map_not_told"))
    if count is not None or PROCESSES in read.unresolved:
        return count or 1
    said = [unit.settings[name].comment for name in BATCH if name in unit.settings]
    name = unit.path.rpartition("/")[2]
    said += "".join(each if each.isalnum() else " " for each in name).split()  # `config_grpo_4gpu.yaml`
    if PROCESSES in unit.left_open or _for_several(read) or any(map(speaks_of_several_gpus, said)):
        read.unresolved[PROCESSES] = None
        return 1
    return int(read.or_assume(PROCESSES, None, 1, "one_gpu"))


ONE_GPU, SPREAD, OFF_GPU, UNTOLD = "one", "spread", "off", "untold"
_EVERY_GPU = ("auto", "balanced", "balanced_low_0", "sequential")
_OFF = ("cpu", "disk", "meta", "mps")


def _placed(read: SettingsReader) -> str:
    """Where one process puts the model's layers: on one GPU, on all that it sees, also elsewhere, or not told.

    Source: accelerate, big_modeling.py and utils/modeling.py (``get_balanced_memory``); transformers,
    integrations/accelerate.py: ``{"": 0}`` is the whole model on one device.
    """
    written = read.as_written(DEVICE_MAP)
    if isinstance(written, Mapping):
        devices = [str(device).lower() for device in written.values() if not is_unknown(device)]
        if any(device in _OFF for device in devices):
            return OFF_GPU
        if len(devices) < len(written):
            return ONE_GPU if len(written) == 1 else UNTOLD  # {"": local_rank}: a GPU of each process's own
        return ONE_GPU if len(set(devices)) == 1 else SPREAD
    if is_unknown(written):
        return UNTOLD
    named = str(read.value(DEVICE_MAP)).lower()
    return SPREAD if named in _EVERY_GPU else OFF_GPU if named in _OFF else ONE_GPU


def _for_several(read: SettingsReader) -> bool:
    """Whether the run is told to spread over GPUs, or by a launcher's file that cannot be read."""
    named = any(read.written(name) for name in ("training.deepspeed", "deepspeed.config_file"))
    modes = ("launch.multi_gpu", "launch.use_deepspeed")
    spread = any(read.value(name) is True for name in modes) or (read.number("deepspeed.zero_stage", least=0) or 0) > 0
    return named or spread or uses_fsdp(read) or "launch.config_file" in read.unread


def zero_stage_of(read: SettingsReader, unit: Unit) -> int:
    """The ZeRO stage; of a DeepSpeed file that is not there, what its name says, else it is unresolved.

    So it is where only the run can tell which file is named, or whether one is.
    """
    stage = read.number("deepspeed.zero_stage", least=0)
    if stage is None and any(name in NAMES_A_FILE for name in unit.unread):
        stage = stage_in_name(unit)
        if stage is None:
            read.unresolved["deepspeed.zero_stage"] = None
        else:
            read.or_assume("deepspeed.zero_stage", None, stage, "guessed_from_name")
    elif stage is None and hidden_behind(unit, "deepspeed.zero_stage") in NAMES_A_FILE:
        read.unresolved["deepspeed.zero_stage"] = None
    elif stage is None and by_accelerate(read) and not any(read.written(name) for name in NAMES_A_FILE):
        return int(read.or_assume("deepspeed.zero_stage", None, STAGE_OF_ACCELERATE, "library_default"))
    return int(read.default("deepspeed.zero_stage")) if stage is None else stage


def by_accelerate(read: SettingsReader) -> bool:
    """Whether Accelerate sets up DeepSpeed, by its own config or by an option of ``accelerate launch``."""
    return read.value("accelerate.distributed_type") == "DEEPSPEED" or read.value("launch.use_deepspeed") is True


def uses_fsdp(read: SettingsReader) -> bool:
    """A format's own default (torchtune's) holds of its recipes for several GPUs alone."""
    one = read.as_written(PROCESSES) == 1 or (read.named_for_one and not read.written(PROCESSES))
    return bool(read.value("training.fsdp") if one else read.or_default("training.fsdp")) or _of_accelerate(read)


def offloads_fsdp(read: SettingsReader) -> bool:
    """Whether FSDP keeps parameters, gradients and the optimizer's states in host memory."""
    words = str(read.value("training.fsdp") or "").replace(",", " ").split()
    named = ("training.fsdp_config.cpu_offload", "accelerate.fsdp_offload_params")
    return "offload" in words or any(read.value(name) is True for name in named)


def checkpoints_by_fsdp(read: SettingsReader) -> bool:
    """Whether FSDP's own wrapper checkpoints each layer; it is never reentrant (accelerate, utils/fsdp_utils.py)."""
    named = ("training.fsdp_config.activation_checkpointing", "accelerate.fsdp_activation_checkpointing")
    return uses_fsdp(read) and any(read.value(name) is True for name in named)


def loaded_by_unsloth(unit: Unit) -> bool:
    """Whether Unsloth loads the model: by its own config, or as a program calls it."""
    loader = unit.settings.get("model.loader")
    return unit.dialect == "unsloth" or (loader is not None and loader.value == "unsloth")


def typed_by_unsloth(unit: Unit, model: Model | None, native_bf16: bool | None) -> Unit:
    """The unit with the types that Unsloth takes on such GPUs: it loads in fp16 where they have no bf16, and computes
    in the type of loading unless one is asked for (unsloth/models/loader.py, rl.py). Models that it computes in fp32
    there are not followed.
    """
    if native_bf16 is None or not unit.settings or not loaded_by_unsloth(unit):
        return unit
    like = unit.settings.get("model.loader") or next(iter(unit.settings.values()))
    if not native_bf16 and (model is None or model.architecture.model_type.startswith(IN_FP32_WITHOUT_BF16)):
        told = {} if model is None else {"run.not_modelled": like._replace(value="Unsloth fp32")}
        return unit._replace(settings={**unit.settings, **told})
    dtype, halves = unit.settings.get("model.torch_dtype"), ("training.bf16", "training.fp16")
    said: dict[str, Any] = {}
    if not native_bf16 and (dtype is None or dtype.value in (None, "bfloat16", "torch.bfloat16")):
        said["model.torch_dtype"] = "float16"
    asked = [each.value for name in halves if (each := unit.settings.get(name)) is not None]
    if not any(value is True or is_unknown(value) for value in asked):
        said |= dict(zip(halves, (native_bf16, not native_bf16), strict=True))
    made = {name: like._replace(value=value) for name, value in said.items()}
    return unit._replace(settings={**unit.settings, **made})


def cut_by_unsloth(read: SettingsReader, source: int | None) -> int | None:
    """A sample's length, which Unsloth cuts to the less of what its loader and the trainer are given
    (unsloth/models/rl.py)."""
    if source is None or read.value("model.loader") != "unsloth":
        return source
    given = (read.as_written(name) for name in ("trl.max_seq_length", "trl.max_length"))
    return min([source, *(each for each in given if isinstance(each, int) and each != PASSED_OVER)])


def replaced_by_unsloth(read: SettingsReader, unit: Unit, method: Method) -> bool:
    """Whether Unsloth puts layers of its own in the model. All weights, and adapters over 8 bits, train in
    transformers' (unsloth/models/loader.py)."""
    adapted = loaded_by_unsloth(unit) and method != "full" and read.value("model.loader_layers") is not False
    return adapted and read.or_default("quantization.load_in_8bit") is not True


def own_attention(read: SettingsReader, unit: Unit, method: Method, model: Model | None) -> bool:
    """Whether Unsloth's layers choose their attention, whatever is asked for (unsloth/models/llama.py)."""
    known = model is not None and model.architecture.model_type in OF_UNSLOTH
    return known and replaced_by_unsloth(read, unit, method)


def decided_by_loader(
    read: SettingsReader, unit: Unit, method: Method, model: Model | None, source: int
) -> Mapping[str, bool]:
    """Fields of the run that Unsloth decides where it loads the model: whose layers run, whether checkpoints are
    reentrant and what goes into a layer waits on the host, and whether the constants of 4 bits are quantized too.

    It knows no other checkpoints than the first, and does the second for long samples alone (unsloth/models/_utils.py).
    """
    unsloth, packing = loaded_by_unsloth(unit), "quantization.bnb_4bit_use_double_quant"
    packed = bool(read.or_default(packing)) or (unsloth and not read.written(packing))
    replaced = replaced_by_unsloth(read, unit, method)
    fields = {"unsloth": unsloth, "unsloth_layers": replaced, "bnb_4bit_use_double_quant": packed}
    if unsloth and model is not None and model.architecture.experts and read.or_default("quantization.load_in_4bit"):
        read.beyond.append("Unsloth + MoE (load_in_4bit)")  # it packs experts that transformers leaves in 16 bits
    by_trainer = read.value("model.loader") == "unsloth" and method == "full" and read.written(BATCH[0])
    if by_trainer and not (read.written(CHECKPOINTING) or read.or_default(CHECKPOINTING)):
        read.unresolved[CHECKPOINTING] = None  # its trainer turns it on, whatever TRL's default, or not, by its release
    by_hooks = read.value(AWAY) is True and read.key(AWAY) in BY_HOOKS
    if by_hooks and not read.or_default("training.gradient_checkpointing"):
        read.beyond.append(read.key(AWAY))  # then it moves all that every operation keeps
    if checkpoints_by_fsdp(read):
        return {**fields, "use_reentrant": False, "offloads_checkpoints": False}
    reenters = bool(read.or_default("training.gradient_checkpointing_kwargs.use_reentrant"))
    longest = read.number("data.max_source_length") or source  # as the loader is told, whatever samples are cut to
    offloads = bool(read.or_default(AWAY)) and not (unsloth and longest < OFFLOADED_FROM)
    return {**fields, "use_reentrant": reenters or unsloth or offloads, "offloads_checkpoints": offloads}


def _elements(read: SettingsReader, name: str, d_model: int | None, factor: float) -> int | None:
    """A bucket's elements; ``auto`` is accelerate's share of the hidden size squared (accelerator.py)."""
    size = read.number(name, least=AUTO)
    if size == AUTO:
        return None if d_model is None else int(factor * d_model * d_model)
    return size


def _reshards(read: SettingsReader, options: list[str]) -> bool:
    """FSDP1 names a strategy, FSDP2 says true or false; SHARD_GRAD_OP keeps parameters whole until the backward."""
    names = (
        "training.fsdp_config.reshard_after_forward",
        "accelerate.fsdp_reshard_after_forward",
        "accelerate.fsdp_sharding_strategy",
    )
    said = next((value for name in names if (value := read.as_written(name)) is not None), " ".join(options))
    strategy = str(said).casefold()
    return "grad_op" not in strategy and "zero2" not in strategy and strategy not in ("false", "2")


def _prefetches(read: SettingsReader) -> Literal["no", "pre", "post"]:
    """What FSDP1 gathers ahead in backward; FSDP2 does not ask."""
    said = read.value("training.fsdp_config.backward_prefetch")
    if said is None and _of_accelerate(read):
        said = read.value("accelerate.fsdp_backward_prefetch")
    named = str(said).casefold()
    return "pre" if named == "backward_pre" else "post" if named == "backward_post" else "no"


def _wraps(read: SettingsReader, options: list[str], *, old: bool) -> bool:
    """Whether FSDP shards layer by layer: without a policy accelerate's own plugin does not (dataclasses.py)."""
    policy = read.value("training.fsdp_config.auto_wrap_policy")
    if policy is None and _of_accelerate(read):
        policy = read.value("accelerate.fsdp_auto_wrap_policy") or "no_wrap"
    if policy is not None:
        return str(policy).casefold() != "no_wrap"
    return "auto_wrap" in options or not old


def assume_one_unit(read: SettingsReader, setup: TrainingSetup) -> None:
    """List that FSDP gathers all of a model at once where no policy is named. With adapters the Trainer names one."""
    named = ("training.fsdp_config.auto_wrap_policy", "accelerate.fsdp_auto_wrap_policy")
    if not setup.fsdp or setup.spread.fsdp_wrapped or setup.method != "full":
        return
    if not any(read.written(name) for name in named):
        read.assumed.append(Assumption(name=named[0], value="no_wrap", reason="fsdp_one_unit"))


def _of_accelerate(read: SettingsReader) -> bool:
    """Whether FSDP is what `accelerate launch` says, by its file or its flags, and not the Trainer."""
    return not read.value("training.fsdp") and (
        read.value("accelerate.distributed_type") == "FSDP" or read.value("launch.use_fsdp") is True
    )
