"""A recommended run as settings by vocabulary name, and in the format of what will read it: a file to save, YAML to
paste in the original guide's own format, or a command to start.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from kb.advice.fit.attempts import generations_of
from kb.advice.fit.recommend import learning_rate_for
from kb.advice.fit.recommend_answer import Answer
from kb.advice.question import Loads
from kb.advice.run.row_lengths import reads_target
from kb.core.model import Architecture
from kb.core.setup import TrainingSetup, WeightType
from kb.core.text import UserError

# How the team format calls what the vocabulary calls otherwise: (group, key).
_KEYS = {
    "model.name": ("general", "model_name"),
    "model.torch_dtype": ("model", "dtype"),
    "data.max_source_length": ("tokenizer", "encoder_max_len"),
    "data.max_target_length": ("tokenizer", "decoder_max_len"),
    "inference.max_length": ("inference", "generate_max_length"),
    "lora.r": ("lora", "lora_rank"),
}
_KEYS_OF_ONE_SEQUENCE = _KEYS | {"data.max_source_length": ("tokenizer", "max_length")}
_LENGTHS = ("data.max_source_length", "data.max_target_length")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*")
_READ_OTHERWISE = re.compile(r"(?i:true|false|yes|no|on|off|null|y|n)|[\d_.]+(?:[eE][\d_.+-]+)?|0[xob]\w+")
MILLIONTH = 1e-6
_COMPUTE_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def settings_of_answer(answer: Answer, form: str | None = None) -> dict[str, Any] | None:
    """What a recommendation sets, as :func:`settings_of` has it, for a format of FORMATS; None where nothing fits."""
    setup, model = answer.setup, answer.estimator.model
    if setup is None:
        return None
    settings = settings_of(
        setup,
        workers_known=answer.training is not None and answer.training.workers_reason != "unknown",
        one_sequence=not reads_target(model.architecture),
        stored=model.weights_dtype,
        learning_rate=learning_rate_for(model, setup, answer.estimator.constants, form),
    )
    if model.architecture.hears:  # nothing is cut: sound is of one length, and labels are as long as they are
        settings = {name: value for name, value in settings.items() if name not in _LENGTHS}
    return settings


def settings_of(
    setup: TrainingSetup,
    *,
    workers_known: bool = True,
    one_sequence: bool = False,
    stored: WeightType | None = "fp32",
    learning_rate: float | None = None,
) -> dict[str, Any]:
    """Every setting to write, by vocabulary name, in the order to write them.

    ``one_sequence``: the model has one stack, and reads input and target as one row of tokens. ``stored``: the type of
    the checkpoint, None where it is not known; transformers 5 loads it so unless told otherwise. ``learning_rate``:
    where it is not left to the library.
    """
    settings: dict[str, Any] = {"model.name": setup.model_name}
    if setup.post is not None and setup.post.completion:  # prompts are taken as long as they are
        settings["trl.max_completion_length"] = setup.post.completion
        settings["trl.num_generations"] = generations_of(setup.post.kind, setup.effective_batch_size)
    else:
        settings["data.max_source_length"] = setup.max_source_length
    if not one_sequence:
        settings["data.max_target_length"] = setup.max_target_length
    as_stored = ("fp32", stored) if setup.load_in_4bit else ("fp32",) if stored == "fp32" else ()
    if setup.weights not in as_stored:
        settings["model.torch_dtype"] = _COMPUTE_TYPES[setup.weights]
    if setup.do_train:
        settings |= _training(setup, workers_known)
        if learning_rate is not None:
            settings["training.learning_rate"] = learning_rate
    if setup.do_predict and setup.inference_batch_size:
        settings |= {
            "inference.batch_size": setup.inference_batch_size,
            "inference.max_length": setup.inference_max_length,
            "inference.num_beams": setup.inference_num_beams,
        }
    if setup.method != "full":
        settings |= _adapter_settings(setup)
    return settings


def _training(setup: TrainingSetup, workers_known: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "training.do_train": True,
        "training.do_eval": setup.do_eval,
        "training.eval_strategy": "epoch" if setup.do_eval else "no",
        "training.per_device_train_batch_size": setup.per_device_train_batch_size,
        "training.per_device_eval_batch_size": setup.per_device_eval_batch_size,
        "training.gradient_accumulation_steps": setup.gradient_accumulation_steps,
    }
    if not setup.do_eval:
        del settings["training.per_device_eval_batch_size"]
    if setup.autocast:
        settings["training.bf16" if setup.bf16 else "training.fp16"] = True
    settings["training.optim"] = setup.optim
    settings["training.gradient_checkpointing"] = setup.gradient_checkpointing
    if workers_known:
        settings["training.dataloader_num_workers"] = setup.dataloader_num_workers
    if setup.predict_with_generate:
        settings["training.predict_with_generate"] = True
        settings["training.generation_max_length"] = setup.generation_max_length
        settings["training.generation_num_beams"] = setup.generation_num_beams
    elif setup.prediction_loss_only:
        settings["training.prediction_loss_only"] = True
    return settings


def _adapter_settings(setup: TrainingSetup) -> dict[str, Any]:
    settings: dict[str, Any] = {"lora.enabled": True, "lora.r": setup.lora_r}
    if setup.lora_target_modules:
        settings["lora.target_modules"] = list(setup.lora_target_modules)
    if setup.load_in_4bit:
        autocast = "bf16" if setup.bf16 else "fp16" if setup.fp16 else "fp32"
        settings |= {
            "quantization.load_in_4bit": True,
            "quantization.bnb_4bit_quant_type": "nf4",
            "quantization.bnb_4bit_compute_dtype": _COMPUTE_TYPES[autocast],
            "quantization.bnb_4bit_use_double_quant": setup.bnb_4bit_use_double_quant,
        }
    return settings


def to_yaml(
    settings: Mapping[str, Any], comments: Mapping[str, str], head: str = "", *, one_sequence: bool = False
) -> str:
    """The settings in the team format, grouped.

    Args:
        settings: as :func:`settings_of` gives them.
        comments: what to say beside a setting, by its name; under a group's name, as a line in the group.
        head: a comment before everything.
        one_sequence: as of :func:`settings_of`; the length is then nobody's encoder's.
    """
    keys = _KEYS_OF_ONE_SEQUENCE if one_sequence else _KEYS
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for name, value in settings.items():
        group, key = keys.get(name) or tuple(name.split(".", 1))
        groups.setdefault(group, []).append((key, scalar(value), comments.get(name, "")))
    lines = [f"# {line}" for line in head.splitlines()]
    for group, rows in groups.items():
        lines.append(f"{group}:")
        lines += [f"  {key}: {value}{f'  # {comment}' if comment else ''}" for key, value, comment in rows]
        if comments.get(group):
            lines.append(f"  # {comments[group]}")
    return "\n".join(lines) + "\n"


def scalar(value: Any) -> str:
    """A value as YAML reads it back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(scalar(item) for item in value)}]"
    if isinstance(value, float):
        short = f"{value:g}"
        if "e" not in short:
            return short
        # YAML takes 2e-05, without a dot, for a text
        return f"{value:.9f}".rstrip("0").rstrip(".") if value >= MILLIONTH else f"{value:.1e}"
    text = str(value)
    if isinstance(value, str) and not (_PLAIN.fullmatch(text) and not _READ_OTHERWISE.fullmatch(text)):
        return json.dumps(text, ensure_ascii=False)
    return text


