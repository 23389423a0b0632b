"""A rule's page: what it finds, when, why, a bad and a good config, the fix, where it is known from."""

import json
from collections.abc import Mapping, Set
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

from kb.core.catalog import Catalog, Rule
from kb.guide.kept import kept, mark_of
from kb.guide.library import Library, say
from kb.guide.markup import cited_source, code, fenced, prose, table, text
from kb.integrations.browser import check
from kb.knowledge import load_table_rows
from kb.report.condition import fact_order, sentence, unparse
from kb.report.rules.explain import MACHINE, changes_of, place_of

# other files, what no config says, bytes that are no text: an editor has no place for them
_NOT_IN_PLAYGROUND = ("files", "project", "facts", "shm", "gpu_processes", "base64")


def rule_page(library: Library, rule: Rule, opening: Set[str]) -> str:
    """The page as Markdown, its heading first. ``opening`` are the rules of :func:`rules_that_open`."""
    language = library.language
    parts = [
        f"# {text(library.words.described(rule.title))}",
        _about(library, rule),
        prose(library.words.described(rule.message)),
        _section(language, "rule.when", _condition(library, rule)),
        _section(language, "rule.why", prose(library.words.described(rule.why))),
        _section(language, "rule.bad", _example(library, rule, "fires", opens=rule.id in opening)),
        _section(language, "rule.fix", _fixes(library, rule)),
        _section(language, "rule.fixed", _fixed(rule)),
        _section(language, "rule.good", _example(library, rule, "silent")),
        _section(language, "rule.rows", _rows(library, rule)),
        _section(language, "rule.sources", "\n".join(f"- {cited_source(library, name)}" for name in rule.sources)),
    ]
    comment = code(f"# kb: ignore[{rule.id}] …")
    parts.append(f"---\n\n{say(language, 'rule.ignore', comment=comment)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(language: str, key: str, body: str) -> str:
    return f"## {say(language, key)} {{ #{key.rpartition('.')[2]} }}\n\n{body}" if body else ""


def _about(library: Library, rule: Rule) -> str:
    language, words = library.language, library.words
    marks = [
        f'<span class="kb-severity kb-severity--{rule.severity}">'
        f"{escape(words.named('severity', rule.severity))}</span>",
        code(rule.id),
        f"{say(language, 'rule.confidence')}: {escape(words.named('confidence', rule.confidence))}",
        f"{say(language, 'rule.area')}: [{say(language, f'area.{rule.area}')}](index.md#{rule.area})",
        say(language, "rule.since", version=rule.since),
    ]
    lines = [" · ".join(marks)]
    if rule.deprecated is not None:
        lines.append(say(language, "rule.deprecated", reason=text(rule.deprecated)))
    return "\n\n".join(lines)


def _condition(library: Library, rule: Rule) -> str:
    language, words = library.language, library.words
    if rule.when is None:
        return say(language, "rule.on", event=prose(words.described(rule.heard)))
    source = " ".join((rule.source or unparse(rule.when)).split())
    names = [name for name in fact_order(rule.when) if not name.startswith("written.")]
    rows = [(code(name), prose(words.meaning(name))) for name in names]
    facts = table([say(language, "rule.fact"), say(language, "rule.meaning")], rows) if rows else ""
    return f"{fenced(source, 'python')}\n\n{facts}"


def _rows(library: Library, rule: Rule) -> str:
    """The rows of a rule whose data is a table."""
    found = load_table_rows(rule.id) if rule.on == rule.id else []
    rows = [
        (text(name), code(condition.replace("written.", "").replace("key.", "")), text(said))
        for name, _, condition, said in found
    ]
    head = [say(library.language, key) for key in ("rule.library", "rule.asked", "rule.says")]
    shown = 3 if any(said for *_, said in rows) else 2  # of a name that is gone no library says anything
    return table(head[:shown], [row[:shown] for row in rows]) if rows else ""


def _fixes(library: Library, rule: Rule) -> str:
    lines = []
    for number, fix in enumerate(rule.fixes, 1):
        words = library.words
        safety = f"**{escape(words.named('safety', fix.safety))}**"
        changes = ", ".join(code(change) for change in changes_of(fix, words))
        condition = f" ({words('explain.fix_when', condition=prose(sentence(fix.when, words)))})" if fix.when else ""
        lines.append(f"{number}. {safety}: {prose(words.described(fix.title))} {changes}{condition}")
    return "\n".join(lines)


def _first(rule: Rule, expect: str) -> Mapping[str, Any] | None:
    return next((one for one in rule.examples if one.get("expect") == expect and "config" in one), None)


def _example(library: Library, rule: Rule, expect: str, *, opens: bool = False) -> str:
    example = _first(rule, expect)
    if example is None:
        return ""
    place = place_of(example)
    head = say(library.language, "rule.on_machine", machine=text(place)) + "\n\n" if place else ""
    link = _playground(library, example) if opens else ""
    return f"{head}{fenced(str(example['config']), _language(example))}{link}"


# what a check of a text is made of
_CHECKING = ("advice", "config", "core", "integrations", "knowledge", "memory", "report", "session")


def rules_that_open(folder: str, catalog: Catalog, preview: bool = False) -> frozenset[str]:
    """The rules whose example shows its finding in the playground; from ``folder`` where that was tried before.

    It is tried since the playground does not know which program reads a text: what rests on names may be silent there.

    Args:
        preview: the first rule of each area that does.
    """

    def tried() -> list[str]:
        found: dict[str, list[str]] = {}
        for rule in catalog.rules.values():
            example = _first(rule, "fires")
            if example and not (preview and rule.area in found) and _shows(rule.id, example):
                found.setdefault(rule.area, []).append(rule.id)
        return [name for names in found.values() for name in names]

    name, mark = (
        "preview-opening" if preview else "opening",
        mark_of(catalog.version, _CHECKING, ["guide/rule_page.py"]),
    )
    return frozenset(kept(folder, name, mark, tried))


def _state(example: Mapping[str, Any]) -> dict[str, str]:
    """What the playground is to open with."""
    state = {name: str(example[name]) for name in (*MACHINE, "config") if name in example}
    if "versions" in example:
        state["versions"] = " ".join(f"{name}=={version}" for name, version in example["versions"].items())
    if "dialect" in example:
        state["kind"] = str(example["dialect"])
    return state


def _shows(rule: str, example: Mapping[str, Any]) -> bool:
    """Whether the playground can hold what the example needs, and finds there what the rule is about."""
    if any(name in example for name in _NOT_IN_PLAYGROUND):
        return False
    asked: dict[str, Any] = _state(example)
    config = asked.pop("config")  # what else is asked is the same of many, and prepared once
    if "gpus" in asked:
        asked["gpus"] = int(asked["gpus"])
    report = json.loads(check(config, json.dumps(asked), "en"))["report"]
    return any(finding["rule"] == rule for unit in report["files"] for finding in unit["findings"])


def _playground(library: Library, example: Mapping[str, Any]) -> str:
    """A link that opens the example there; the state is in the fragment, which no server sees."""
    address = f"../../playground/#{escape(urlencode(_state(example), quote_via=quote))}"
    return f'\n\n<a class="md-button" href="{address}">{say(library.language, "rule.try")}</a>'


def _language(example: Mapping[str, Any]) -> str:
    dialect = str(example.get("dialect", ""))
    return "python" if dialect == "python" else "bash" if dialect in ("command", "shell") else "yaml"


def _fixed(rule: Rule) -> str:
    example = _first(rule, "fires")
    return fenced(str(example["fixed"]), _language(example)) if example and "fixed" in example else ""
