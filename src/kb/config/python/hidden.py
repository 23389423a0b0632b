"""What code out of sight may say of a run: ``**more`` of its calls, and a quantization that no call makes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kb.config.python.calls import Call
from kb.config.python.runs import PREPARED, Run
from kb.config.text.nodes import MAPPING

if TYPE_CHECKING:
    from kb.config.python.reader import Analysis

TRAINING = "hf"  # whose defaults hold where a file has no training call
CALLED_TRAINER = "script.trainer"  # the class that is called says it, whatever its keywords hint at
OWN = ("training.", "trl.")  # settings that are keywords of a training call itself
OF_MODELS = ("lora.enabled", "quantization.load_in_4bit", "quantization.load_in_8bit", "model.torch_dtype")
# Packages that pack a loaded model's weights by calls of their own.
QUANTIZERS = ("aqlm", "auto_gptq", "awq", "eetq", "gptqmodel", "hqq", "optimum", "quanto", "torchao")
HIDDEN = {  # settings that the ``**more`` of a call of each group may hold
    "lora": ("lora.",),
    "quantization": ("quantization.",),
    "model": (*OF_MODELS[1:], "model.attn_implementation"),
    "loader": ("training.per_device_train_batch_size",),
}
PACKING = ("quantization", "format")  # groups of calls that say how weights are packed


def hidden_by(call: Call, run: Run, analysis: "Analysis") -> tuple[str, ...]:
    """What the ``**more`` of a call may hold; of a trainer of TRL's an adapter, with TrainingArguments a length."""
    if not analysis.given[call.number].hides:
        return ()
    if CALLED_TRAINER in call.kind.sets and call.kind.dialect is None:
        early = run.own is not None and run.own.kind.dialect == TRAINING and analysis.says("max_seq_length")
        adapter = (*OF_MODELS[:1], *HIDDEN["lora"]) if analysis.says("peft") else ()
        return (*adapter, "trl.max_seq_length") if early else adapter
    return OWN if call.kind.dialect is not None else HIDDEN.get(call.kind.group, ())


def packed_out_of_sight(calls: Sequence[Call], analysis: "Analysis") -> tuple[str, ...]:
    """Where a model is given a quantization that no call here makes; a config that the program is given may say it."""
    if analysis.source is not analysis.module.source or any(call.kind.group in PACKING for call in calls):
        return ()
    given = [each for call in calls if call.kind.group == "model" for each in analysis.given[call.number].known]
    prepared = any(PREPARED in call.kind.sets for call in calls)  # cfg.quantization_config = … of a config= it is given
    if prepared and any(map(analysis.names.imports, QUANTIZERS)):
        return OF_MODELS[1:3]
    named = ("quantization_config", "config") if prepared else ("quantization_config",)
    handed = (each.value for each in given if each.path[1:2] and each.path[1] in named)
    return OF_MODELS[1:3] if any(node.kind == MAPPING or node.data is not None for node in handed) else ()