FORMATS = ("hf", "trl", "axolotl", "llamafactory", "team", "python", "command")
OF_DECODERS = ("trl", "axolotl", "llamafactory")  # their trainers read one row of tokens
READ_BY_TRAINER = ("python", "command")  # what they write are arguments of the Trainer's own class
# The name of one setting since transformers 5.23, which has the older one until version 6.
RENAMED_SINCE = (5, 23)
RENAMED: Mapping[str, str] = {"training.gradient_checkpointing": "training.activation_checkpointing"}
LOADS: Mapping[str, Loads] = {"axolotl": "half", "llamafactory": "stored", "trl": "trl"}  # where it is not as usual
YOURS = "YOUR_DATASET"  # what only the user knows
HELD_OUT = 0.05  # of the rows, for evaluation, where a trainer splits the data itself
OUTPUT = "out"

Settings = Mapping[str, Any]
_INFERENCE = ("inference.", "generation.")
# What the library calls otherwise than the vocabulary; every other name of `training.` is its own.
_HF: Mapping[str, str] = {
    "model.name": "model_name_or_path",
    "model.torch_dtype": "dtype",
    "data.max_source_length": "max_source_length",
    "data.max_target_length": "max_target_length",
    "lora.enabled": "use_peft",
    "lora.r": "lora_r",
    "lora.target_modules": "lora_target_modules",
}
_LENGTH_OF = {"encoder": "max_seq_length", "decoder": "block_size"}  # in the example scripts of transformers
_TRL = {
    **_HF,
    "data.max_source_length": "max_length",
    "quantization.bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
_TRL_LEFT_OUT = ("quantization.bnb_4bit_compute_dtype", "training.do_train", "training.do_eval")
# What says of a file which trainer it is for, at its default: a check of the file alone reads the same run.
_OF_TRAINER: Mapping[str, tuple[str, Any]] = {
    "dpo": ("f_divergence_type", "reverse_kl"),
    "kto": ("desirable_weight", 1.0),
    "orpo": ("beta", 0.1),
    "grpo": ("reward_funcs", ["YOUR_REWARD"]),
    "rloo": ("normalize_advantages", False),
}
_AXOLOTL: Mapping[str, str] = {
    "model.name": "base_model",
    "data.max_source_length": "sequence_len",
    "training.per_device_train_batch_size": "micro_batch_size",
    "training.per_device_eval_batch_size": "eval_batch_size",
    "training.gradient_accumulation_steps": "gradient_accumulation_steps",
    "training.bf16": "bf16",
    "training.fp16": "fp16",
    "training.optim": "optimizer",
    "training.learning_rate": "learning_rate",
    "training.gradient_checkpointing": "gradient_checkpointing",
    "training.dataloader_num_workers": "dataloader_num_workers",
    "lora.r": "lora_r",
    "lora.target_modules": "lora_target_modules",
    "quantization.load_in_4bit": "load_in_4bit",
}
_LLAMAFACTORY: Mapping[str, str] = {
    "model.name": "model_name_or_path",
    "data.max_source_length": "cutoff_len",
    "lora.r": "lora_rank",
    "quantization.bnb_4bit_use_double_quant": "double_quantization",
}
_LLAMAFACTORY_LEFT_OUT = ("training.gradient_checkpointing", "training.prediction_loss_only", "training.do_eval")


def check_trained_from(form: str, architecture: Architecture, name: str) -> None:
    """Raises ``UserError`` where the format's program does not train models of this family."""
    if form in OF_DECODERS and architecture.family != "decoder":
        raise UserError("recommend.not_in_format", format=form, model=name)


def config_as(
    form: str,
    settings: Settings,
    setup: TrainingSetup,
    architecture: Architecture,
    *,
    comments: Mapping[str, str],
    head: str,
) -> str:
    """The settings in a format of FORMATS, with a line break at the end.

    Args:
        settings: as :func:`kb.report.recommend.formats.settings_of` gives them.
        architecture: of the model: what reads a source and a target is trained by other programs than what reads one
            row.
        comments: what to say beside a setting, by its name.
        head: a comment before everything.

    Raises:
        UserError: the format's program does not train models of this family.
    """
    family = architecture.family
    check_trained_from(form, architecture, setup.model_name or "")
    trained = {name: value for name, value in settings.items() if not name.startswith(_INFERENCE)}
    if form == "team":
        return to_yaml(trained, comments, head, one_sequence=family == "decoder")
    lines = [f"# {line}" for line in head.splitlines()]
    if form == "python":
        return "\n".join(lines) + "\n" + python_script(trained, setup, architecture, comments)
    rows = _WRITERS[form](trained, setup, family)
    if form == "command":
        return _command(rows)
    for name, key, value in rows:
        comment = comments.get(name, "")
        lines.append(f"{key}:{_value(value)}" + (f"  # {comment}" if comment else ""))
    return "\n".join(lines) + "\n"


Row = tuple[str, str, Any]  # the setting, empty where it is the format's alone; its key; its value
Writer = Callable[[Settings, TrainingSetup, str], list[Row]]


def _value(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):  # a list of mappings, one below another
        return "".join(f"\n  - {key}: {scalar(each)}" for entry in value for key, each in entry.items())
    return f" {scalar(value)}"


def _hf(settings: Settings, setup: TrainingSetup, family: str) -> list[Row]:
    # the example script of encoders has no adapters, and its name for the length is TRL's older one beside theirs
    length = "max_source_length" if family == "encoder" and setup.method != "full" else _LENGTH_OF.get(family)
    names = {**_HF, "data.max_source_length": length or "max_source_length"}
    rows = [(name, names.get(name, name.partition(".")[2]), value) for name, value in settings.items()]
    return [*rows, ("", "output_dir", OUTPUT)]


def _trl(settings: Settings, setup: TrainingSetup, family: str) -> list[Row]:
    named = {name: value for name, value in settings.items() if name not in _TRL_LEFT_OUT}
    rows: list[Row] = [(name, _TRL.get(name, name.partition(".")[2]), value) for name, value in named.items()]
    if setup.load_in_4bit and "model.torch_dtype" not in named:  # 4-bit weights are computed in this type
        rows.append(("model.torch_dtype", "dtype", "bfloat16" if setup.bf16 else "float16"))
    if "training.bf16" not in settings:
        rows.append(("", "bf16", False))  # TRL turns it on by itself
    if setup.method != "full":
        rows.append(("", "lora_dropout", setup.lora_dropout))  # TRL's commands have one of their own
    kind = setup.post.kind if setup.post is not None else ""
    if kind in _OF_TRAINER:
        rows.append(("", *_OF_TRAINER[kind]))
    if kind == "rloo":
        rows.append(("", "reward_funcs", ["YOUR_REWARD"]))
    return [*rows, ("", "dataset_name", YOURS), ("", "output_dir", OUTPUT)]


def _axolotl(settings: Settings, setup: TrainingSetup, family: str) -> list[Row]:
    if setup.fp16 and setup.method == "full":
        raise UserError("recommend.no_full_fp16", format="axolotl")
    rows: list[Row] = [(name, _AXOLOTL[name], value) for name, value in settings.items() if name in _AXOLOTL]
    if setup.method != "full":
        rows.append(("lora.enabled", "adapter", setup.method))
        rows.append(("", "lora_alpha", 2 * setup.lora_r))
    rows.append(("", "datasets", [{"path": YOURS}]))
    return [*rows, ("", "val_set_size", HELD_OUT if setup.do_eval else 0), ("", "output_dir", OUTPUT)]


def _llamafactory(settings: Settings, setup: TrainingSetup, family: str) -> list[Row]:
    rows: list[Row] = [("", "stage", "sft"), ("", "finetuning_type", "full" if setup.method == "full" else "lora")]
    for name, value in settings.items():
        group, _, key = name.partition(".")
        if name in _LLAMAFACTORY:
            rows.append((name, _LLAMAFACTORY[name], value))
        elif name == "lora.target_modules":
            rows.append((name, "lora_target", ",".join(value)))
        elif name == "quantization.load_in_4bit":
            rows.append((name, "quantization_bit", 4))
        elif group == "training" and name not in _LLAMAFACTORY_LEFT_OUT:
            rows.append((name, key, value))
    rows.append(("", "disable_gradient_checkpointing", not setup.gradient_checkpointing))
    held_out: list[Row] = [("", "val_size", HELD_OUT)] if setup.do_eval else []
    return [*rows, ("", "dataset", YOURS), *held_out, ("", "output_dir", OUTPUT)]


def _command(rows: list[Row]) -> str:
    """The rows as flags of a script, one a line; of a switch that is off there is none."""
    words = ["python train.py"]
    for _, key, value in rows:
        if value is True:
            words.append(f"--{key}")
        elif value is not False:
            text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            words.append(f"--{key} {text}")
    return " \\\n  ".join(words) + "\n"


_WRITERS: Mapping[str, Writer] = {
    "hf": _hf,
    "trl": _trl,
    "axolotl": _axolotl,
    "llamafactory": _llamafactory,
    "command": _hf,
}


_CLASSES = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "span": "AutoModelForQuestionAnswering",
}
_HEARING = (
    "processor = AutoProcessor.from_pretrained(MODEL)",
    "",
    "",
    "def heard(row):",
    '    sound, rate = row["audio"]["array"], row["audio"]["sampling_rate"]',
    "    features = processor.feature_extractor(sound, sampling_rate=rate).input_features[0]",
    '    return {"input_features": features, "labels": processor.tokenizer(row["text"]).input_ids}',
)


