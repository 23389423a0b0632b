"""A unit's settings → one TrainingSetup; what the config leaves open takes the library's default and is listed."""

from collections.abc import Iterable, Mapping

from kb.advice.facts.grounds import defaults_of_memory
from kb.advice.facts.run_facts import prepared_in_vain
from kb.advice.run.named_model import IN_4BIT, may_be_stored_packed
from kb.advice.run.no_prediction import optimizer_of, other_trainers, unmodelled
from kb.advice.run.post_training import (
    assume_usual_adapters,
    embedding_of,
    fused_losses_of,
    in_whole_groups,
    liger_kernels_of,
    post_training_of,
    with_fused_head,
)
from kb.advice.run.row_lengths import (
    FULL,
    LENGTHS,
    answer_length,
    assumed_source_length,
    lengths_of_sound,
    reads_target,
    with_lengths,
    with_pictures,
)
from kb.advice.run.run_kind import (
    DTYPE,
    OWN_TYPE_SINCE,
    PACKED_BY,
    PREPARED,
    assume_whole_experts,
    attention_of,
    dropout_of,
    earlier_of,
    rank_of,
    says_training,
    targets_of,
    trains,
    weights_of,
    with_preparation,
)
from kb.advice.run.settings_reader import (
    SettingsReader,
    assume_one_unit,
    checkpoints_by_fsdp,
    cut_by_unsloth,
    decided_by_loader,
    loaded_by_unsloth,
    offloads_fsdp,
    own_attention,
    processes_of,
    spread_of,
    uses_fsdp,
    zero_stage_of,
)
from kb.core.document import Setting, Unit
from kb.core.expression import Unknown
from kb.core.facts import FactType, VersionOf
from kb.core.model import Model
from kb.core.setup import ACCUMULATED, Assumption, Method, TrainingSetup
from kb.core.typed import Any
from kb.memory.releases import PACKS_ONLY_LINEAR

NOT_MODELLED = "run.not_modelled"
HANDED, UNASKED = "quantization.handed", "quantization.unasked"
NOT_SEEN = "known only when the program runs"
PACKS_UNASKED = (4, 38)  # transformers since which a BitsAndBytesConfig packs whether or not it asks to
# Kinds of post-training whose memory is that of plain training. Preference and reinforcement runs hold two answers a
# sample, a second model, or answers made on the way.
MODELLED_TRAINERS = frozenset(("sft", "pretraining"))
OWN_LOOP = "run.own_loop"
OF_LOADER = "training.dataloader_"
WHETHER_IT_EVALUATES = ("training.eval_strategy", "training.do_eval")
NEVER = 10_000_000  # steps from one evaluation to the next: no run has as many
ACCUMULATES = 2  # accumulating takes more than not, however often
# Settings that decide nothing where the run does not train, evaluate or infer, or has no adapter or no FSDP.
FSDP_ONLY = ("training.fsdp_config.", "accelerate.fsdp_")
TRAINING_ONLY = frozenset(
    f"training.{name}"
    for name in (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "gradient_checkpointing_kwargs.use_reentrant",
        "label_smoothing_factor",
        "optim",
    )
) | {"script.trainer", "lora.enabled"}
EVALUATION_ONLY = frozenset(
    f"training.{name}"
    for name in (
        "per_device_eval_batch_size",
        "eval_accumulation_steps",
        "generation_max_length",
        "generation_num_beams",
        "predict_with_generate",
        "prediction_loss_only",
    )
) | {"data.eval_samples"}
INFERENCE_ONLY = frozenset(("inference.num_beams", "inference.max_length"))
ADAPTER_ONLY = frozenset(("lora.r", "lora.target_modules", "lora.modules_to_save"))


