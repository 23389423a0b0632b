"""The plan of a run: what each resource needs, the ways there are, and the steps for host memory."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from kb.advice.attempts import targets_for
from kb.advice.estimator import Estimator
from kb.advice.usual import precision_for
from kb.core.hardware import Gpu
from kb.core.memory_report import HostLedger, MemoryReport, Phase
from kb.core.setup import TrainingSetup
from kb.memory import default_targets

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


_NAMES = {
    "gradient_checkpointing": "training.gradient_checkpointing",
    "bf16": "training.bf16",
    "fp16": "training.fp16",
    "optim": "training.optim",
    "lora_target_modules": "lora.target_modules",
    "load_in_4bit": "quantization.load_in_4bit",
    "bnb_4bit_use_double_quant": "quantization.bnb_4bit_use_double_quant",
}


class Option(NamedTuple):
    """Something to switch on: the step's name, fields of the setup, the notes' lines that advise it."""

    name: str
    fields: Mapping[str, Any]
    lines: str | None = None


def options_for(setup: TrainingSetup, estimator: Estimator) -> list[Option]:
    """What can be switched on, in the notes' order and then by how much it changes the run."""
    found: list[Option] = []
    if not setup.gradient_checkpointing:
        found.append(Option("checkpointing", {"gradient_checkpointing": True}, "109"))
    autocast = precision_for(estimator.gpu, estimator.model.architecture).autocast
    if not setup.autocast and setup.weights == "fp32" and autocast != "fp32":
        found.append(Option(f"precision_{autocast}", {autocast: True}, "110"))
    adapter: dict[str, Any] = {}
    if (
        setup.lora_target_modules is None and default_targets(estimator.model.architecture) is None
    ):  # PEFT wants them named
        adapter["lora_target_modules"] = targets_for(estimator.model.architecture)
    if setup.method == "full":
        if setup.optim.startswith("adamw") and "8bit" not in setup.optim:
            found.append(Option("optimizer_8bit", {"optim": "adamw_bnb_8bit"}))
        found.append(Option("lora", {"method": "lora", "prepare_for_kbit": False, **adapter}))
    if setup.method != "qlora":
        quantized = {"load_in_4bit": True, "bnb_4bit_use_double_quant": True, "prepare_for_kbit": True}
        found.append(Option("qlora", {"method": "qlora", **quantized, **adapter}))
    return found


def compatible(options: Sequence[Option]) -> list[Option]:
    """Adapters make an 8-bit optimizer needless, and 4-bit weights are adapters already."""
    names = {option.name for option in options}
    dropped = {"lora", "optimizer_8bit"} if "qlora" in names else {"optimizer_8bit"} if "lora" in names else set()
    return [option for option in options if option.name not in dropped]


def with_options(setup: TrainingSetup, options: Iterable[Option]) -> TrainingSetup:
    """The setup with the options on."""
    for option in options:
        setup = setup._replace(**option.fields)
    return setup


def said(changes: Mapping[str, Any], setup: TrainingSetup) -> dict[str, tuple[Any, Any]]:
    """The change as a config says it."""
    said: dict[str, tuple[Any, Any]] = {}
    if "method" in changes and setup.method == "full":
        said["lora.enabled"] = (False, True)
    for field, value in changes.items():
        if field in _NAMES:
            said[_NAMES[field]] = (getattr(setup, field), value)
    return said


WORKERS = "training.dataloader_num_workers"
PIN, PERSISTENT = "training.dataloader_pin_memory", "training.dataloader_persistent_workers"
_NOTE, _ORDER, _WORKERS_LINES = "guide-memory", "100-104", "32-41"


