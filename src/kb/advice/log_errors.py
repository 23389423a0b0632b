"""The lines of a log that raise an error, whatever it is: what is shown where no cause is known. Pure."""

import re

from kb.advice.log_lines import clean, is_source, message_start
from kb.core.record import NamedTuple

MOST_KEPT = 8  # of one log: the first of a failure tells most, the last is what Python ended with
_HINTS = ("Error", "Exception", "rror: ", "panicked at", "command not found", "open file", "what():")
# a class of an exception at the start of a line's own text, as Python prints what it raises
_RAISED = re.compile(
    r"(?:(?:ERROR|CRITICAL|FATAL)\b[^A-Za-z]{0,40}\[[^\]]{0,80}\]:? )?"  # vLLM's logger
    r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception|Failure)(?:\(\w{1,60}\))?(?::|\s{0,4}$)"
)
_SAID = re.compile(
    r"\S{1,200}\.py: error: |error: |Fatal Python error: |what\(\): |thread '.{1,60}' panicked at|"
    r"\S{0,200}: (?:line \d{1,9}: )?\S{1,200}: command not found|\S{1,200}: can't open file "
)
# what only hands on that another process, or a line before, failed
_HANDED_ON = re.compile(
    r"ChildFailedError|CalledProcessError|DistBackendError|ProcessExitedException|ProcessRaisedException"
)


class ErrorLine(NamedTuple):
    """A line that raises an error. ``died``: its traceback goes up to the module, so that nothing caught it."""

    line: int
    text: str
    died: bool


class ErrorLines:
    """Takes the lines that raise an error, and keeps the first and the last of them."""

    def __init__(self) -> None:
        self.kept: list[ErrorLine] = []
        self._open = False  # the line before ends with a colon: what it says follows

    @staticmethod
    def may_be_in(text: str) -> bool:
        return any(hint in text for hint in _HINTS)

    def take(self, line: int, row: str, after_frame: bool, died: bool) -> bool:
        """Keep the line where it raises an error; whether it does.

        Args:
            line: its number.
            row: its text.
            after_frame: the line before is a frame of a traceback, so that this one is source code.
            died: the frames before it go up to the module.
        """
        row = clean(row)
        own = row[message_start(row) :].rstrip()
        if is_source(row, after_frame):
            return False
        if not (_RAISED.match(own) or _SAID.match(own)):
            return False
        if any(each.text == own for each in self.kept):  # another rank, or a retry, says the same
            return True
        if len(self.kept) == MOST_KEPT:
            self.kept.pop()
        self.kept.append(ErrorLine(line, own, died))
        self._open = own.endswith(":")
        return True

    def go_on(self, row: str) -> None:
        """The line after one that was kept and says only by its next line what is wrong."""
        if self._open and row.strip():
            last = self.kept.pop()
            self.kept.append(last._replace(text=f"{last.text} {row.strip()}"))
        self._open = False


def telling_errors(lines: list[ErrorLine], most: int) -> tuple[ErrorLine, ...]:
    """Up to ``most`` of the lines, less those that only hand on an error of another process where there are others."""
    own = [each for each in lines if not _HANDED_ON.search(each.text)] or lines
    return tuple(own) if len(own) <= most else (own[0], *own[-(most - 1) :])
