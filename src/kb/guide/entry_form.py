"""The forms of the Contribute page, which write the file of a GPU, a model, a rule or a measurement and check it as
`kb rules validate` and `kb rules test` do."""

import json
from collections.abc import Sequence
from html import escape

from kb.core.record import NamedTuple
from kb.guide.library import Library
from kb.guide.site_words import say


class Field(NamedTuple):
    """``label`` and ``hint`` are keys of words. With ``rows`` it is a text of several lines; with ``options``, each a
    value and the key of its name (or none), a list to choose from."""

    name: str
    label: str
    hint: str = ""
    rows: int = 0
    options: Sequence[tuple[str, str]] = ()


def _chosen(name: str, values: Sequence[str], hint: str = "") -> Field:
    return Field(name, f"entry.{name}", hint, options=[(value, "") for value in values])


AREAS = (
    "fit", "precision", "batch", "loader", "evaluation", "generation", "memory-options", "lora", "quantization",
    "renames", "distributed", "text", "checkpointing", "reproducibility", "throughput", "startup", "serving",
)  # fmt: skip
KINDS_OF_SOURCE = ("documentation", "source code", "issue", "pull request", "forum thread", "article", "paper")
FIELDS = {
    "hardware": (
        Field("name", "entry.name", "entry.name_hint"),
        Field("id", "entry.id", "entry.id_hint"),
        Field("aliases", "entry.aliases", "entry.aliases_hint"),
        Field("reported", "entry.reported"),
        Field("capability", "entry.capability", "entry.capability_hint"),
        Field("sold", "entry.sold", "entry.vendor_hint"),
        Field("tensor_flops", "entry.tensor_flops", "entry.vendor_hint"),
        Field("memory_bandwidth", "entry.memory_bandwidth", "entry.vendor_hint"),
        Field("tdp", "entry.tdp", "entry.vendor_hint"),
    ),
    "models": (
        Field("name", "entry.model_name", "entry.model_name_hint"),
        Field("id", "entry.id", "entry.id_hint"),
        Field("aliases", "entry.aliases", "entry.aliases_hint"),
        Field("config", "entry.config", "entry.config_hint", 8),
    ),
    "checks": (
        Field("id", "entry.id", "entry.rule_id_hint"),
        Field("area", "entry.area", options=[(area, f"area.{area}") for area in AREAS]),
        _chosen("severity", ("warning", "error", "info")),
        _chosen("confidence", ("medium", "high", "low"), "entry.confidence_hint"),
        Field("when", "entry.when", "entry.when_hint", 2),
        Field("title_ko", "entry.title_ko"),
        Field("title_en", "entry.title_en"),
        Field("message_ko", "entry.message_ko", "entry.message_hint"),
        Field("message_en", "entry.message_en", "entry.message_hint"),
        Field("why_ko", "entry.why_ko", "", 3),
        Field("why_en", "entry.why_en", "", 3),
        Field("fires", "entry.fires", "entry.example_hint", 4),
        Field("silent", "entry.silent", "entry.example_hint", 4),
        Field("gpu", "entry.example_gpu", "entry.example_gpu_hint"),
        Field("set", "entry.set", "entry.set_hint", 2),
        _chosen("safety", ("unsafe", "safe"), "entry.safety_hint"),
        Field("fix_ko", "entry.fix_ko"),
        Field("fix_en", "entry.fix_en"),
        Field("source", "entry.source", "entry.source_hint"),
        Field("source_title", "entry.source_title", "entry.source_title_hint"),
        _chosen("source_kind", KINDS_OF_SOURCE),
    ),
    "measurements": (
        Field("id", "entry.id", "entry.measured_id_hint"),
        Field("gpu_name", "entry.name", "entry.name_hint"),
        Field("gpu", "entry.gpu", "entry.gpu_hint"),
        Field("memory", "entry.reported"),
        Field("date", "entry.date", "entry.date_hint"),
        Field("stack", "entry.stack", "entry.stack_hint"),
        Field("command", "entry.command", "entry.command_hint"),
        Field("model", "entry.model_name", "entry.model_name_hint"),
        Field("config", "entry.config", "entry.config_hint", 4),
        _chosen("task", ("train", "evaluate", "generate")),
        _chosen("method", ("full", "lora", "qlora")),
        _chosen("precision", ("bf16", "fp16", "fp32", "pure-bf16", "pure-fp16"), "entry.precision_hint"),
        _chosen("attention", ("sdpa", "eager", "flash")),
        _chosen("gradient_checkpointing", ("false", "true")),
        Field("optimizer", "entry.optimizer", "entry.optimizer_hint"),
        Field("batch", "entry.batch"),
        Field("source_length", "entry.source_length"),
        Field("target_length", "entry.target_length", "entry.target_length_hint"),
        Field("lora_rank", "entry.lora_rank", "entry.lora_hint"),
        Field("lora_targets", "entry.lora_targets", "entry.lora_hint"),
        Field("allocated", "entry.allocated", "entry.allocated_hint"),
        Field("reserved", "entry.reserved", "entry.reserved_hint"),
        Field("process", "entry.process", "entry.process_hint"),
    ),
}
WORDS = (
    "beside", "check", "copied", "copy", "failed", "loading", "no_address", "no_wasm", "open", "paste", "right",
    "stuck", "unplaced", "wrong",
)  # fmt: skip


def entry_form(library: Library, kind: str) -> str:
    """The place of a form for a kind of ``FIELDS``; without a script nothing is there but the page's own words.

    Raises:
        ValueError: no form is of that kind.
    """
    if kind not in FIELDS:
        raise ValueError(f"no form for {kind!r}; there are: {', '.join(FIELDS)}")
    language = library.language
    fields = [
        {
            "name": field.name,
            "label": say(language, field.label),
            "hint": say(language, field.hint) if field.hint else "",
            "rows": field.rows,
            "options": [[value, say(language, key) if key else value] for value, key in field.options],
        }
        for field in FIELDS[kind]
    ]
    words = {name: say(language, f"entry.{name}") for name in WORDS}
    words["open_note"] = say(language, f"entry.open_note.{kind}")
    given = {"kind": kind, "fields": fields, "words": words}
    held = escape(json.dumps(given, ensure_ascii=False), quote=True)
    return f'<div class="kb-entry" data-given="{held}"></div>'
