"""What `kb plan` says, as text and as JSON."""

import shlex
from collections.abc import Sequence
from typing import Any

from kb.advice.fit.plan import NEGLIGIBLE, Ledger, Level, Step
from kb.advice.fit.plan_unit import PlannedUnit
from kb.config.dialect.spelling import Written
from kb.core.document import Setting, Unit
from kb.core.record import NamedTuple
from kb.core.units import format_bytes
from kb.report.check.changes import SourceLines, as_written, key_of
from kb.report.json_parts import Object, fields, head, machine_object, plain, prediction_object, to_json
from kb.report.terminal import Style, unbroken, wrap
from kb.report.values import gpu_name, host_limit, printable, short_name, size, unit_name
from kb.report.words import Words

OWN_LOOP = "run.own_loop"
UNITS = {"gpu": "GiB", "host": "GB"}  # as GPUs are sold, and as containers and the original guide measure


class Faults(NamedTuple):
    """What a file has besides memory: the fixes as a unified diff, the rules that they satisfy, those that are left."""

    diff: str = ""
    mended: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def plan_text(
    planned: Sequence[PlannedUnit], faults: Faults, words: Words, style: Style, sources: SourceLines | None = None
) -> str:
    """The faults to mend first, then every unit's plan, with a line break at the end.

    Args:
        sources: the planned file, whose lines are quoted where a training loop says a setting.
    """
    sources = sources or SourceLines({})
    sections = [_faults(faults, words, style)] if faults.diff or faults.left else []
    sections += [_unit(one, words, style, sources) for one in planned]
    return "\n".join("\n".join(lines) + "\n" for lines in sections)


def _faults(faults: Faults, words: Words, style: Style) -> list[str]:
    lines = [style.paint(words("plan.faults"), "heading")]
    if faults.diff:
        lines += wrap(words("plan.faults_mended", rules=", ".join(faults.mended)), style.width, "  ")
        lines += [f"  {printable(line)}" for line in faults.diff.splitlines()]
    if faults.left:
        lines += wrap(words("plan.faults_left", rules=", ".join(faults.left)), style.width, "  ")
    return lines


def _unit(planned: PlannedUnit, words: Words, style: Style, sources: SourceLines) -> list[str]:
    unit, plan = planned.result.unit, planned.plan
    model = planned.result.model.name if planned.result.model else ""
    key = "plan.enough" if not plan.short else "plan.short_reached" if plan.reached else "plan.short_not_reached"
    summary = words(key, resources=", ".join(words(f"plan.resource.{name}") for name in plan.short))
    lines = [style.paint(style.dot.join((unit_name(unit), model)), "heading"), *wrap(summary, style.width)]
    for ledger in (plan.gpu, plan.host):
        lines += ["", *_ledger(ledger, planned, words, style)]
    changed = _changed(planned, words, style, sources)
    if changed:
        lines += ["", style.paint(words("plan.settings"), "heading"), *changed]
        if plan.setup.do_train:
            before, after = plan.effective
            key = "plan.effective_held" if before == after else "plan.effective_changed"
            lines += wrap(words(key, effective=before, before=before, after=after), style.width, "  ")
    return lines


def _ledger(ledger: Ledger, planned: PlannedUnit, words: Words, style: Style) -> list[str]:
    name, unit = words(f"plan.ledger.{ledger.resource}"), UNITS[ledger.resource]
    need = _range(ledger.before, unit, style)
    if ledger.limit_bytes is None:
        text = words(f"plan.no_limit.{ledger.resource}", need=need)
        return [style.paint(name, "heading"), *wrap(text, style.width, "  ")]
    lines = [f"{style.paint(name, 'heading')}  {_of(ledger, planned, words)}"]
    lines += wrap(words("plan.before", need=need, state=words(f"plan.state.{ledger.state}")), style.width, "  ")
    for number, step in enumerate(ledger.steps, 1):
        lines += _step(number, step, unit, planned, words, style)
    if ledger.steps:
        need, state = _range(ledger.after, unit, style), words(f"plan.state.{ledger.state_after}")
        lines += wrap(words("plan.after", need=need, state=state), style.width, "  ")
        lines += wrap(_other(ledger, words), style.width, "  ")
    return lines + _beyond(ledger, words, style)


def _of(ledger: Ledger, planned: PlannedUnit, words: Words) -> str:
    assert ledger.limit_bytes is not None
    if ledger.resource == "gpu":
        found = planned.estimator.gpu
        return f"{gpu_name(found) if found else ''} {size(ledger.limit_bytes)}"
    target = format_bytes(ledger.target_bytes, "GB") if ledger.target_bytes else "?"
    return words("plan.host_limit", limit=host_limit(ledger.limit_bytes), target=target)


