"""Model families, each as its modelling file in transformers reads: the lifetimes of names are part of the model."""

from importlib import import_module

from kb.core.model import Architecture
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import Model

OF_TYPE = {  # module and class of a type that is no variant of its family's own
    "llava": ("llava", "Llava"),
    "llava_next": ("llava", "LlavaNext"),
    "mistral3": ("mistral3", "Mistral3"),
    "paligemma": ("paligemma", "PaliGemma"),
    "gemma3": ("paligemma", "Gemma3"),
    "qwen3_vl": ("qwen_vl", "Qwen3Vl"),
    "qwen3_5": ("qwen_vl", "Qwen35"),
    "idefics3": ("idefics3", "Idefics3"),
    "smolvlm": ("idefics3", "SmolVlm"),
    "gpt_oss": ("gpt_oss", "GptOss"),
    "gemma4_text": ("gemma4", "Gemma4"),
    "gemma4": ("gemma4_seeing", "Gemma4Seeing"),
    "gemma4_unified": ("gemma4_seeing", "Gemma4Unified"),
    "longt5": ("longt5", "LongT5"),
    "whisper": ("whisper", "Whisper"),
    "led": ("led", "Led"),
    "modernbert": ("modernbert", "ModernBert"),
    "deberta-v2": ("deberta", "Deberta"),
    "xlnet": ("xlnet", "XLNet"),
    "big_bird": ("big_bird", "BigBird"),
    "longformer": ("longformer", "Longformer"),
    "mpnet": ("mpnet", "Mpnet"),
}
OF_FAMILY = {
    "decoder": ("decoder", "Decoder"),
    "t5": ("t5", "T5"),
    "bart": ("bart", "Bart"),
    "encoder": ("encoder", "Encoder"),
}
SEEING = ("qwen_vl", "QwenVl")  # of another type with a tower


def model_class(architecture: Architecture) -> type[Model]:
    """The family that an architecture is of, imported here: a prediction pays for that one alone.

    Raises:
        NotFollowedError: none that the engine follows.
    """
    found = OF_TYPE.get(architecture.model_type)
    if found is None:
        found = SEEING if architecture.vision is not None else OF_FAMILY.get(architecture.family)
    if found is None:
        raise NotFollowedError(architecture.model_type)
    module, name = found
    kind: type[Model] = getattr(import_module(f"{__name__}.{module}"), name)
    return kind
