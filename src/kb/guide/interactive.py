"""What a script brings to life on a page: the playground, the box of the Fix page, the numbers of a reader's own, and
the forms of the Contribute page. Each is a place that holds what the script is given.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.core.memory_report import STATUSES
from kb.core.record import NamedTuple
from kb.guide.library import Library, say
from kb.guide.markup import attribute, held, scripted
from kb.guide.search_words import pages_names

PLAYGROUND_WORDS = (
    "chart", "check", "copied", "copy_by_hand", "cpus", "done", "editor", "example", "examples", "failed", "fix",
    "fix_all", "fix_unsafe", "gpu", "gpus", "host", "loading", "no_gpu", "no_wasm", "nothing", "over_time", "share",
    "still", "stuck", "too_long", "versions",
)  # fmt: skip


def playground(library: Library) -> str:
    """The playground's place on the page; without a script it says what it needs."""
    language, words = library.language, library.words
    texts: dict[str, object] = {name: say(language, f"playground.{name}") for name in PLAYGROUND_WORDS}
    texts |= {name: words(f"bars.{name}") for name in ("band", "limit", "small", "unused")}
    texts |= {"computed": words.named("status", "computed"), "computed_title": say(language, "source.status.computed")}
    texts["severity"] = {name: words.named("severity", name) for name in ("error", "warning", "info")}
    texts["verdict"] = {name: words.named("verdict", name) for name in (*STATUSES, "unknown")}
    place = f'<div id="kb-playground" data-words="{attribute(texts)}"></div>'
    return scripted(place, say(language, "playground.no_script"))


BOX_WORDS = (
    "answered", "config", "config_about", "cpus", "evidence", "failed", "find", "gpu", "host", "likely", "loading",
    "log", "log_hint", "more", "no_gpu", "no_wasm", "nothing", "nothing_near", "page", "steps", "stuck", "values",
)  # fmt: skip


def error_search(library: Library) -> str:
    """The box's place on the page; without a script it says what to run instead.

    Each cause comes with the words by which a line is recognised, so that likely ones are named at once, and where no
    WebAssembly is: the engine's answer is the exact one.
    """
    language = library.language
    gpus = sorted(library.catalog.gpus.values(), key=lambda gpu: (gpu.memory_total, gpu.name))
    given = {
        "words": {name: say(language, f"pasted.{name}") for name in BOX_WORDS},
        "causes": [_cause(entry, language) for entry in library.rows("remedies").values() if "deprecated" not in entry],
        "gpus": [[gpu.id, gpu.name.removeprefix("NVIDIA ")] for gpu in gpus],
    }
    box = f'<div id="kb-fix" class="kb-fix-box" data-given="{attribute(given)}"></div>'
    return scripted(box, say(language, "pasted.no_script"))


def _cause(entry: Mapping[str, Any], language: str) -> list[Any]:
    """Id, title, signs of a log, and other words for it."""
    signs = dict.fromkeys(sign.lower() for row in entry.get("patterns", ()) for sign in row["holds"])
    other = "en" if language == "ko" else "ko"
    words = [entry["title"][other], entry["id"].replace("-", " "), *pages_names(f"trouble/{entry['id']}", language)]
    return [entry["id"], entry["title"][language], list(signs), " ".join(words).lower()]


OWN_FIELDS = (
    "model", "gpu", "source_length", "target_length", "batch", "effective_batch", "beams", "workers", "prefetch",
    "host_memory",
)  # fmt: skip
OWN_WORDS = ("back", "close", "compute", "failed", "for", "loading", "no_wasm", "open", "usual", "whole")


def own_numbers(library: Library, *fields: str) -> str:
    """The form in which a reader gives the numbers that the page's tables and figures are computed again for.

    Args:
        fields: of ``OWN_FIELDS``, in their order on the page.

    Raises:
        ValueError: there is no such field.
    """
    if wrong := [name for name in fields if name not in OWN_FIELDS]:
        raise ValueError(f"no field {wrong[0]!r}; there are: {', '.join(OWN_FIELDS)}")
    language = library.language
    given = {
        "fields": [[name, say(language, f"own.field.{name}")] for name in fields],
        "words": {name: say(language, f"own.{name}") for name in OWN_WORDS},
    }
    return held(f'<div class="kb-numbers" data-given="{attribute(given)}"></div>')


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
FORM_WORDS = (
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
    words = {name: say(language, f"entry.{name}") for name in FORM_WORDS}
    words["open_note"] = say(language, f"entry.open_note.{kind}")
    given = {"kind": kind, "fields": fields, "words": words}
    return f'<div class="kb-entry" data-given="{attribute(given)}"></div>'