def _step(number: int, step: Step, measure: str, planned: PlannedUnit, words: Words, style: Style) -> list[str]:

    def change(name: str, before: Any, after: Any) -> str:
        key = _key(planned, name)
        own = planned.in_own_words(key)
        former, later = (as_written(each) for each in own or (before, after))
        former = words("report.unset") if before == "" and own is None else former
        return unbroken(f"{key} {former} {style.arrow} {later}")

    told = [name for name in step.set if not _said_in_code(planned, name, words)]
    changes = ", ".join(change(name, *step.set[name]) for name in told)
    note = f" [{step.source}:{step.lines}]" if step.source and step.lines else ""
    name = words(f"plan.step.{step.name}")
    head = f"{number}. {name}: {changes}{note}" if changes else f"{number}. {name}"
    lines = wrap(head, style.width, "  ", "     ")
    lines += wrap(_effect(step, measure, words, style), style.width, "     ")
    lines += wrap(words(f"plan.lost.{step.name}", **step.values), style.width, "     ")
    for batch, accumulation in step.values.get("nearest", ()):
        if accumulation < step.values["after"]:
            lines += wrap(words("plan.nearest", batch=batch, accumulation=accumulation), style.width, "     ")
    return lines


def _effect(step: Step, measure: str, words: Words, style: Style) -> str:
    if step.after is None:
        return words("plan.not_predicted")
    where = words.named("phase", step.phase) if step.phase else words("plan.peak")
    before, after = (unbroken(_range(level, measure, style)) for level in (step.before, step.after))
    freed = step.before.expected - step.after.expected
    said = f"{where}: {before} {style.arrow} {after}"
    return words("plan.freed", change=said, freed=format_bytes(freed, measure)) if freed > 0 else said


def _key(planned: PlannedUnit, name: str) -> str:
    """The file's own key; where it has none, the argument that says it there, or the setting's whole name."""
    unit = planned.result.unit
    if name in planned.named:
        key = printable(planned.named[name])
        return key if key.startswith("-") or not _on_command_line(unit) else f"--{key}"
    as_leaf = name in unit.settings or name.startswith(("training.", "quantization."))
    return key_of(unit, name) if as_leaf else name


def _said_in_code(planned: PlannedUnit, name: str, words: Words) -> bool:
    """Whether code says a setting and no argument: neither the Trainer's arguments nor its flags have adapters or
    4-bit weights."""
    unit = planned.result.unit
    as_argument = (
        name.startswith("training.") or name in unit.settings or (_on_command_line(unit) and unit.dialect != "hf")
    )
    return bool(planned.named) and not as_argument and f"plan.loop.{name}" in words.messages


def _range(level: Level, unit: str, style: Style) -> str:
    """``40.6 GiB (36.7–46.6)``."""
    low, high = (format_bytes(count, unit).removesuffix(f" {unit}") for count in (level.low, level.high))
    return f"{format_bytes(level.expected, unit)} ({low}{style.dash}{high})"


def _other(ledger: Ledger, words: Words) -> str:
    """That one ledger's steps leave the other alone, or by how much they change it."""
    change = ledger.other_change
    if abs(change) <= NEGLIGIBLE * max(ledger.before.expected, 1):
        return words(f"plan.other_unchanged.{ledger.resource}")
    other = UNITS["host" if ledger.resource == "gpu" else "gpu"]
    sign = "+" if change > 0 else "-"
    return words(f"plan.other_changed.{ledger.resource}", change=f"{sign}{format_bytes(abs(change), other)}")


def _beyond(ledger: Ledger, words: Words, style: Style) -> list[str]:
    """What is left where the steps do not reach, and the GPU that would hold the config."""
    lines: list[str] = []
    if not ledger.reached:
        need = format_bytes(ledger.after.high, UNITS[ledger.resource])
        lines += wrap(words(f"plan.not_reached.{ledger.resource}", need=need), style.width, "  ")
    for key, gpu in (("plan.larger_after", ledger.larger_after), ("plan.larger_gpu", ledger.larger_gpu)):
        if gpu is not None:
            lines += wrap(words(key, gpu=short_name(gpu), id=gpu.id), style.width, "  ")
    return lines


def _changed(planned: PlannedUnit, words: Words, style: Style, sources: SourceLines) -> list[str]:
    """What to write, as the file writes it: keys of YAML, flags, arguments in Python, or the lines of a loop."""
    if planned.written:
        return [f"  {line}" for line in _nested(planned.written)]
    unit = planned.result.unit
    kind = "yaml" if not planned.named else "flag" if _on_command_line(unit) else "keyword"
    lines: list[str] = []
    for name, (before, after) in planned.changes.items():
        setting = unit.settings.get(name)
        flag = setting is not None and str(setting.path[-1]).startswith("-")
        if flag or not (unit.as_written(OWN_LOOP) is True or _said_in_code(planned, name, words)):
            lines.append(f"  {_as_told(kind, _key(planned, name), after)}{_formerly(before, words)}")
        else:
            said = _in_loop(name, before, after, setting, unit, words, style, sources)
            lines += wrap(said, style.width, "  ", "    ")
    return lines


