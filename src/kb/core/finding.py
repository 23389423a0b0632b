"""What a rule found, where, and what would mend it. Nothing here is worded: a report does that, in one language."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kb.core.text import Text

Severity = Literal["error", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
Safety = Literal["safe", "unsafe"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a file. Lines and columns count from 1, in characters; offsets from 0; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int
    start: int = -1
    end: int = -1


@dataclass(frozen=True, slots=True)
class Edit:
    """One change to a config, by canonical setting name.

    ``op`` is ``set`` (to ``value``), ``remove``, ``rename`` (the key becomes ``value``) or ``replace`` (the text of
    ``span`` becomes ``value``; for faults of the text itself, which have no setting).
    """

    op: Literal["set", "remove", "rename", "replace"]
    name: str
    value: Any = None
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """Edits that go together. Safe: the same result, or the config could not have run.

    ``certain``: its condition is known to hold, so that it may be applied; else it is only offered.
    """

    safety: Safety
    title: Text
    edits: tuple[Edit, ...]
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    """Why a finding does not count: a comment in the file, or the baseline."""

    kind: Literal["comment", "baseline"]
    reason: str
    until: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule firing at one place. ``facts`` holds every number that its message and expression used."""

    rule: str
    severity: Severity
    confidence: Confidence
    message: Text
    span: Span
    facts: Mapping[str, Any] = field(default_factory=dict)
    related: tuple[tuple[str, Span], ...] = ()
    fixes: tuple[Fix, ...] = ()
    suppressed: Suppression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotEvaluated:
    """A rule that could not be decided, and the facts it lacked."""

    rule: str
    needs: tuple[str, ...]
