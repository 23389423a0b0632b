"""A config that does not fit → the steps that make it fit, in the field notes' order, with two ledgers apart. Pure.

GPU memory and host memory are different things: batches decide the one, workers the other. Each has its own steps.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from kb.core.hardware import Gpu
from kb.core.memory_report import HostLedger, MemoryReport, Phase
from kb.core.setup import TrainingSetup

# enough: fits with its whole band. over_target: within the limit, over the share the notes advise (host only).
# tight: the limit lies inside the band. short: even the low end is over it. unknown: there is no limit.
State = Literal["enough", "over_target", "tight", "short", "unknown"]

NEGLIGIBLE = 0.005  # of a peak: what changes less does not change


class Level(NamedTuple):
    """A predicted peak in bytes, with its band."""

    low: int
    expected: int
    high: int


class Step(NamedTuple):
    """One change, and the peak it lowers.

    ``name`` is a key of i18n under ``plan.step.`` and ``plan.lost.``; ``set`` gives each setting's value before and
    after, by vocabulary name. ``phase`` is the one of the GPU that the levels are of; None where they are of the host
    or of all phases. ``after`` is None where the model cannot predict the effect. ``values`` fill the sentence on what
    is lost. ``source`` and ``lines`` name the note that advises the step.
    """

    name: str
    set: Mapping[str, tuple[Any, Any]]
    before: Level
    after: Level | None
    phase: str | None = None
    values: Mapping[str, Any] = {}
    source: str | None = None
    lines: str | None = None


class Ledger(NamedTuple):
    """One resource: how it stands, the steps, how it stands after them.

    ``setup`` is the run after the steps; ``other_change`` is by how many bytes the steps change the peak of the other
    resource. ``larger_gpu`` is the smallest known GPU that holds the config as it is, where this one does not;
    ``larger_after`` the smallest that holds it after the steps, where this one still does not.
    """

    resource: Literal["gpu", "host"]
    state: State
    limit_bytes: int | None
    target_bytes: int | None
    before: Level
    after: Level
    state_after: State
    steps: tuple[Step, ...]
    setup: TrainingSetup
    other_change: int = 0
    larger_gpu: Gpu | None = None
    larger_after: Gpu | None = None

    @property
    def reached(self) -> bool:
        return self.state_after in ("enough", "over_target", "unknown")


class Plan(NamedTuple):
    """Both ledgers. ``effective`` is the effective batch before and after; they differ only where it cannot be held."""

    gpu: Ledger
    host: Ledger
    setup: TrainingSetup
    effective: tuple[int, int]

    @property
    def short(self) -> tuple[str, ...]:
        """The resources that are short, or may be."""
        return tuple(ledger.resource for ledger in (self.gpu, self.host) if ledger.state in ("short", "tight"))

    @property
    def reached(self) -> bool:
        return self.gpu.reached and self.host.reached


def level_of(phases: tuple[Phase, ...]) -> Level:
    """The peak over phases: that of the one with the highest upper end."""
    if not phases:
        return Level(0, 0, 0)
    phase = max(phases, key=lambda phase: phase.high_bytes)
    return Level(phase.low_bytes, phase.process_used_bytes, phase.high_bytes)


def host_level(host: HostLedger) -> Level:
    """From what was measured to the upper end, which is what to count with."""
    return Level(host.low_bytes, host.peak_bytes, host.peak_bytes)


def gpu_state(report: MemoryReport) -> State:
    states: Mapping[str, State] = {"fits": "enough", "tight": "tight", "likely_oom": "short", "oom": "short"}
    return states.get(report.verdict.status, "unknown")


def host_state(host: HostLedger, target_bytes: int | None) -> State:
    if host.limit_bytes is None:
        return "unknown"
    if host.low_bytes > host.limit_bytes:
        return "short"
    if host.peak_bytes > host.limit_bytes:
        return "tight"
    return "over_target" if target_bytes is not None and host.peak_bytes > target_bytes else "enough"


def combined(gpu: Ledger, host: Ledger, first: TrainingSetup) -> Plan:
    """The host's steps follow the GPU's, so that its setup is that of both."""
    return Plan(gpu, host, host.setup, (first.effective_batch_size, host.setup.effective_batch_size))
