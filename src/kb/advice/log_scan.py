"""Symptoms found in a log: which pattern, at which line; and the lines that raise an error, whatever it is. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Literal

from kb.advice.log_errors import MEMORY_REACH, ErrorLine, ErrorLines
from kb.advice.log_lines import clean, is_frame, is_quoted, is_source, message_start
from kb.core.record import NamedTuple

Place = Literal["message", "start", "anywhere"]


class Wording:
    """One expression to look for: evidence for a remedy, or a context that tells what evidence near it means.

    ``holds``: words of which a matching line has one. The expression is compiled when a line first has one of them: a
    log has few of all the wordings known, and compiling takes longer than reading most logs.
    """

    __slots__ = ("__dict__", "holds", "name", "row")

    def __init__(self, name: str, row: Mapping[str, Any]) -> None:
        self.name = name  # the remedy's id, or the context's name
        self.row = row
        self.holds: tuple[str, ...] = tuple(row["holds"])
        self.at: Place = row.get("at", "message")

    @cached_property
    def expression(self) -> re.Pattern[str]:
        return re.compile(self.row["match"])

    @cached_property
    def exception(self) -> re.Pattern[str] | None:
        return re.compile(self.row["unless"]) if "unless" in self.row else None

    def may_be_in(self, text: str) -> bool:
        return any(word in text for word in self.holds)

    @cached_property
    def _bare(self) -> tuple[str, ...]:
        return tuple(word.translate(_NO_DIGITS) for word in self.holds)

    def may_be_in_shapes(self, shapes: str) -> bool:
        """As ``may_be_in`` of the lines that ``line_shapes`` was given; now and then true where that is not."""
        return any(word in shapes for word in self._bare)

    def find(self, text: str, start: int) -> re.Match[str] | None:
        """The match in a line whose own text begins at ``start``."""
        if self.at == "start":
            return self.expression.match(text, start)
        return self.expression.search(text, start if self.at == "message" else 0)


def contexts_of(remedies: Mapping[str, Mapping[str, Any]]) -> list[Wording]:
    """Every context, of whichever file."""
    return [Wording(name, row) for data in remedies.values() for name, row in data.get("contexts", {}).items()]


def evidence_of(remedies: Mapping[str, Mapping[str, Any]]) -> list[Wording]:
    """Every wording that is evidence, in the order of the files."""
    return [
        Wording(name, row)
        for name, data in sorted(remedies.items())
        if "deprecated" not in data
        for row in data.get("patterns", ())
    ]


_NO_DIGITS = str.maketrans("", "", "0123456789")


def line_shapes(text: str) -> str:
    """The lines of ``text`` without their digits, each once: of a long log most differ by numbers alone."""
    return "\n".join(set(text.translate(_NO_DIGITS).split("\n")))


LogLine = tuple[int, str]
"""A line's number from 1, and its text; of a line that was drawn over and over, each drawing is one."""

BLOCK = 512  # lines that are searched together for a word before any is looked at alone
WINDOW = 60  # lines before evidence that count as near where a context does not say `within`: a long traceback
LINES_AFTER = 4  # lines after evidence that may go on with its numbers, where a terminal wrapped them
BAR = 1000  # characters of a line in which a progress bar or a training log shows itself
MOST_EVIDENCE = 5  # of one wording: the first ones and the last; a retry repeats itself

_RUN_ENDED_WELL = re.compile(
    r"""['"]?train_runtime['"]?\s{0,4}[:=]|Training completed\. Do not forget|`Trainer\.fit` stopped: `max_|"""
    r"""[Tt]raining (?:is )?(?:finished|complete|completed|done)\b|"""
    r"""={3,80} \d{1,6} passed"""  # pytest
    r"""(?:, \d{1,6} (?:deselected|skipped|warnings?|xfailed|xpassed|subtests passed)){0,6} in \d"""
)
_SAYS_OTHERWISE = re.compile("[❌✗✘]|(?<!x)[Ff]ailed")  # in the line that says it ended
_STEP = re.compile(r"\b(\d{1,9})/(\d{1,9}) \[")
_LOSS = re.compile(r"""['"]loss['"]: ?['"]?\d""")
_TESTS_RAN = re.compile(r"Ran \d{1,6} tests? in \d")  # unittest: that all went well stands in one of the next lines
_TESTS_FAILED = re.compile(r"={3,80} \d{1,6} failed|FAILED \((?:failures|errors)=")  # what others pass later is theirs
_SERVES = re.compile(r"fired up and ready to roll|Application startup complete|server is listening on ")
_ANSWERS = re.compile(r'" 200(?: OK)?\s{0,4}$')
_MODULE_FRAME = "in <module>"