def without_vain_preparation(unit: Unit) -> Unit:
    """The unit without the checkpointing that ``prepare_model_for_kbit_training`` is taken to turn on: of a model that
    nothing quantizes it turns on none (``loaded_in_kbit`` in utils/other.py of PEFT 0.4 to 0.21).
    """
    prepared = prepared_in_vain(unit)
    if prepared is None:
        return unit
    said = {name: each for name, each in unit.settings.items() if "checkpointing" in name}
    vain = [name for name, each in said.items() if [*map(str, each.path[:1])] == [*map(str, prepared.path[:1])]]
    return unit._replace(settings={name: each for name, each in unit.settings.items() if name not in vain})


def with_width_of_config(unit: Unit, versions: VersionOf) -> Unit:
    """The unit in 4 bits where ``from_pretrained`` is handed a BitsAndBytesConfig that turns on neither width.

    Since 4.38 transformers asks such a config for 8 bits alone, and takes 4 else (``AutoHfQuantizer.from_config`` in
    quantizers/auto.py); earlier releases load the weights whole. Of a release that nothing says, it is the newest. The
    width is unknown where it is not seen whether the config is handed, and of a checkpoint that may have its own.
    """
    handed, (in_4bit, in_8bit) = unit.settings.get(HANDED), map(unit.settings.get, PACKED_BY)
    if handed is None or handed.value is False or PACKED_BY[1].startswith(unit.hidden):
        return unit
    if (in_8bit is not None and in_8bit.value is not False) or (in_4bit is not None and in_4bit.value is True):
        return unit
    release = versions("transformers", PACKS_UNASKED)
    if release is not None and release < PACKS_UNASKED:
        return unit
    name = unit.settings.get("model.name")
    own = name is not None and isinstance(name.value, str) and may_be_stored_packed(name.value)
    if own or handed.value is not True:
        opened = (in_4bit or handed)._replace(value=Unknown(frozenset((PACKED_BY[0],)), NOT_SEEN))
        return unit._replace(settings={**unit.settings, PACKED_BY[0]: opened})
    packed = (in_4bit or handed)._replace(value=True)
    known = in_4bit is None or not isinstance(in_4bit.value, Unknown)
    said = {PACKED_BY[0]: packed, UNASKED: packed} if known else {PACKED_BY[0]: packed}
    return unit._replace(settings={**unit.settings, **said})


def as_loaded(unit: Unit) -> Unit:
    """The unit with what becomes of its weights though no setting says so.

    A checkpoint that bitsandbytes packed before it was stored is loaded so, whatever is asked for (its config.json has
    a ``quantization_config``); Unsloth loads what it was made from where 4 bits are switched off. And PEFT makes every
    weight of a model that it prepares and nothing quantizes fp32.
    """
    name = unit.settings.get("model.name")
    if name is None or not isinstance(name.value, str):
        return unit
    by_unsloth = loaded_by_unsloth(unit)
    said: dict[str, Setting] = {}
    if not by_unsloth and name.value.casefold().rstrip("/").endswith(IN_4BIT):
        said = {each: name._replace(value=True) for each in (PACKED_BY[0], "quantization.bnb_4bit_use_double_quant")}
    elif (prepared := prepared_in_vain(unit)) is not None:
        said = {DTYPE: prepared._replace(value="float32")}
    return unit._replace(settings={**unit.settings, **said}) if said else unit


