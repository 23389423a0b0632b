"""What `kb diagnose` says, as text and as JSON."""

from typing import Any

from kb.advice.diagnosis import Cause, Diagnosis
from kb.advice.remedy_steps import Change, Step
from kb.core.document import Unit
from kb.report.check.changes import as_written, key_of
from kb.report.json_parts import plain, to_json
from kb.report.terminal import Style, cut, joined, unbroken, wrap
from kb.report.values import printable, size
from kb.report.words import Words

INDENT = "  "


def diagnosis_text(diagnosis: Diagnosis, path: str, words: Words, style: Style, unit: Unit | None = None) -> str:
    """The report, with a line break at its end.

    Args:
        diagnosis: what was found.
        path: the log's path, ``-`` for standard input.
        words: the language.
        style: width and colour.
        unit: the config that the values come from.
    """
    read = words.count("diagnose.lines", diagnosis.lines)
    if not diagnosis.causes:
        return "\n".join(wrap(words("diagnose.none", lines=read), style.width)) + "\n"
    blocks = [_cause(cause, words, style, unit) for cause in diagnosis.causes]
    place = words("diagnose.standard_input") if path == "-" else printable(path)
    closing = wrap(words("diagnose.read", path=place, lines=read), style.width)
    if unit is not None:
        section = f" [{printable(unit.section)}]" if unit.section else ""
        closing += wrap(words("diagnose.values_from", path=f"{printable(unit.path)}{section}"), style.width)
    blocks.append([style.paint(line, "dim") for line in closing])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _cause(cause: Cause, words: Words, style: Style, unit: Unit | None) -> list[str]:
    about = [
        words("diagnose.resource", resource=words.named("resource", cause.resource)),
        words("explain.confidence", confidence=words.named("confidence", cause.confidence)),
    ]
    if cause.phase != "unknown":
        about.append(words.named("log_phase", cause.phase))
    title = cause.title.in_language(words.language)
    lines = [style.paint(title, "error"), *wrap(joined(about, style.dot), style.width, INDENT)]
    width = max(len(str(line)) for line, _ in cause.evidence)
    lines += [
        cut(f"{INDENT}{line:>{width}} | {printable(text)}", style.width, style.ellipsis)
        for line, text in cause.evidence
    ]
    if cause.numbers:
        rows = [
            f"{cause.names[name].in_language(words.language)} {size(value)}" for name, value in cause.numbers.items()
        ]
        lines += wrap(joined(rows, style.dot), style.width, INDENT)
    lines += wrap(cause.means.in_language(words.language), style.width, INDENT)
    lines += ["", INDENT + style.paint(words("diagnose.steps"), "heading")]
    for number, step in enumerate(cause.steps, 1):
        lines += _step(number, step, words, style, unit)
    return lines


def _step(number: int, step: Step, words: Words, style: Style, unit: Unit | None) -> list[str]:
    mark = f"{INDENT}{number}. "
    hanging = " " * len(mark)
    lines = wrap(step.text.in_language(words.language), style.width, mark, hanging)
    changes = [text for change in step.changes if (text := _change(change, style, unit))]
    if changes:
        shown = wrap(", ".join(unbroken(change) for change in changes), style.width, hanging)
        lines += [style.paint(line, "fix") for line in shown]
    if step.run:
        lines.append(f"{hanging}{style.paint(f'$ {step.run}', 'cyan')}")  # never broken: it is to be pasted
    return lines


def _change(change: Change, style: Style, unit: Unit | None) -> str:
    """``per_device_train_batch_size: 16 → 8``; nothing where the new value is not known."""
    if change.new is None:
        return ""
    key = key_of(unit, change.name) if unit else change.name.rpartition(".")[2]
    new = as_written(change.new)
    return f"{key}: {new}" if change.old is None else f"{key}: {as_written(change.old)} {style.arrow} {new}"


LONGEST = 1000  # characters of an evidence line


def diagnosis_json(diagnosis: Diagnosis, language: str) -> str:
    """The causes, best first. A value of ``set`` is null where only the config could give it."""
    return to_json({"causes": [_cause_json(cause, language) for cause in diagnosis.causes]})


def _cause_json(cause: Cause, language: str) -> dict[str, Any]:
    return {
        "cause": cause.id,
        "resource": cause.resource,
        "confidence": cause.confidence,
        "evidence": [{"line": line, "text": printable(text[:LONGEST])} for line, text in cause.evidence],
        "remedies": [_step_json(step, language) for step in cause.steps],
    }


def _step_json(step: Step, language: str) -> dict[str, Any]:
    text = step.text.in_language(language)
    return {
        "step": f"{text} `{step.run}`" if step.run else text,
        "set": {change.name: plain(change.new) for change in step.changes},
    }