class HostPlanner:
    """Lowers host memory step by step, until it is within the container's limit and the share the notes advise.

    Args:
        first: the run as the config has it.
        setup: the same after the GPU's steps: adapters save smaller checkpoints.
    """

    def __init__(self, first: TrainingSetup, setup: TrainingSetup, estimator: Estimator) -> None:
        self.estimator = estimator
        self.first = first
        self.setup = setup
        self.steps: list[Step] = []

    def plan(self) -> Ledger:
        before = self.estimator.predict(self.first)
        state = host_state(before.host, self.estimator.host_target_bytes)
        changed = self._report()
        if state in ("over_target", "tight", "short"):
            self._after_gpu(host_level(before.host), host_level(changed.host))
            self._halve_workers()
            self._refine_workers()
            self._unpin()
            self._let_workers_go()
        after = self._report()
        return Ledger(
            resource="host",
            state=state,
            limit_bytes=before.host.limit_bytes,
            target_bytes=self.estimator.host_target_bytes,
            before=host_level(before.host),
            after=host_level(after.host),
            state_after=host_state(after.host, self.estimator.host_target_bytes),
            steps=tuple(self.steps),
            setup=self.setup,
            other_change=level_of(after.phases).expected - level_of(changed.phases).expected,
        )

    def _report(self) -> MemoryReport:
        return self.estimator.predict(self.setup)

    def _peak(self, **changes: Any) -> int:
        return self.estimator.predict(self.setup._replace(**changes)).host.peak_bytes

    @property
    def _over_limit(self) -> bool:
        return host_state(self._report().host, None) in ("tight", "short")

    @property
    def _over_target(self) -> bool:
        return host_state(self._report().host, self.estimator.host_target_bytes) != "enough"

    def _after_gpu(self, before: Level, after: Level) -> None:
        """What the GPU's steps free here comes first: they are taken anyway."""
        if before.high - after.high > NEGLIGIBLE * before.high:
            self.steps.append(Step("gpu_steps", {}, before, after))

    def _halve_workers(self) -> None:
        """The notes' first step."""
        workers = self.setup.dataloader_num_workers
        if self._over_limit and workers > 1:
            self._step("workers", WORKERS, workers // 2, lines=_ORDER)

    def _refine_workers(self) -> None:
        """As many as are advised on this machine: what the target and the cores allow."""
        workers, advised = self.setup.dataloader_num_workers, self.estimator.workers(self.setup)
        if not self._over_target or advised is None:
            return
        if advised < workers:
            self._step("workers_to_target" if advised else "no_workers", WORKERS, advised, lines=_WORKERS_LINES)

    def _unpin(self) -> None:
        if not self._over_target or not self.setup.dataloader_pin_memory:
            return
        peak = self._peak()
        if peak - self._peak(dataloader_pin_memory=False) > NEGLIGIBLE * peak:
            self._step("pin_memory", PIN, False, lines="37")

    def _let_workers_go(self) -> None:
        """Workers that stay are beside evaluation's own; the model has no figure for that."""
        if self.setup.dataloader_persistent_workers:
            level = host_level(self._report().host)
            self.setup = self.setup._replace(dataloader_persistent_workers=False)
            self.steps.append(Step("persistent_workers", {PERSISTENT: (True, False)}, level, None))

    def _step(self, name: str, setting: str, value: Any, *, lines: str) -> None:
        field = setting.rpartition(".")[2]
        old, before = getattr(self.setup, field), host_level(self._report().host)
        self.setup = self.setup._replace(**{field: value})
        changed: dict[str, tuple[Any, Any]] = {setting: (old, value)}
        if name == "no_workers" and self.setup.dataloader_persistent_workers:
            self.setup = self.setup._replace(dataloader_persistent_workers=False)  # a ValueError without workers
            changed[PERSISTENT] = (True, False)
        after = host_level(self._report().host)
        self.steps.append(Step(name, changed, before, after, None, {"before": old, "after": value}, _NOTE, lines))


def plan_host(first: TrainingSetup, setup: TrainingSetup, estimator: Estimator) -> Ledger:
    """The host's ledger for a run that the GPU's steps made of ``first`` into ``setup``.

    Without steps where there is enough, or where nothing says how much there is.
    """
    return HostPlanner(first, setup, estimator).plan()
