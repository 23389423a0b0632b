"""What `kb diagnose` says, as text and as JSON."""

from collections.abc import Sequence
from typing import Any

from kb.advice.diagnosis import Cause, Change, Diagnosis, Step
from kb.advice.exported import NameRelease
from kb.advice.log_errors import MEMORY_REACH, ErrorLine, Frame
from kb.core.document import Unit
from kb.report.check.changes import as_written, key_of
from kb.report.condition import computes, open_condition
from kb.report.json_parts import fields, plain, to_json
from kb.report.terminal import INDENT, Style, cut, in_blocks, joined, unbroken, wrap
from kb.report.values import printable, size, unit_name
from kb.report.words import Words

LONGEST = 1000  # characters of an evidence line


def diagnosis_text(diagnosis: Diagnosis, path: str, words: Words, style: Style, unit: Unit | None = None) -> str:
    """The report, with a line break at its end.

    Args:
        path: the log's path, ``-`` for standard input.
        unit: the config that the values come from.
    """
    read = words.count("diagnose.lines", diagnosis.lines)
    if not diagnosis.causes and not diagnosis.unexplained:
        return "\n".join(wrap(words("diagnose.none", lines=read), style.width)) + "\n"
    blocks = [_cause(cause, diagnosis, words, style, unit) for cause in diagnosis.causes]
    if diagnosis.unexplained:
        blocks.append(_unexplained(diagnosis, words, style))
    place = words("diagnose.standard_input") if path == "-" else printable(path)
    closing = style.lines(words("diagnose.read", path=place, lines=read), "dim")
    if unit is not None:
        closing += style.lines(words("diagnose.values_from", path=unit_name(unit)), "dim")
    blocks.append(closing)
    return in_blocks(blocks)


def _cause(cause: Cause, diagnosis: Diagnosis, words: Words, style: Style, unit: Unit | None) -> list[str]:
    title = cause.title.in_language(words.language)
    lines = [style.paint(title, "error"), *wrap(joined(_about(cause, words), style.dot), style.width, INDENT)]
    lines += _quoted(cause.evidence, style)
    if cause.numbers:
        lines += wrap(joined(_numbers(cause, words), style.dot), style.width, INDENT)
    lines += wrap(_means(cause, diagnosis, words), style.width, INDENT)
    lines += ["", INDENT + style.paint(words("diagnose.steps"), "heading")]
    for number, step in enumerate(cause.steps, 1):
        lines += _step(number, step, words, style, unit)
    return lines


_OF_MEMORY = ("gpu", "host", "shm")


def _means(cause: Cause, diagnosis: Diagnosis, words: Words) -> str:
    """What the cause means, and where a name can be had that is not there.

    That memory is not the matter is not said in a log that shows a shortage too: the one may follow of the other.
    """
    means = cause.means.in_language(words.language)
    if any(each.resource in _OF_MEMORY and each.confidence != "low" for each in diagnosis.causes):
        means = means.removesuffix(words("diagnose.not_memory")).rstrip()
    return " ".join(filter(None, (means, _released(cause.release, words))))


def _released(row: NameRelease | None, words: Words) -> str:
    """In which releases a name is that the log's library lacks; empty where nothing is known."""
    if row is None:
        return ""
    named = words(f"diagnose.name.{row.kind}", name=row.name, owner=row.owner or f"{row.library}.{row.module}")
    span = "between" if row.since and row.before else "came" if row.since else "gone"
    said = words(
        f"diagnose.name.{span}", library=row.library, named=named, since=row.since or "", before=row.before or ""
    )
    after = words(f"diagnose.name.{'moved' if '.' in row.now else 'now'}", now=row.now) if row.now else ""
    before = words("diagnose.name.was", was=row.was) if row.was else ""
    return " ".join(filter(None, (said, after, before)))


def _quoted(rows: Sequence[tuple[int, str]], style: Style) -> list[str]:
    """Lines of the log with their numbers, each on one line of the screen."""
    width = max(len(str(line)) for line, _ in rows)
    return [cut(f"{INDENT}{line:>{width}} | {printable(text)}", style.width, style.ellipsis) for line, text in rows]


