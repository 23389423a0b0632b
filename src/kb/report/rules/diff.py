"""What changed between two editions of the rules, as JSON and as Markdown."""

from collections.abc import Sequence
from typing import Any

from kb.advice.rule_diff import Edition, Entries, EntryChange, FieldChange, FindingFlip, Flips, Recommended
from kb.report.json_parts import plain
from kb.report.markdown import code, escaped, table
from kb.report.values import format_value
from kb.report.words import Words

Object = dict[str, Any]


def rule_diff_object(revision: str, commit: str, entries: Entries, flips: Flips) -> Object:
    return {
        "revision": revision,
        "commit": commit,
        "added": [_change(change) for change in entries.added],
        "changed": [_change(change) for change in entries.changed],
        "removed": [_change(change) for change in entries.removed],
        "reworded": [_change(change) for change in entries.reworded],
        "version_bump_missing": [_change(change) for change in entries.unbumped],
        "fields": [change._asdict() for change in entries.fields],
        "fits": [
            {"model": fit.model, "gpu": fit.gpu, "recommended": _recommended(fit.recommended)} for fit in flips.fits
        ],
        "constants": [
            {"name": row.name, "before": plain(row.before), "after": plain(row.after)} for row in entries.constants
        ],
        "facts_added": list(entries.facts_added),
        "facts_removed": list(entries.facts_removed),
        "errata": list(entries.errata),
        "schemas": list(entries.schemas),
        "recommendations": [
            {
                "model": flip.model,
                "gpu": flip.gpu,
                "before": _recommended(flip.before),
                "after": _recommended(flip.after),
            }
            for flip in flips.recommendations
        ],
        "verdicts": [flip._asdict() for flip in flips.verdicts],
        "findings": [flip._asdict() for flip in flips.findings],
        "compared": {
            "pairs": flips.pairs,
            "differing": flips.differing,
            "asked": flips.asked,
            "preset_rows": flips.preset_rows,
        },
    }


def _change(change: EntryChange) -> Object:
    return {"entry": change.name, "before": change.before, "after": change.after}


def _recommended(recommended: Recommended | None) -> Object | None:
    return None if recommended is None else recommended._asdict()


MOST_FIELDS, MOST_CHARACTERS = 30, 120
MOST_ROWS = 60  # of one table; a comment on GitHub holds 65,536 characters


def rule_diff_markdown(
    revision: str, commit: str, entries: Entries, flips: Flips, before: Edition, after: Edition, words: Words
) -> str:
    """The whole report."""
    lines = [f"## {escaped(words('rules.diff_title', revision=revision, commit=commit[:9]))}", ""]
    if entries.none and not any(flips[:3]):
        return "\n".join([*lines, words("rules.diff_none")]) + "\n"
    lines += _fields(entries.fields, words)
    lines += [_summary(entries, flips, words), ""]
    lines += _unbumped(entries.unbumped, words)
    lines += _recommendations(flips, words)
    lines += _fits(flips, words)
    lines += _entries("rules.diff_added", entries.added, after, after, words)
    lines += _entries("rules.diff_changed", entries.changed, before, after, words)
    lines += _entries("rules.diff_removed", entries.removed, before, before, words)
    lines += _entries("rules.diff_reworded", entries.reworded, before, after, words)
    lines += _others(entries, words)
    lines += _verdicts(flips, words)
    lines += _findings(flips.findings, words)
    compared = {"pairs": flips.pairs, "differing": flips.differing, "asked": flips.asked, "rows": flips.preset_rows}
    key = "rules.diff_compared" if flips.asked == flips.differing else "rules.diff_sampled"
    lines.append(words(key, **compared))
    return "\n".join(lines).rstrip() + "\n"


