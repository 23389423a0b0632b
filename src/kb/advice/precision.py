"""The number types to run in: what the GPU computes in natively, and what the model's family survives."""

from typing import Literal, NamedTuple

from kb.core.hardware import DetectedGpu
from kb.core.model import Architecture
from kb.core.setup import TrainingSetup, WeightType

# Activations of these pass fp16's largest number, 65504 (transformers issues 5651, 10956).
OVERFLOWS_IN_FP16 = ("t5", "mt5", "umt5", "longt5")
# Used in fp16 since before GPUs had bf16, or trained in it (OPT, GPT-NeoX).
USED_IN_FP16 = (
    "bart", "mbart", "bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "albert", "gpt2", "opt",
    "gpt_neox",
)  # fmt: skip

Reason = Literal["native_bf16", "no_bf16_t5", "no_bf16_fp16", "no_bf16_untested", "no_gpu"]


class Precision(NamedTuple):
    """``autocast`` is fp32 where there is none. ``reason`` is a key of i18n under ``recommend.precision.``."""

    autocast: WeightType
    reason: Reason

    def of(self, setup: TrainingSetup) -> TrainingSetup:
        return setup._replace(bf16=self.autocast == "bf16", fp16=self.autocast == "fp16")


def precision_for(gpu: DetectedGpu | None, architecture: Architecture) -> Precision:
    """bf16 where the GPU has it; before Ampere fp16, but fp32 for the T5 family; fp32 where no GPU is known."""
    if gpu is None:
        return Precision("fp32", "no_gpu")
    if gpu.native_bf16:
        return Precision("bf16", "native_bf16")
    if architecture.model_type in OVERFLOWS_IN_FP16:
        return Precision("fp32", "no_bf16_t5")
    used = architecture.model_type in USED_IN_FP16
    return Precision("fp16", "no_bf16_fp16" if used else "no_bf16_untested")
