"""What a run does: whether it trains, by the arguments that it is given and the name of its script."""

from kb.core.document import Unit
from kb.core.expression import is_unknown

# Arguments of the Trainer that say nothing of training: an evaluation, a generation or any other script takes them too.
OF_ANY_RUN = frozenset(
    f"training.{name}"
    for name in (
        "output_dir", "overwrite_output_dir", "seed", "data_seed", "fp16", "bf16", "tf32", "fp16_full_eval",
        "bf16_full_eval", "per_device_eval_batch_size", "eval_accumulation_steps", "do_eval", "do_predict",
        "predict_with_generate", "prediction_loss_only", "generation_max_length", "generation_num_beams",
        "generation_config", "generation_max_new_tokens", "report_to", "run_name", "logging_dir", "log_level",
        "logging_strategy", "logging_steps", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_drop_last",
        "dataloader_prefetch_factor", "dataloader_persistent_workers", "deepspeed", "fsdp", "fsdp_config",
        "remove_unused_columns", "local_rank", "disable_tqdm", "use_cpu", "no_cuda", "torch_compile", "label_names",
        "push_to_hub", "include_inputs_for_metrics", "include_for_metrics", "batch_eval_metrics",
        "metric_for_best_model",
    )
)  # fmt: skip
# Those that only a run which trains has a use for, whatever its script is called.
OF_TRAINING_ALONE = ("training.do_train", "training.learning_rate", "training.num_train_epochs", "training.max_steps")
FREE = ("hf", "command", "command-training")  # dialects whose programs may do anything else
# Words in the name of a script that does something else than train.
OTHERWISE = frozenset((
    "analyze", "analyse", "analysis", "preprocess", "prepare", "tokenize", "convert", "export", "merge", "eval",
    "evaluate", "evaluation", "generate", "generation", "inference", "infer", "predict", "quantize", "serve",
    "benchmark", "download", "chat",
))  # fmt: skip


def says_training(unit: Unit) -> bool:
    """Whether anything is said of a Trainer; ``--fp16`` beside an inference batch says nothing of it."""
    silent = ("training.output_dir", "training.seed") if unit.dialect == "command" else ()  # any script has these
    if silent and "inference.batch_size" in unit.settings:
        return "training.do_train" in unit.settings
    return any(name.startswith("training.") and name not in silent for name in unit.settings)


def trains(unit: Unit) -> bool:
    """Whether the run trains, as far as its arguments tell; ``do_train`` is asked elsewhere.

    A command without an argument for training trains nothing. Nor does one for no epoch at all, which is
    how scripts that quantize a trained model are called.
    """
    if not says_training(unit) or _no_epochs(unit):
        return False
    if unit.dialect not in FREE or unit.script is None:
        return True
    named = [name for name in unit.settings if name.startswith("training.") and name not in OF_ANY_RUN]
    if any(name in unit.settings for name in OF_TRAINING_ALONE):
        return True
    return bool(named) and not _otherwise(unit.script)


def _no_epochs(unit: Unit) -> bool:
    epochs, steps = (unit.settings.get(f"training.{name}") for name in ("num_train_epochs", "max_steps"))
    if epochs is None or is_unknown(epochs.value) or not isinstance(epochs.value, int | float) or epochs.value > 0:
        return False
    return steps is None or (isinstance(steps.value, int) and steps.value <= 0)


def _otherwise(script: str | None) -> bool:
    """Whether the script's name says that it does something else."""
    words = set((script or "").casefold().removesuffix(".py").replace("-", "_").replace(".", "_").split("_"))
    return not words.isdisjoint(OTHERWISE) and "train" not in words
