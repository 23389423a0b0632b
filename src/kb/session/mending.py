"""A file without the faults that have nothing to do with memory: what a plan for its memory begins with."""

from kb.config.fixing.fixes import unified_diff
from kb.config.text.encoding import encode
from kb.core.record import NamedTuple
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