def setup_of(
    unit: Unit,
    model: Model | None,
    *,
    facts: Mapping[str, FactType],
    constants: Mapping[str, float],
    gpu_count: int | None,
    versions: VersionOf,
    given: Mapping[str, Any] = {},
) -> TrainingSetup:
    """The run that a unit describes.

    Args:
        unit: the settings, by canonical name.
        model: the model they name, where it is known.
        facts: the vocabulary, for types and defaults.
        constants: lengths that are assumed where neither config nor model says one.
        gpu_count: data-parallel size named by the user; None takes the config's, else one.
        versions: the version of a library by name, where known; defaults moved between versions.
        given: settings that the project gives where the config has none, and the lengths of its data.
    """
    unit = as_loaded(unit)
    if loaded_by_unsloth(unit) and (said := unit.settings.get("script.trainer")) is not None and said.value == "grpo":
        unit = in_whole_groups(unit, versions)
    read = SettingsReader(unit, facts, given, versions)
    if model is not None and model.guessed_from:
        read.assumed.append(Assumption(name="model.name", value=model.id, reason="guessed_from_name"))
    read.assumed.append(FULL)
    read.beyond += other_trainers(unit)
    source, target = _lengths(read, model, constants, unit.script)
    trained = trains(unit) and read.or_default("training.do_train") is not False
    method = _method(read, trained)
    evaluates = _evaluates(read)
    generates = bool(read.or_default("training.predict_with_generate"))
    inference_batch = read.number("inference.batch_size")
    training = says_training(unit)
    transformers = versions("transformers", OWN_TYPE_SINCE)
    trainer = read.value("script.trainer")
    post = embedding_of(read)
    if post is None and trainer is not None and trainer not in MODELLED_TRAINERS:
        found = post_training_of(read, unit, str(trainer), method, constants, versions)
        if found is None and not read.beyond:
            read.unresolved["script.trainer"] = None
        elif found is not None:
            post, length = found
            said = unit.settings.get("script.trainer")
            if said is not None and said.by_default:
                read.assumed.append(Assumption(name="script.trainer", value=trainer, reason="guessed_from_name"))
            if length is not None:  # decided here: what was assumed of it before is not so
                source = length
                read.decide("data.max_source_length", length)
    fp16 = bool(read.or_default("training.fp16"))
    bf16 = _open(read, "training.bf16", not fp16, training)
    by_fsdp = checkpoints_by_fsdp(read)
    fused, fused_in_evaluation = fused_losses_of(read, unit, post, versions)
    assume_usual_adapters(read, unit, adapted=trained and method != "full")
    setup = TrainingSetup(
        model_name=read.value("model.name"),
        method=method,
        do_train=trained,
        do_eval=training and evaluates,
        do_predict=inference_batch is not None,
        fp16=fp16,
        bf16=bf16,
        weights=weights_of(read, model, given, transformers),
        attn_implementation="sdpa" if own_attention(read, unit, method, model) else attention_of(read, model, versions),
        earlier=earlier_of(read, model, versions),
        per_device_train_batch_size=_batch(read, "training.per_device_train_batch_size", trained),
        per_device_eval_batch_size=_batch(read, "training.per_device_eval_batch_size", training and evaluates),
        gradient_accumulation_steps=_accumulation(read),
        max_source_length=source,
        max_target_length=target,
        optim=_optimizer(read, trained),
        gradient_checkpointing=by_fsdp or _open(read, "training.gradient_checkpointing", True, training),
        label_smoothing_factor=float(read.or_default("training.label_smoothing_factor")),
        fused_loss=fused,
        liger_kernels=liger_kernels_of(read, versions, fused=fused),
        fused_evaluation=fused_in_evaluation,
        predict_with_generate=generates,
        prediction_loss_only=bool(read.or_default("training.prediction_loss_only")),
        eval_accumulation_steps=read.number("training.eval_accumulation_steps"),
        eval_samples=_samples(read),
        generation_max_length=answer_length(read, model, target, training and evaluates and generates),
        generation_num_beams=read.number("training.generation_num_beams", "generation.num_beams") or 1,
        inference_batch_size=inference_batch,
        inference_num_beams=read.number("inference.num_beams", "generation.num_beams", "training.generation_num_beams")
        or 1,
        inference_max_length=_generated(read, model, target, inference_batch is not None),
        lora_r=rank_of(read, unit, constants),
        lora_target_modules=targets_of(read, model, unit.dialect),
        modules_to_save=read.value("lora.modules_to_save") or (),
        trained_tokens=_token_rows(read),
        lora_dropout=dropout_of(read, unit, constants, post, versions),
        use_dora=bool(read.or_default("lora.use_dora")),
        load_in_4bit=bool(read.or_default("quantization.load_in_4bit")),
        load_in_8bit=bool(read.or_default("quantization.load_in_8bit")),
        **decided_by_loader(read, unit, method, model, source),  # type: ignore[arg-type]
        dataloader_num_workers=read.number_or_default("training.dataloader_num_workers", least=0),
        dataloader_pin_memory=bool(read.or_default("training.dataloader_pin_memory")),
        dataloader_prefetch_factor=read.number("training.dataloader_prefetch_factor") or 2,
        dataloader_persistent_workers=bool(read.or_default("training.dataloader_persistent_workers")),
        world_size=processes_of(read, unit, gpu_count),
        zero_stage=zero_stage_of(read, unit),
        offload_optimizer=read.value("deepspeed.offload_optimizer.device") in ("cpu", "nvme"),
        offload_param=read.value("deepspeed.offload_param.device") in ("cpu", "nvme") or offloads_fsdp(read),
        fsdp=uses_fsdp(read),
        post=post,
        spread=spread_of(read, model.architecture.d_model if model else None, versions),
    )
    if OWN_LOOP in unit.settings:
        setup = _in_own_loop(setup, read)
    setup = with_preparation(setup, read, unit, str(trainer or ""), versions)
    if _packs_nothing(setup, model, facts, read, versions):
        setup = _with_whole_weights(setup, read)
    setup = with_pictures(with_fused_head(setup, read, unit, model, versions), read, unit, model)
    read.assumed += defaults_of_memory(unit, evaluates=setup.do_eval or setup.do_predict)
    assume_whole_experts(read, model, transformers)
    assume_one_unit(read, setup)
    if setup.fsdp and setup.offload_param and setup.world_size < 2:
        read.beyond.append("FSDP + offload (1 GPU)")  # there only where a launcher starts the process
    beyond = unmodelled(read, model, trains=trained)
    _leave_to_host(read)
    unresolved = that_matter(read.unresolved, setup) + ((NOT_MODELLED,) if beyond else ())
    setup = setup._replace(assumed=_assumed(read), unresolved=unresolved, unmodelled=beyond)
    return with_lengths(setup, read, given.get(LENGTHS), unit, model)


