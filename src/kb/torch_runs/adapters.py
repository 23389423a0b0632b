"""A setup's adapters and quantization, as PEFT and bitsandbytes are asked for them: for what is simulated and measured.

Nothing is imported before it is used: the simulator loads its shim before torch.
"""

import re
from typing import Any

from kb.core.setup import TrainingSetup
from kb.torch_runs.releases import not_quantized

# What PEFT trains beside the adapters, by the names that it looks for; "score" is the last module, which stays wide.
TRAINED_HEADS = ("classifier", "qa_outputs")
STORAGES = {"uint8": "uint8", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}  # torch's names
NARROWED = ("lm_head", "embed_tokens", "wte", "wpe")  # what TRL gives back to bf16, by name
TASK_TYPES = (("ForConditionalGeneration", "SEQ_2_SEQ_LM"), ("ForSequenceClassification", "SEQ_CLS"),
              ("ForTokenClassification", "TOKEN_CLS"), ("ForQuestionAnswering", "QUESTION_ANS"))  # fmt: skip


def is_quantized(setup: TrainingSetup) -> bool:
    """Whether bitsandbytes packs the weights, in 4 or in 8 bits."""
    return setup.load_in_4bit or setup.load_in_8bit or setup.method == "qlora"


def kept_head(model: Any, setup: TrainingSetup) -> str | None:
    """The head that must not be quantized, as ``llm_int8_skip_modules`` says: PEFT would train it and cannot.

    transformers 5.23 quantizes a head with a bias (``get_keys_to_not_convert`` looks for the last *parameter*), and
    PEFT then stops: "only Tensors of floating point dtype can require gradients".
    """
    if setup.method == "full" or not is_quantized(setup):
        return None
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return next((name for name, _ in inner.named_children() if name in TRAINED_HEADS), None)


def quantization_config(model: Any, setup: TrainingSetup, compute_dtype: Any) -> Any:
    """The ``BitsAndBytesConfig`` with which ``model``, not quantized yet, is loaded in the setup's number of bits."""
    from transformers import BitsAndBytesConfig

    eight = setup.load_in_8bit and not setup.load_in_4bit
    head = kept_head(model, setup)
    return BitsAndBytesConfig(
        load_in_4bit=not eight,
        load_in_8bit=eight,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=compute_dtype,
        bnb_4bit_use_double_quant=setup.bnb_4bit_use_double_quant,
        bnb_4bit_quant_storage=STORAGES[setup.bnb_4bit_quant_storage],
        # a list replaces the library's own choice, so that it holds that choice too
        llm_int8_skip_modules=[*not_quantized(model), head] if head else None,
    )


def prepare_quantized(model: Any, setup: TrainingSetup) -> Any:
    """What PEFT does before training: fp32 for what is not quantized, and checkpointing."""
    from peft import prepare_model_for_kbit_training

    return prepare_model_for_kbit_training(
        model,
        use_gradient_checkpointing=setup.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": setup.use_reentrant},
    )


def lora_config(model: Any, setup: TrainingSetup) -> Any:
    """PEFT's ``LoraConfig`` for the setup, with the task of ``model``'s class."""
    from peft import LoraConfig

    targets: Any = list(setup.lora_target_modules) if setup.lora_target_modules else None
    if targets == ["all-linear"]:  # PEFT knows the word alone; in a list it would be a module's name
        targets = "all-linear"
    # which tokens they are is all the same; PEFT before 0.15 knows no such rows
    rows: dict[str, Any] = (
        {"trainable_token_indices": list(range(setup.trained_tokens))} if setup.trained_tokens else {}
    )
    return LoraConfig(
        r=setup.lora_r,
        lora_alpha=2 * setup.lora_r,
        lora_dropout=setup.lora_dropout,
        target_modules=targets,
        modules_to_save=list(setup.modules_to_save) or None,
        use_dora=setup.use_dora,
        exclude_modules=f".*(?:{'|'.join(map(re.escape, setup.frozen))}).*" if setup.frozen else None,
        bias="none",
        task_type=_task_type(model),
        **rows,
    )


def _task_type(model: Any) -> str | None:
    """PEFT's name for the task; it has none for a masked language model, which does not generate, nor for speech."""
    kind = type(model).__name__
    if getattr(model, "main_input_name", "") == "input_features":  # its class for seq2seq hands the model input ids
        return None
    generates = "CAUSAL_LM" if model.can_generate() else None
    if kind.endswith("ForConditionalGeneration") and not model.config.is_encoder_decoder:  # of pictures and text
        return generates
    return next((task for ending, task in TASK_TYPES if kind.endswith(ending)), generates)


def add_adapters(model: Any, setup: TrainingSetup) -> Any:
    """The model under PEFT, its adapters where the model is.

    Raises:
        ValueError: the targets are none of the model's modules.
        RuntimeError: a quantized module is to be trained.
    """
    from peft import get_peft_model

    if setup.gradient_checkpointing:
        model.enable_input_require_grads()
    return get_peft_model(model, lora_config(model, setup))


def cast_as_trainers_do(model: Any, setup: TrainingSetup) -> Any:
    """The types that a trainer gives to what PEFT made: TRL before 0.26 (``peft_module_casting_to_bf16``), TRL since,
    and LLaMA-Factory and Unsloth, which train in fp32."""
    import torch

    if is_quantized(setup) and setup.prepare_for_kbit and setup.half_tables:
        for name, module in model.named_modules():
            weight = getattr(module, "weight", None)
            if any(part in name for part in NARROWED) and weight is not None and weight.dtype == torch.float32:
                module.to(torch.bfloat16)
    if setup.trained_type != "peft":
        kind = torch.float32 if setup.trained_type == "fp32" else torch.bfloat16
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(kind)
    return model
