"""What every command shares: the language, the arguments' words, and how a run ends.

Exit codes: 0 clean, 1 findings, 2 the input or the arguments cannot be used, 3 an internal fault, 130 Ctrl-C.
"""

import argparse
import atexit
import contextlib
import errno
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from kb import leave_quietly
from kb.core.text import LANGUAGES, UserError, described, fill, nearest, os_reasons
from kb.core.typed import Any, NoReturn
from kb.knowledge import load_words, load_words_alone
from kb.knowledge.problems import KnowledgeError
from kb.report.values import format_value, printable, visible

CLEAN, FINDINGS, UNUSABLE, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 130
Words = Mapping[str, str]


def language_of(arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    """``--lang`` of the command line, else the locale's; English where that is neither Korean nor English."""
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        value = argument.partition("=")[2] if argument.startswith("--lang=") else None
        if argument == "--lang" and index + 1 < len(arguments):
            value = arguments[index + 1]
        if value in LANGUAGES:
            return value
    for name in ("LC_ALL", "LC_MESSAGES", "LANGUAGE", "LANG"):
        if environ.get(name):
            return "ko" if environ[name].lower().startswith("ko") else "en"
    return "en"


def said(words: Words, key: str, **values: Any) -> str:
    """The text of ``key`` with its placeholders filled; a key without a text shows itself."""

    def shown(name: str, form: str) -> str:
        return format_value(values.get(name), form, words=words)

    values = os_reasons(values, words)
    return fill(words.get(key, key), shown)


def counted(words: Words, key: str, number: int, **values: Any) -> str:
    """The text of ``key.one`` for 1, of ``key.many`` for any other number, which stands in it as ``n``."""
    return said(words, f"{key}.{'one' if number == 1 else 'many'}", n=number, **values)


def no_such_command(words: Words, name: str, known: Sequence[str]) -> str:
    """What to type instead of a first argument that is no command: an option before it, a file alone, a misspelling."""
    if name.startswith("-"):
        return said(words, "cli.option_before_command", name=name)
    if os.path.exists(name):
        return said(words, "cli.file_without_command", name=name)
    meant = nearest(name, known)
    name = name or '""'  # nothing is to be seen of it
    if meant:
        return said(words, "cli.unknown_command_near", name=name, meant=meant[0])
    return said(words, "cli.unknown_command", name=name)


_LATER = "(found out where it is shown)"  # in place of a usage, which few runs show


# What libraries and other programs call it, where a name that is spelled alike would be another setting.
_NAMED_ELSEWHERE = {
    name: option
    for option, names in {
        "--seq-in": "max_length max_seq_length max_seq_len seq_length seq_len sequence_len cutoff_len context",
        "--seq-out": "max_target_length",
        "--batch": "batch_size per_device_train_batch_size micro_batch_size",
        "--eval-batch": "per_device_eval_batch_size",
        "--accumulation": "gradient_accumulation_steps gradient_accumulation grad_accum",
        "--method lora": "lora use_lora peft",
        "--method qlora": "qlora load_in_4bit 4bit",
        "--precision bf16": "bf16",
        "--precision fp16": "fp16",
        "--attention flash": "flash_attention flash_attn flash_attention_2",
        "--attention": "attn_implementation",
        "--gpus": "num_gpus n_gpu nproc_per_node num_processes",
        "--zero": "deepspeed zero_stage",
        "--beams": "num_beams",
        "--gen-length": "max_new_tokens generation_max_length",
        "--host-memory": "ram memory cpu_memory",
        "--gpu 24GB:8.9": "vram",
    }.items()
    for name in names.split()
}


class _Negative:
    """Stands in for argparse's pattern of negative numbers, which takes more to compile."""

    def match(self, text: str) -> bool:
        return text[:1] == "-" and text[1:2].isdecimal()


class Parser(argparse.ArgumentParser):
    """argparse that speaks the user's language and suggests the option that was meant."""

    def __init__(self, *, words: Words, **options: Any) -> None:
        self.words = words
        self._speak()
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **options)
        # of `--host-memory -5GB` the value is at fault
        self._negative_number_matcher = _Negative()  # type: ignore[assignment]

    def _speak(self) -> None:
        """argparse asks its own name for gettext for each sentence; from here on this parser's language answers."""
        vars(argparse)["_"] = lambda sentence: self.words.get(f"argparse.{sentence}", sentence)

    def format_usage(self) -> str:
        self._find_usage()
        return super().format_usage()

    def format_help(self) -> str:
        self._find_usage()
        return super().format_help()

    def _find_usage(self) -> None:
        """The usage with its positional arguments, which argparse puts aside while it parses intermixed ones."""
        self._speak()
        if self.usage != _LATER:
            return
        self.usage = None
        for action in self._get_positional_actions():
            if hasattr(action, "save_nargs"):
                action.nargs, action.default = vars(action)["save_nargs"], vars(action)["save_default"]
        shown = super().format_usage().removeprefix(self.words.get("argparse.usage: ", ""))
        self.usage = shown.rstrip("\n").replace("%", "%%")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        return self._all_known(*self.parse_known_args(args, namespace))

    def parse_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        return self._all_known(*self.parse_known_intermixed_args(args, namespace))

    def _all_known(self, found: Any, unknown: Sequence[str]) -> Any:
        if unknown:
            self.error(self._unknown_option(unknown, found))
        return found

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._speak()
        return super().parse_known_args(args, namespace)

    def parse_known_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.usage is None:  # argparse would find it out, cut off as much of it as the English "usage: " is long
            self.usage = _LATER
        return super().parse_known_intermixed_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(UNUSABLE, f"{self.prog}: {printable(message)}\n")

    def _unknown_option(self, unknown: Sequence[str], found: Any) -> str:
        known = [option for action in self._actions for option in action.option_strings]
        name = unknown[0].partition("=")[0]
        elsewhere = _NAMED_ELSEWHERE.get(name.lstrip("-").lower().replace("-", "_"), "")
        if elsewhere == "--seq-in" and getattr(found, "engine", None):  # a server has one length for all that it holds
            elsewhere = "--max-model-len"
        meant = [elsewhere] if elsewhere.partition(" ")[0] in known else nearest(name, known)
        key = "cli.unknown_option_meant" if meant else "cli.unknown_option"
        return said(self.words, key, option=" ".join(unknown), meant=meant[0] if meant else "")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        # argparse makes one for each option it is told of; without a width each asks shutil for the terminal's
        try:
            width = max(40, min(int(os.environ.get("COLUMNS", "")), 120))
        except ValueError:
            width = 100
        super().__init__(prog, width=width)


