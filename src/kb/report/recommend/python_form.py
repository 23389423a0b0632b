"""A recommended run as the Python that makes its model and its arguments, for the Trainer of transformers."""

from collections.abc import Mapping
from typing import Any

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup

OUTPUT = "out"
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
        settings: as :func:`kb.report.recommend.config.settings_of` gives them.
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
