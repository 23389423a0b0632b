"""A run's live objects → what kb reads: the settings as a config's text, the model, and facts that no file can say.

How long the rows are comes from a dataset that can be read without running anyone's code, and from the batches as they
come.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb.advice.run.named_model import ModelIndex
from kb.config.fixing.written import as_yaml
from kb.config.reader import ConfigReader
from kb.core.catalog import Catalog
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.memory import UnsupportedArchitectureError, architecture_from_config

MOST_ROWS = 2000  # of a dataset that has to be looked at row by row
# Said whatever they are: a prediction stands on them, and a default that is known need not be assumed.
_ALWAYS = ("per_device_train_batch_size", "gradient_accumulation_steps", "optim")
# Of a run's own making, or a second name of another setting: nothing to lint.
_SKIPPED = ("activation_checkpointing", "activation_checkpointing_kwargs", "local_rank", "deepspeed", "do_train")
ON_CPU = ("use_cpu", "no_cuda")  # a run without a GPU is told what one would take, and its host memory is measured
# The optimizers that kb's ledger tells apart, by their class.
_OPTIMIZERS = {"Adafactor": "adafactor", "SGD": "sgd", "Lion": "lion_32bit", "AdamW8bit": "adamw_bnb_8bit"}


class Lengths(NamedTuple):
    """Tokens of the longest row; None where nothing says. ``rows``: how many the dataset has."""

    source: int | None = None
    target: int | None = None
    rows: int | None = None


UNKNOWN_LENGTHS = Lengths()


class LiveRun(NamedTuple):
    """One run.

    ``settings`` are in the names of TrainingArguments and of the example scripts; ``known`` are facts by vocabulary
    name. ``parameters_bytes`` is what the model holds now, ``frozen`` how many of its parameters do not train, beside
    what an adapter leaves frozen. ``unknown_adapter``: PEFT's name of an adapter that kb is not known for.
    """

    settings: Mapping[str, Any]
    known: Mapping[str, Any]
    model: Model | None
    parameters_bytes: int
    world_size: int = 1
    frozen: int = 0
    unknown_adapter: str | None = None

    def text(self) -> str:
        """The settings as YAML, one a line."""
        lines = []
        for name, value in self.settings.items():
            if isinstance(value, Mapping):
                lines.append(f"{name}:")
                lines += [f"  {each}: {as_yaml(inner)}" for each, inner in value.items() if _writable(inner)]
            elif _writable(value):
                lines.append(f"{name}: {as_yaml(value)}")
        return "\n".join(lines) + "\n"

    def with_lengths(self, source: int | None, target: int | None) -> "LiveRun":
        """The run with other lengths in tokens; None leaves them."""
        lengths = {"max_source_length": source, "max_target_length": target}
        return self._replace(settings={**self.settings, **{name: size for name, size in lengths.items() if size}})


def _writable(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_writable(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def read_run(
    args: Any,
    model: Any,
    catalog: Catalog,
    *,
    batch: int | None = None,
    lengths: Lengths = UNKNOWN_LENGTHS,
    known: Mapping[str, Any] = {},
    optimizer: Any = None,
) -> LiveRun:
    """The run that a Trainer is about to start.

    Args:
        args: its TrainingArguments, or those of a subclass.
        model: as the Trainer was given it: not wrapped by DDP or FSDP.
        batch: samples per device, where the Trainer has lowered it itself.
        lengths: tokens of the longest rows, where they could be found.
        known: what else the caller knows, by vocabulary name.
        optimizer: the one that steps, where it is not of args' making.
    """
    settings: dict[str, Any] = {**model_settings(model), **dict(_arguments(args, catalog)), "do_train": True}
    for name in ON_CPU:
        settings.pop(name, None)
    if batch is not None:
        settings["per_device_train_batch_size"] = batch
    own = _optimizer_of(optimizer, str(settings["optim"]))
    if own is not None:
        settings["optim"] = own
    adapter, unknown = adapter_settings(model)
    deepspeed = getattr(args, "deepspeed", None)
    if isinstance(deepspeed, str):
        settings["deepspeed"] = deepspeed
    elif isinstance(deepspeed, Mapping):
        known = {**_deepspeed(deepspeed, catalog), **known}
    run = LiveRun(
        settings={**settings, **adapter},
        known=known,
        model=model_of(model, catalog),
        parameters_bytes=held_bytes(model),
        world_size=int(getattr(args, "world_size", 1)),
        frozen=0 if adapter or unknown else sum(each.numel() for each in model.parameters() if not each.requires_grad),
        unknown_adapter=unknown,
    )
    return run.with_lengths(lengths.source, lengths.target)


def model_of(model: Any, catalog: Catalog) -> Model | None:
    """The model by its own config, under the catalogue's name where it has one; None that kb does not know."""
    base = base_model(model)
    config = getattr(base, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        return None
    try:
        architecture = architecture_from_config({**config.to_dict(), "architectures": [type(base).__name__]})
    except UnsupportedArchitectureError:
        return None
    name = str(getattr(config, "_name_or_path", "") or type(base).__name__)
    row = ModelIndex(catalog.models, catalog.called).resolve(name)
    parameters = sum(each.numel() for each in base.parameters())
    if row is not None and row.architecture.d_model == architecture.d_model:
        return row._replace(architecture=architecture)
    return Model(id=name, name=name, architecture=architecture, parameters=parameters)


def base_model(model: Any) -> Any:
    """The model under PEFT's."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def held_bytes(model: Any) -> int:
    """Parameters and buffers as they are held now, quantized ones packed."""
    tensors = {id(each): each for each in (*model.parameters(), *model.buffers())}
    return sum(each.numel() * each.element_size() for each in tensors.values())


def model_settings(model: Any) -> dict[str, Any]:
    """Name, attention, type of weights, quantization: as the model itself has them."""
    base = base_model(model)
    config = getattr(base, "config", None)
    settings: dict[str, Any] = {
        "model_name_or_path": str(getattr(config, "_name_or_path", "") or type(base).__name__),
    }
    attention = getattr(config, "_attn_implementation", None)
    if isinstance(attention, str):
        settings["attn_implementation"] = attention
    floating = [
        each.dtype for name, each in base.named_parameters() if each.is_floating_point() and "lora_" not in name
    ]
    quantization = getattr(config, "quantization_config", None)
    if floating and quantization is None:
        settings["dtype"] = str(max(set(floating), key=floating.count)).removeprefix("torch.")
    for name in ("load_in_4bit", "load_in_8bit"):
        if getattr(quantization, name, False):
            settings[name] = True
    if quantization is not None and settings.get("load_in_4bit"):
        settings["bnb_4bit_quant_type"] = quantization.bnb_4bit_quant_type
        settings["bnb_4bit_use_double_quant"] = bool(quantization.bnb_4bit_use_double_quant)
        settings["bnb_4bit_compute_dtype"] = str(quantization.bnb_4bit_compute_dtype).removeprefix("torch.")
    name = (
        "is_activation_checkpointing" if hasattr(base, "is_activation_checkpointing") else "is_gradient_checkpointing"
    )
    if getattr(base, name, False):
        settings["gradient_checkpointing"] = True
    return settings


def adapter_settings(model: Any) -> tuple[dict[str, Any], str | None]:
    """A LoRA adapter's settings, with the modules that it is in fact on; of another kind of adapter its name."""
    configs = getattr(model, "peft_config", None)
    if not isinstance(configs, Mapping) or not configs:
        return {}, None
    active = getattr(model, "active_adapter", None)
    config = configs.get(active) or next(iter(configs.values()))
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if kind != "LORA":
        return {}, kind
    targets = {name.split(".lora_A")[0].rpartition(".")[2] for name, _ in model.named_modules() if ".lora_A" in name}
    settings: dict[str, Any] = {
        "use_peft": True,
        "lora_r": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "lora_target_modules": sorted(targets),
    }
    if config.modules_to_save:
        settings["lora_modules_to_save"] = list(config.modules_to_save)
    if isinstance(config.trainable_token_indices, list):
        settings["trainable_token_indices"] = config.trainable_token_indices
    settings |= {name: True for name in ("use_dora", "use_rslora") if getattr(config, name, False)}
    return settings, None


def _arguments(args: Any, catalog: Catalog) -> Iterator[tuple[str, Any]]:
    """What differs from the library's default, and is a setting that kb knows. Tokens and names of runs are not."""
    values = args.to_dict()
    for field in dataclasses.fields(args):
        value = values.get(field.name)
        if field.name in _SKIPPED or field.name.endswith("token") or not _is_setting(field.name, catalog):
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = getattr(default, "value", default)
        unset = default is None and value in (None, False, 0, [], {}, "")
        if isinstance(value, Mapping):
            value = _changed(value, getattr(args, field.name))
            unset = not value
        if field.name in _ALWAYS or not (unset or value == default):
            yield field.name, value
    if getattr(args, "gradient_checkpointing", False) or getattr(args, "activation_checkpointing", False):
        yield "gradient_checkpointing", True
        given = getattr(args, "activation_checkpointing_kwargs", None) or args.gradient_checkpointing_kwargs
        if given:
            yield "gradient_checkpointing_kwargs", dict(given)
    if str(values.get("eval_strategy", "no")) != "no":
        yield "per_device_eval_batch_size", args.per_device_eval_batch_size


def _changed(group: Mapping[str, Any], made: Any) -> dict[str, Any]:
    """The entries of a group of settings that differ from what an empty one has."""
    usual = type(made)().to_dict() if hasattr(made, "to_dict") else {}
    return {name: value for name, value in group.items() if value is not None and value != usual.get(name)}


def _is_setting(name: str, catalog: Catalog) -> bool:
    return f"training.{name}" in catalog.facts or any(each.startswith(f"training.{name}.") for each in catalog.facts)


def _optimizer_of(optimizer: Any, named: str) -> str | None:
    """The Trainer's name of an optimizer that was handed to it, where that is another than ``optim`` names."""
    inner = getattr(optimizer, "optimizer", optimizer)
    kind = type(inner).__name__
    if kind == "AdamW" and not named.startswith("adamw"):
        return "adamw_torch_fused" if inner.defaults.get("fused") else "adamw_torch"
    meant = _OPTIMIZERS.get(kind)
    return meant if meant is not None and not named.startswith(meant.partition("_")[0]) else None


def _deepspeed(config: Mapping[str, Any], catalog: Catalog) -> dict[str, Any]:
    """The facts of a DeepSpeed config that is a dict in the script, not a file."""
    import json

    units = ConfigReader(catalog.dialects, catalog.facts).read(json.dumps(config), "deepspeed", dialect="deepspeed")
    return {name: setting.value for unit in units for name, setting in unit.settings.items()}


def longest_rows(dataset: Any, collator: Any = None) -> Lengths:
    """The longest input and target of a tokenized dataset, as the collator will pad them.

    A ``datasets.Dataset`` with the columns ``input_ids`` and ``labels``, and a list of such rows, are read. Any other
    dataset is not: asking it for a row runs its owner's code, which may augment, drawing from the run's random numbers.
    """
    rows = length_of(dataset)
    if isinstance(dataset, list | tuple):
        chosen = dataset[:: max(len(dataset) // MOST_ROWS, 1)]
        mappings = [row for row in chosen if isinstance(row, Mapping)]
        return _padded(
            _longest([row.get("input_ids") for row in mappings]),
            _longest([row.get("labels") for row in mappings]),
            rows,
            collator,
        )
    if type(dataset).__module__.startswith("datasets.") and rows:
        names = getattr(dataset, "column_names", None) or ()
        step = max(rows // MOST_ROWS, 1)
        plain = dataset.with_format(None).select(range(0, rows, step))
        source = _longest(plain["input_ids"]) if "input_ids" in names else None
        target = _longest(plain["labels"]) if "labels" in names else None
        return _padded(source, target, rows, collator)
    return Lengths(rows=rows)


def length_of(held: Any) -> int | None:
    """How many rows or tokens there are; None of what has no length: of an iterable dataset nobody knows."""
    try:
        return len(held)
    except TypeError:
        return None


def _longest(rows: Any) -> int | None:
    return max((len(row) for row in rows if hasattr(row, "__len__")), default=None)


def _padded(source: int | None, target: int | None, rows: int | None, collator: Any) -> Lengths:
    """To the length, or the multiple, that the collator pads to; a label that is a class has no length."""
    fixed = getattr(collator, "max_length", None) if getattr(collator, "padding", None) == "max_length" else None
    multiple = getattr(collator, "pad_to_multiple_of", None) or 1

    def padded(length: int | None) -> int | None:
        return None if length is None else max(-(-length // multiple) * multiple, fixed or 0)

    return Lengths(padded(source), padded(target), rows)


class Seen(NamedTuple):
    """Samples, and tokens of input and target. ``target`` is None where the target is no row of its own."""

    batch: int
    source: int
    target: int | None = None


class Shapes:
    """Looks on while a model is called. ``most``: the most of each that one training batch had."""

    def __init__(self) -> None:
        self.most: Seen | None = None
        self._handle: Any = None

    def attach(self, model: Any) -> None:
        """Look on at a ``torch.nn.Module`` until :meth:`detach`: a hook that reads shapes, and nothing else."""
        self.detach()
        self._handle = model.register_forward_pre_hook(self._look, with_kwargs=True)

    def detach(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def forget(self) -> None:
        self.most = None

    def _look(self, module: Any, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        with contextlib.suppress(Exception):  # in the middle of a step, where nothing of kb's may fail
            if module.training:
                self._see(given, named)

    def _see(self, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        inputs = named.get("input_ids", given[0] if given else None)
        inputs = named.get("inputs_embeds") if inputs is None else inputs
        shape: Sequence[int] = getattr(inputs, "shape", ())
        if len(shape) < 2:
            return
        rows: Sequence[int] = getattr(named.get("labels"), "shape", ())
        seen = Seen(int(shape[0]), int(shape[1]), int(rows[1]) if len(rows) > 1 else None)
        if self.most is None or seen != self.most:
            self.most = seen if self.most is None else _larger(self.most, seen)


def _larger(one: Seen, other: Seen) -> Seen:
    targets = [size for size in (one.target, other.target) if size is not None]
    return Seen(max(one.batch, other.batch), max(one.source, other.source), max(targets, default=None))
