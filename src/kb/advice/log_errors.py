"""The lines of a log that raise an error, whatever it is, and where it was raised. Pure."""

import re
from collections.abc import Iterable

from kb.advice.log_lines import clean, is_source, message_start
from kb.core.record import NamedTuple

MOST_KEPT = 8  # of one log: the first of a failure tells most, the last is what Python ended with
_HINTS = (
    "Error", "Exception", "rror: ", "panicked at", "command not found", "open file", "what():", "core dumped",
    "not recognized as an internal", "不是内部或外部命令", "내부 또는 외부 명령",
    "received by PID", "lib.Arrow", "error loading model", "failed to load model",
    "failed (exitcode:", "llama runner process has terminated", "panic: ",
    "ERROR", "FATAL", "failed", "terminating", "abort", "unexpectedly stopped", "corruption", "double free",
)  # fmt: skip
# a class of an exception at the start of a line's own text, as Python prints what it raises
_RAISED_LINE = re.compile(
    r"(?:(?:ERROR|CRITICAL|FATAL)\b[^A-Za-z]{0,40}\[[^\]]{0,80}\]:? )?"  # vLLM's logger
    r"((?:[A-Za-z_]\w{0,60}\.){0,8}(?:[A-Z]\w{0,60})?(?:Error|Exception|Failure)|pyarrow\.lib\.Arrow\w{1,20})"
    r"(?:\(\w{1,60}\))?(?::|\s{0,4}$)"
)
# under the frames of a traceback a class of any name is an error, unless it ends a program that was asked to end
_ENDS_TRACEBACK = re.compile(
    r"(?:[A-Za-z_]\w{0,60}\.){1,8}(?!\w{0,60}(?:Exit|Interrupt|Quit|Warning)\b)[A-Z]\w{0,60}(?:: |\s{0,4}$)"
)
_UNDER_FRAME = 4  # lines from the last frame to that: its source, marks under it
_IGNORED = "Exception ignored "  # what Python goes on after, with a traceback below
_METRIC = re.compile(
    r"(?:Error|Exception|Failure)(?::\s{0,20}[-+\d.,e%]{0,20})?\Z"
)  # unless a traceback stands before it
_SAID = re.compile(
    r"\S{1,200}\.py: error: |error: |Fatal Python error: |\s{0,4}what\(\): |panic: |thread '.{1,60}' panicked at|"
    r"\S{1,60}(?: [\w-]{1,40})?: error: (?:argument |the following arguments are required)|"
    r"LLVM ERROR: |libc\+\+abi: terminating due to uncaught exception|"  # what(), as macOS says it
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
    r"(?:error loading model|failed to load model)|\S{1,300}:\d{1,7}: GGML_ASSERT\("
)
# what may speak of a failure: shown where nothing raises one, and where it stands at the log's end
_SPOKEN = re.compile(
    r"(?!.{0,60}(?:[Ww]arn|WARN|\bINFO|\bDEBUG))(?:\[?(?:ERROR|FATAL|CRITICAL|Error)\b\]?[ :]|[Ff]atal(?: error)?: |"
    r"\d{3} Internal Server Error: |(?:zsh|bash|sh): (?:abort|segmentation fault)|"
    r"(?:double free|malloc|free|munmap_chunk|corrupted)\b.{0,40}(?:corruption|invalid|corrupted)|"
    r"[\w:]{3,60}: .{0,200}\b(?:failed\b|Error[A-Z])|[A-Z]{2}\d{4}: |"
    r".{0,200}\b(?:unexpectedly stopped|died unexpectedly|has terminated|terminating due to)\b)"
)
# a count of none that failed, and what is gone on after
_NO_FAILURE = re.compile(
    r"\b(?:0|no|none|nothing)\s(?:\w{1,30}\s)?failed\b|\bfailed\b[:=]?\s{0,3}0(?![\w.])|\b(?:retry(?:ing)?|continuing|skipping)\b",
    re.IGNORECASE,
)
_SERVES = ('HTTP/1.1" ', "server is listening on", "Application startup complete")
_LAST_LINES = 20  # what was spoken of further up did not end the run
# what only hands on that another process, or a line before, failed
_HANDED_ON = re.compile(
    r"received by PID|failed \(exitcode: |llama runner process has terminated: exit status|ChildFailedError|"
    r"CalledProcessError|DistBackendError|ProcessExitedException|ProcessRaisedException|"
    r"Engine core initialization failed|EngineDeadError|ActorDiedError|ActorUnavailableError|WorkerCrashedError|"
    r"unexpectedly stopped|died unexpectedly|\bqueue\.Empty\b|DeadKernelError|BrokenProcessPool|TerminatedWorkerError|"
    r"(?i:sigquit) (?:received|from a child)"
)
_SPEAKS_OF_MEMORY = re.compile(
    r"\b(?:of|enough|insufficient|no|more|free|available|GPU|host|CUDA|device|system|shared) memory\b|"
    r"\bmemory (?:is|was|allocat|limit|exceed|budget|leak)|\bV?RAM\b|\boom\b|\bto allocate\b|cannot allocate|메모리",
    re.IGNORECASE,
)
# faults of a kernel, which CUDA and HIP report at a later call; others are given by the call itself
_OF_DEVICE = re.compile(
    r"\b(CUDA|HIP)(?: driver)? error: (?:.{0,20}(?:illegal|misaligned|device-side|uncorrectable|launch)\b|"
    r"unknown error|device not ready|unspecified)"
)
# what Python itself raises of names, types, files and values: whatever the cause, no memory was asked for
_OF_CODE = frozenset((
    "AttributeError", "FileNotFoundError", "ImportError", "IndentationError", "IndexError", "JSONDecodeError",
    "KeyError", "ModuleNotFoundError", "NameError", "NotADirectoryError", "PermissionError", "SyntaxError", "TypeError",
    "UnboundLocalError", "UnicodeDecodeError", "ZeroDivisionError",
))  # fmt: skip
# of these, those that come of releases beside each other, and those that come of what a library was given
_OF_RELEASES = frozenset(("AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "TypeError"))
_OF_WHAT_IS_GIVEN = frozenset(("FileNotFoundError", "KeyError", "NotADirectoryError", "PermissionError"))
# a plain value where a library takes something else; None is as often the library's own
_PLAIN = re.compile(
    r"(?:Type|Attribute)Error: "
    r"'(float|int|str|list|tuple|dict|set|bool|bytes|function|generator|ndarray|Tensor)' object "
)
_OF_MEMORY = re.compile(
    r"(?<!pin_)memory|alloc|\boom\b|\bv?ram\b|\d ?[kmgt]i?b\b|out of resource|\bswap|\bkilled\b|메모리", re.IGNORECASE
)
MEMORY_REACH = 20  # lines before an error in which a shortage of memory may have been said
_FRAME_PARTS = re.compile(
    r'\s{0,80}File (?:"(?P<file>[^"]{1,400})", line (?P<line>\d{1,7})(?:, in (?P<function>\S{1,80}))?'
    r"|(?P<noted>\S{1,400}):(?P<row>\d{1,7}), in (?P<method>[\w.<>]{1,80})\()"  # as notebooks print it
    r"|(?P<cell>Cell In ?\[\d{1,6}\]), line (?P<cell_row>\d{1,7})"
    r"|\[?(?P<colab>/\S{1,300}\.py)(?:\]\(\S{1,80}\))? in (?P<callee>[\w.<>]{1,80})\("
)
_COUNTED = " validation error"
_COUNTS = re.compile(r"\b\d{1,4} validation errors? for \S")  # pydantic: below it a field, then its fault, indented
_NEW_TRACEBACK = "Traceback (most recent call last)"
# frameworks that are often run from a clone of their repository: their folder by what lies in it and above it, for a
# project may have one of that name
_CLONED = (
    r"llamafactory[/\\](?:chat|cli|data|eval|extras|hparams|launcher|model|train|webui)|"
    r"megatron[/\\](?:bridge|core|legacy|training)[/\\]|sglang[/\\](?:lang|multimodal_gen|srt)[/\\]|"
    r"verl[/\\](?:experimental|models|protocol|single_controller|tools|trainer|utils|workers)|"
    r"(?<=accelerate[/\\]src[/\\])accelerate[/\\]|(?<=axolotl[/\\]src[/\\])axolotl[/\\]|"
    r"(?<=peft[/\\]src[/\\])peft[/\\]|(?<=transformers[/\\]src[/\\])transformers[/\\]|"
    r"(?<=swift[/\\])swift[/\\](?:arguments|cli|llm|megatron|pipelines|rlhf_trainers|rollout|trainers|tuners|utils)|"
    r"(?<=trl[/\\])trl[/\\](?:cli|experimental|extras|generation|models|scripts|trainer)|"
    r"(?<=vllm[/\\])vllm[/\\](?:config|engine|entrypoints|executor|model_executor|v1|worker)|"
    r"(?<=[dD]eep[sS]peed[/\\])deepspeed[/\\](?:launcher|ops|runtime|utils)|"
    r"(?<=unsloth[/\\])unsloth[/\\](?:kernels|models)|unsloth_compiled_cache[/\\]"  # what Unsloth writes itself
)
_PACKAGE = re.compile(rf"(?:site|dist)-packages[/\\](\w[^\n]{{0,480}})|[/\\]((?:{_CLONED})[^\n]{{0,400}})")
_NOT_OWN = re.compile(
    rf"[/\\](?:{_CLONED})|"
    r"(?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python\d|[/\\]Python\d{2,3}[/\\]Lib[/\\]|[/\\](?:bin|Scripts)[/\\]|^<"
)
# frames that only hand a call on, or look a name up for whoever asked: what an error is about lies in the frame before
_HANDS_ON = re.compile(
    r"torch[/\\](?:__init__|utils[/\\]_contextlib)\.py|trl[/\\]extras[/\\]profiling\.py|"
    r"pydantic[/\\](?:_internal[/\\]_dataclasses|main)\.py|ray[/\\]_private[/\\]|multiprocess(?:ing)?[/\\]pool\.py|"
    r"transformers[/\\](?:configuration_utils|tokenization_utils_base)\.py __getattr"
)
_UNDER_ALL = re.compile(
    r"^torch[/\\]nn[/\\]|[/\\]lib(?:64)?[/\\]python\d[\d.]{0,5}[/\\](?!(?:site|dist)-packages)|^<frozen "
)
_HANDING = frozenset((
    "__getattr__", "__getattribute__", "_call_impl", "_wrapped_call_impl", "decorate_context", "__init__",
    "model_validate", "get_objects", "wrapper", "auto_init_wrapper", "get", "worker",
))  # fmt: skip
# a line of code that looks whether all is as it should be, and stops where it is not
_CHECKS = re.compile(
    r"assert |raise (?:Value|Type|Key|Attribute|Runtime|NotImplemented|Assertion|Import|\w{0,40}(?:Config|Validation))"
    r"\w{0,20}Error\("
    r"(?!.{0,400}(?: from \w{1,20}$|\{(?:e|ex|exc|err|error)\b|\bstr\((?:e|ex|exc|err)\)))"  # not another's words
)
# words of an error that tells of another one
_TELLS_OF_ANOTHER = re.compile(
    r"\b(?:[Ff]ailed|died|crashed|terminated|(?<!and )above|following error|root cause|internal error|bug|"
    r"has no attribute)\b|\[Errno |^[\[({]"
)
_LOOKS = re.compile(r"_?(?:is|has)_\w{1,60}_available\Z")  # a function whose error is an answer, and ends nothing
_FRAME_REACH = 12  # lines from the last frame to the error: its source, marks under it, a notebook's context
_SOURCE_LINE = re.compile(r"    (?!\s{0,8}\d{1,6}\s)")  # a notebook shows lines around it too, with their numbers
_ARROW = re.compile(r"-{1,6}> ?\d{1,6} (.{1,400})")  # and marks the one that failed
_SOURCE = 200  # characters kept of a line of code
_PROCESS = re.compile(r"(?:rank|default|worker|pid=|TP|PP|DP)\s?\d{1,9}|^\d{1,4}(?=: )")
_MOST_PROCESSES = 64  # whose frames are kept apart


class Frame(NamedTuple):
    """Where in code: ``library`` is the package that has the file, empty where it is none, ``cloned`` where that runs
    from its repository instead of an installation; ``source`` the line of code, where the log shows it.
    """

    file: str
    line: int | None
    function: str
    library: str
    source: str = ""
    cloned: bool = False

    @classmethod
    def of(cls, row: str) -> "Frame | None":
        """The frame that a line of a traceback shows."""
        match = _FRAME_PARTS.match(row)
        if match is None:
            return None
        file = match["file"] or match["noted"] or match["cell"] or match["colab"]
        line = match["line"] or match["row"] or match["cell_row"]
        function = match["function"] or match["method"] or match["callee"] or ""
        package = _PACKAGE.search(file)
        shown = (package[1] or package[2]) if package else file
        name = re.split(r"\W", shown, maxsplit=1)[0] if package else ""
        return cls(shown, int(line) if line else None, function, name, cloned=bool(package and package[2]))

    @property
    def hands_on(self) -> bool:
        """Whether it only passes a call on to what fails, or a name on to what lacks it."""
        if _UNDER_ALL.search(self.file):
            return True
        name = self.function.rpartition(".")[2]
        return name in _HANDING and _HANDS_ON.search(f"{self.file} {name}") is not None


class ErrorLine(NamedTuple):
    """A line that raises an error. ``died``: its traceback goes up to the module, so that nothing caught it.

    ``raised``: the frame that raised it; ``called``: the last frame of the project's own files that led there, where
    that is another; ``spoken``: no error was raised, the line alone speaks of a failure; ``near_memory``: it, or a
    line before it, speaks of memory.
    """

    line: int
    text: str
    died: bool
    raised: Frame | None = None
    called: Frame | None = None
    spoken: bool = False
    near_memory: bool = False

    @property
    def name(self) -> str:
        """The error's class, without its module."""
        match = _RAISED_LINE.match(self.text)
        return match[1].rpartition(".")[2] if match else ""

    @property
    def of_code(self) -> str:
        """The error's class where that tells that no memory was asked for, else nothing."""
        return self.name if self.name in _OF_CODE and not self.near_memory else ""

    @property
    def of_device(self) -> str:
        """CUDA or HIP, where the line hands on what the device said: the frame that raised it may not be the one."""
        match = _OF_DEVICE.search(self.text)
        return match[1] if match else ""

    @property
    def speaks_of_memory(self) -> bool:
        """Whether the line itself does."""
        return _SPEAKS_OF_MEMORY.search(self.text) is not None

    @property
    def plain(self) -> str:
        """The plain type of the value that a library met in place of what it takes, else nothing."""
        match = _PLAIN.match(self.text)
        return match[1] if match and self.library else ""

    @property
    def of_releases(self) -> bool:
        """Whether such an error in a library often comes of releases that do not go together."""
        return self.name in _OF_RELEASES

    @property
    def of_a_check(self) -> bool:
        """Whether a package looked for this itself, and stopped with words of its own."""
        if self.of_device or self.raised is None or not self.raised.library:
            return False
        if _COUNTED in self.text and _COUNTS.search(self.text):
            return True
        if not _CHECKS.match(self.raised.source):
            return False
        words = self.text.partition(": ")[2]
        return len(words.split()) > 2 and _TELLS_OF_ANOTHER.search(words) is None and not self.handed_on

    @property
    def library(self) -> str:
        """The installed package that raised it, unless what that was given is what such an error is about."""
        if self.raised is None or self.raised.cloned or self.name in _OF_WHAT_IS_GIVEN:
            return ""
        return self.raised.library

    @property
    def shows_own(self) -> bool:
        """Whether a line of the project's own is known that raised it or led there."""
        return self.called is not None or (self.raised is not None and not _NOT_OWN.search(self.raised.file))

    @property
    def handed_on(self) -> bool:
        """Whether it only says that something else failed."""
        return _HANDED_ON.search(self.text) is not None


class ErrorLines:
    """Takes the lines that raise an error, and keeps the first and the last of them."""

    def __init__(self) -> None:
        self.kept: list[ErrorLine] = []
        self.spoken: list[ErrorLine] = []  # the last lines that speak of a failure
        self._open = 0  # lines to come that go on with the last: what it says follows a colon, or a count of faults
        self._frames: dict[str, tuple[int, Frame, Frame | None]] = {}  # by process: line, last frame, last own one
        self._ignored: dict[str, int] = {}  # by process: the line that says that the error below it is ignored

    @property
    def seen(self) -> bool:
        """Whether any line was kept, or spoke of a failure."""
        return bool(self.kept or self.spoken)

    @staticmethod
    def may_be_in(text: str) -> bool:
        return any(hint in text for hint in _HINTS)

    @staticmethod
    def may_have_frames(text: str) -> bool:
        return "File " in text or "Cell In" in text or ".py in " in text or ".py](" in text

    def see_frame(self, line: int, row: str) -> None:
        """Note the frame that a line shows, its line of code after it, or that a traceback begins."""
        if _NEW_TRACEBACK in row:
            process = _process(row[: message_start(row)])
            self._frames.pop(process, None)
            if self._ignored.get(process) != line - 1:
                self._ignored.pop(process, None)
        elif _IGNORED in row:
            self._ignored[_process(row[: message_start(row)])] = line
        if not self.may_have_frames(row):
            if "-> " in row or any(line == at + 1 for at, _, _ in self._frames.values()):
                self._see_source(line, row)
            return
        start = message_start(row)
        frame = Frame.of(row[start:])
        if frame is not None and len(self._frames) < _MOST_PROCESSES:
            process = _process(row[:start])
            _, before, own = self._frames.get(process, (0, None, None))
            if before is not None and frame.hands_on:
                self._frames[process] = line, before, own
            else:
                self._frames[process] = line, frame, own if _NOT_OWN.search(row) else frame

    def ends_traceback(self, line: int, row: str) -> bool:
        """Whether the line stands under the frames of its process and begins with a class, as what was raised does."""
        if not any(line - at <= _UNDER_FRAME for at, _, _ in self._frames.values()):
            return False
        start = message_start(row)
        at = self._frames[process][0] if (process := _process(row[:start])) in self._frames else 0
        return 0 < line - at <= _UNDER_FRAME and _ENDS_TRACEBACK.match(row, start) is not None

    def _see_source(self, line: int, row: str) -> None:
        """Keep the line of code of the frame above, where the same process wrote it."""
        start = message_start(row)
        at, frame, own = self._frames.get(_process(row[:start]), (0, None, None))
        arrow = _ARROW.match(row, start)
        if frame is None or frame.source or line - at > (_FRAME_REACH if arrow else 1):
            return
        if arrow or _SOURCE_LINE.match(row, start):
            sourced = frame._replace(source=(arrow[1] if arrow else row[start:]).strip()[:_SOURCE])
            self._frames[_process(row[:start])] = at, sourced, sourced if own is frame else own

    def note_near(self, line: int, rows: Iterable[str]) -> None:
        """Note of an error kept at ``line`` whether one of ``rows``, it and those before it, tells of memory."""
        if self.kept and self.kept[-1].line == line and any(_OF_MEMORY.search(row) for row in rows):
            self.kept[-1] = self.kept[-1]._replace(near_memory=True)

    def take(self, line: int, row: str, after_frame: bool, died: bool) -> bool:
        """Keep the line where it raises an error; whether it does.

        Args:
            line: its number.
            row: its text.
            after_frame: the line before is a frame of a traceback, so that this one is source code.
            died: the frames before it go up to the module.
        """
        row = clean(row)
        start = message_start(row)
        own = row[start:].rstrip()
        if is_source(row, after_frame):
            return False
        said = _RAISED_LINE.match(own) or _SAID.match(own) or self.ends_traceback(line, row)
        if own.startswith(("Error: ", "error: ")) and not died and _NO_FAILURE.search(own):
            return False
        if not said or (_METRIC.match(own) and not died):
            if _SPOKEN.match(own) and not _METRIC.match(own) and not _NO_FAILURE.search(own):
                self.spoken = [*self.spoken[-2:], ErrorLine(line, own, False, spoken=True)]
            return False
        process = _process(row[:start])
        raised, called = self._places(line, process)
        if self._ignored.pop(process, None) is not None or (raised is not None and _LOOKS.match(raised.function)):
            return False
        self._keep(ErrorLine(line, own, died, raised, called))
        return True

    def _keep(self, error: ErrorLine) -> None:
        """Keep the error, once: another rank, a retry, or the one that was raised from it says the same."""
        same = next((each for each in self.kept if each.text == error.text), None)
        if same is not None:
            if not ((error.died and not same.died) or (error.called and not same.shows_own)):
                return
            self.kept.remove(same)
        elif len(self.kept) == MOST_KEPT:
            self.kept.pop()
        self.kept.append(error)
        self._open = (
            1 if error.text.endswith(":") else 2 if _COUNTED in error.text and _COUNTS.search(error.text) else 0
        )

    def _places(self, line: int, process: str) -> tuple[Frame | None, Frame | None]:
        """The frame that led to the error at ``line`` of a process, and the project's own one before it."""
        at, frame, own = self._frames.get(process, (0, None, None))
        if frame is None or line - at > _FRAME_REACH:
            return None, None
        return frame, None if own is frame else own

    def go_on(self, row: str) -> None:
        """A line after one that was kept: it may be what that says is wrong, or an answer of a server that lives on."""
        if any(sign in row for sign in _SERVES):
            self.spoken = []
        own = row[message_start(row) :].rstrip()
        if not self._open or not own:
            self._open = 0
            return
        last = self.kept.pop()
        self.kept.append(last._replace(text=f"{last.text} {own.strip()}"))
        self._open = 0 if own.startswith("  ") else self._open - 1

    def at_end(self, lines: int) -> list[ErrorLine]:
        """What was raised; where nothing was, what the last of ``lines`` lines speak of."""
        return self.kept or [each for each in self.spoken if lines - each.line < _LAST_LINES]


def _process(prefix: str) -> str:
    """Which process wrote a line that has ``prefix`` before its own text, as far as that tells."""
    return " ".join(_PROCESS.findall(prefix)) if prefix else ""


def telling_errors(lines: list[ErrorLine], most: int) -> tuple[ErrorLine, ...]:
    """Up to ``most`` of the lines, less those that only hand on an error of another process where there are others."""
    own = [each for each in lines if not each.handed_on] or lines
    return tuple(own) if len(own) <= most else (own[0], *own[-(most - 1) :])
