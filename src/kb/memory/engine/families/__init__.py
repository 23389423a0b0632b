"""Model families, each as its modelling file in transformers reads: the lifetimes of names are part of the model."""

from kb.core.model import Architecture
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import Model


def model_class(architecture: Architecture) -> type[Model]:
    """The family that an architecture is of.

    Raises:
        NotFollowedError: none that the engine follows.
    """
    # imported where used: a prediction pays for the one family that it is of
    if architecture.model_type in ("llava", "llava_next"):
        from kb.memory.engine.families.llava import Llava, LlavaNext

        return LlavaNext if architecture.model_type == "llava_next" else Llava
    if architecture.model_type == "paligemma":
        from kb.memory.engine.families.paligemma import PaliGemma

        return PaliGemma
    if architecture.model_type in ("idefics3", "smolvlm"):
        from kb.memory.engine.families.idefics3 import Idefics3, SmolVlm

        return SmolVlm if architecture.model_type == "smolvlm" else Idefics3
    if architecture.vision is not None:
        from kb.memory.engine.families.qwen_vl import QwenVl

        return QwenVl
    if architecture.model_type == "gpt_oss":
        from kb.memory.engine.families.gpt_oss import GptOss

        return GptOss
    if architecture.family == "decoder":
        from kb.memory.engine.families.decoder import Decoder

        return Decoder
    if architecture.model_type == "longt5":
        from kb.memory.engine.families.longt5 import LongT5

        return LongT5
    if architecture.family == "t5":
        from kb.memory.engine.families.t5 import T5

        return T5
    if architecture.model_type == "whisper":
        from kb.memory.engine.families.whisper import Whisper

        return Whisper
    if architecture.model_type == "led":
        from kb.memory.engine.families.led import Led

        return Led
    if architecture.family == "bart":
        from kb.memory.engine.families.bart import Bart

        return Bart
    if architecture.model_type == "modernbert":
        from kb.memory.engine.families.modernbert import ModernBert

        return ModernBert
    if architecture.model_type == "deberta-v2":
        from kb.memory.engine.families.deberta import Deberta

        return Deberta
    if architecture.model_type == "xlnet":
        from kb.memory.engine.families.xlnet import XLNet

        return XLNet
    if architecture.model_type == "big_bird":
        from kb.memory.engine.families.big_bird import BigBird

        return BigBird
    if architecture.model_type == "longformer":
        from kb.memory.engine.families.longformer import Longformer

        return Longformer
    if architecture.model_type == "mpnet":
        from kb.memory.engine.families.mpnet import Mpnet

        return Mpnet
    if architecture.family == "encoder":
        from kb.memory.engine.families.encoder import Encoder

        return Encoder
    raise NotFollowedError(architecture.model_type)