class Evidence(NamedTuple):
    """One line that a wording matched. ``near``: the contexts in the lines before it."""

    line: int
    text: str
    near: frozenset[str]
    raised: bool  # a traceback leads up to it, or its own line calls it an error
    died: bool  # the traceback goes up to the module: nothing caught it
    after: list[str]  # the lines that follow


class Match(NamedTuple):
    """What one wording found: how many lines, and the first of them and the last."""

    wording: Wording
    count_of_lines: int
    evidence: tuple[Evidence, ...]


class Scan(NamedTuple):
    """What a log holds. ``moved_on`` and ``ended_well``: the last line that shows a run going on, or ending well.

    ``errors``: lines that raise an error, known or not. ``contexts``: the last line of each that was seen.
    """

    lines: int
    matches: tuple[Match, ...]
    moved_on: int
    ended_well: int
    errors: tuple[ErrorLine, ...]
    contexts: Mapping[str, int]


class LogScanner:
    """Feeds on lines in order; holds no more than the first evidence of each wording."""

    def __init__(self, remedies: Mapping[str, Mapping[str, Any]]) -> None:
        self._contexts = contexts_of(remedies)
        self._wordings = evidence_of(remedies)
        self._within = {each.name: each.row.get("within", WINDOW) for each in self._contexts}
        self._seen: dict[str, int] = {}  # context → the last line that had it
        self._found: dict[Wording, list[Evidence]] = {}
        self._counts: dict[Wording, int] = {}
        self._errors = ErrorLines()
        self._before: Sequence[LogLine] = ()  # the last lines of the block before
        self._open: list[Evidence] = []  # evidence whose next lines may go on with it
        self._last_frame = self._last_module = -WINDOW - 1
        self._after_frame = False
        self._steps: dict[int, int] = {}  # steps in all → the first step seen after the last evidence
        self._losses = self._moved_on = self._ended_well = self._lines = 0
        self._tests_ran = -WINDOW  # the line with which unittest counts its tests
        self._serves = False  # a server started after the last evidence

    def read(self, lines: Iterable[LogLine]) -> Scan:
        """The scan of a whole log."""
        rest = iter(lines)
        while block := list(islice(rest, BLOCK)):
            self._read_block(block)
            self._before = block[-MEMORY_REACH:]
        matches = (Match(each, self._counts[each], tuple(evidence)) for each, evidence in self._found.items())
        errors = tuple(self._errors.at_end(self._lines))
        return Scan(self._lines, tuple(matches), self._moved_on, self._ended_well, errors, self._seen)

    def _read_block(self, block: Sequence[LogLine]) -> None:
        self._lines = block[-1][0]
        text = "\n".join(row for _, row in block)
        if "\x1b" in text or "\0" in text:
            block = [(line, clean(row)) for line, row in block]
            text = "\n".join(row for _, row in block)
        shapes = line_shapes(text)
        contexts = [wording for wording in self._contexts if wording.may_be_in_shapes(shapes)]
        wordings = [wording for wording in self._wordings if wording.may_be_in_shapes(shapes)]
        framed = self._errors.may_have_frames(text)
        raised = self._errors.may_be_in(text)
        if not (contexts or wordings or framed or raised or self._found or self._errors.seen):
            return
        for line, row in block:
            if self._found or self._errors.seen:
                self._follow(line, row)
                self._errors.go_on(row)
            if framed:
                self._errors.see_frame(line, row)
            if (raised and self._errors.may_be_in(row)) or (framed and self._errors.ends_traceback(line, row)):
                self._note_error(line, row, block)
            if contexts:
                self._note_contexts(contexts, line, row)
            if wordings:
                found = [wording for wording in wordings if wording.may_be_in(row)]
                if found:
                    self._note_evidence(found, line, clean(row))
            self._after_frame = framed and 'File "' in row and is_frame(row)
            if self._after_frame:
                self._last_frame = line
                if _MODULE_FRAME in row:
                    self._last_module = line

    def _note_error(self, line: int, row: str, block: Sequence[LogLine]) -> None:
        if self._errors.take(line, row, self._after_frame, line - self._last_module <= WINDOW):
            around = (*self._before, *block)
            self._errors.note_near(line, (text for at, text in around if line - MEMORY_REACH <= at <= line))
            self._forget_progress()

    def _settle(self) -> None:
        """What was found so far ended something: nothing that goes well after it takes that back."""
        self._found = {each: [row._replace(died=True) for row in rows] for each, rows in self._found.items()}

    def _forget_progress(self) -> None:
        self._steps.clear()
        self._losses = 0
        self._serves = False

    def _note_contexts(self, contexts: Sequence[Wording], line: int, row: str) -> None:
        for context in contexts:
            if context.may_be_in(row) and context.expression.search(clean(row)):
                self._seen[context.name] = line

    def _note_evidence(self, wordings: Sequence[Wording], line: int, row: str) -> None:
        start = message_start(row)
        source = is_source(row, self._after_frame)
        near = frozenset(name for name, at in self._seen.items() if line - at <= self._within[name])
        for wording in wordings:
            match = wording.find(row, start)
            if match is None or (wording.exception and wording.exception.search(row)):
                continue
            lead = row[start : match.start()]
            if wording.at == "message" and (source or is_quoted(lead)):
                continue
            if self._out_of_context(wording, near):
                continue
            raised = line - self._last_frame <= WINDOW or bool(lead.strip())
            died = line - self._last_module <= WINDOW
            self._keep(wording, Evidence(line, row.strip(), near, raised, died, []))

    def _keep(self, wording: Wording, evidence: Evidence) -> None:
        self._counts[wording] = self._counts.get(wording, 0) + 1
        kept = self._found.setdefault(wording, [])
        if len(kept) == MOST_EVIDENCE:
            kept.pop()
        kept.append(evidence)
        self._open = [*self._open[-2:], evidence]
        self._forget_progress()

    @staticmethod
    def _out_of_context(wording: Wording, near: frozenset[str]) -> bool:
        row = wording.row
        asked = (row[key] for key in ("near", "also_near") if key in row)
        return any(near.isdisjoint(each) for each in asked) or not near.isdisjoint(row.get("not_near", ()))

    def _follow(self, line: int, row: str) -> None:
        """What comes after evidence: the rest of a wrapped message, and whether the run goes on."""
        for evidence in self._open:
            evidence.after.append(row[:BAR])
        if self._open and len(self._open[0].after) >= LINES_AFTER:
            self._open = self._open[1:]
        if "/" in row and "[" in row:
            for step, steps in _STEP.findall(row[:BAR]):
                first = self._steps.setdefault(int(steps), int(step)) if len(self._steps) < 64 else int(step)
                if int(step) >= first + 2:
                    self._moved_on = line
        if "loss" in row and _LOSS.search(row[:BAR]):
            self._losses += 1
            if self._losses >= 2:
                self._moved_on = line
        if "start" in row or "ready" in row or '" 200' in row:
            self._serves = self._serves or _SERVES.search(row[:BAR]) is not None
            if self._serves and _ANSWERS.search(row[:BAR]):
                self._moved_on = line
        if "Ran " in row and _TESTS_RAN.search(row[:BAR]):
            self._tests_ran = line
        if ("failed" in row or "FAILED" in row) and _TESTS_FAILED.search(row[:BAR]):
            self._settle()
        said_well = ("rain" in row or " passed" in row) and _RUN_ENDED_WELL.search(row[:BAR])
        tested_well = "OK" in row and line - self._tests_ran <= 2 and row[message_start(row) :].startswith("OK")
        if tested_well or (said_well and not _SAYS_OTHERWISE.search(row[:BAR])):
            self._ended_well = line