def number(
    words: Words, *, whole: bool = True, low: float | None = None, high: float | None = None
) -> Callable[[str], float]:
    """A kind of value for argparse, which says to which option a refused one was given.

    Args:
        low: the smallest that is taken; with ``high``, the largest.
    """

    def read(text: str) -> float:
        try:
            found = int(text) if whole else float(text)
        except ValueError:
            found = None
        if found is not None and (low is None or high is None or low <= found <= high):
            return found
        key = f"cli.not_{'whole' if whole else 'number'}{'' if low is None else '_between'}"
        raise argparse.ArgumentTypeError(said(words, key, value=text[:40], low=low, high=high))

    return read


def run(command: Callable[[Sequence[str], str], int], arguments: Sequence[str] | None = None) -> int:
    """Run a command to its exit code; no traceback reaches a user unless ``KB_DEBUG`` is set."""
    try:
        return _run(command, sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


def program(command: Callable[[Sequence[str], str], int]) -> Callable[..., int]:
    """A command's ``main``: of the arguments that it is given, or else of the process', in the user's language."""
    return lambda arguments=None: run(command, arguments)


def _run(command: Callable[[Sequence[str], str], int], arguments: Sequence[str]) -> int:
    _hear_interrupts()
    language = language_of(arguments, os.environ)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it is open as long as the process runs
    if sys.stdout is None:
        _complain(said(load_words_or_none(language), "cli.stdout_closed"))
        return UNUSABLE
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character still gets the rest
    if _folder_is_gone():
        _complain(said(load_words_or_none(language), "cli.folder_gone"))
        return UNUSABLE
    code = CLEAN
    try:
        code = command(arguments, language)
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_output()
    except KnowledgeError as error:
        for problem in error.problems:
            print(problem.in_language(language), file=sys.stderr)
        words = load_words_alone(language)
        _complain(counted(words, "rules.broken", len(error.problems)))
        if overlays := getattr(error, "overlays", ()):
            _complain(said(words, "overlay.broken", names=[overlay.name for overlay in overlays]))
        return UNUSABLE
    except UserError as fault:
        _complain(worded(fault, language))
        return UNUSABLE
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
            _abandon_output()
            _complain(said(load_words_or_none(language), "cli.stdout_full", reason=error.strerror))
            return UNUSABLE
        if os.environ.get("KB_DEBUG"):
            raise
        _complain(said(load_words_or_none(language), "cli.internal", **described(error)))
        return INTERNAL
    return code


# What a stream says that takes no more; an error about a file carries the file's name.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def _hear_interrupts() -> None:
    """From here on Ctrl-C is an exception, so that what is half done is tidied up."""
    import _signal  # type: ignore[import-not-found] # as kb/__init__.py does

    if _signal.getsignal(_signal.SIGINT) is leave_quietly:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


class _LatePattern:
    """A pattern that is compiled when it is first used."""

    def __init__(self, *source: Any) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(*self._source), name)
        setattr(self, name, found)
        return found


