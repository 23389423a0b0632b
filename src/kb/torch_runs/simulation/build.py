"""The model of a setup on the fake GPU, ready to train: loaded, quantized, with adapters, as the real scripts do it.

Import only in the simulator's process.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kb.core.setup import TrainingSetup
from kb.torch_runs.simulation.artefacts import gpu_seen
from kb.torch_runs.simulation.faults import BadModelError
from kb.torch_runs.simulation.loading import load_quantized, move
from kb.torch_runs.simulation.meta_model import meta_model

if TYPE_CHECKING:
    import torch

    from kb.torch_runs.simulation.tracer import Tracer
else:
    from kb.torch_runs.simulation.torch_modules import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# What PEFT trains beside the adapters, by the names that it looks for; "score" is the last module, which stays wide.
TRAINED_HEADS = ("classifier", "qa_outputs")
TASK_TYPES = (("ForConditionalGeneration", "SEQ_2_SEQ_LM"), ("ForSequenceClassification", "SEQ_CLS"),
              ("ForTokenClassification", "TOKEN_CLS"), ("ForQuestionAnswering", "QUESTION_ANS"))  # fmt: skip


def build_model(
    config: Mapping[str, Any],
    setup: TrainingSetup,
    tracer: "Tracer",
    *,
    code_folder: str | None = None,
    load_ahead: int = 0,
) -> "torch.nn.Module":
    """The setup's model for ``config`` (a ``config.json``), all of it booked with ``tracer``.

    Raises:
        BadModelError: no model can be built from the config, or no adapter put on it.
        RemoteCodeError: it is code of its own; ``code_folder`` allows that code to run.
        OutOfMemory: the load runs out.
    """
    quantized = setup.load_in_4bit or setup.load_in_8bit or setup.method == "qlora"
    dtype = _load_dtype(setup, quantized)
    model = meta_model(config, setup.attn_implementation, dtype, code_folder)
    if quantized:
        eight = setup.load_in_8bit and not setup.load_in_4bit
        head = kept_head(model, setup)
        wide = (head,) if head else ()
        load_quantized(model, tracer, dtype, setup.bnb_4bit_use_double_quant, eight, load_ahead, wide)
    else:
        move(model, tracer)
    model.config.use_cache = False  # type: ignore[union-attr]  # as the Trainer does, from transformers 5 on
    if quantized and setup.method != "full" and setup.prepare_for_kbit:
        _prepare(model, setup, tracer)
    if setup.gradient_checkpointing:
        _checkpoint(model, setup)
    if setup.method != "full":
        model = _with_adapters(model, setup, tracer)
    tracer.name_modules(model)
    return model


def kept_head(model: Any, setup: TrainingSetup) -> str | None:
    """The head that must not be quantized, as ``llm_int8_skip_modules`` says: PEFT would train it and cannot.

    transformers 5.23 quantizes a head with a bias (``get_keys_to_not_convert`` looks for the last *parameter*), and
    PEFT then stops: "only Tensors of floating point dtype can require gradients".
    """
    if setup.method == "full" or not (setup.load_in_4bit or setup.load_in_8bit or setup.method == "qlora"):
        return None
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return next((name for name, _ in inner.named_children() if name in TRAINED_HEADS), None)


def _load_dtype(setup: TrainingSetup, quantized: bool) -> "torch.dtype":
    """A quantized model computes in 16 bits unless told otherwise: what loads it is written so."""
    if quantized and setup.weights == "fp32":
        return torch.float16 if setup.fp16 else torch.bfloat16
    return DTYPES[setup.weights]


def _prepare(model: Any, setup: TrainingSetup, tracer: "Tracer") -> None:
    from peft import prepare_model_for_kbit_training

    with gpu_seen():
        prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=setup.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": setup.use_reentrant},
        )
    for parameter in model.parameters():
        tracer.mark(parameter, "weights")


def _checkpoint(model: Any, setup: TrainingSetup) -> None:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": setup.use_reentrant})
    if setup.method != "full":
        model.enable_input_require_grads()


def _with_adapters(model: Any, setup: TrainingSetup, tracer: "Tracer") -> "torch.nn.Module":
    from peft import LoraConfig, get_peft_model

    kind = type(model).__name__
    asked = LoraConfig(
        r=setup.lora_r,
        lora_alpha=2 * setup.lora_r,
        lora_dropout=setup.lora_dropout,
        target_modules=list(setup.lora_target_modules) if setup.lora_target_modules else None,
        modules_to_save=list(setup.modules_to_save) or None,
        use_dora=setup.use_dora,
        bias="none",
        task_type=next((task for ending, task in TASK_TYPES if kind.endswith(ending)), "CAUSAL_LM"),
    )
    try:
        adapted = get_peft_model(model, asked)
    except (ValueError, RuntimeError) as error:  # RuntimeError: a quantized module in modules_to_save
        raise BadModelError(reason=str(error)) from error
    for name, parameter in adapted.named_parameters():
        if "lora_" in name or parameter.requires_grad:
            tracer.mark(parameter, "adapters")
    return adapted
