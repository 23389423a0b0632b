"""A file without the faults that have nothing to do with memory: what a plan for its memory begins
with; and a config with the plan's keys pasted into it, read again as any file is.
"""

from collections.abc import Iterable, Sequence

from kb.config.dialect.spelling import Written
from kb.config.files import ConfigError
from kb.config.fixing.fixes import unified_diff
from kb.config.text.encoding import encode
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.session.file import FileChecker
from kb.session.file_result import FileResult, Kind
from kb.session.fixing import fix_once

OF_MEMORY = ("fit",)  # the area of rules that a plan answers with its steps
MOST_PASSES = 6  # a fix may make room for another


class Mended(NamedTuple):
    """``file`` is the file after the fixes, ``diff`` what they change, ``rules`` those whose errors they mend, ``left``
    those whose errors no fix mends."""

    file: FileResult
    diff: str
    rules: tuple[str, ...]
    left: tuple[str, ...]


def mend(checker: FileChecker, file: FileResult, kind: Kind) -> Mended:
    """The file with every error's fix made, those of memory apart."""
    before = _errors(checker, file)
    after = file
    for _ in range(MOST_PASSES):
        wanted = _errors(checker, after)
        if not wanted:
            break
        text = fix_once(checker, after, kind, rules=wanted, unsafe=True).text
        if text == after.text:
            break
        after = checker.again(after, encode(text, after.encoding), kind)
    left = _errors(checker, after)
    rules = tuple(rule for rule in before if rule not in left)
    return Mended(after, unified_diff(file.path, file.text, after.text), rules, left)


def _errors(checker: FileChecker, file: FileResult) -> tuple[str, ...]:
    """Rules that call an error in the file, in the order of their places."""
    rules = checker.catalog.rules
    found = [each.rule for result in file.results for each in result.counted() if each.severity == "error"]
    return tuple(rule for rule in dict.fromkeys(found) if rule in rules and rules[rule].area not in OF_MEMORY)


def pasted(text: str, written: Iterable[Written]) -> str | None:
    """The text of one YAML or JSON document with the keys in it, as YAML; None where it is no such document."""
    import yaml  # a start that most runs do not need

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    for each in written:
        inside = data
        for step in each.path[:-1]:
            below = inside.get(step)
            if not isinstance(below, dict):
                below = inside[step] = {}
            inside = below
        inside[each.path[-1]] = each.value
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


class Pasting:
    """What one unit of a file says with keys pasted into it.

    Args:
        text: of the whole file.
        section: the unit's; None of the whole file.
    """

    def __init__(self, checker: FileChecker, path: str, text: str, section: str | None) -> None:
        self._checker, self._path, self._text, self._section = checker, path, text, section

    def __call__(self, written: Sequence[Written]) -> TrainingSetup | None:
        """The run that the file then describes; None where it can no longer be read."""
        text = pasted(self._text, written)
        if text is None:
            return None
        try:
            results = self._checker.check(text.encode(), self._path).results
        except ConfigError:
            return None
        return next((one.setup for one in results if one.unit.section == self._section), None)
