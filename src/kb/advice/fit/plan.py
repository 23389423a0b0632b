"""The plan of a run: what each resource needs, the ways there are, and the steps that bring host memory under its
limit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from kb.advice.fit.estimator import Estimator, precision_for
from kb.advice.fit.recommend import SHORTEST_SOURCE
from kb.advice.run.run_kind import NAMES
from kb.core.facts import FactType
from kb.core.hardware import Gpu
from kb.core.memory_report import HostLedger, MemoryReport, Phase
from kb.core.record import NamedTuple
from kb.core.setup import LigerKernels, TrainingSetup
from kb.memory import default_targets, targets_for

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


# Fields of the setup → what a config calls them.
_NAMES = {
    "gradient_checkpointing": "training.gradient_checkpointing",
    "bf16": "training.bf16",
    "fp16": "training.fp16",
    "optim": "training.optim",
    "weights": "model.torch_dtype",
    "fused_loss": "training.use_liger_kernel",
    "fsdp": "training.fsdp",
    "max_source_length": "data.max_source_length",
    "lora_target_modules": "lora.target_modules",
    "load_in_4bit": "quantization.load_in_4bit",
    "bnb_4bit_use_double_quant": "quantization.bnb_4bit_use_double_quant",
}
SHARDED = "full_shard auto_wrap"  # what `fsdp` is set to
TRAIN_BATCH, SHORTER = "train_batch", "shorter_inputs"
# Where nobody says another order: `options` of rules/tradeoffs/gpu-memory-steps.yaml.
ORDER_ID = "gpu-memory-steps"
Writes = Callable[[str, Any], bool]


class Option(NamedTuple):
    """Something to switch on: the step's name, and fields of the setup."""

    name: str
    fields: Mapping[str, Any]


class Steps(NamedTuple):
    """What decides which steps there are.

    ``order``: names of steps, what costs least of the result first. ``fused_types``: model types whose loss Liger
    computes in pieces. ``writes`` tells whether the config's format has a key for a value of a setting, ``loaded``
    gives the setup the types that its format then loads and trains in: in some these follow from other settings.
    ``liger`` are Liger's kernels, which fuse more than the loss; None where the format's key is that of another loss.
    """

    order: tuple[str, ...]
    fused_types: tuple[str, ...] = ()
    writes: Writes = lambda name, value: True
    loaded: Callable[[TrainingSetup], TrainingSetup] = lambda setup: setup
    liger: LigerKernels | None = LigerKernels()


def steps_from(guide: Mapping[str, Any], facts: Mapping[str, FactType]) -> Steps:
    """The steps as the rules order them."""
    options = guide["tradeoffs"][ORDER_ID]["options"]
    order = tuple(option["id"].replace("-", "_") for option in options)
    return Steps(order, facts["model.has_liger_loss"].model_types)


def options_for(setup: TrainingSetup, estimator: Estimator, steps: Steps) -> list[Option]:
    """What can be switched on for this run and be written in its format, in order; ``train_batch`` among them."""
    there = {
        option.name: option
        for option in _options(setup, estimator, steps)
        if all(steps.writes(name, after) for name, (_, after) in said(option.fields, setup).items())
    }
    autocast = there.get("autocast")
    if autocast is not None and setup.method == "full" and with_options(setup, [autocast], steps).weights == "fp16":
        del there["autocast"]  # what is loaded in fp16 cannot be trained with mixed precision
    there[TRAIN_BATCH] = Option(TRAIN_BATCH, {})
    return [there[name] for name in steps.order if name in there]


