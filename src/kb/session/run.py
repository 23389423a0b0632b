"""A whole run: paths in, one :class:`CheckResult` out, with what could not be read said apart.

What a file is by its name, its text, and what was found in it is a :class:`FileResult`.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from kb import __version__
from kb.config.files import (
    MAX_BYTES,
    SHELL,
    ConfigError,
    is_dockerfile,
    most_bytes,
    read_at_most,
    too_large,
    unreadable,
)
from kb.config.text.encoding import MARK, Decoded, decode, stops_at_mark
from kb.core.finding import Finding, Severity
from kb.core.record import NamedTuple
from kb.core.result import INTERNAL, CheckResult, UnitResult, Unusable
from kb.core.text import Text, UserError, described
from kb.core.typed import TYPE_CHECKING, Any, Literal
from kb.knowledge.problems import KnowledgeError

if TYPE_CHECKING:
    from kb.session.file import FileChecker

Kind = Literal["config", "shell", "command", "text", "python", "notebook", "image"]
CODE = ("python", "notebook")
CHARTS = ("servingEngineSpec", "kubeai.org/")  # in a file that a chart or an operator starts servers from
# Programs and images of servers, by a part of their names.
SERVERS = ("vllm", "sglang", "text-generation-", "llama-server", "llama.cpp:")


class FileResult(NamedTuple):
    """A file's text as decoded, and what was found in each of its units. ``raw``: its bytes, where they are no text."""

    path: str
    text: str
    encoding: str
    results: tuple[UnitResult, ...]
    raw: bytes | None = None
    others: tuple["FileResult", ...] = ()  # files that this one brings in, with findings of their own
    part_of: str = ""  # the file that brings this one in


def kind_of(path: str) -> Kind:
    """What a file holds, by its name. Of prose only the encoding is checked."""
    if path.endswith(SHELL):
        return "shell"
    if path.endswith(".py"):
        return "python"
    if path.endswith(".ipynb"):
        return "notebook"
    if is_dockerfile(path):
        return "image"
    return "text" if path.endswith((".md", ".txt", ".rst")) else "config"


def decode_kind(raw: bytes, kind: Kind, path: str = "") -> Decoded:
    """The file's text, with the events of its encoding that do harm to what reads such a file."""
    if kind in CODE:
        from kb.session.code_files import decode_code  # of programs and notebooks alone

        return decode_code(raw, kind)
    decoded = decode(raw)
    if kind == "shell" or (kind == "config" and stops_at_mark(decoded.text or "", path)):
        return decoded
    return decoded._replace(events=tuple(event for event in decoded.events if event.kind != MARK))


def decode_file(raw: bytes, kind: Kind) -> tuple[str, str] | bytes:
    """A file's text and encoding as a check has them; the bytes themselves, where they are no text."""
    try:
        decoded = decode_kind(raw, kind)
    except ConfigError:
        return raw
    return raw if decoded.text is None else (decoded.text, decoded.encoding)


class Overrides(NamedTuple):
    """What a project changes about findings: severities by rule, and rules ignored in files of a pattern."""

    severity: Mapping[str, Severity]
    ignored: Callable[[str], Collection[str]]  # path → rule ids

    @staticmethod
    def none() -> "Overrides":
        return Overrides(severity={}, ignored=lambda path: ())


def each_once(results: Sequence[UnitResult]) -> list[list[Finding]]:
    """The findings of each unit, without those that an earlier unit has word for word at the same place: a section
    inherits settings from the top, a function of a program is called for several runs, and several commands read one
    config. What is wrong there is one fault, not one for each.
    """
    seen: list[Finding] = []
    told: list[tuple[str, str, Text, Mapping[str, Any]]] = []
    shares: list[list[Finding]] = []
    for result in results:
        settings = result.unit.settings.values()
        joined = {setting.span: setting.joined for setting in settings if setting.joined}
        share: list[Finding] = []
        for finding in result.findings:
            said = (finding.rule, joined.get(finding.span, ""), finding.message, finding.facts)
            if finding in seen or (said[1] and said in told):
                continue
            share.append(finding)
            told.append(said)
        seen += share
        shares.append(share)
    return shares


STDIN = "-"
# What a file is that can be read, and says nothing of a run.
OWN_TAG = "config.tag"
_NOTHING_OF_A_RUN = frozenset(
    f"config.{name}"
    for name in (
        *("empty", "only-comments", "no-settings", "list-at-top", "not-notebook"),
        *("no-python-call", "no-cell-call", "no-command", "no-command-but-program"),
    )
)


class Input(NamedTuple):
    """Something to check. ``named``: the user named this very file, so that a fault in it is theirs to hear."""

    path: str
    kind: Kind | None = None
    raw: bytes | None = None
    named: bool = True


class Run(NamedTuple):
    """Every file's result, in order, and the inputs that could not be checked."""

    files: tuple[FileResult, ...]
    unusable: tuple[Unusable, ...]

    def result(self, checker: "FileChecker") -> CheckResult:
        return CheckResult(
            machine=checker.machine,
            units=tuple(unit for file in self.files for unit in file.results),
            sources_text={file.path: file.text for file in self.files},
            version=__version__,
            rules_version=checker.catalog.version,
            unusable=self.unusable,
        )


