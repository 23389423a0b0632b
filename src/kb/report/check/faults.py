"""Inputs that could not be checked, as every format says them: in words, with the place where there is one."""

from kb.core.result import Unusable
from kb.report.values import printable
from kb.report.words import Words


def fault_text(fault: Unusable, words: Words) -> str:
    """Why the input could not be checked, without its place."""
    return words(fault.key, **{"path": fault.path, **fault.values})


def fault_line(fault: Unusable, words: Words) -> str:
    """``path:line:column: what is wrong``, as far as there is a place that the sentence does not name itself."""
    text = fault_text(fault, words)
    if fault.line is None and printable(fault.path) in text:
        return f"kb: {text}"
    place = [shown_path(fault.path)] if fault.path else []
    place += [str(number) for number in (fault.line, fault.column) if number is not None]
    return f"{':'.join(place) or 'kb'}: {text}"


def shown_path(path: str) -> str:
    """A path as a line may begin with it: ``::`` at its start would be a command to GitHub's runner."""
    return printable(f"./{path}" if path.startswith(("::", "##[")) else path)