def _in_own_loop(setup: TrainingSetup, read: SettingsReader) -> TrainingSetup:
    """What a training loop of the program's own holds longer than the Trainer does, and on how many GPUs it runs: what
    Accelerate did not prepare runs on one, however many there are, and what it did looks for no unused parameters."""
    widened = bool(read.or_default("run.outputs_widened"))
    return setup._replace(
        keeps_outputs=read.or_default("run.keeps_outputs"),
        outputs_widened=widened,
        gradients_kept=read.or_default("run.gradients_kept") != "no",
        world_size=setup.world_size if widened else 1,
        spread=setup.spread._replace(find_unused=setup.spread.find_unused or False),
    )


def _open(read: SettingsReader, name: str, usual: bool, matters: bool) -> bool:
    """A switch whose default moved between releases of what reads the config (TRL): ``usual`` where none is known."""
    value = read.or_default(name)
    if matters and read.value(name) is None and read.default_is_open(name):
        read.or_assume(name, None, usual if value is None else bool(value), "library_default")
    return usual if value is None else bool(value)


def _assumed(read: SettingsReader) -> tuple[Assumption, ...]:
    """What was assumed, what changes the answer most first: a report may have no room for all of it."""
    base = read.value("launch.base_config")
    if base is not None:
        read.or_assume("launch.base_config", None, base, "not_read")
    for name in read.unread:
        read.or_assume(name, None, read.value(name), "not_read")
    read.assume_default("data.max_source_length")
    ranks = {"not_read": 0, "guessed_from_name": 0, "may_evaluate": 0, "full_length": 1, "fsdp_one_unit": 1}
    ranks |= dict.fromkeys(("script_prepares", "not_prepared_here", "prepared_unpacked"), 2)
    return tuple(sorted(read.assumed, key=lambda each: (ranks.get(each.reason, 3), "batch" not in each.name)))


OWN_LINEAR = "model.has_linear_class_of_its_own"


