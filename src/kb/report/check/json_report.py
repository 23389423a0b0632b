"""The JSON contract, schema 1: ``rules/schema/output/check.json`` says it in full. Sizes are whole bytes."""

from collections.abc import Mapping
from typing import Any

from kb.advice.run.run_kind import only_loads
from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.core.finding import Finding, Fix
from kb.core.result import CheckResult, UnitResult
from kb.core.setup import TrainingSetup
from kb.report.check.changes import condition_of
from kb.report.check.text import fault_text
from kb.report.json_parts import (
    Object,
    assumption_object,
    encode,
    escaped,
    fields,
    head,
    machine_object,
    plain,
    prediction_object,
    release_text,
)
from kb.report.words import Words


def json_report(result: CheckResult, words: Words) -> str:
    """The whole report as one JSON object, a line for each unit; keys are always in the same order.

    Indenting would take the encoder written in Python: 1 ms a file, as long as reading it.
    """
    before, after = json_ends(result, words, result.summary())
    return f"{before}{units_json(result, words)}{after}"


def json_ends(result: CheckResult, words: Words, summary: Mapping[str, int]) -> tuple[str, str]:
    """What stands before the units and after them; of ``result`` all but its units counts."""
    whole = {**check_object(result._replace(units=()), words), "summary": summary}
    last = ("unusable", "summary")
    before = encode({key: value for key, value in whole.items() if key not in ("files", *last)}).removesuffix("}")
    after = encode({key: whole[key] for key in last}).removeprefix("{")
    return escaped(f'{before}, "files": [\n'), escaped(f"\n], {after}\n")


def units_json(result: CheckResult, words: Words) -> str:
    """The units alone, one on a line, a comma after each but the last."""
    return escaped(",\n".join(encode(_unit(unit, words)) for unit in result.units))


def check_object(result: CheckResult, words: Words) -> Object:
    return {
        **head(result.version, result.rules_version),
        "machine": machine_object(result.machine),
        "files": [_unit(unit, words) for unit in result.units],
        "unusable": [
            {
                **fields(fault, "path", "line", "column"),
                "message": fault_text(fault, words),
                "fault": "kb" if fault.internal else "input",
            }
            for fault in result.unusable
        ],
        "summary": result.summary(),
    }


def _unit(unit: UnitResult, words: Words) -> Object:
    made: Object = {
        "path": unit.unit.path,
        "section": unit.unit.section,
        "dialect": unit.unit.dialect,
        "setup": _setup(unit.setup, unit) if unit.setup else None,
        "prediction": prediction_object(unit.prediction) if unit.prediction else None,
    }
    if unit.unit.read_by:
        made["read_by"] = unit.unit.read_by
    if unit.prediction is None and unit.note:
        made["note"] = words(f"note.{unit.note}", **unit.note_values)
    if unit.gpu_fits:
        made["gpu_fits"] = [
            {
                "gpu": fit.gpu.id,
                "name": fit.gpu.name,
                **fit.verdict._asdict(),
                **fields(fit, "process_used_bytes", "limit_bytes"),
            }
            for fit in unit.gpu_fits
        ]
    if unit.if_so:
        made["verdict_assumes"] = [assumption_object(each) for each in unit.if_so]
    made["findings"] = [_finding(finding, words) for finding in unit.findings]
    if unit.hidden_notes:
        made["hidden_notes"] = unit.hidden_notes
    made["not_evaluated"] = [{"rule": rule.rule, "needs": list(rule.needs)} for rule in unit.not_evaluated]
    return made


def _setup(setup: TrainingSetup, unit: UnitResult) -> Object:
    made: Object = {"model_name": setup.model_name, "model": unit.model.id if unit.model else None}
    for each in setup._fields:
        if each not in ("model_name", "assumed", "uncompared"):  # the last is never a config's
            made[each] = plain(getattr(setup, each))
    loads = only_loads(unit.unit)
    made["method"] = setup.method if setup.method_known and (setup.method != "full" or not loads) else None
    if unit.prediction is None:
        made |= dict.fromkeys(untold(setup, unit.unit))
    made["effective_batch_size"] = setup.effective_batch_size if setup.batch_known and not loads else None
    return made


def _finding(finding: Finding, words: Words) -> Object:
    made: Object = {
        **fields(finding, "rule", "severity", "confidence", "certainty"),
        **fields(finding.span, *_PLACE),
        "message": words.message(finding),
        "facts": {name: _fact(name, value, words) for name, value in finding.facts.items()},
        "because": [
            {
                "fact": each.name,
                "value": _fact(each.name, each.value, words),
                "origin": each.origin,
                "place": each.place or None,
            }
            for each in finding.because
        ],
        "fix": fix_object(fix) if (fix := finding.ready("safe") or finding.ready("unsafe")) else None,
        "doc": words.pages.path(finding.rule, words.language),
        "suppressed": finding.suppressed._asdict() if finding.suppressed else None,
    }
    if page := words.pages.address(finding.rule, words.language):
        made["doc_url"] = page
    if finding.if_so:
        made["assumes"] = [assumption_object(each) for each in finding.if_so]
    if finding.on_releases:  # those for which it holds: from ``since`` on, before ``before``; what the project allows
        made["on_releases"] = [
            {
                "library": on.library,
                "since": release_text(on.since),
                "before": release_text(on.before),
                "specifier": on.specifier,
                "place": on.place or None,
            }
            for on in finding.on_releases
        ]
    if offered := [fix for fix in finding.fixes if not fix.certain]:  # with the facts that would settle each
        made["offered"] = [{**fix_object(fix), "if": condition_of(fix), "needs": list(fix.needs)} for fix in offered]
    return made


_PLACE = ("line", "column", "end_line", "end_column")


def _fact(name: str, value: Any, words: Words) -> Any:
    fact = words.facts.get(name)
    if fact and fact.type == "version" and isinstance(value, tuple):
        return words.fact(name, value)
    return round(value) if fact and fact.type == "bytes" and isinstance(value, float) else plain(value)


def fix_object(fix: Fix) -> Object:
    """``set`` holds the new values; ``remove``, ``rename`` and ``replace`` are there only where the fix does that."""
    edits = {op: [edit for edit in fix.edits if edit.op == op] for op in ("set", "remove", "rename", "replace")}
    made: Object = {"safety": fix.safety, "set": {edit.name: plain(edit.value) for edit in edits["set"]}}
    if edits["remove"]:
        made["remove"] = [edit.name for edit in edits["remove"]]
    if edits["rename"]:
        made["rename"] = {edit.name: str(edit.value) for edit in edits["rename"]}
    if replaced := [edit for edit in edits["replace"] if edit.span]:
        made["replace"] = [{**fields(edit.span, *_PLACE), "text": str(edit.value)} for edit in replaced]
    return made


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

    def is_untold(names: tuple[str, ...]) -> bool:
        if any(name in setup.unresolved for name in names):
            return True
        if any(name in unit.settings and not is_unknown(unit.settings[name].value) for name in names):
            return False
        return any(name in assumed or name.startswith(unit.hidden) for name in names)

    return frozenset(field for field, names in _SETTINGS.items() if is_untold(names))