def _options(setup: TrainingSetup, estimator: Estimator, steps: Steps) -> Iterator[Option]:
    architecture = estimator.model.architecture
    if not setup.do_train:
        return
    if not setup.gradient_checkpointing:
        yield Option("checkpointing", {"gradient_checkpointing": True})
    if not setup.fused_loss and architecture.model_type in steps.fused_types and not setup.predict_with_generate:
        yield Option("fused_loss", {"fused_loss": True, "liger_kernels": steps.liger})
    autocast = precision_for(estimator.gpu, architecture).autocast
    if not setup.autocast and setup.weights == "fp32" and autocast != "fp32":
        yield Option("autocast", {autocast: True})
    if setup.method == "lora" and setup.weights == "fp32" and autocast == "bf16":
        yield Option("base_in_half", {"weights": "bf16"})
    adapter: dict[str, Any] = {}
    if setup.lora_target_modules is None and default_targets(architecture) is None:  # PEFT wants them named
        adapter["lora_target_modules"] = targets_for(architecture)
    if setup.method == "full":
        if setup.optim.startswith("adamw") and "8bit" not in setup.optim and not setup.spread.deepspeed:
            yield Option("optimizer_8bit", {"optim": "adamw_bnb_8bit"})
        yield Option("lora", {"method": "lora", "prepare_for_kbit": False, **adapter})
    if setup.world_size > 1 and setup.method != "qlora" and not (setup.fsdp or setup.zero_stage):
        yield Option("sharded", {"fsdp": True})
    if setup.method != "qlora":
        quantized = {"load_in_4bit": True, "bnb_4bit_use_double_quant": True, "prepare_for_kbit": True}
        yield Option("qlora", {"method": "qlora", **quantized, **adapter})
    length = setup.max_source_length // 2
    if length >= SHORTEST_SOURCE and not architecture.uncut:
        yield Option(SHORTER, {"max_source_length": length})


def compatible(options: Sequence[Option]) -> list[Option]:
    """Adapters make an 8-bit optimizer needless, 4-bit weights are adapters already and are not sharded."""
    names = {option.name for option in options}
    dropped = {"optimizer_8bit"} if names & {"lora", "qlora", "sharded"} else set()
    dropped |= {"lora", "base_in_half", "sharded"} if "qlora" in names else set()
    return [option for option in options if option.name not in dropped]


def with_options(setup: TrainingSetup, options: Iterable[Option], steps: Steps) -> TrainingSetup:
    """The setup with the options on, weights loaded as the format does then."""
    for option in options:
        changed = setup._replace(**option.fields)
        kinds = {(each.method, each.bf16, each.fp16) for each in (setup, changed)}
        setup = changed if len(kinds) == 1 else steps.loaded(changed)
    return setup


def said(changes: Mapping[str, Any], setup: TrainingSetup) -> dict[str, tuple[Any, Any]]:
    """The change as a config says it."""
    said: dict[str, tuple[Any, Any]] = {}
    if "method" in changes and setup.method == "full":
        said["lora.enabled"] = (False, True)
    for field, value in changes.items():
        if field in _NAMES:
            said[_NAMES[field]] = (_as_said(field, getattr(setup, field)), _as_said(field, value))
    return said


def _as_said(field: str, value: Any) -> Any:
    if field == "weights":
        return NAMES[value]
    if field == "fsdp":
        return SHARDED if value else ""
    return value


WORKERS = "training.dataloader_num_workers"
PIN, PERSISTENT = "training.dataloader_pin_memory", "training.dataloader_persistent_workers"
NOTE, ORDER, WORKERS_LINES = "guide-memory", "100-104", "32-41"  # of the original guide


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
            self._step("workers", WORKERS, workers // 2, lines=ORDER)

    def _refine_workers(self) -> None:
        """As many as are advised on this machine: what the target and the cores allow."""
        workers, advised = self.setup.dataloader_num_workers, self.estimator.workers(self.setup)
        if not self._over_target or advised is None:
            return
        if advised < workers:
            self._step("workers_to_target" if advised else "no_workers", WORKERS, advised, lines=WORKERS_LINES)

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
        self.steps.append(Step(name, changed, before, after, None, {"before": old, "after": value}, NOTE, lines))


def plan_host(first: TrainingSetup, setup: TrainingSetup, estimator: Estimator) -> Ledger:
    """The host's ledger for a run that the GPU's steps made of ``first`` into ``setup``.

    Without steps where there is enough, or where nothing says how much there is.
    """
    return HostPlanner(first, setup, estimator).plan()
