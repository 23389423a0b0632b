"""A recommended run as a config: settings by vocabulary name, and YAML to paste in the original guide's own format."""

import json
import re
from collections.abc import Mapping
from typing import Any

from kb.advice.answer import Answer
from kb.advice.attempts import generations_of
from kb.advice.usual import learning_rate_for, reads_target
from kb.core.setup import TrainingSetup, WeightType

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


def settings_of_answer(answer: Answer) -> dict[str, Any] | None:
    """What a recommendation sets, as :func:`settings_of` has it; None where nothing fits."""
    setup, model = answer.setup, answer.estimator.model
    if setup is None:
        return None
    settings = settings_of(
        setup,
        workers_known=answer.training is not None and answer.training.workers_reason != "unknown",
        one_sequence=not reads_target(model.architecture),
        stored=model.weights_dtype,
        learning_rate=learning_rate_for(model, setup, answer.estimator.constants),
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
    if setup.weights != "fp32" or (stored != "fp32" and not setup.load_in_4bit):
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
        settings |= _adapter(setup)
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


def _adapter(setup: TrainingSetup) -> dict[str, Any]:
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
        return f"{value:g}" if value >= MILLIONTH else f"{value:.1e}"
    text = str(value)
    if isinstance(value, str) and not (_PLAIN.fullmatch(text) and not _READ_OTHERWISE.fullmatch(text)):
        return json.dumps(text, ensure_ascii=False)
    return text
