"""The JSON contract, schema 1: ``rules/schema/output/check.json`` says it in full. Sizes are whole bytes."""

from collections.abc import Collection, Mapping
from typing import Any

from kb.advice.run.run_kind import only_loads
from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.core.finding import Because, Edit, Finding, Fix, OnRelease, Span, Suppression
from kb.core.result import CheckResult, GpuFit, UnitResult, Unusable
from kb.core.setup import Assumption, TrainingSetup
from kb.report.check.changes import condition_of
from kb.report.check.text import fault_text
from kb.report.json_parts import Object, encode, escaped, head, machine_object, plain, prediction_object
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
        "unusable": [_fault(fault, words) for fault in result.unusable],
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
        made["gpu_fits"] = [_gpu_fit(fit) for fit in unit.gpu_fits]
    if unit.if_so:
        made["verdict_assumes"] = [_assumption(each) for each in unit.if_so]
    made["findings"] = [_finding(finding, words) for finding in unit.findings]
    if unit.hidden_notes:
        made["hidden_notes"] = unit.hidden_notes
    made["not_evaluated"] = [{"rule": rule.rule, "needs": list(rule.needs)} for rule in unit.not_evaluated]
    return made


def _fault(fault: Unusable, words: Words) -> Object:
    return {
        "path": fault.path,
        "line": fault.line,
        "column": fault.column,
        "message": fault_text(fault, words),
        "fault": "kb" if fault.internal else "input",
    }


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


def _gpu_fit(fit: GpuFit) -> Object:
    return {
        "gpu": fit.gpu.id,
        "name": fit.gpu.name,
        "status": fit.verdict.status,
        "phase": fit.verdict.phase,
        "term": fit.verdict.term,
        "process_used_bytes": fit.process_used_bytes,
        "limit_bytes": fit.limit_bytes,
    }


def _finding(finding: Finding, words: Words) -> Object:
    made: Object = {
        "rule": finding.rule,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "certainty": finding.certainty,
        **_place(finding.span),
        "message": words.message(finding),
        "facts": {name: _fact(name, value, words) for name, value in finding.facts.items()},
        "because": [_because(each, words) for each in finding.because],
        "fix": fix_object(fix) if (fix := finding.ready("safe") or finding.ready("unsafe")) else None,
        "doc": words.pages.path(finding.rule, words.language),
        "suppressed": _suppression(finding.suppressed) if finding.suppressed else None,
    }
    if page := words.pages.address(finding.rule, words.language):
        made["doc_url"] = page
    if finding.if_so:
        made["assumes"] = [_assumption(each) for each in finding.if_so]
    if finding.on_releases:
        made["on_releases"] = [_on_release(each) for each in finding.on_releases]
    if offered := [fix for fix in finding.fixes if not fix.certain]:
        made["offered"] = [_offer(fix) for fix in offered]
    return made


def _because(each: Because, words: Words) -> Object:
    made = {"fact": each.name, "value": _fact(each.name, each.value, words), "origin": each.origin}
    return {**made, "place": each.place or None}


def _assumption(each: Assumption) -> Object:
    return {"name": each.name, "value": plain(each.value), "reason": each.reason}


def _on_release(on: OnRelease) -> Object:
    """The releases for which it holds: from ``since`` on, before ``before``; and what the project allows."""
    since, before = (".".join(map(str, bound)) if bound else None for bound in (on.since, on.before))
    said = {"specifier": on.specifier, "place": on.place or None}
    return {"library": on.library, "since": since, "before": before, **said}


def _offer(fix: Fix) -> Object:
    """A fix that no one can say yet whether it applies: its condition, and the facts that would settle it."""
    return {**fix_object(fix), "if": condition_of(fix), "needs": list(fix.needs)}


def _place(span: Span) -> Object:
    return {
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }


def _fact(name: str, value: Any, words: Words) -> Any:
    fact = words.facts.get(name)
    if fact and fact.type == "version" and isinstance(value, tuple):
        return words.fact(name, value)
    return round(value) if fact and fact.type == "bytes" and isinstance(value, float) else plain(value)


def fix_object(fix: Fix) -> Object:
    """``set`` holds the new values; ``remove``, ``rename`` and ``replace`` are there only where the fix does that."""
    made: Object = {"safety": fix.safety, "set": {edit.name: plain(edit.value) for edit in _of(fix, "set")}}
    if removed := [edit.name for edit in _of(fix, "remove")]:
        made["remove"] = removed
    if renamed := {edit.name: str(edit.value) for edit in _of(fix, "rename")}:
        made["rename"] = renamed
    if replaced := [{**_place(edit.span), "text": str(edit.value)} for edit in _of(fix, "replace") if edit.span]:
        made["replace"] = replaced
    return made


def _of(fix: Fix, op: str) -> list[Edit]:
    return [edit for edit in fix.edits if edit.op == op]


def _suppression(suppression: Suppression) -> Object:
    return {
        "kind": suppression.kind,
        "reason": suppression.reason,
        "until": suppression.until,
        "line": suppression.line,
    }


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
