"""What a line of a log says itself, without its prefix; whether it is a frame, source code, or quoted. Pure.

A log mixes what programs report with what they print: source code in tracebacks, data sets, documentation. Only what
stands where a message begins is taken as said.
"""

import re

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
      | -\s\*\*Exception\sMessage:\*\*\s                                                  # a report of ComfyUI's
      | \#\#\[\w{1,20}\]\s?                                                               # GitHub Actions
      | -\s[\w.<>]{1,80}\s-\s(?:DEBUG|INFO|ERROR|CRITICAL)\s-\s                            # Python's logging, often
      | \|\s(?:DEBUG|INFO|ERROR|CRITICAL)\s{1,8}\|\s[\w.<>]{1,80}:[\w.<>]{1,80}:\d{1,6}\s-\s  # loguru
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
_TWICE = re.compile(r"(\S{1,200}(?:Error|Exception))\1: : ")  # what two processes raised at once
_TAGS = re.compile(r"(?:\[[^\[\]\n]{1,80}\]\s?){1,6}")  # of a logger or of CI: a task, a stage, a stream
_WORD = re.compile(r"(?<![\w./])[a-z]{2,20}(?![\w./=])|[가-힣]{2,20}")
NEAREST = 1000  # characters before a message that tell whether it is quoted
_MOST_WORDS = 3  # more plain words than these before a message make a sentence that speaks of it
_OPENING = ('"', "'", "`", "“", "‘", "\\")


def clean(text: str) -> str:
    """``text`` without escapes and null bytes; once where two processes wrote it; less the middle where it is long."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if "\0" in text:
        text = text.replace("\0", "")
    if ": : " in text and (match := _TWICE.match(text)):
        said = text[match.end() :].rstrip()
        if (once := said[: len(said) // 2]) * 2 == said:
            text = f"{match[1]}: {once}"
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
    tags = _TAGS.match(lead)
    lead = lead[tags.end() :].strip() if tags else lead
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
