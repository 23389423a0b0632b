"""Symptoms found in a log: which pattern, at which line; and the lines that raise an error, whatever it is. Pure.

A log mixes what programs report with what they print: source code in tracebacks, data sets, documentation. Only what
stands where a message begins is taken as said.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Literal

from kb.core.record import NamedTuple

HEAD, TAIL = 6000, 2000  # characters kept of a longer line: messages stand at its start, or end a quoted traceback

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]{0,40}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_PREFIX = re.compile(
    r"""\s{0,80}(?:
        \[(?:rank|default|worker)?\s?\d{1,4}\]:\s? | \d{1,4}:\s
      | \([^()\n]{0,80}pid=\d{1,9}[^()\n]{0,60}\)\s?                                     # Ray, vLLM
      | \[?\d{4}-\d\d-\d\d[T\s]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?
        (?:\s(?:TP|DP|PP|EP)\d{1,4}){0,4}\]?[,:]?\s{0,4}                                 # with SGLang's ranks
      | (?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s\d\d-\d\d\s\d\d:\d\d:\d\d\s
        \[?[\w./-]{1,80}:\d{1,6}\]\s?                                                    # vLLM
      | [A-Z][a-z]{2}\s{1,2}\d{1,2}\s\d\d:\d\d:\d\d\s[\w.-]{1,60}\s                      # syslog
      | \[[A-Z][a-z]{2}\s[A-Z][a-z]{2}\s{1,2}\d{1,2}\s[\d:]{8}\s\d{4}\]\s                # dmesg -T
      | \[\s{0,6}\d{1,9}\.\d{1,9}\]\s                                                    # dmesg
      | [\w./@-]{1,60}\[\d{1,9}\]:\s                                                     # journald
      | (?:stdout|stderr)\s[FP]\s                                                        # Kubernetes
      | [\w.-]{1,60}\s{0,20}\|\s                                                         # docker compose
      | kernel:\s
    )""",
    re.VERBOSE,
)
_BAR = re.compile(
    r"[^|]{0,120}?\d{1,3}%\|[^|]{0,300}\|\s{0,4}[\d.,kMG?]{1,16}/[\d.,kMG?]{1,16}\s{0,4}\[[^\]]{0,160}\]\s{0,8}"
)
_FRAME = re.compile(r'\s{0,80}File "[^"]{1,400}", line \d+|\s{0,80}at [\w.$<>/]{1,200}\(')

_KEY = re.compile(r"""["']([@\w.-]{1,40})\\?["']\s{0,3}:\s{0,3}[\[({]{0,3}\\?["']""")
_LOG_KEYS = frozenset((
    "msg", "message", "@message", "log", "error", "err", "error_message", "exception", "exc_info",
    "exc_text", "traceback", "stack", "stacktrace", "stack_trace", "event", "reason", "detail", "details",
    "line", "stderr", "stdout", "textPayload", "py_callstack",
))  # fmt: skip
_CLASSES = re.compile(
    r"(?:(?:[\w.]{1,80}(?:Error|Exception|Warning|Failure|Interrupt|Exit)(?:\([\w, ]{0,60}\))?|E|ERROR|FATAL|CRITICAL)"
    r"\s?:?\s{1,4}){1,4}$"
)
_RAISED = re.compile(r"(?:[\w.]{1,80}(?:Error|Exception|Warning|Failure)(?:\([\w, ]{0,60}\))?): ")
_DATA = re.compile(
    r"(?:^|[\s\[({,;|])(?:text|inputs?|src|source|tgt|targets?|labels?|preds?|predictions?|predicted|decoded|"
    r"documents?|dialogue|summary|question|answer|prompt|instruction|title|context|samples?|examples?|references?|ref|hyp|"
    r"hypothesis|generated|response|user|assistant|human|gpt|article|sentence|review|body|comment|post|query|passage|q|a|"
    r"질문|답변|답|본문|원문|요약|정답|예측|문서|대화|입력|출력|지시|예시|샘플)"
    r"\s?#?\d{0,8}\s?(?:[:=]|->|=>)|^[STHDP]-\d{1,9}(?:\t|$)",
    re.IGNORECASE,
)
_ASKING = re.compile(
    r"\b(?:how|why|avoid\w{0,3}|prevent\w{0,3}|fix\w{0,3}|solve\w?|help\w?|such as|e\.g|my|you|your|we|our|users?|"
    r"people|means?|says?|said|raises|throws|causes|gives|leads? to|results? in|instead of|about|regarding)\b|\bI\b|"
    r"\bwhat\b(?!\(\))",
    re.IGNORECASE,
)
_TALK = re.compile(r"\b(?:when|if|get|gets|getting|got|saw|see|like)\b", re.IGNORECASE)
_CODE = re.compile(
    r"(?:raise|except|if|elif|assert|return|print|from|import|class|def|with|warnings\.warn|"
    r"log(?:ger|ging)?\.\w{1,20})\b|[rbfu]{0,2}[\"']|"
    r".{0,200}\b(?:raise|except|if|elif|assert|print|return|grep|echo)\b.{0,80}[\"'(]$"
)
_TROUBLE = re.compile(
    r"error|exception|fail|fatal|critical|abort|caught|warn|what\(\)|terminat|crash|panic|reason|오류|예외|에러|실패|경고",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![\w./])[a-z]{2,20}(?![\w./=])|[가-힣]{2,20}")
NEAREST = 1000  # characters before a message that tell whether it is quoted
_MOST_WORDS = 3  # more plain words than these before a message make a sentence that speaks of it
_OPENING = ('"', "'", "`", "“", "‘", "\\")


def clean(text: str) -> str:
    """``text`` without terminal escapes and null bytes, its middle left out where it is very long."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if "\0" in text:
        text = text.replace("\0", "")
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} … {text[-TAIL:]}"