def _in_loop(
    name: str, before: Any, after: Any, setting: Setting | None, unit: Unit, words: Words, style: Style,
    sources: SourceLines,
) -> str:  # fmt: skip
    """A change of a training loop: the line that holds the value, with the new one; else what to write in code."""
    place, key = "", key_of(unit, name)
    if setting is not None and setting.span.line:
        line, span = sources.quoted(unit.path, setting.span)
        cell = sources.cell(unit.path, setting.span)
        number = words("report.cell" if cell else "plan.line", line=span.line, cell=cell.cell if cell else 0)
        place = f"{number}: "
        start, end = span.column - 1, span.end_column - 1
        if line is not None and span.line == span.end_line:
            if line[start:end] == repr(before):
                return f"{place}{printable(f'{line[:start]}{after!r}{line[end:]}'.strip())}{_formerly(before, words)}"
            key += f" ({printable(line[start:end])})"  # a variable, or what it is computed from
    if f"plan.loop.{name}" in words.messages and after is not False and (not place or type(after) is not int):
        return place + words(f"plan.loop.{name}", value=str(after))
    former = as_written(before) if before not in ("", None) else words("report.unset")
    return f"{place}{key}: {former} {style.arrow} {as_written(after)}"


def _on_command_line(unit: Unit) -> bool:
    return any(str(setting.path[-1]).startswith("-") for setting in unit.settings.values() if setting.path)


def _as_told(kind: str, name: str, value: Any) -> str:
    """A setting as a key of YAML, a flag of a command line or an argument in Python."""
    if kind == "yaml":
        return f"{name}: {as_written(value)}"
    if kind == "keyword":
        return f"{name}={list(value) if isinstance(value, tuple) else value!r},"
    values = value if isinstance(value, list | tuple) else [value]
    return f"{name} {' '.join(shlex.quote(as_written(each)) for each in values)}"


def _formerly(before: Any, words: Words) -> str:
    return "" if before in ("", None) else f"  # {words('plan.formerly', value=as_written(before))}"


def _nested(written: Sequence[Written], depth: int = 0) -> list[str]:
    """YAML of keys below one another, each group once."""
    lines: list[str] = []
    groups: dict[str, list[Written]] = {}
    for each in written:
        groups.setdefault(each.path[depth], []).append(each)
    for key, inside in groups.items():
        if len(inside[0].path) == depth + 1:
            lines.append(f"{'  ' * depth}{key}: {as_written(inside[0].value)}")
        else:
            lines += [f"{'  ' * depth}{key}:", *_nested(inside, depth + 1)]
    return lines


def plan_json(planned: Sequence[PlannedUnit], faults: Faults, words: Words, version: str, rules_version: str) -> str:
    machine = planned[0].estimator.machine
    return to_json(
        {
            **head(version, rules_version),
            "machine": machine_object(machine),
            "faults": {"diff": faults.diff, "mended": list(faults.mended), "left": list(faults.left)},
            "plans": [_unit_json(one, words) for one in planned],
        }
    )


def _unit_json(planned: PlannedUnit, words: Words) -> Object:
    result, plan = planned.result, planned.plan
    before, after = plan.effective
    return {
        "path": result.unit.path,
        "section": result.unit.section,
        "model": result.model.id if result.model else None,
        "short": list(plan.short),
        "reached": plan.reached,
        "effective_batch": {"before": before, "after": after},
        "gpu": _ledger_json(plan.gpu, words),
        "host": _ledger_json(plan.host, words),
        "set": {name: plain(values[1]) for name, values in planned.changes.items()},
        "written": [{"path": list(each.path), "value": plain(each.value)} for each in planned.written],
        "prediction": prediction_object(planned.estimator.predict(plan.setup)),
    }


def _ledger_json(ledger: Ledger, words: Words) -> Object:
    return {
        **fields(ledger, "state", "state_after", "limit_bytes", "target_bytes"),
        "before": _level(ledger.before),
        "after": _level(ledger.after),
        "steps": [
            {
                **fields(step, "name", "phase"),
                "set": {
                    name: {"before": plain(before), "after": plain(after)} for name, (before, after) in step.set.items()
                },
                "before": _level(step.before),
                "after": _level(step.after) if step.after else None,
                "lost": words(f"plan.lost.{step.name}", **step.values),
                "nearest": [{"batch": batch, "accumulation": steps} for batch, steps in step.values.get("nearest", ())],
                **fields(step, "source", "lines"),
            }
            for step in ledger.steps
        ],
        "other_resource_change_bytes": ledger.other_change,
        "larger_gpu": ledger.larger_gpu.id if ledger.larger_gpu else None,
        "larger_gpu_after": ledger.larger_after.id if ledger.larger_after else None,
    }


def _level(level: Level) -> Object:
    return {"low_bytes": level.low, "expected_bytes": level.expected, "high_bytes": level.high}