def _unexplained(diagnosis: Diagnosis, words: Words, style: Style) -> list[str]:
    """The error that ended the run, its first lines in full, where it was raised, and what is known of it."""
    about = _unexplained_object(diagnosis.unexplained, words)
    lines = [style.paint(about["title"], "error")]
    for each in diagnosis.unexplained:
        mark = f"{INDENT}{each.line} | "
        hanging = " " * len(mark)
        lines += wrap(printable(each.text[:LONGEST]), style.width, mark, hanging)
        lines += [row for place in _places(each, words) for row in style.lines(place, "dim", hanging)]
    lines += wrap(about["means"], style.width, INDENT)
    return [*lines, f"{INDENT}{style.paint('$ ' + about['run'], 'cyan')}"] if about["run"] else lines


def _places(error: ErrorLine, words: Words) -> list[str]:
    """Where the error was raised, and which of the project's own lines led there."""
    places = (("diagnose.raised_at", error.raised), ("diagnose.called_from", error.called))
    return [words(key, place=_place(frame)) for key, frame in places if frame is not None]


def _place(frame: Frame) -> str:
    """``train.py:41 (main) · assert rows``, without what the log does not say or the error says itself."""
    line = f":{frame.line}" if frame.line else ""
    source = f" · {frame.source}" if frame.source and not frame.source.startswith("raise") else ""
    return printable(f"{frame.file}{line}" + (f" ({frame.function})" if frame.function else "") + source)


def _unexplained_object(errors: Sequence[ErrorLine], words: Words) -> dict[str, Any]:
    """What is known of errors without a known cause: title, sentences, a command; empty words where there are none."""
    if not errors:
        return {"title": "", "means": "", "run": None}
    last = errors[-1]
    named = printable(last.raised.library if last.raised else "")
    checks = last.of_a_check
    title = "diagnose.refused" if checks else "diagnose.spoken" if last.spoken else "diagnose.unexplained"
    means = words("diagnose.refused.means" if checks else "diagnose.unexplained.means", library=named)
    advice, run = ("", None) if checks else _where_to_ask(errors, words)
    return {
        "title": words(title, library=named),
        "means": " ".join(filter(None, (means, _of_memory(last, words), advice))),
        "run": run,
    }


def _of_memory(error: ErrorLine, words: Words) -> str:
    """Whether the error is about memory, as far as its class and the lines near it tell."""
    if error.of_code:
        return words("diagnose.unexplained.of_code", error=error.of_code)
    if error.handed_on or error.spoken:
        return ""
    if error.speaks_of_memory:
        return words("diagnose.unexplained.of_memory")
    return "" if error.near_memory else words("diagnose.unexplained.no_memory", n=MEMORY_REACH)


_ONE_AFTER_THE_OTHER = {"CUDA": "export CUDA_LAUNCH_BLOCKING=1", "HIP": "export AMD_SERIALIZE_KERNEL=3"}


def _where_to_ask(errors: Sequence[ErrorLine], words: Words) -> tuple[str, str | None]:
    """Where more about the last of the errors is to be found, and a command for it."""
    last = errors[-1]
    if last.handed_on:
        return words("diagnose.unexplained.handed_on"), None
    device = next((each for each in errors if each.of_device), last)
    if device.of_device and device.raised == last.raised:  # the same call, or what it led to there
        name = device.of_device
        return words("diagnose.unexplained.device", device=name), _ONE_AFTER_THE_OTHER[name]
    libraries = [each.library for each in errors if each.library]
    releases = f"pip check; pip freeze | grep -i -E '{'|'.join(dict.fromkeys([*libraries, 'torch']))}'"
    run = releases if libraries else None
    if not last.library:
        return words("diagnose.unexplained.read"), run
    key = "plain" if last.plain else "releases" if last.of_releases else "library"
    key = "optional" if last.name == "NameError" else key
    return words(f"diagnose.unexplained.{key}", library=printable(last.library), kind=last.plain), run


def _about(cause: Cause, words: Words) -> list[str]:
    """What ran short, how sure that is, and in which phase where the log tells."""
    about = [
        words("diagnose.resource", resource=words.named("resource", cause.resource)),
        words("explain.confidence", confidence=words.named("confidence", cause.confidence)),
    ]
    return about if cause.phase == "unknown" else [*about, words.named("log_phase", cause.phase)]


