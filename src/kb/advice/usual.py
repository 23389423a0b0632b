"""What is taken where nothing is said: usual lengths, the precision that a GPU is good at; and what needs no value."""

from collections.abc import Iterable, Mapping
from typing import Literal

from kb.core.hardware import DetectedGpu
from kb.core.model import Architecture, Model
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup, WeightType

PADDING_POSITIONS = {"roberta": 2, "xlm-roberta": 2, "camembert": 2, "longformer": 2}

LengthReason = Literal["longest_of_model", "longest_of_tokenizer", "usual_length", "script_default", "fixed_by_model"]
# Lengths that the example scripts of transformers have by default where their models allow more (4.57 to 5.23).
OF_SCRIPTS = {"run_glue": 128, "run_xnli": 128, "run_qa": 384, "run_qa_beam_search": 384}
# Settings that decide nothing where the run does not train, evaluate or infer, or has no adapter or no FSDP.
FSDP_ONLY = ("training.fsdp_config.", "accelerate.fsdp_")
TRAINING_ONLY = frozenset(
    f"training.{name}"
    for name in (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "gradient_checkpointing_kwargs.use_reentrant",
        "label_smoothing_factor",
        "optim",
    )
) | {"script.trainer", "lora.enabled"}
EVALUATION_ONLY = frozenset(
    f"training.{name}"
    for name in (
        "per_device_eval_batch_size",
        "eval_accumulation_steps",
        "generation_max_length",
        "generation_num_beams",
        "predict_with_generate",
        "prediction_loss_only",
    )
) | {"data.eval_samples"}
INFERENCE_ONLY = frozenset(("inference.num_beams", "inference.max_length"))
ADAPTER_ONLY = frozenset(("lora.r", "lora.target_modules", "lora.modules_to_save"))


def assumed_source_length(
    model: Model | None, constants: Mapping[str, float], tokenizer: int | None = None, script: str | None = None
) -> tuple[int, LengthReason]:
    """Input tokens, and why so many: what the tokenizer or the script cuts to, else a model's longest input.

    Args:
        tokenizer: the ``model_max_length`` that the run gives its tokenizer.
        script: the file name of the program.

    Of decoder-only models no more than the usual length: their positions reach far beyond what a run is packed to
    (131,072 tokens of Llama 3.1, where TRL cuts to 1,024).
    """
    if model is not None and model.architecture.hears:
        return model.architecture.audio_positions, "fixed_by_model"
    usual = int(constants["assumed_source_length"])
    if tokenizer is not None:
        return tokenizer, "longest_of_tokenizer"
    default = OF_SCRIPTS.get((script or "").removesuffix(".py").removesuffix("_no_trainer"))
    if default is not None:
        return default, "script_default"
    longest = (model and (model.max_length or longest_input(model))) or None
    if model is None or longest is None or (model.architecture.family == "decoder" and longest > usual):
        return usual, "usual_length"
    return longest, "longest_of_model"


def longest_input(model: Model) -> int | None:
    """Tokens for which learned positions exist; None where positions are computed, or no run says the length.

    RoBERTa and its kin keep the first two of their positions for padding: 514 are for 512 tokens.
    """
    if model.architecture.hears:
        return None
    positions, kept = model.architecture.max_positions, PADDING_POSITIONS.get(model.architecture.model_type, 0)
    return positions - kept if positions is not None and positions > kept else positions


def reads_target(architecture: Architecture | None) -> bool:
    """Whether targets are a row of tokens of their own: models of one stack have input and target in one row."""
    return architecture is None or architecture.family in ("t5", "bart")


# Activations of these pass fp16's largest number, 65504 (transformers issues 5651, 10956).
OVERFLOWS_IN_FP16 = ("t5", "mt5", "umt5", "longt5")
# Used in fp16 since before GPUs had bf16, or trained in it (OPT, GPT-NeoX); Whisper's encoder clamps for it.
USED_IN_FP16 = (
    "bart", "mbart", "bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "albert", "gpt2", "opt",
    "gpt_neox", "whisper",
)  # fmt: skip

# Fine-tuned already by those who published them: what suits a first fine-tuning may undo it.
FINE_TUNED = ("eenzeenee", "mt5-xlsum")


def learning_rate_for(model: Model, setup: TrainingSetup, constants: Mapping[str, float]) -> float | None:
    """The learning rate to write; None where the library's own suits: T5 learns too slowly at the Trainer's."""
    t5 = model.architecture.model_type in OVERFLOWS_IN_FP16
    return constants["t5_learning_rate"] if t5 and setup.method == "full" and model.id not in FINE_TUNED else None


AUTOCASTS: tuple[WeightType, ...] = ("fp32", "bf16", "fp16")
Reason = Literal["native_bf16", "no_bf16_t5", "no_bf16_fp16", "no_bf16_untested", "no_gpu"]


class Precision(NamedTuple):
    """``autocast`` is fp32 where there is none. ``reason`` is a key of i18n under ``recommend.precision.``."""

    autocast: WeightType
    reason: Reason

    def of(self, setup: TrainingSetup) -> TrainingSetup:
        return setup._replace(bf16=self.autocast == "bf16", fp16=self.autocast == "fp16")


def precision_taken(asked: str | None, gpu: DetectedGpu | None, architecture: Architecture) -> Precision:
    """What the run is asked to compute in, else what suits the GPU; the reason is of what suits it."""
    suits = precision_for(gpu, architecture)
    return suits._replace(autocast=asked) if asked in AUTOCASTS else suits


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


def that_matter(unresolved: Iterable[str], setup: TrainingSetup) -> tuple[str, ...]:
    """The unresolved settings without those of a phase that the run does not have."""
    idle: frozenset[str] = frozenset()
    for runs, names in (
        (setup.do_train, TRAINING_ONLY),
        (setup.do_eval, EVALUATION_ONLY),
        (setup.do_predict, INFERENCE_ONLY),
        (setup.method != "full", ADAPTER_ONLY),
    ):
        idle |= frozenset() if runs else names
    wraps = () if setup.fsdp else FSDP_ONLY
    return tuple(name for name in unresolved if name not in idle and not name.startswith(wraps))
