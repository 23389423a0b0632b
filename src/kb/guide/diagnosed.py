"""What ``kb diagnose`` says to a log of the rules, with the values of one of the examples that a newcomer can run."""

import io
import os
from collections.abc import Mapping
from functools import lru_cache
from html import escape
from typing import Any

from kb.advice.diagnosis import diagnose
from kb.config.log.text import read_lines
from kb.core.document import Unit
from kb.guide.library import Library, load_library
from kb.guide.markup import fenced, held
from kb.guide.site_words import say
from kb.report.diagnosis.text import diagnosis_text
from kb.report.style import Style
from kb.session.prepare import Wanted, file_checker
from kb.session.project import Project

CONFIG = "examples/mt5-summary-team.yaml"
GPU = "RTX 3090"
WANTED = Wanted(gpu="rtx-3090", host_memory="60GB", cpus="16")
STYLE = Style(width=88)
LONGEST = 1500  # characters of a log that is shown whole


def diagnosed(library: Library, entry: Mapping[str, Any]) -> str:
    """The log of a remedy's first example, and the answer to it; empty where no example is short enough to show."""
    logs = [str(one["log"]) for one in entry.get("examples", ()) if one["expect"] == "found"]
    log = next((log for log in logs if len(log) <= LONGEST), None)
    if log is None:
        return ""
    facts, unit = _example()
    lines = read_lines(io.BufferedReader(io.BytesIO(log.encode())), "train.log")
    result = diagnose(lines, library.rows("remedies"), facts.get)
    if not result.causes:
        return ""
    answer = diagnosis_text(result, "train.log", library.words, STYLE, unit)
    command = f"kb diagnose train.log --config {CONFIG} --gpu {WANTED.gpu} --host-memory {WANTED.host_memory}"
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
    checker = file_checker(load_library("ko").catalog, Project(), WANTED)
    unit = next(result.unit for result in checker.check(raw, CONFIG).results if result.unit.dialect is not None)
    return checker.checker.facts(unit), unit
