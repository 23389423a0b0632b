"""What a run says that changes its memory and that kb has no memory model of, by the name that it has there."""

import re
from collections.abc import Iterator
from functools import cache

from kb.advice.settings_reader import SettingsReader
from kb.advice.weights import weight_type
from kb.memory.states import KNOWN_OPTIMIZERS

ADAMW = ("adam", "adamw", "torch.optim.adam", "torch.optim.adamw")  # other words for PyTorch's own
OPTIMIZERS_OF_DEEPSPEED = ("adam", "adamw", "cpuadam", "deepspeedcpuadam", "fusedadam")
ATTENTIONS = ("eager", "sdpa", "flash", "flash_attention_2", "flash_attention_3")
LORA = ("lora", "dora", "rslora")


@cache  # compiled where a model is named
def _quantized_name() -> re.Pattern[str]:
    """``-GPTQ-Int4``, ``-AWQ``, ``-FP8``: checkpoints in formats other than bitsandbytes'."""
    kinds = r"gptq|awq|aqlm|hqq|eetq|gguf|exl[23]|fp8|mxfp[48]|nvfp4|fp4|int[348]|w[48]a(?:4|8|16)|mlx|qat|quip"
    return re.compile(rf"(?:^|[-_./])({kinds})(?:$|[-_./])", re.I)


def unmodelled(read: SettingsReader, *, trains: bool) -> tuple[str, ...]:
    """The things by name, each once, with the key that says so.

    Args:
        trains: whether the run trains: an optimizer matters only then.
    """
    found = (*_of_any(read), *(_of_training(read) if trains else ()))
    return tuple(dict.fromkeys(found))


def _of_any(read: SettingsReader) -> Iterator[str]:
    told = read.value("run.not_modelled")
    if told is not None:
        yield str(told)
    name = read.value("model.name")
    kind = _quantized_name().search(name) if isinstance(name, str) else None
    if kind is not None:
        yield f"{kind[1]} ({name})"
    dtype = read.value("model.torch_dtype")
    if dtype is not None and weight_type(dtype) is None and _named(dtype):
        yield f"{dtype} ({read.key('model.torch_dtype')})"
    attention = read.value("model.attn_implementation")
    if attention is not None and str(attention) not in ATTENTIONS and "flash" not in str(attention):
        yield f"{attention} ({read.key('model.attn_implementation')})"


def _named(dtype: object) -> bool:
    """Whether a type is named that is one: ``auto`` leaves it to the checkpoint."""
    return str(dtype).casefold().removeprefix("torch.") not in ("auto", "none", "null", "")


def _of_training(read: SettingsReader) -> Iterator[str]:
    optimizer = read.value("training.optim")
    if optimizer is not None and optimizer_of(str(optimizer)) not in KNOWN_OPTIMIZERS:
        yield f"{optimizer} ({read.key('training.optim')})"
    of_deepspeed = read.value("deepspeed.optimizer.type")
    if of_deepspeed is not None and str(of_deepspeed).casefold() not in OPTIMIZERS_OF_DEEPSPEED:
        yield f"{of_deepspeed} ({read.key('deepspeed.optimizer.type')})"
    adapter = read.value("lora.peft_type")
    if adapter is not None and str(adapter).casefold().rpartition(".")[2] not in LORA:
        yield f"{adapter} ({read.key('lora.peft_type')})"
    if str(read.value("accelerate.mixed_precision")).casefold() == "fp8":
        yield f"fp8 ({read.key('accelerate.mixed_precision')})"


def optimizer_of(name: str) -> str:
    """The Trainer's name of an optimizer that goes by another."""
    return "adamw_torch" if name.casefold() in ADAMW else name
