"""What a reader decides and works by: checklists, procedures, commands, targets, questions with their answers, decision
trees, trade-offs.
"""

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from kb.core.text import fill
from kb.guide.library import Library, say
from kb.guide.markup import PLAIN, badge, code, fenced, folded, prose, table, text
from kb.report.rules.entry import figure


def questions(library: Library, name: str = "faq", scope: str = "") -> str:
    """The questions of a runbook, each folded open on its answer; ``scope`` is ``training`` or ``inference``."""
    parts = []
    for row in library.entry("runbooks", name)["questions"]:
        if scope and row.get("scope", scope) not in (scope, "both"):
            continue
        parts.append(folded(row["question"][library.language], "\n\n".join(_answer(library, row)), "question"))
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
    """What to run, by the command's id, over all runbooks: where the notes' own is faulty, what is right instead."""
    return {
        command["id"]: command.get("instead", command["command"])
        for entry in library.rows("runbooks").values()
        for command in entry.get("commands", ())
    }


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
    entry, language, rows = library.entry("runbooks", name), library.language, []
    for command in entry["commands"]:
        purpose = f"{prose(_filled(library, command, command['purpose']))} {badge(library, command['status'], command)}"
        wrong = [prose(command["fault"][language])] if "fault" in command else []
        right = [_one_line(command["instead"])] if "instead" in command else []
        rows.append((purpose, _one_line(command["command"]), "<br>".join(wrong + right) or "–"))
    head = [say(language, f"command.{key}") for key in ("what", "run", "instead")]
    return f"{prose(entry['about'][language])}\n\n{table(head, rows)}"


def _one_line(command: str) -> str:
    """A table's cell has no lines: continued ones are joined."""
    return code(" ".join(command.replace("\\\n", " ").split()))


def decision_tree(library: Library, name: str, tree: str) -> str:
    """The tree ``tree`` of ``rules/decisions/<name>.yaml``, each way with where it comes from.

    Raises:
        ValueError: the entry has no such tree.
    """
    entry = library.entry("decisions", name)
    found = next((one for one in entry["trees"] if one["id"] == tree), None)
    if found is None:
        raise ValueError(f"decision {name!r} has no tree {tree!r}; there are: {[one['id'] for one in entry['trees']]}")
    return f'<div class="kb-tree">{_node(library, entry, found["nodes"], found["start"])}</div>'


def _node(library: Library, entry: Mapping[str, Any], nodes: Mapping[str, Any], name: str) -> str:
    """A question and its answers, each with what follows; a question that two ways lead to stands twice."""
    language, node = library.language, nodes[name]
    ways = []
    for edge in node["edges"]:
        leaf = entry["leaves"].get(edge["to"])
        end = f"<b>{_html(_leaf(library, leaf))}</b>" if leaf else _node(library, entry, nodes, edge["to"])
        source = badge(library, edge["status"], edge)
        answer = f'<span class="kb-tree-if">{_html(edge["answer"][language])}</span>'
        ways.append(f"<li>{answer} {f'{end} {source}' if leaf else f'{source} {end}'}</li>")
    return f'<p class="kb-tree-ask">{_html(node["question"][language])}</p><ul>{"".join(ways)}</ul>'


def _leaf(library: Library, leaf: Mapping[str, Any]) -> str:
    batch = leaf.get("value") or (f"{leaf['low']}–{leaf['high']}" if "low" in leaf else "")
    return say(library.language, "decision.leaf", title=leaf["title"][library.language], batch=batch)


def _html(words: str) -> str:
    """A sentence of the rules as HTML: what stands between backticks is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(" ".join(words.split())))


def tradeoff(library: Library, name: str) -> str:
    """The options of ``rules/tradeoffs/<name>.yaml`` with what they are compared by and their remarks."""
    language = library.language
    entry = library.entry("tradeoffs", name)
    aspects = entry.get("aspects", {})
    head = [say(language, "tradeoff.option"), *(text(about[language]) for about in aspects.values())]
    rows = []
    for option in entry["options"]:
        title = f"**{text(option['title'][language])}** {badge(library, option['status'], option)}"
        compared = option.get("aspects", {})
        cells = [prose(compared[key][language]) if key in compared else "–" for key in aspects]
        rows.append((title, *cells))
    parts = [prose(entry["text"][language])] if "text" in entry else []
    parts.append(table(head, rows))
    for option in entry["options"]:
        remarks = option.get("remarks", ())
        if not remarks:
            continue
        lines = []
        for remark in remarks:
            value = f" **{shown_quantity(library, remark)}**" if "value" in remark else ""
            erratum = f" ([{remark['erratum']}](errata/{remark['erratum']}.md))" if "erratum" in remark else ""
            mark = say(language, f"remark.{remark['kind']}")
            source = badge(library, remark.get("status", option["status"]), remark if "source" in remark else option)
            lines.append(f"- {mark}: {prose(remark['text'][language])}{value} {source}{erratum}")
        parts.append(folded(option["title"][language], "\n".join(lines)))
    return "\n\n".join(parts)