def python_script(
    settings: Mapping[str, Any], setup: TrainingSetup, architecture: Architecture, comments: Mapping[str, str]
) -> str:
    """The lines after the head: imports, tokenizer, model, adapter, arguments.

    Args:
        settings: as :func:`kb.report.recommend.formats.settings_of` gives them.
        comments: what to say beside a setting, by its name.
    """
    seq2seq = architecture.family in ("t5", "bart")
    model_class = "AutoModelForSeq2SeqLM" if seq2seq else _CLASSES[architecture.head]
    reader = "AutoTokenizer"
    if architecture.hears:
        model_class, reader = "AutoModelForSpeechSeq2Seq", "AutoProcessor"
    arguments = "Seq2SeqTrainingArguments" if seq2seq else "TrainingArguments"
    from_transformers = sorted((model_class, reader, arguments))
    from_peft = ["LoraConfig", "get_peft_model"]
    if setup.load_in_4bit:
        from_transformers = sorted((*from_transformers, "BitsAndBytesConfig"))
        from_peft.append("prepare_model_for_kbit_training")
    lines = ["import torch"] if "model.torch_dtype" in settings or setup.load_in_4bit else []
    if setup.method != "full":
        lines.append(f"from peft import {', '.join(from_peft)}")
    lines += [f"from transformers import {', '.join(from_transformers)}", ""]
    lines += [f"MODEL = {settings['model.name']!r}".replace("'", '"')]
    if architecture.hears:
        lines += _HEARING
    else:
        lines += ["tokenizer = AutoTokenizer.from_pretrained(MODEL)", "", "", "def tokenized(rows):"]
        lines += _tokenizing(settings, seq2seq=seq2seq)
    lines += ["", "", *_model(settings, model_class, setup)]
    if setup.method != "full":
        lines += _adapter(settings, setup)
    lines += [f"arguments = {arguments}(", f'    output_dir="{OUTPUT}",']
    for name, value in settings.items():
        if name.startswith("training."):
            comment = comments.get(name, "")
            lines.append(f"    {name.partition('.')[2]}={_literal(value)},{f'  # {comment}' if comment else ''}")
    return "\n".join([*lines, ")"]) + "\n"


