"""What a file is by its name, its text, and what was found in it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from kb.config.files import SHELL, ConfigError, is_dockerfile
from kb.config.text.encoding import MARK, Decoded, decode, stops_at_mark
from kb.core.finding import Finding, Severity
from kb.core.record import NamedTuple
from kb.core.result import UnitResult
from kb.core.text import Text

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
        from kb.session.code_files import decode_code

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
