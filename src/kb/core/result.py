"""What a check found, unit by unit. Every report is made from this and from nothing else."""

from collections.abc import Mapping

from kb.core.document import Unit
from kb.core.finding import SEVERITIES, Finding, NotEvaluated
from kb.core.hardware import Gpu, Machine
from kb.core.memory_report import MemoryReport, Verdict
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.core.setup import Assumption, TrainingSetup
from kb.core.typed import Any

INTERNAL = "config.internal"


class GpuFit(NamedTuple):
    """Whether a unit fits one known GPU; asked where no GPU is named or found."""

    gpu: Gpu
    verdict: Verdict
    process_used_bytes: int
    limit_bytes: int


class UnitResult(NamedTuple):
    """One unit's findings, in the order of their places, and its prediction where one could be made.

    ``note`` says why there is none: a key of i18n under ``note.``, with ``note_values`` for its placeholders.
    ``gpu_limit_bytes`` is what the prediction was held against: the GPU's memory, less what others use of it.
    """

    unit: Unit
    setup: TrainingSetup | None = None
    model: Model | None = None
    prediction: MemoryReport | None = None
    findings: tuple[Finding, ...] = ()
    not_evaluated: tuple[NotEvaluated, ...] = ()
    note: str | None = None
    note_values: Mapping[str, Any] = {}
    gpu_limit_bytes: int | None = None
    gpu_fits: tuple[GpuFit, ...] = ()
    if_so: tuple[Assumption, ...] = ()  # the assumptions that would each turn the GPU's verdict, were they false
    by_release: tuple[str, ...] = ()  # rules that hold for some releases of a library that nothing pins
    hidden_notes: int = 0  # findings of severity `info` that this report leaves out

    def counted(self) -> tuple[Finding, ...]:
        """The findings that nothing suppresses."""
        return tuple(finding for finding in self.findings if finding.suppressed is None)


class Unusable(NamedTuple):
    """An input that could not be checked: where, and why (a key of i18n with its values). ``path`` may be empty."""

    path: str
    key: str
    values: Mapping[str, Any]
    line: int | None = None
    column: int | None = None

    @property
    def internal(self) -> bool:
        """Whether the fault is kb's own and not the input's."""
        return self.key == INTERNAL


class CheckResult(NamedTuple):
    """``sources_text`` holds each path's text as read, so that a report can show the line of a finding."""

    machine: Machine
    units: tuple[UnitResult, ...]
    sources_text: Mapping[str, str]
    version: str
    rules_version: str
    unusable: tuple[Unusable, ...] = ()

    def summary(self) -> dict[str, int]:
        """How many findings of each severity count, and how many are suppressed."""
        counts = dict.fromkeys((*SEVERITIES, "suppressed"), 0)
        for unit in self.units:
            counts["info"] += unit.hidden_notes
            for finding in unit.findings:
                counts["suppressed" if finding.suppressed else finding.severity] += 1
        return counts
