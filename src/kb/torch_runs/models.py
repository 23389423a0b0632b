"""The model that a setup and a ``config.json`` describe: its class, type, attention and labels, and its adapters and
quantization as PEFT and bitsandbytes are asked for them.

The simulator predicts this model and a trial measures it. torch is imported inside functions: the simulator loads a
shim before it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.torch_runs.releases import kept_in_fp32, not_quantized, typed

ATTENTION = {"eager": "eager", "sdpa": None, "flash": "flash_attention_2"}  # None: sdpa where the model has it
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # torch's names
# Classes whose head is its own tensor in a checkpoint that says so; transformers 5 ties it in a model from the config.
T5_TYPES = ("t5", "mt5", "umt5", "longt5", "switch_transformers")
UNTIED_BY_DEFAULT = ("mt5",)
# Types of images and text, whose causal class would be of text alone.
SEEING = (
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_5",
    "llava",
    "llava_next",
    "mistral3",
    "paligemma",
    "gemma3",
    "idefics3",
    "smolvlm",
)
WIDE_TYPES = ("xlnet",)  # makes parameters in fp32 whatever it is asked for; those of a checkpoint are cast as asked
PAD, END = 0, 1  # token ids: with random weights any do


class NoModelError(ValueError):
    """transformers builds no model from the config; the message says why."""


class OwnCodeError(NoModelError):
    """The type ``model_type`` is code of its own, which nobody allowed to run."""

    def __init__(self, model_type: object) -> None:
        super().__init__(f"transformers has no model of type {model_type}: it is code of its own")
        self.model_type = model_type


class Labels(NamedTuple):
    """What a batch holds beside its input: entries by name, one sample's shape, and whether they are token ids."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    tokens: bool