def _tokenizing(settings: Mapping[str, Any], *, seq2seq: bool) -> list[str]:
    source, target = settings["data.max_source_length"], settings.get("data.max_target_length")
    cut = f'tokenizer(rows["text"], max_length={source}, truncation=True)'
    if not seq2seq:
        return [f"    return {cut}"]
    labels = f'tokenizer(text_target=rows["summary"], max_length={target}, truncation=True)'
    return [f"    inputs = {cut}", f'    inputs["labels"] = {labels}["input_ids"]', "    return inputs"]


def _model(settings: Mapping[str, Any], model_class: str, setup: TrainingSetup) -> list[str]:
    lines = [f"model = {model_class}.from_pretrained(", "    MODEL,"]
    if "model.torch_dtype" in settings:
        lines.append(f"    dtype=torch.{settings['model.torch_dtype']},")
    if setup.load_in_4bit:
        lines.append("    quantization_config=BitsAndBytesConfig(")
        for name, value in settings.items():
            group, _, key = name.partition(".")
            if group == "quantization":
                written = f"torch.{value}" if key == "bnb_4bit_compute_dtype" else _literal(value)
                lines.append(f"        {key}={written},")
        lines.append("    ),")
    return [*lines, ")"]


def _adapter(settings: Mapping[str, Any], setup: TrainingSetup) -> list[str]:
    lines = []
    if setup.load_in_4bit:
        checkpointing = setup.gradient_checkpointing
        lines.append(f"model = prepare_model_for_kbit_training(model, use_gradient_checkpointing={checkpointing})")
    named = {key: settings[f"lora.{key}"] for key in ("r", "target_modules") if f"lora.{key}" in settings}
    given = ", ".join(f"{key}={_literal(value)}" for key, value in named.items())
    return [*lines, f"model = get_peft_model(model, LoraConfig({given}))"]


def _literal(value: Any) -> str:
    return repr(value).replace("'", '"')
