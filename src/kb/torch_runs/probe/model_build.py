"""A model with random weights from a ``config.json``, made ready to train as the real scripts do it; and its samples.

Import only in a trial's process: torch stays in memory once imported.
"""

import tempfile
from collections.abc import Mapping
from typing import Any

import torch

from kb.core.setup import TrainingSetup

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ATTENTION = {"eager": "eager", "sdpa": "sdpa", "flash": "flash_attention_2"}
# T5's kin have a head of its own where their checkpoints do; transformers 5 ties it in a model from a config.
T5_TYPES = ("t5", "mt5", "umt5", "longt5")
UNTIED_BY_DEFAULT = ("mt5",)
TASK_TYPES = (("ForConditionalGeneration", "SEQ_2_SEQ_LM"), ("ForSequenceClassification", "SEQ_CLS"),
              ("ForTokenClassification", "TOKEN_CLS"), ("ForQuestionAnswering", "QUESTION_ANS"))  # fmt: skip
PAD, END = 0, 1  # token ids: with random weights any do


class BadModelError(ValueError):
    """transformers builds no model from the config; the message says why."""


def build_model(config: Mapping[str, Any], setup: TrainingSetup, device: str) -> Any:
    """The setup's model on ``device``, quantized and with adapters where it says so.

    Raises:
        BadModelError: the config, or the adapters' targets, fit no model.
    """
    try:
        read = _config(config)
        factory = _factory(read, config)
        if setup.method == "qlora" or setup.load_in_4bit or setup.load_in_8bit:
            model = _quantized(read, factory, setup, device)
        else:
            with torch.device(device):
                model = factory.from_config(
                    read, attn_implementation=ATTENTION[setup.attn_implementation], dtype=DTYPES[setup.weights]
                )
                _untie(model, config)
        model = model if setup.method == "full" else _adapted(model, setup)
        if device.startswith("cuda"):  # what drawing random weights needed is not of the run
            torch.cuda.empty_cache()
        return model
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModelError(f"{type(error).__name__}: {error}") from error


def _config(config: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    fields = {"pad_token_id": PAD, "eos_token_id": END} | {
        name: value for name, value in config.items() if name not in ("quantization_config", "auto_map")
    }
    model_type = fields.pop("model_type")
    if model_type in T5_TYPES:  # the class has no default for it
        fields.setdefault("decoder_start_token_id", PAD)
    read = AutoConfig.for_model(model_type, **fields)
    if read.is_encoder_decoder and getattr(read, "decoder_start_token_id", None) is None:
        read.decoder_start_token_id = END
    return read


def _factory(read: Any, config: Mapping[str, Any]) -> Any:
    """What makes the model: seq2seq, causal, or a classifier where the type is an encoder's."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    named = str((config.get("architectures") or [""])[0])
    if named.endswith("ForTokenClassification"):
        return transformers.AutoModelForTokenClassification
    if named.endswith("ForQuestionAnswering"):
        return transformers.AutoModelForQuestionAnswering
    if read.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    masked = read.model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if named.endswith("ForSequenceClassification") or masked:
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModelForCausalLM


def _untie(model: Any, config: Mapping[str, Any]) -> None:
    model_type = config.get("model_type")
    if model_type not in T5_TYPES or config.get("tie_word_embeddings", model_type not in UNTIED_BY_DEFAULT):
        return
    head = model.get_output_embeddings()
    if head is not None and head.weight is model.get_input_embeddings().weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())


def _quantized(read: Any, factory: Any, setup: TrainingSetup, device: str) -> Any:
    from peft import prepare_model_for_kbit_training
    from transformers import BitsAndBytesConfig

    half = torch.float16 if setup.fp16 else torch.bfloat16
    eight = setup.load_in_8bit and not setup.load_in_4bit
    asked = BitsAndBytesConfig(load_in_8bit=True) if eight else BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=half,
        bnb_4bit_use_double_quant=setup.bnb_4bit_use_double_quant,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:  # quantization happens where weights are read
        factory.from_config(read, dtype=torch.float32).to(half).save_pretrained(folder)
        model = factory.from_pretrained(
            folder, quantization_config=asked, device_map={"": device}, dtype=half,
            attn_implementation=ATTENTION[setup.attn_implementation],
        )  # fmt: skip
    if not setup.prepare_for_kbit:
        return model
    return prepare_model_for_kbit_training(
        model,
        use_gradient_checkpointing=setup.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": setup.use_reentrant},
    )


def _adapted(model: Any, setup: TrainingSetup) -> Any:
    from peft import LoraConfig, get_peft_model

    kind = type(model).__name__
    asked = LoraConfig(
        r=setup.lora_r,
        lora_alpha=2 * setup.lora_r,
        lora_dropout=setup.lora_dropout,
        target_modules=list(setup.lora_target_modules) if setup.lora_target_modules else None,
        modules_to_save=list(setup.modules_to_save) or None,
        use_dora=setup.use_dora,
        task_type=next((task for ending, task in TASK_TYPES if kind.endswith(ending)), "CAUSAL_LM"),
    )
    if setup.gradient_checkpointing:
        model.enable_input_require_grads()
    return get_peft_model(model, asked)


def samples(model: Any, setup: TrainingSetup, number: int) -> list[dict[str, Any]]:
    """Samples as long as the setup lets them be: nothing is padded, and no batch is smaller than another."""
    torch.manual_seed(0)
    config = model.config
    kind = type(model.get_base_model()).__name__ if hasattr(model, "get_base_model") else type(model).__name__

    def ids(length: int) -> Any:
        return torch.randint(min(3, config.vocab_size - 1), config.vocab_size, (length,))

    rows = []
    for _ in range(number):
        source = ids(setup.max_source_length)
        row = {"input_ids": source, "attention_mask": torch.ones_like(source)}
        if kind.endswith("ForQuestionAnswering"):
            row |= {"start_positions": torch.tensor(0), "end_positions": torch.tensor(0)}
        elif kind.endswith("ForSequenceClassification"):
            row["labels"] = torch.tensor(0)
        elif kind.endswith("ForTokenClassification"):
            row["labels"] = torch.zeros_like(source)
        else:
            row["labels"] = ids(setup.max_target_length) if config.is_encoder_decoder else source.clone()
        rows.append(row)
    return rows