def build(
    config: Mapping[str, Any], setup: TrainingSetup, *, code_folder: str | None = None, token_ids: bool = False
) -> Any:
    """The model for ``config`` on the device that ``torch.device`` sets, not quantized and without adapters.

    Its head is tied as in its checkpoint. ``token_ids`` names the special tokens that the config leaves out: a real
    batch needs them. ``code_folder`` holds the model's own code, which runs only where it is given.

    Raises:
        OwnCodeError: the config names code of its own and no ``code_folder``.
        NoModelError: transformers does not know the type, or builds no model from the fields.
    """
    import torch

    try:
        read = _read(config, code_folder)
        if token_ids:
            _name_tokens(read)
        if read.is_encoder_decoder and getattr(read, "decoder_start_token_id", None) is None:
            read.decoder_start_token_id = getattr(read, "pad_token_id", None) or PAD
        read._attn_implementation = ATTENTION[setup.attn_implementation]
        kind, dtype = model_class(read, config, code_folder), load_dtype(setup)
        loaded = typed(dtype)
        if not hasattr(kind, "from_config"):  # a model's own class
            model = kind._from_config(read, **loaded)
        elif code_folder is not None:
            model = kind.from_config(read, **loaded, trust_remote_code=True)
        else:
            model = kind.from_config(read, **loaded)
        if read.model_type in WIDE_TYPES:
            model.to(dtype)
        model.tie_weights()
        _freeze(model, setup, getattr(torch, DTYPES.get(setup.frozen_weights or "", ""), None))
        if not _tied(config):
            _untie(model)
    except (NoModelError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # each architecture fails in its own way, and all of them mean the config
        raise NoModelError(f"{type(error).__name__}: {error}") from error
    return model


def _freeze(model: Any, setup: TrainingSetup, dtype: Any) -> None:
    """What is not trained, by parts of its name, in its own type where it has one."""
    for name, parameter in model.named_parameters() if setup.frozen else ():
        if any(part in name for part in setup.frozen):
            parameter.requires_grad_(False)
            if dtype is not None:
                parameter.data = parameter.data.to(dtype)


def checkpoint_trained(model: Any) -> None:
    """LLaMA-Factory's checkpointing: a layer's input gets a gradient where the layer trains, and other layers run as
    they are (``custom_gradient_checkpointing_func``, llamafactory/model/model_utils/checkpointing.py).

    Its releases pin a transformers that gives the patches' embedding no gradient.
    """
    for module in model.modules():
        for number, hook in list(module._forward_hooks.items()):
            if getattr(hook, "__name__", "") == "make_inputs_require_grads":
                del module._forward_hooks[number]

    def of(checkpoint: Any) -> Any:
        def run(forward: Any, *args: Any, **kwargs: Any) -> Any:
            layer = forward.args[0]
            if not any(parameter.requires_grad for parameter in layer.parameters()):
                return forward(*args, **kwargs)
            args[0].requires_grad_(True)
            return checkpoint(forward, *args, **kwargs)

        return run

    for module in model.modules():
        if "_gradient_checkpointing_func" in vars(module):
            module._gradient_checkpointing_func = of(module._gradient_checkpointing_func)


def stays_wide(model: Any) -> Callable[[str], bool]:
    """Whether a parameter stays in fp32 whatever the type asked for (``_get_dtype_plan``)."""
    dtype = model.get_input_embeddings().weight.dtype
    names = kept_in_fp32(model, dtype)
    pattern = re.compile("|".join(rf"(?:^|\.)(?:{name})(?:\.|$)" for name in names)) if names else None
    return lambda path: pattern is not None and pattern.search(path) is not None


def load_dtype(setup: TrainingSetup) -> Any:
    """The weights' torch type. A quantized model computes in 16 bits unless told otherwise: what loads it is so."""
    import torch

    if setup.packs and setup.weights == "fp32":
        return torch.float16 if setup.fp16 else torch.bfloat16
    return getattr(torch, DTYPES[setup.weights])


def model_class(read: Any, config: Mapping[str, Any], code_folder: str | None = None) -> Any:
    """The class to build, or transformers' automatic one.

    It is the first of ``architectures`` that transformers has and that computes a loss: a masked language model too.
    Else it is a seq2seq model (of text or speech), one of images and text, a classifier of sequences for an encoder,
    or a causal LM.
    """
    import transformers

    for name in config.get("architectures") or ():
        kind = getattr(transformers, str(name), None)
        if isinstance(kind, type) and "For" in str(name) and not str(name).endswith("ForPreTraining"):
            return kind
    if code_folder is not None and "auto_map" in config:
        names = (*config["auto_map"], "AutoModelForCausalLM")
        return getattr(transformers, next(name for name in names if name.startswith("AutoModelFor")))
    if getattr(read, "is_encoder_decoder", False):
        return transformers.AutoModelForSpeechSeq2Seq if _hears(config) else transformers.AutoModelForSeq2SeqLM
    if config["model_type"] in SEEING:
        return transformers.AutoModelForImageTextToText
    if _is_encoder(str(config["model_type"])):
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModelForCausalLM


def labels_of(model: Any, setup: TrainingSetup) -> Labels:
    """Labels as a data collator makes them, every row as long as the setup lets it be.

    A classifier has one for a sample or for a token, an encoder-decoder target tokens, a language model its input.
    """
    kind = type(base_of(model)).__name__
    if kind.endswith("ForQuestionAnswering"):
        return Labels(("start_positions", "end_positions"), (), tokens=False)
    if kind.endswith(("ForSequenceClassification", "ForMultipleChoice")):
        return Labels(("labels",), (), tokens=False)
    if kind.endswith("ForTokenClassification"):
        return Labels(("labels",), (setup.max_source_length,), tokens=False)
    length = setup.max_target_length if model.config.is_encoder_decoder else setup.max_source_length
    return Labels(("labels",), (length,), tokens=True)


def base_of(model: Any) -> Any:
    """The model itself, where PEFT has put its own around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def hears(model: Any) -> bool:
    """Whether a model's input is sound, as features of a fixed length (Whisper)."""
    return getattr(model, "main_input_name", "") == "input_features"


def as_long(setup: TrainingSetup, length: int) -> TrainingSetup:
    """The setup with inputs of ``length`` tokens, and targets as much shorter as they are."""
    target = max(1, setup.max_target_length * length // setup.max_source_length)
    return setup._replace(max_source_length=length, max_target_length=target)


def _read(config: Mapping[str, Any], code_folder: str | None) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    fields = {name: value for name, value in config.items() if name not in ("quantization_config", "model_type")}
    model_type = config.get("model_type")
    if model_type is None:
        raise NoModelError("config.json: model_type is missing")
    if model_type in CONFIG_MAPPING:
        return AutoConfig.for_model(str(model_type), **fields)
    if "auto_map" not in config:
        raise NoModelError(f"transformers has no model of type {model_type}")
    if code_folder is None:
        raise OwnCodeError(model_type)
    return AutoConfig.from_pretrained(code_folder, trust_remote_code=True)


def _name_tokens(read: Any) -> None:
    """Special tokens that are missing, or outside a small vocabulary, where generation would look them up."""
    size = getattr(read, "vocab_size", None)
    for name, token in (("pad_token_id", PAD), ("eos_token_id", END)):
        known = getattr(read, name, None)
        if known is None or (isinstance(known, int) and isinstance(size, int) and known >= size):
            setattr(read, name, token)


def _is_encoder(model_type: str) -> bool:
    """Whether the type has a masked language model: BERT and its kin also have a causal one that nobody means. XLNet's
    language model is one of permuted tokens, and in no mapping but the causal one's."""
    from transformers.models.auto import modeling_auto

    return model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES or model_type == "xlnet"


def _hears(config: Mapping[str, Any]) -> bool:
    """Whether the type writes down what it hears, as Whisper does."""
    from transformers.models.auto import modeling_auto

    return config["model_type"] in modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES


def _tied(config: Mapping[str, Any]) -> bool:
    model_type = config.get("model_type")
    if model_type not in T5_TYPES:
        return True  # as the class decides, from the config
    return bool(config.get("tie_word_embeddings", model_type not in UNTIED_BY_DEFAULT))


def _untie(model: Any) -> None:
    import torch

    head = model.get_output_embeddings()
    if head is not None:
        # other numbers too: from_pretrained ties two weights of a checkpoint that are equal
        head.weight = torch.nn.Parameter(head.weight.detach().clone().neg_())


# What PEFT trains beside the adapters, by the names that it looks for; "score" is the last module, which stays wide.
TRAINED_HEADS = ("classifier", "qa_outputs")
STORAGES = {"uint8": "uint8", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}  # torch's names
NARROWED = ("lm_head", "embed_tokens", "wte", "wpe")  # what TRL gives back to bf16, by name
TASK_TYPES = (("ForConditionalGeneration", "SEQ_2_SEQ_LM"), ("ForSequenceClassification", "SEQ_CLS"),
              ("ForTokenClassification", "TOKEN_CLS"), ("ForQuestionAnswering", "QUESTION_ANS"))  # fmt: skip


def kept_head(model: Any, setup: TrainingSetup) -> str | None:
    """The head that must not be quantized, as ``llm_int8_skip_modules`` says: PEFT would train it and cannot.

    transformers 5.23 quantizes a head with a bias (``get_keys_to_not_convert`` looks for the last *parameter*), and
    PEFT then stops: "only Tensors of floating point dtype can require gradients".
    """
    if setup.method == "full" or not setup.packs:
        return None
    return next((name for name, _ in base_of(model).named_children() if name in TRAINED_HEADS), None)


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

    if setup.packs and setup.prepare_for_kbit and setup.half_tables:
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