def _packs_nothing(
    setup: TrainingSetup, model: Model | None, types: Mapping[str, FactType], read: SettingsReader, versions: VersionOf
) -> bool:
    """Whether bitsandbytes packs none of the model's layers: transformers from 5.5 on passes over linear layers of a
    class of the model's own. Of a release that is not known that is listed."""
    if not setup.packs or model is None or setup.earlier.packs_subclasses:
        return False
    if model.architecture.model_type not in types[OWN_LINEAR].model_types:
        return False
    if versions("transformers", PACKS_ONLY_LINEAR) is None:
        newest = ".".join(map(str, PACKS_ONLY_LINEAR))
        read.assumed.append(Assumption(name="transformers.release", value=newest, reason="no_layer_is_packed"))
    return True


def _with_whole_weights(setup: TrainingSetup, read: SettingsReader) -> TrainingSetup:
    """The setup of a model that nothing packs: preparation, where the script is only taken to call it, makes twice as
    much of all weights, and counts for what a file shows."""
    taken = [each for each in read.assumed if each.name == PREPARED]
    read.assumed = [each for each in read.assumed if each.name != PREPARED]
    if setup.weights == "fp32":  # as preparation would make them
        return setup._replace(prepare_for_kbit=True)
    if not taken or taken[0].reason != "script_prepares":
        read.assumed += taken
        return setup
    read.assumed.append(Assumption(name=PREPARED, value=True, reason="prepared_unpacked"))
    return setup._replace(prepare_for_kbit=True)


def _leave_to_host(read: SettingsReader) -> None:
    """Take the library's defaults for settings of the data loader that nobody knows: the GPU has no part in them."""
    for name in [name for name in read.unresolved if name.startswith(OF_LOADER)]:
        if isinstance(read.as_written(name), int):
            continue  # known, and no number that runs
        del read.unresolved[name]
        read.assumed.append(Assumption(name=name, value=read.default(name), reason="host_alone"))


def _method(read: SettingsReader, trained: bool) -> Method:
    """An adapter asked for or, of a known kind, described; by a default only of what trains. QLoRA over 4 bits."""
    idle = read.or_default("training.do_train") is False
    enabled = read.value("lora.enabled") if idle else read.or_default("lora.enabled")
    known = trained or "lora.enabled" not in read.unresolved
    described = known and (read.written("lora.r") or read.written("lora.target_modules"))
    if read.written("run.quantized") and not any(read.written(name) for name in PACKED_BY):
        read.unresolved[PACKED_BY[0]] = None  # weights of a width that the config's format does not have
    if enabled is False or (enabled is None and not described):
        named = read.written("run.adapter") or read.written("run.quantized")
        if named and read.value("lora.enabled") is None:
            read.unresolved["lora.enabled"] = None  # nor such an adapter
        return "full"
    return "qlora" if read.value("quantization.load_in_4bit") else "lora"


def _token_rows(read: SettingsReader) -> int:
    """Rows of the words' table that PEFT trains by themselves: a list of tokens, or one under the table's name. How
    many there are matters little beside the copies of the table that they need."""
    name = "lora.trainable_token_indices"
    given = read.as_written(name)
    if isinstance(given, Mapping):
        if len(given) > 1 or any(str(key).endswith("head") for key in given):
            read.beyond.append(f"trainable_token_indices of {', '.join(map(str, given))}")
        given = next(iter(given.values()), None)
    if isinstance(given, list | tuple):
        return len(given)
    return 0 if given is None else int(read.or_assume(name, None, 1, "some_token_rows"))


def _lengths(
    read: SettingsReader, model: Model | None, constants: Mapping[str, float], script: str | None
) -> tuple[int, int]:
    if model is not None and model.architecture.hears:
        return lengths_of_sound(read, model, constants)
    one_row = model is not None and not reads_target(model.architecture)  # else max_length may be the generation's
    source = read.number("data.max_source_length", *(("trl.max_length", "trl.max_seq_length") if one_row else ()))
    source = cut_by_unsloth(read, source)
    usual_source = read.default("data.max_source_length")
    if usual_source is not None:  # the format's own
        source = read.or_assume("data.max_source_length", source, usual_source, "library_default")
    assumed = assumed_source_length(model, constants, read.number("tokenizer.model_max_length"), script)
    source = read.or_assume("data.max_source_length", source, *assumed)
    target = read.number("data.max_target_length", "training.generation_max_length", "generation.max_length")
    usual = int(constants["assumed_target_length"])
    one = target is None and one_row
    return int(source), usual if one else int(read.or_assume("data.max_target_length", target, usual, "usual_length"))