def _numbers(cause: Cause, words: Words) -> list[str]:
    return [f"{cause.names[name].in_language(words.language)} {size(value)}" for name, value in cause.numbers.items()]


def _step(number: int, step: Step, words: Words, style: Style, unit: Unit | None) -> list[str]:
    mark = f"{INDENT}{number}. "
    hanging = " " * len(mark)
    lines = wrap(_said(step, words), style.width, mark, hanging)
    changes = [text for change in step.changes if (text := _change(change, style, unit))]
    if changes:
        lines += style.lines(", ".join(unbroken(change) for change in changes), "fix", hanging)
    if step.run:
        lines.append(f"{hanging}{style.paint(f'$ {step.run}', 'cyan')}")  # never broken: it is to be pasted
    return lines


def _said(step: Step, words: Words) -> str:
    """The step's sentence, after its condition where that is not known to hold."""
    text = step.text.in_language(words.language)
    if step.when is not None and computes(step.when):
        return text
    condition = open_condition(step.when, step.needs, words)
    return f"{words('report.offered', condition=condition)} {text}" if condition else text


def _change(change: Change, style: Style, unit: Unit | None) -> str:
    """``per_device_train_batch_size: 16 → 8``; nothing where the new value is not known."""
    if change.new is None:
        return ""
    key = key_of(unit, change.name) if unit else change.name.rpartition(".")[2]
    new = as_written(change.new)
    return f"{key}: {new}" if change.old is None else f"{key}: {as_written(change.old)} {style.arrow} {new}"


def diagnosis_object(diagnosis: Diagnosis, words: Words, style: Style, unit: Unit | None = None) -> dict[str, Any]:
    """Each cause in the reader's language, in the parts that a page sets apart: the same words as the text report.

    ``unexplained`` has the error that ended the run where none of the causes is its cause.
    """
    causes = [
        {
            "id": cause.id,
            "title": cause.title.in_language(words.language),
            "about": joined(_about(cause, words), style.dot),
            "evidence": [[line, printable(text[:LONGEST])] for line, text in cause.evidence],
            "numbers": _numbers(cause, words),
            "means": _means(cause, diagnosis, words),
            "steps": [
                {
                    "text": _said(step, words),
                    "changes": [text for change in step.changes if (text := _change(change, style, unit))],
                    "run": step.run,
                }
                for step in cause.steps
            ],
        }
        for cause in diagnosis.causes
    ]
    errors = diagnosis.unexplained
    about = _unexplained_object(errors, words)
    about["evidence"] = [[each.line, printable(each.text[:LONGEST])] for each in errors]
    about["places"] = [place for each in errors for place in _places(each, words)]
    return {"causes": causes, "unexplained": about if errors else None, "lines": diagnosis.lines}


def diagnosis_json(diagnosis: Diagnosis, words: Words) -> str:
    """The causes, best first. A value of ``set`` is null where only the config could give it."""

    def line_of(line: int, text: str) -> dict[str, Any]:
        return {"line": line, "text": printable(text[:LONGEST])}

    def remedy(step: Step) -> dict[str, Any]:
        text = step.text.in_language(words.language)
        return {
            "step": f"{text} `{step.run}`" if step.run else text,
            "if": open_condition(step.when, step.needs, words) or None,
            "set": {change.name: plain(change.new) for change in step.changes},
        }

    causes = [
        {
            "cause": cause.id,
            **fields(cause, "resource", "confidence"),
            "evidence": [line_of(line, text) for line, text in cause.evidence],
            **({"releases": _released(cause.release, words)} if cause.release else {}),
            "remedies": [remedy(step) for step in cause.steps],
        }
        for cause in diagnosis.causes
    ]
    unexplained = []
    for each in diagnosis.unexplained:
        said = line_of(each.line, each.text)
        for key, frame in (("raised", each.raised), ("called", each.called)):
            if frame is not None:
                said[key] = {
                    name: printable(value) if isinstance(value, str) else value
                    for name, value in frame._asdict().items()
                }
        unexplained.append(said)
    return to_json({"causes": causes, "unexplained": unexplained})
