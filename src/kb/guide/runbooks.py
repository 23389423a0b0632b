"""Checklists, procedures, commands, targets, and questions with their answers."""

from collections.abc import Iterator, Mapping
from typing import Any

from kb.core.text import fill
from kb.guide.library import Library
from kb.guide.markup import PLAIN, badge, code, fenced, prose, table, text
from kb.guide.site_words import say
from kb.report.rules.entry import figure


def questions(library: Library, name: str = "faq", scope: str = "") -> str:
    """The questions of a runbook, each folded open on its answer; ``scope`` is ``training`` or ``inference``."""
    parts = []
    for row in library.entry("runbooks", name)["questions"]:
        if scope and row.get("scope", scope) not in (scope, "both"):
            continue
        title = row["question"][library.language].replace('"', "'")
        body = "\n\n".join(_answer(library, row))
        inner = "\n".join(f"    {line}" if line else "" for line in body.splitlines())
        parts.append(f'??? question "{title}"\n\n{inner}')
    return "\n\n".join(parts)


def _answer(library: Library, row: Mapping[str, Any]) -> Iterator[str]:
    yield f"{prose(_filled(library, row, row['answer']))} {badge(library, row['status'], row)}"
    details = [f"- {prose(_filled(library, row, one['text']))}" for one in row.get("details", ())]
    if details:
        yield "\n".join(details)
    if "correction" in row:
        said = prose(_filled(library, row, row["correction"]))
        yield f"**{say(library.language, 'question.correction')}**: {said} {badge(library, 'computed')}"


def _filled(library: Library, row: Mapping[str, Any], words: Mapping[str, str]) -> str:
    figures = row.get("figures", {})
    return fill(words[library.language], lambda name, _: shown_quantity(library, figures[name]))


def shown_quantity(library: Library, row: Mapping[str, Any]) -> str:
    """A value or a range with its unit, as plain text."""
    value = row["value"] if "value" in row else [row["low"], row["high"]]
    return figure(value, row.get("unit"), library.words, PLAIN)


def checklist(library: Library, name: str) -> str:
    """The steps of a runbook in their order, each with the commands that it uses."""
    entry = library.entry("runbooks", name)
    commands = _commands(library)
    lines = [prose(entry["about"][library.language]), ""]
    for number, step in enumerate(entry["steps"], 1):
        title = step["title"][library.language]
        does = _filled(library, step, step["does"]) if "does" in step else ""
        source = badge(library, step["status"], step)
        lines.append(f"{number}. **{text(title)}:** {prose(does)} {source}")
        lines += [
            "\n    " + fenced(commands[used], "bash").replace("\n", "\n    ") + "\n"
            for used in step.get("uses", ())
            if used in commands
        ]
    return "\n".join(lines)


def _commands(library: Library) -> dict[str, str]:
    """What to run, by the command's id, over all runbooks."""
    found = {}
    for entry in library.rows("runbooks").values():
        for command in entry.get("commands", ()):
            shown = command.get("use") or command.get("command") or command.get("run")
            if isinstance(shown, Mapping):
                shown = shown.get("command") or shown.get("run")
            if isinstance(shown, str):
                found[command["id"]] = shown
    return found


def targets(library: Library) -> str:
    """What to hold readings against while a run goes on."""
    language, words = library.language, library.words
    head = [say(language, key) for key in ("target.what", "target.state", "target.range", "target.scope")]
    rows = []
    for row in library.entry("formulas", "targets")["thresholds"]:
        ends = [figure(row[end], row["unit"], words, PLAIN) if end in row else "" for end in ("low", "high")]
        shown = "–".join(ends) if all(ends) else f"≥ {ends[0]}" if ends[0] else f"≤ {ends[1]}" if ends[1] else "–"
        scope = say(language, f"scope.{row['scope']}") if "scope" in row else "–"
        state = words.named("threshold_state", row["state"])
        source = badge(library, row["status"], row)
        rows.append((f"{prose(row['text'][language])} {source}", text(state), shown, scope))
    return table(head, rows)


def commands_table(library: Library, name: str = "commands") -> str:
    """The notes' commands: as they stand there, and what to run instead where they are faulty."""
    entry = library.entry("runbooks", name)
    rows = []
    for command in entry["commands"]:
        title = command.get("title", {}).get(library.language, command["id"])
        shown = [_one_line(command[key]) for key in ("command", "use") if isinstance(command.get(key), str)]
        rows.append((text(title), "<br>".join(shown)))
    return table([say(library.language, "command.what"), say(library.language, "command.run")], rows)


def _one_line(command: str) -> str:
    """A table's cell has no lines: continued ones are joined."""
    return code(" ".join(command.replace("\\\n", " ").split()))