def import_with_late_patterns(module: str) -> None:
    """Import a module so that each pattern which it makes meanwhile is compiled when it is first used.

    PyYAML makes a dozen, one over all of Unicode: a sixth of a short check, which uses two of them. For a process of
    kb's own alone: for that time ``re.compile`` is another function, to every thread.
    """
    compiled = re.compile
    re.compile = _LatePattern  # type: ignore[assignment]
    try:
        import_module(module)
    finally:
        re.compile = compiled


def leave(code: int) -> NoReturn:
    """End the process of a short command here: taking its modules and objects apart takes a tenth of its time.

    What asked to be called at the end is called, and what is written is written (mypy ends in the same way). A profiler
    or a debugger that watches the run sees its end.
    """
    if sys.getprofile() is not None or sys.gettrace() is not None:
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None where a program was started without it
        with contextlib.suppress(OSError, ValueError):  # a reader that is gone, a stream that is closed
            stream.flush()
    os._exit(code)


def _folder_is_gone() -> bool:
    """Whether the working folder was removed: what is relative to it leads nowhere."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def put(data: str | bytes) -> None:
    """Write data to standard output; text with no hidden characters in it.

    A reader that has seen enough (head, a pager) changes nothing of the run.
    """
    try:
        if isinstance(data, str):
            sys.stdout.write(visible(data))
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_output()


def _abandon_output() -> None:
    """Nothing more can be written; Python would complain again when it closes standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(text: str) -> None:
    print("\n".join(map(printable, f"kb: {text}".split("\n"))), file=sys.stderr)


def worded(fault: UserError, language: str) -> str:
    """The fault's sentence in one language, after its place in a file where it has one.

    ``within`` among its values is the file of settings that gave what is at fault.
    """
    text = said(load_words_or_none(language), fault.key, **fault.values)
    if within := fault.values.get("within"):
        return f"{within}: {text}"
    line, column, path = getattr(fault, "line", None), getattr(fault, "column", None), fault.values.get("path")
    return f"{path}:{line}:{column}: {text}" if path and line is not None else text


def load_words_or_none(language: str) -> Words:
    """The texts of a language, whatever is wrong with the rules: a fault of theirs has to be said."""
    try:
        return load_words(language)
    except Exception:  # a bug while they are compiled too: it is this that has to be said
        return load_words_alone(language)