def run(
    inputs: Iterable[Input], checker: "FileChecker", faults: Sequence[Unusable] = (), *, none_is_fine: bool = False
) -> Run:
    """Check each input in turn. A file that nobody named and that turns out to be no config is passed over in silence,
    unless every one is; one that cannot be read and says something of a run is never passed over.

    Args:
        faults: what is already known to be unusable: paths that lead to nothing.
        none_is_fine: whether there may be no config among the inputs.
    """
    files: list[FileResult] = []
    unusable = list(faults)
    for given in without_group_files(inputs):
        outcome = check_input(given, checker)
        if isinstance(outcome, Unusable):
            unusable.append(outcome)
        elif outcome is not None:
            files += shown_files(given, outcome)
    if not files and not unusable and not none_is_fine:
        unusable.append(Unusable(path="", key="config.none-recognised", values={}))
    return Run(files=tuple(files), unusable=tuple(unusable))


def without_group_files(inputs: Iterable[Input]) -> Iterator[Input]:
    """The inputs, but no file that a primary config above it brings in; one that the user named stays."""
    groups = None
    for given in inputs:
        if not given.named:
            if groups is None:
                from kb.session.composed import GroupFolders  # of Hydra's folders alone

                groups = GroupFolders()
            if groups.owner(given.path) is not None:
                continue
        yield given


def shown_files(given: Input, outcome: FileResult) -> list[FileResult]:
    """The result with those of the files that it brings in; nothing where it is not worth showing."""
    if given.named or any(_worth_showing(unit) for unit in outcome.results):
        return [outcome, *outcome.others]
    return []


def check_input(given: Input, checker: "FileChecker") -> FileResult | Unusable | None:
    """One input's result, or why there is none; None of one that nobody named and that is no config.

    A fault of kb itself is the fault of this input alone.
    """
    raw = given.raw
    try:
        raw = read_bytes(given.path) if raw is None else raw
        result = checker.check(raw, given.path, given.kind)
        if result.results and all(
            unit.unit.sets_up_nothing and not unit.findings and not unit.hidden_notes for unit in result.results
        ):
            raise ConfigError("config.no-python-call" if given.path.endswith(".py") else "config.no-cell-call")
        idle = all(each.unit.sets_up_nothing and not each.findings for each in result.results)
        if idle and given.path.endswith(".py") and not given.named:
            return result if checker.known.belongs(raw, "python") else None  # it was read for what it imports
        return result
    except UserError as error:
        fault = _fault_of(error, given.path)
        if given.named or fault.path != given.path or _is_config(given, raw, fault.key, checker):
            return fault
        return None
    except KnowledgeError:
        raise
    except Exception as error:
        return internal_fault(given.path, error)


def _fault_of(error: UserError, path: str) -> Unusable:
    line, column = (error.line, error.column) if isinstance(error, ConfigError) else (None, None)
    return Unusable(getattr(error, "path", None) or path, error.key, error.values, line, column)


def _is_config(given: Input, raw: bytes | None, fault: str, checker: "FileChecker") -> bool:
    """Whether a file that cannot be read is a config all the same; of one without any bytes nobody can tell."""
    if fault in _NOTHING_OF_A_RUN:
        return False
    if raw is None:
        if fault != "config.too-large":
            return True
        raw = read_at_most(given.path, MAX_BYTES)
    kind = given.kind or kind_of(given.path)
    # a loader of its own reads it, or it is a record of results: its names are as likely its own
    if fault in (OWN_TAG, "config.too-many-values") and kind == "config":
        return checker.known.marked(raw)
    return checker.known.belongs(raw, kind)


def internal_fault(path: str, error: Exception) -> Unusable:
    """A fault of kb itself with one input; its traceback is shown where ``KB_DEBUG`` is set."""
    if os.environ.get("KB_DEBUG"):
        import traceback

        traceback.print_exception(error)
    return Unusable(path, INTERNAL, described(error))


def _worth_showing(unit: UnitResult) -> bool:
    """In a folder, a file of another kind is not ours to speak of, unless its text itself is at fault."""
    if unit.unit.dialect is None:
        return any(finding.rule in ("mojibake", "not-utf8") for finding in unit.findings) and bool(unit.unit.known_keys)
    return bool(unit.findings) or not unit.unit.sets_up_nothing


def read_bytes(path: str) -> bytes:
    """The file's bytes, or standard input's for ``-``; one byte past the limit is enough to refuse it.

    Raises:
        ConfigError: it is missing, cannot be read, is a folder, or is larger than any config.
    """
    try:
        raw = sys.stdin.buffer.read(MAX_BYTES + 1) if path == STDIN else read_at_most(path, most_bytes(path) + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(raw) > most_bytes(path):
        size = os.path.getsize(path) if path != STDIN else 0
        raise too_large(max(size, len(raw)), most_bytes(path))
    return raw


def findings_of(result: CheckResult) -> Iterator[tuple[UnitResult, Finding]]:
    """Every finding with its unit, suppressed ones too."""
    for unit in result.units:
        for finding in unit.findings:
            yield unit, finding


def with_findings(result: CheckResult, findings: Sequence[Finding]) -> CheckResult:
    """The result with its findings replaced, one for one, in the order of :func:`findings_of`."""
    shares = iter(findings)
    units = tuple(unit._replace(findings=tuple(next(shares) for _ in unit.findings)) for unit in result.units)
    return result._replace(units=units)
