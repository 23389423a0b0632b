"""Which fields of a run nobody told, where nothing is predicted of it: what stood in for them is no value of the run.

A prediction lists what it assumed (``assumed``); without one a stand-in beside real values could not be told from them.
"""

from collections.abc import Collection, Mapping

from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.core.setup import TrainingSetup

# A field of the run, and the settings that tell it.
_BATCH = "training.per_device_{}_batch_size"
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "method": ("lora.enabled", "quantization.load_in_4bit"),
    "bf16": ("training.bf16",),
    "fp16": ("training.fp16",),
    "weights": ("model.torch_dtype",),
    "attn_implementation": ("model.attn_implementation",),
    "per_device_train_batch_size": (_BATCH.format("train"),),
    "per_device_eval_batch_size": (_BATCH.format("eval"),),
    "gradient_accumulation_steps": ("training.gradient_accumulation_steps",),
    "max_source_length": ("data.max_source_length", "trl.max_length"),
    "max_target_length": ("data.max_target_length",),
    "optim": ("training.optim",),
    "gradient_checkpointing": ("training.gradient_checkpointing",),
    "label_smoothing_factor": ("training.label_smoothing_factor",),
    "lora_r": ("lora.r",),
    "lora_target_modules": ("lora.target_modules",),
    "modules_to_save": ("lora.modules_to_save",),
    "trained_tokens": ("lora.trainable_token_indices",),
    "lora_dropout": ("lora.lora_dropout",),
    "use_dora": ("lora.use_dora",),
    "load_in_4bit": ("quantization.load_in_4bit",),
    "load_in_8bit": ("quantization.load_in_8bit",),
    "bnb_4bit_use_double_quant": ("quantization.bnb_4bit_use_double_quant",),
    "do_train": ("training.do_train",),
    "do_eval": ("training.do_eval", "training.eval_strategy"),
    "use_reentrant": ("training.gradient_checkpointing_kwargs.use_reentrant",),
    "fused_loss": ("model.fused_loss", "training.use_liger_kernel"),
    "fused_evaluation": ("model.fused_evaluation", "training.use_liger_kernel"),
    "liger_kernels": ("training.use_liger_kernel",),
    "predict_with_generate": ("training.predict_with_generate",),
    "prediction_loss_only": ("training.prediction_loss_only",),
    "generation_max_length": ("training.generation_max_length", "generation.max_length"),
    "generation_num_beams": ("training.generation_num_beams", "generation.num_beams"),
    "trained_type": ("lora.enabled", "model.torch_dtype"),
    "dataloader_num_workers": ("training.dataloader_num_workers",),
    "dataloader_pin_memory": ("training.dataloader_pin_memory",),
    "dataloader_prefetch_factor": ("training.dataloader_prefetch_factor",),
    "dataloader_persistent_workers": ("training.dataloader_persistent_workers",),
    "world_size": ("launch.num_processes",),
    "zero_stage": ("deepspeed.zero_stage",),
    "offload_optimizer": ("deepspeed.offload_optimizer.device",),
    "offload_param": ("deepspeed.offload_param.device",),
    "fsdp": ("training.fsdp",),
}


def untold(setup: TrainingSetup, unit: Unit) -> frozenset[str]:
    """The fields of ``setup`` whose value stands in for one that kb cannot read, or does not model.

    A field is told where a setting of it has a value. One that is not is untold where that value cannot be known, where
    a file or code that cannot be read may give it, and, of a run that kb has no memory model of, where it was assumed:
    kb's assumptions are those of the Trainer, and such a run has another.
    """
    # a type that nobody wrote is assumed of a model that kb knows alone
    assumed = {*(each.name for each in setup.assumed), "model.torch_dtype"} if setup.unmodelled else frozenset[str]()
    return frozenset(field for field, names in _SETTINGS.items() if _untold(names, setup.unresolved, assumed, unit))


def _untold(names: tuple[str, ...], unresolved: Collection[str], assumed: Collection[str], unit: Unit) -> bool:
    if any(name in unresolved for name in names):
        return True
    if any(name in unit.settings and not is_unknown(unit.settings[name].value) for name in names):
        return False
    hidden = bool(unit.hidden) and any(name.startswith(unit.hidden) for name in names)
    return hidden or any(name in assumed for name in names)
