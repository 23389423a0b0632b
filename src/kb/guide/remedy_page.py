"""The page of a remedy: the words of a log that tell it, its steps with their conditions, an example answered."""

import io
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from html import escape
from typing import Any

from kb.advice.diagnosis import diagnose
from kb.advice.question import Question
from kb.config.log import read_lines
from kb.core.document import Unit
from kb.core.expression import Tree
from kb.guide.library import Library, load_library
from kb.guide.markup import badge, cited_source, code, fenced, held, prose, text
from kb.guide.site_words import say
from kb.guide.source_tables import named_sources
from kb.report.condition import computes, named, sentence
from kb.report.diagnosis_report import diagnosis_text
from kb.report.terminal import Style
from kb.report.words import Words
from kb.session.prepare import file_checker
from kb.session.project import Project

CONFIG = "examples/mt5-summary-team.yaml"
GPU = "RTX 3090"
ASKED = Question.of(gpu="rtx-3090", host_memory="60GB", cpus="16")
STYLE = Style(width=88)
LONGEST_LOG = 1500  # characters of a log that is shown whole


def diagnosed(library: Library, entry: Mapping[str, Any]) -> str:
    """The log of a remedy's first example, and the answer to it; empty where no example is short enough to show."""
    logs = [str(one["log"]) for one in entry.get("examples", ()) if one["expect"] == "found"]
    log = next((log for log in logs if len(log) <= LONGEST_LOG), None)
    if log is None:
        return ""
    facts, unit = _example()
    lines = read_lines(io.BufferedReader(io.BytesIO(log.encode())), "train.log")
    result = diagnose(lines, library.rows("remedies"), facts.get)
    if not result.causes:
        return ""
    answer = diagnosis_text(result, "train.log", library.words, STYLE, unit)
    command = (
        f"kb diagnose train.log --config {CONFIG} --gpu {ASKED.machine.gpu} --host-memory {ASKED.machine.host_memory}"
    )
    label = say(library.language, "remedy.answer")
    shown = escape(answer.rstrip()).replace("\n", "&#10;")
    box = held(f'<pre class="kb-console"><code>{shown}</code></pre>', "kb-answer", label)
    return "\n\n".join([fenced(log, "text"), fenced(command, "bash"), box])


@lru_cache(maxsize=1)
def _example() -> tuple[Any, Unit]:
    """Facts of the example's config on the machine named."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    with open(os.path.join(root, CONFIG), "rb") as stream:
        raw = stream.read()
    checker = file_checker(load_library("ko").catalog, Project(), ASKED)
    unit = next(result.unit for result in checker.check(raw, CONFIG).results if result.unit.dialect is not None)
    return checker.facts(unit), unit


SHORTEST = 6  # characters of a sign that is shown


def remedy_page(library: Library, entry: Mapping[str, Any]) -> str:
    """The page as Markdown, its heading first."""
    language, words = library.language, library.words
    seen = _signs(entry)
    parts = [
        f"# {text(entry['title'][language])}",
        f"{say(language, 'remedy.resource')}: **{text(words.named('resource', entry['resource']))}** · `{entry['id']}`",
        prose(entry["means"][language]),
    ]
    if seen:
        parts += [
            f"## {say(language, 'remedy.signs')} {{ #signs }}",
            " · ".join(code(sign) for sign in seen),
            say(language, "remedy.diagnose", command=code("kb diagnose train.log --config train.yaml")),
        ]
    parts += [f"## {say(language, 'remedy.steps')} {{ #steps }}", "\n".join(_steps(library, entry))]
    if example := diagnosed(library, entry):
        about = say(language, "remedy.example_about", config=code(CONFIG), gpu=GPU)
        parts += [f"## {say(language, 'remedy.example')} {{ #example }}", about, example]
    sources = list(dict.fromkeys(named_sources(entry)))
    if sources:
        parts += [
            f"## {say(language, 'rule.sources')} {{ #sources }}",
            "\n".join(f"- {cited_source(library, name)}" for name in sources),
        ]
    return "\n\n".join(parts) + "\n"


def _signs(entry: Mapping[str, Any]) -> list[str]:
    """The words of a log that tell it, each once; pieces that say nothing to a reader are left out."""
    held = [line for pattern in entry.get("patterns", ()) for line in pattern.get("holds", ())]
    seen = {" ".join(line.lower().replace("_", " ").replace("-", " ").split()): line for line in reversed(held)}
    return [line for line in reversed(seen.values()) if len(line) >= SHORTEST]


def _steps(library: Library, entry: Mapping[str, Any]) -> Iterator[str]:
    words = library.words
    own = {f"condition.noun.{name}": row[library.language] for name, row in entry.get("variables", {}).items()}
    words = Words(words.language, {**words.messages, **own}, words.facts)
    for number, step in enumerate(entry["steps"], 1):
        noted = f" {badge(library, 'claimed', step['claims'][0])}" if step.get("claims") else ""
        said = [prose(step["text"][library.language]) + noted]
        changes = ", ".join(_change(name, value, words) for name, value in step.get("set", {}).items())
        if changes:
            said.append(changes)
        if "run" in step:
            said.append(code(step["run"]))
        if when := _when(step, words):
            said.append(f'<span class="kb-when">{when}</span>')
        yield f"{number}. {'<br>'.join(said)}"


def _when(step: Mapping[str, Any], words: Words) -> str:
    """A step's condition as a sentence; nothing where it has none, or where it is a sum: its own words tell that.

    Args:
        words: with what the remedy calls what it reads in a log.
    """
    if "when" not in step or computes(step["when_tree"]):
        return ""
    return say(words.language, "remedy.when", condition=prose(sentence(step["when_tree"], words)))


def _change(name: str, value: Any, words: Words) -> str:
    """A setting and its new value; one that is worked out is told in words, and with numbers by the example below."""
    key = name.rpartition(".")[2]
    if not isinstance(value, Mapping):
        return code(f"{key}: {str(value).lower() if isinstance(value, bool) else value}")
    return f"{code(key)}: {text(_worked_out(name, value['compute_tree'], words))}"


def _worked_out(name: str, tree: Tree, words: Words) -> str:
    """How a value follows: from what the setting was, or as a fact that has a name."""
    language, own = words.language, ["fact", name]
    least = None
    if tree[:2] == ["call", "max"] and tree[2][0] == "lit":
        least, tree = tree[2][1], tree[3]
    if tree[1:] == [own, ["lit", 2]] and tree[0] in ("//", "/", "*"):
        if tree[0] == "*":
            return say(language, "remedy.change.twice")
        said = "remedy.change.half" if least is None else "remedy.change.half_least"
        return say(language, said, **({} if least is None else {"least": least}))
    if tree[0] == "-" and tree[1] == own and tree[2][0] == "lit":
        return say(language, "remedy.change.lower", by=tree[2][1])
    if tree[0] in ("fact", "lit"):
        return sentence(tree, words) if tree[0] == "lit" else named(tree[1], words)
    return say(language, "remedy.change.computed")
