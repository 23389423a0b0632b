"""A fix as a reader applies it: the keys as the file has them, the old values and the new ones."""

from typing import Any

from kb.core.document import KEY, Unit
from kb.core.expression import is_unknown
from kb.core.finding import Edit, Fix
from kb.report.check.source_line import SourceLines
from kb.report.terminal import Style, cut, unbroken
from kb.report.values import printable
from kb.report.words import Words


def key_of(unit: Unit, name: str) -> str:
    """How the file itself calls a setting; the last part of its canonical name where the file lacks it."""
    setting = unit.setting(name)
    return printable(str(setting.path[-1])) if setting and setting.path else name.rpartition(".")[2]


def place_name(name: str, unit: Unit, words: Words) -> str | None:
    """What to call a related place: a setting's key, or i18n's ``related.name``; None where ``name`` is a quotation."""
    if name in words.facts or name.startswith(KEY):
        return key_of(unit, name)
    return words.messages.get(f"related.{name}") if name else ""


def condition_of(fix: Fix) -> str:
    """What must hold for a fix that is only offered: ``gpu.native_bf16``; empty where nothing must."""
    if fix.when is None:
        return ""
    from kb.report.formula import unparse  # hardly a fix has one

    return unparse(fix.when)


def describe_fix(fix: Fix, unit: Unit, words: Words, style: Style, sources: SourceLines) -> str:
    """Every change of the fix, old → new: ``per_device_train_batch_size: 20 → 8, fp16: true → false``.

    Its blanks inside a change are no-break spaces, for :func:`kb.report.terminal.wrap`.
    """
    changes = (_describe(edit, unit, words, style, sources) for edit in fix.edits)
    return ", ".join(unbroken(change) for change in changes if change)


def _describe(edit: Edit, unit: Unit, words: Words, style: Style, sources: SourceLines) -> str:
    if edit.op == "replace":
        old = _spanned(edit, unit, sources)
        return f"{old} {style.arrow} {as_written(edit.value)}" if old and "\n" not in str(edit.value) else ""
    key = key_of(unit, edit.name)
    if edit.op == "remove":
        return words("report.remove_key", key=key)
    if edit.op == "rename":
        return f"{key} {style.arrow} {printable(str(edit.value))}"
    setting = unit.setting(edit.name)
    if setting is not None and setting.bare and setting.path:  # `--fp16` has no value to show
        if edit.value == setting.value:
            return ""
        words_after = "" if isinstance(edit.value, bool) else f" {as_written(edit.value)}"
        return f"{key} {style.arrow} {key}{words_after}" if edit.value else words("report.remove_key", key=key)
    return f"{key}: {_old_value(edit, unit, words)} {style.arrow} {as_written(edit.value)}"


def _old_value(edit: Edit, unit: Unit, words: Words) -> str:
    setting = unit.setting(edit.name)
    if setting is not None:
        return "…" if is_unknown(setting.value) else cut(as_written(setting.value), 40)
    fact = words.facts.get(edit.name)
    if fact is None or fact.default in (None, edit.value):  # what the fix writes is another format's default
        return words("report.unset")
    return words("report.default_value", value=as_written(fact.default))


def _spanned(edit: Edit, unit: Unit, sources: SourceLines) -> str:
    span = edit.span
    if span is None or span.line != span.end_line:
        return ""
    line, span = sources.quoted(unit.path, span)
    if line is None:
        return ""
    return cut(printable(line[span.column - 1 : span.end_column - 1]), 40)


def as_written(value: Any) -> str:
    """A value as YAML writes it: ``true``, ``null``, ``[q, v]``, ``5e-05``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(as_written(item) for item in value)}]"
    return cut(printable(str(value)), 120)