def _generated(read: SettingsReader, model: Model | None, target: int, generates: bool) -> int:
    """Tokens that inference generates at most; a decoder reads no target whose length could stand for them."""
    length = read.number("inference.max_length", "generation.max_length", "generation.max_new_tokens")
    if length is None and generates and model is not None and model.architecture.family == "decoder":
        length = read.or_assume("inference.max_length", None, target, "usual_length")
    return length or target


def _samples(read: SettingsReader) -> int | None:
    """How many samples are evaluated; scripts write -1 for all of them. Packed, they are fewer rows than that."""
    packs = read.value("trl.packing") if read.value("trl.eval_packing") is None else read.value("trl.eval_packing")
    samples = None if packs is True else read.value("data.eval_samples")
    return int(samples) if samples is not None and samples > 0 else None


def _evaluates(read: SettingsReader) -> bool:
    """Whether evaluation ever runs: with so many steps between two as no run has, it does not.

    Where only the run tells (``"steps" if rows else "no"``) it is taken to run, which is listed: training takes the
    same, and what is said of the evaluation holds if there is one.
    """
    strategy, steps = read.value("training.eval_strategy"), read.value("training.eval_steps")
    never = strategy == "steps" and isinstance(steps, (int, float)) and steps >= NEVER
    evaluates = bool(read.value("training.do_eval")) or (strategy not in (None, "no") and not never)
    if not evaluates and any(name in read.unresolved for name in WHETHER_IT_EVALUATES):
        read.or_assume(WHETHER_IT_EVALUATES[0], None, "steps", "may_evaluate")
        evaluates = True
    for name in (*WHETHER_IT_EVALUATES, "training.eval_steps"):
        read.unresolved.pop(name, None)
    return evaluates


def _batch(read: SettingsReader, name: str, matters: bool) -> int:
    value, default = read.number(name), read.default(name)
    if value is None and matters and name not in read.unresolved:
        if default is None:  # the format's own, which no file says
            read.unresolved[name] = None
        else:
            read.or_assume(name, None, default, "library_default")
    if value is not None and matters and read.by_own_name(name):
        read.assumed.append(Assumption("training.batch_named", read.key(name), "own_name"))
    return int(default or 1) if value is None else value


def _accumulation(read: SettingsReader) -> int:
    """Steps before an update; where the format works them out from the run, as ms-swift does, more than one."""
    name = "training.gradient_accumulation_steps"
    value, default = read.number(name), read.default(name)
    steps = read.or_assume(name, value, ACCUMULATES, ACCUMULATED) if default is None else value or default
    return int(steps)


def _optimizer(read: SettingsReader, matters: bool) -> str:
    named = read.value("training.optim")
    if named is not None:
        return optimizer_of(str(named))
    default = str(read.default("training.optim"))
    if matters:
        read.or_assume("training.optim", None, default, "library_default")
    return default


def that_matter(unresolved: Iterable[str], setup: TrainingSetup) -> tuple[str, ...]:
    """The unresolved settings without those of a phase that the run does not have."""
    idle: frozenset[str] = frozenset()
    for runs, names in (
        (setup.do_train, TRAINING_ONLY),
        (setup.do_eval, EVALUATION_ONLY),
        (setup.do_predict, INFERENCE_ONLY),
        (setup.method != "full", ADAPTER_ONLY),
    ):
        idle |= frozenset() if runs else names
    wraps = () if setup.fsdp else FSDP_ONLY
    return tuple(name for name in unresolved if name not in idle and not name.startswith(wraps))