def _fields(changes: Sequence[FieldChange], words: Words) -> list[str]:
    """Field by field, before → after: figures first, so that a changed number is what is read first."""

    def shown(value: Any) -> str:
        text = words("rules.diff_absent") if value is None else value if isinstance(value, str) else format_value(value)
        text = " ".join(text.split())
        return escaped(text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…")

    lines = [
        f"- {code(one.entry)} {escaped(one.field)}: {shown(one.before)} → **{shown(one.after)}** {escaped(one.unit)}"
        for one in changes[:MOST_FIELDS]
    ]
    left = len(changes) - MOST_FIELDS
    lines = [line.rstrip() for line in lines]
    return [*lines, *([words("rules.diff_more", n=left)] if left > 0 else []), ""] if lines else []


def _summary(entries: Entries, flips: Flips, words: Words) -> str:
    counts = (
        ("rules.diff_count.added", len(entries.added)),
        ("rules.diff_count.changed", len(entries.changed) + len(entries.unbumped)),
        ("rules.diff_count.removed", len(entries.removed)),
        ("rules.diff_count.reworded", len(entries.reworded)),
        ("rules.diff_count.unbumped", len(entries.unbumped)),
        ("rules.diff_count.recommendations", len(flips.recommendations)),
        ("rules.diff_count.verdicts", len(flips.verdicts)),
        ("rules.diff_count.findings", len(flips.findings)),
    )
    return " · ".join(f"**{words(key)} {number}**" if number else f"{words(key)} {number}" for key, number in counts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], words: Words) -> list[str]:
    lines = table(head, rows[:MOST_ROWS])
    left = len(rows) - MOST_ROWS
    return [*lines, "", *([words("rules.diff_more", n=left), ""] if left > 0 else [])]


def _section(key: str, head: Sequence[str], rows: Sequence[Sequence[str]], words: Words) -> list[str]:
    return [f"### {words(key)}", "", *_table(head, rows, words)] if rows else []


def _unbumped(changes: Sequence[EntryChange], words: Words) -> list[str]:
    rows = [[code(change.name), str(change.before), str(change.after)] for change in changes]
    head = [words("rules.diff_column.entry"), words("rules.diff_column.before"), words("rules.diff_column.after")]
    section = _section("rules.diff_unbumped", head, rows, words)
    return [*section, words("rules.diff_bump_how"), ""] if rows else []


def _entries(key: str, changes: Sequence[EntryChange], before: Edition, after: Edition, words: Words) -> list[str]:
    rows = []
    for change in changes:
        versions = _moved(*(str(version) for version in (change.before, change.after) if version is not None))
        severity = _moved(*(_severity_of(change, edition, words) for edition in (before, after)))
        rows.append([code(change.name), versions, severity, escaped(_title(change, after, words))])
    head = [words(f"rules.diff_column.{name}") for name in ("entry", "version", "severity", "name")]
    return _section(key, head, rows, words)


def _moved(*values: str) -> str:
    """``1 → 2``, or one value where both are the same."""
    return " → ".join(dict.fromkeys(values))


def _severity_of(change: EntryChange, edition: Edition, words: Words) -> str:
    rule = edition.catalog.rules.get(change.name.partition("/")[2]) if change.kind == "checks" else None
    return words.named("severity", rule.severity) if rule else ""


def _title(change: EntryChange, edition: Edition, words: Words) -> str:
    """A rule's or another entry's title, a GPU's or a model's name."""
    kind, _, name = change.name.partition("/")
    catalog = edition.catalog
    if kind == "checks" and name in catalog.rules:
        return catalog.rules[name].title.in_language(words.language)
    if kind == "hardware" and name in catalog.gpus:
        return catalog.gpus[name].name
    if kind == "models" and name in catalog.models:
        return catalog.models[name].name
    title: str = edition.guide.get(kind, {}).get(name, {}).get("title", {}).get(words.language, "")
    return title


