"""What the playground calls: the command line's own check on a text, without files, arguments or a machine.

Runs in Pyodide, in a worker of the page; plain strings in, JSON out, so that nothing is left on either side.
"""

import io
import json
from functools import lru_cache
from typing import Any

from kb.advice.diagnosis import diagnose as find_causes
from kb.advice.question import Question
from kb.config.log import read_lines
from kb.core.catalog import Catalog
from kb.core.document import Unit
from kb.core.text import UserError
from kb.knowledge import load_catalog, load_guide
from kb.report.check.changes import SourceLines, describe_fix
from kb.report.check.json_report import check_object
from kb.report.diagnosis_report import diagnosis_object
from kb.report.json_parts import name_terms
from kb.report.terminal import Style
from kb.report.values import printable
from kb.report.words import Words
from kb.session.around import Checking
from kb.session.cli import load_words_or_none, said
from kb.session.file import FileChecker
from kb.session.prepare import file_checker, first_training, machine_alone
from kb.session.project import Project
from kb.session.run import Input, Kind, run

PLAIN = Style(width=10_000)


def check(text: str, asked: str, language: str) -> str:
    """The JSON report of ``kb check``, with titles and reports as the page shows them.

    Args:
        text: the config.
        asked: JSON: ``gpu``, ``gpus``, ``host_memory``, ``cpus``, ``kind`` (config, shell, command, python or
            notebook), ``versions`` (``transformers==5.0 torch==2.9``).
        language: ``ko`` or ``en``.

    Returns:
        ``{"report": …}``, or ``{"fault": sentence}`` where what is asked for cannot be used.
    """
    try:
        checker, words = checker_of(asked, language), words_of(language)
        kind = kind_of(asked)
        result = run([Input(path=path_of(text, kind), kind=kind, raw=text.encode())], checker).result(checker)
        report = check_object(result, words)
        sources = SourceLines(result.sources_text)
        for unit, found in zip(report["files"], result.units, strict=True):
            for row, finding in zip(unit["findings"], found.findings, strict=True):
                row["fixes"] = [
                    {
                        "safety": fix.safety,
                        "title": words.fix_title(fix, finding),
                        "certain": fix.certain,
                        "changes": describe_fix(fix, found.unit, words, PLAIN, sources),
                    }
                    for fix in finding.fixes
                ]
            _name_terms(unit["prediction"], words)
        return json.dumps({"report": _shown(report)}, ensure_ascii=False)
    except UserError as error:
        return fault_of(error, language)


def fault_of(error: UserError, language: str) -> str:
    """``{"fault": sentence}``."""
    return json.dumps({"fault": said(load_words_or_none(language), error.key, **error.values)}, ensure_ascii=False)


def _shown(data: Any) -> Any:
    """The report with every text as a page may show it."""
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, dict):
        return {printable(key): _shown(value) for key, value in data.items()}
    return [_shown(each) for each in data] if isinstance(data, list | tuple) else data


def fix(text: str, asked: str, language: str, rule: str, unsafe: bool) -> str:
    """The text with the fixes of ``rule`` made, or of every rule where it is empty.

    Returns:
        ``{"text": …}``, or ``{"fault": sentence}``.
    """
    from kb.session.fixing import fix_once  # the page loads faster than its fixes

    try:
        kind = kind_of(asked)
        checker = checker_of(asked, language)
        file = checker.check(text.encode(), path_of(text, kind), kind)
        outcome = fix_once(checker, file, kind, rules=[rule] if rule else None, unsafe=unsafe)
        return json.dumps({"text": outcome.text}, ensure_ascii=False)
    except UserError as error:
        return fault_of(error, language)


def kind_of(asked: str) -> Kind:
    """What the text is, by what was asked."""
    kind: Kind = json.loads(asked).get("kind") or "config"
    return kind


def path_of(text: str, kind: Kind) -> str:
    """The name under which a file with this text would be read: JSON knows numbers that YAML does not."""
    if kind in ("python", "notebook"):
        return "train.py" if kind == "python" else "train.ipynb"
    if not text.lstrip().startswith("{"):
        return "config.yaml"
    try:
        json.loads(text)
    except ValueError:
        return "config.yaml"
    return "config.json"


@lru_cache(maxsize=1)
def catalog_of() -> Catalog:
    """Read once: it is the larger part of a check, and nothing changes it here."""
    return load_catalog()


@lru_cache(maxsize=16)
def checker_of(asked: str, language: str) -> FileChecker:
    """Who checks on the machine that was asked for.

    Raises:
        UserError: what is asked for cannot be used.
    """
    wanted = json.loads(asked)
    # libraries and their versions as pip names them, apart by spaces or commas
    rows = (part.partition("==") for part in (wanted.get("versions") or "").replace(",", " ").split())
    return file_checker(
        catalog_of(),
        Project(),
        Question.of(
            gpu=wanted.get("gpu") or "none",
            gpus=wanted.get("gpus"),
            host_memory=wanted.get("host_memory"),
            cpus=wanted.get("cpus"),
            versions={name.strip().lower().replace("-", "_"): version.strip() for name, _, version in rows},
        ),
        Checking(loose=True),
    )


@lru_cache(maxsize=2)
def words_of(language: str) -> Words:
    """The words of reports in a language."""
    return Words(language, load_words_or_none(language), catalog_of().facts)


def _name_terms(prediction: dict[str, Any] | None, words: Words) -> None:
    """Each term's and phase's name in the reader's language, for the chart."""
    if prediction is None:
        return
    name_terms({**prediction["phases"], "host": prediction["host"]}, words)


def choose(asked: str, language: str) -> str:
    """What ``kb recommend`` says for a model on a GPU, as the chooser shows it.

    Args:
        asked: JSON: ``model``, ``gpu``, ``method``, ``precision``, ``form`` (of the config), ``source_length``,
            ``target_length``, ``effective_batch``, ``beams``.

    Returns:
        ``{"chosen": …}``, or ``{"fault": sentence}``.
    """
    from kb.report.recommend.choice import choice_object  # one of the page's questions

    try:
        return json.dumps({"chosen": choice_object(json.loads(asked), words_of(language))}, ensure_ascii=False)
    except UserError as error:
        return fault_of(error, language)


def training_of(text: str, asked: str, checker: FileChecker) -> Unit:
    """The section of a config that trains, or its first.

    Raises:
        UserError: its format is not known.
    """
    kind = kind_of(asked)
    path = path_of(text, kind)
    unit = first_training(checker.check(text.encode(), path, kind).results)
    if unit is None:
        raise UserError("diagnose.no_dialect", path=path)
    return unit


def diagnose(log: str, config: str, asked: str, language: str) -> str:
    """What ``kb diagnose`` says of a log, with the values of ``config`` where one is given.

    Args:
        log: the log, or a line of it.
        config: the config of the run, or nothing.
        asked: JSON, as of :func:`check`.

    Returns:
        ``{"causes": […], "unexplained": … or null, "lines": n}``, the best cause first, or ``{"fault": sentence}``.
    """
    try:
        checker = checker_of(asked, language)
        unit = training_of(config, asked, checker) if config.strip() else None
        lookup = checker.facts(unit).get if unit else machine_alone(checker)
        lines = read_lines(io.BufferedReader(io.BytesIO(log.encode())), "log")
        guide = load_guide()
        found = find_causes(lines, guide["remedies"], lookup, guide)
        return json.dumps(_shown(diagnosis_object(found, words_of(language), PLAIN, unit)), ensure_ascii=False)
    except UserError as error:
        return fault_of(error, language)