def message_start(text: str) -> int:
    """Where the line's own text begins: after time stamps, ranks, hosts, process ids and a progress bar."""
    at = 0
    for _ in range(6):
        match = _PREFIX.match(text, at) or _BAR.match(text, at)
        if match is None or match.end() == at:
            break
        at = match.end()
    return at


def is_frame(text: str) -> bool:
    """Whether the line is a frame of a traceback; the line after it, where indented more, is source code."""
    return _FRAME.match(text, message_start(text)) is not None


def is_source(text: str, after_frame: bool) -> bool:
    """Whether the line shows source code: under a frame, in a box drawn around it, or marked by an arrow."""
    body = text[message_start(text) :]
    if after_frame and body.startswith("    "):
        return True
    return body.lstrip().startswith(("│", "┃", "❱", "-->", "--->", "---->", "----->"))


def is_quoted(lead: str) -> bool:
    """Whether what follows ``lead`` on a line is quoted: as a value of data, in a sentence, or in source code."""
    lead = lead.strip()
    if not lead or _RAISED.match(f"{lead} "):
        return False
    keys = _KEY.findall(lead[-NEAREST:])
    if keys:
        return keys[-1] not in _LOG_KEYS
    if lead.startswith(("#", ">", "//", "* ", "- ", "+ ", "•")) or _CODE.match(lead):
        return True
    bare = _CLASSES.sub("", f"{lead[-NEAREST:]} ").strip()
    if not bare:
        return False
    if _DATA.search(bare) or _ASKING.search(bare):
        return True
    if _TROUBLE.search(bare):
        return False
    if _TALK.search(bare):
        return True
    if bare.endswith(_OPENING):
        return True
    return len(_WORD.findall(bare)) > _MOST_WORDS


