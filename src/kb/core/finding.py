"""What a rule found, where, and what would mend it. Nothing here is worded: a report does that, in one language."""

from collections.abc import Mapping

from kb.core.expression import Tree
from kb.core.facts import Certainty, Origin
from kb.core.record import NamedTuple
from kb.core.setup import Assumption
from kb.core.text import Text
from kb.core.typed import Any, Literal

Severity = Literal["error", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
Safety = Literal["safe", "unsafe"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


class Span(NamedTuple):
    """A place in a file. Lines and columns count from 1, in characters; offsets from 0; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int
    start: int = -1
    end: int = -1

    def beginning(self) -> "Span":
        """The empty place where it begins."""
        return Span(self.line, self.column, self.line, self.column, self.start, self.start)


class Edit(NamedTuple):
    """One change to a config, by canonical setting name.

    ``op`` is ``set`` (to ``value``), ``remove``, ``rename`` (the key becomes ``value``) or ``replace`` (the text of
    ``span`` becomes ``value``; for faults of the text itself, which have no setting).
    """

    op: Literal["set", "remove", "rename", "replace"]
    name: str
    value: Any = None
    span: Span | None = None


class Fix(NamedTuple):
    """Edits that go together. Safe: the same result, or the config could not have run.

    ``certain``: its condition is known to hold, so that it may be applied; else it is only offered, ``when`` is that
    condition, and ``needs`` are the facts that would settle it. ``barred``: the file's form is in the way; whoever
    applies it nevertheless is told what.
    """

    safety: Safety
    title: Text
    edits: tuple[Edit, ...]
    certain: bool = True
    when: Tree | None = None
    needs: tuple[str, ...] = ()
    barred: bool = False


class Suppression(NamedTuple):
    """Why a finding does not count: a comment in the file, or the baseline."""

    kind: Literal["comment", "baseline"]
    reason: str
    until: str | None = None
    line: int | None = None


class Because(NamedTuple):
    """One fact that decided a finding: its value, how it is known, and where it is said (``12:5``), or empty."""

    name: str
    value: Any
    origin: Origin
    place: str = ""


class OnRelease(NamedTuple):
    """The releases of a library for which a finding holds, where the project allows others too.

    ``since`` and ``before`` bound them, None where they do not; ``specifier`` is what the project says, at ``place``.
    """

    library: str
    since: tuple[int, ...] | None
    before: tuple[int, ...] | None
    specifier: str
    place: str


class Finding(NamedTuple):
    """One rule firing at one place. ``facts`` holds every number that its message and expression used.

    ``certainty`` is that of the least certain fact that decided it; ``because`` lists those. ``if_so`` are the
    assumptions that would each turn it, were they false, and ``on_releases`` the releases that it waits for.
    """

    rule: str
    severity: Severity
    confidence: Confidence
    message: Text
    span: Span
    facts: Mapping[str, Any] = {}
    related: tuple[tuple[str, Span], ...] = ()
    fixes: tuple[Fix, ...] = ()
    suppressed: Suppression | None = None
    certainty: Certainty = "certain"
    because: tuple[Because, ...] = ()
    if_so: tuple[Assumption, ...] = ()
    on_releases: tuple[OnRelease, ...] = ()

    def ready(self, safety: Safety) -> Fix | None:
        """The first fix of ``safety`` that may be applied: its condition is known to hold, and nothing bars it."""
        return next((fix for fix in self.fixes if fix.certain and not fix.barred and fix.safety == safety), None)

    @property
    def as_likely(self) -> bool:
        """Whether it rests on the verdict on a phase (``memory.train.status``), and that is no more than likely."""
        verdicts = (each.value for each in self.because if each.name != "memory.status")
        return any(value == "likely_oom" for value in verdicts)

    def depending(self) -> Fix | None:
        """The first safe fix that waits for something unknown, where no safe fix may be applied yet."""
        if self.ready("safe"):
            return None
        return next((fix for fix in self.fixes if fix.safety == "safe" and not fix.certain), None)


class NotEvaluated(NamedTuple):
    """A rule that could not be decided, and the facts it lacked."""

    rule: str
    needs: tuple[str, ...]