def _others(entries: Entries, words: Words) -> list[str]:
    """Figures of the memory model, names of the vocabulary, schemas."""
    figures = [(row.name, format_value(row.before), format_value(row.after)) for row in entries.constants]
    rows = [[code(name), escaped(before), escaped(after)] for name, before, after in figures]
    head = [words("rules.diff_column.constant"), words("rules.diff_column.before"), words("rules.diff_column.after")]
    lines = _section("rules.diff_constants", head, rows, words)
    for key, names in (
        ("rules.diff_facts_added", entries.facts_added),
        ("rules.diff_facts_removed", entries.facts_removed),
        ("rules.diff_errata", entries.errata),
        ("rules.diff_schemas", entries.schemas),
    ):
        if names:
            shown = ", ".join(code(name) for name in names[:MOST_ROWS])
            lines += [f"{words(key)} {shown}", ""]
    return lines


def _recommendations(flips: Flips, words: Words) -> list[str]:
    telling = [flip for flip in flips.recommendations if _of_training(flip.before) != _of_training(flip.after)]
    rows = [
        [
            code(flip.model),
            code(flip.gpu),
            _recommended_row(flip.before, words),
            _recommended_row(flip.after, words),
        ]
        for flip in telling
    ]
    head = [words(f"rules.diff_column.{name}") for name in ("model", "gpu", "before", "after")]
    section = _section("rules.diff_recommendations", head, rows, words)
    folded = len(flips.recommendations) - len(telling)
    lines = [section[0], "", words("rules.diff_recommendation_how"), *section[1:]] if section else []
    return [*lines, *([words("rules.diff_folded", n=folded), ""] if folded else [])]


def _of_training(recommended: Recommended | None) -> Recommended | None:
    """Without the batches of evaluation and inference, which differ by a sample where nothing of note does."""
    return None if recommended is None else recommended._replace(eval_batch=0, inference_batch=0)


def _fits(flips: Flips, words: Words) -> list[str]:
    rows = [[code(fit.gpu), code(fit.model), _recommended_row(fit.recommended, words)] for fit in flips.fits]
    head = [words(f"rules.diff_column.{name}") for name in ("gpu", "model", "recommended")]
    section = _section("rules.diff_fits", head, rows, words)
    return [section[0], "", words("rules.diff_recommendation_how"), *section[1:]] if section else []


def _recommended_row(recommended: Recommended | None, words: Words) -> str:
    if recommended is None:
        return words("rules.diff_nothing_fits")
    way = words.named("attempt", recommended.way)
    batches = (
        f"{recommended.batch} × {recommended.accumulation} / {recommended.eval_batch} / {recommended.inference_batch}"
    )
    return f"{way}, {recommended.precision}: {batches}"


def _verdicts(flips: Flips, words: Words) -> list[str]:
    rows = [
        [
            f"{code(flip.preset)} ({escaped(flip.lines)})",
            code(flip.gpu),
            words.named("verdict", flip.before),
            words.named("verdict", flip.after),
        ]
        for flip in flips.verdicts
    ]
    head = [words(f"rules.diff_column.{name}") for name in ("preset", "gpu", "before", "after")]
    return _section("rules.diff_verdicts", head, rows, words)


def _findings(flips: Sequence[FindingFlip], words: Words) -> list[str]:
    """A row for each rule and preset row, its GPUs together."""
    grouped: dict[tuple[str, str, str | None, str | None], list[str]] = {}
    for flip in flips:
        key = flip.rule, f"{flip.preset}/{flip.row}", flip.before, flip.after
        grouped.setdefault(key, []).append(flip.gpu)
    rows = [
        [code(rule), code(where), escaped(", ".join(gpus)), _severity(before, words), _severity(after, words)]
        for (rule, where, before, after), gpus in grouped.items()
    ]
    head = [words(f"rules.diff_column.{name}") for name in ("rule", "preset", "gpu", "before", "after")]
    return _section("rules.diff_findings", head, rows, words)


def _severity(severity: str | None, words: Words) -> str:
    return words.named("severity", severity) if severity else words("rules.diff_silent")