MOST_KEPT = 8  # of one log: the first of a failure tells most, the last is what Python ended with
_HINTS = (
    "Error", "Exception", "rror: ", "panicked at", "command not found", "open file", "what():", "core dumped",
    "not recognized as an internal", "不是内部或外部命令", "내부 또는 외부 명령",
    "received by PID", "lib.Arrow", "error loading model", "failed to load model",
    "failed (exitcode:", "llama runner process has terminated", "panic: ",
)  # fmt: skip
# a class of an exception at the start of a line's own text, as Python prints what it raises
_RAISED_LINE = re.compile(
    r"(?:(?:ERROR|CRITICAL|FATAL)\b[^A-Za-z]{0,40}\[[^\]]{0,80}\]:? )?"  # vLLM's logger
    r"(?:(?:[A-Za-z_]\w{0,60}\.){0,8}(?:[A-Z]\w{0,60})?(?:Error|Exception|Failure)|pyarrow\.lib\.Arrow\w{1,20})"
    r"(?:\(\w{1,60}\))?(?::|\s{0,4}$)"
)
_METRIC = re.compile(
    r"(?:Error|Exception|Failure)(?::\s{0,20}[-+\d.,e%]{0,20})?\Z"
)  # unless a traceback stands before it
_SAID = re.compile(
    r"\S{1,200}\.py: error: |error: |Fatal Python error: |\s{0,4}what\(\): |panic: |thread '.{1,60}' panicked at|"
    r"Error .{1,80} at line \d{1,9} in file |"
    r"\S{0,200}: (?:line \d{1,9}: )?\S{1,200}: command not found|\S{1,200}: can't open file |"
    # Windows: a command that is not found
    r"'.{1,200}'(?: is not recognized as an internal| 不是内部或外部命令|.{0,8} 내부 또는 외부 명령)|"
    r"(?:\S{1,200}: line \d{1,9}:\s{1,4}\d{1,9} )?Aborted\b.{0,20}\(core dumped\)|"
    r"\s{0,4}traceback : Signal \d{1,2} \(SIG\w{2,8}\) received by PID|"  # torchrun's summary
    r".{0,120}\bfailed \(exitcode: -?\d{1,10}\) local_rank: |"
    r"time=\S{1,40} level=ERROR .{0,400}llama runner process has terminated: |"  # Ollama
    # llama.cpp, which raises nothing
    r"(?:[\d.]{6,20} E )?(?:llama|gguf|common|srv)\w{0,60}:?\s{1,8}(?:\w{1,60}: )?"
    r"(?:error loading model|failed to load model)"
)
# what only hands on that another process, or a line before, failed
_HANDED_ON = re.compile(
    r"received by PID|failed \(exitcode: |llama runner process has terminated: exit status|ChildFailedError|"
    r"CalledProcessError|DistBackendError|ProcessExitedException|ProcessRaisedException"
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
        if not (_RAISED_LINE.match(own) or _SAID.match(own)) or (_METRIC.match(own) and not died):
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

    @property
    def at(self) -> Place:
        place: Place = self.row.get("at", "message")
        return place

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
    r"""[Tt]raining (?:is )?(?:finished|complete|completed|done)\b"""
)
_STEP = re.compile(r"\b(\d{1,9})/(\d{1,9}) \[")
_LOSS = re.compile(r"""['"]loss['"]: ?['"]?\d""")
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
        self._open: list[Evidence] = []  # evidence whose next lines may go on with it
        self._last_frame = self._last_module = -WINDOW - 1
        self._after_frame = False
        self._steps: dict[int, int] = {}  # steps in all → the first step seen after the last evidence
        self._losses = self._moved_on = self._ended_well = self._lines = 0

    def read(self, lines: Iterable[LogLine]) -> Scan:
        """The scan of a whole log."""
        rest = iter(lines)
        while block := list(islice(rest, BLOCK)):
            self._read_block(block)
        matches = (Match(each, self._counts[each], tuple(evidence)) for each, evidence in self._found.items())
        errors = tuple(self._errors.kept)
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
        framed = 'File "' in text
        raised = self._errors.may_be_in(text)
        if not (contexts or wordings or framed or raised or self._found or self._errors.kept):
            return
        for line, row in block:
            if self._found or self._errors.kept:
                self._follow(line, row)
                self._errors.go_on(row)
            if raised and self._errors.may_be_in(row):
                self._note_error(line, row)
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

    def _note_error(self, line: int, row: str) -> None:
        if self._errors.take(line, row, self._after_frame, line - self._last_module <= WINDOW):
            self._steps.clear()
            self._losses = 0

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
        self._steps.clear()
        self._losses = 0

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
        if "rain" in row and _RUN_ENDED_WELL.search(row[:BAR]):
            self._ended_well = line
