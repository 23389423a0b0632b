"""The plan of one config, and what it changes there, in the config's own format; the steps that bring host
memory under its limit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kb.advice.estimator import Estimator
from kb.advice.plan import NEGLIGIBLE, Ledger, Level, Plan, Step, Steps, combined, host_level, host_state, level_of
from kb.advice.plan_gpu import plan_gpu
from kb.config.dialect.spelling import Speller, Written
from kb.core.document import Unit
from kb.core.hardware import Gpu
from kb.core.memory_report import MemoryReport
from kb.core.record import NamedTuple
from kb.core.result import UnitResult
from kb.core.setup import TrainingSetup

FUSED = "training.use_liger_kernel"
LENGTH = "data.max_source_length"
Pasting = Callable[[Sequence[Written]], TrainingSetup | None]


class PlannedUnit(NamedTuple):
    """What was planned, where, and the plan."""

    result: UnitResult
    estimator: Estimator
    plan: Plan
    written: tuple[Written, ...] = ()  # what the steps change, as the config's own format says it
    named: Mapping[str, str] = {}  # of code and command lines: the argument that says a setting the file does not have

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Every setting that the steps change: its value before the first and after the last step."""
        return changes_of(self.plan)


def changes_of(plan: Plan) -> dict[str, tuple[Any, Any]]:
    found: dict[str, tuple[Any, Any]] = {}
    for step in (*plan.gpu.steps, *plan.host.steps):
        for name, (before, after) in step.set.items():
            found[name] = (found[name][0] if name in found else before, after)
    return found


def plan_unit(
    result: UnitResult,
    estimator: Estimator,
    gpus: Mapping[str, Gpu],
    steps: Steps,
    speller: Speller | None = None,
    pasting: Pasting | None = None,
    naming: Speller | None = None,
) -> PlannedUnit:
    """Both ledgers of a checked unit whose model is known.

    Args:
        speller: of the unit's format; then no step is taken that the format cannot say.
        pasting: reads the config again with keys pasted into it.
        naming: of code and of command lines the format whose arguments say what the steps add.

    Raises:
        UnsupportedArchitectureError: the model's family is not known.
    """
    setup = result.setup
    if setup is None:
        raise ValueError(f"{result.unit.path}: nothing is set up to run")
    if speller is None:
        gpu = plan_gpu(setup, estimator, gpus, steps)
        plan = combined(gpu, plan_host(setup, gpu.setup, estimator), setup)
        return PlannedUnit(result, estimator, plan, named=_arguments(result.unit, plan, naming) if naming else {})

    def spelt(name: str, value: Any, preferred: str = "qlora") -> Written | None:
        return _spelt(speller, result.unit, name, value, preferred)

    gpu = plan_gpu(
        setup,
        estimator,
        gpus,
        steps._replace(
            writes=lambda name, value: spelt(name, value) is not None or speller.has_by_default(name, value),
            loaded=_Reading(result, speller, pasting).loaded if pasting is not None else steps.loaded,
            liger=speller.spell(result.unit, FUSED, True, "qlora") is not None,
        ),
    )
    plan = combined(gpu, plan_host(setup, gpu.setup, estimator), setup)
    quantized = plan.setup.method == "qlora"
    written = []
    for name, (_, value) in changes_of(plan).items():
        found = spelt(name, value, "qlora" if quantized else "lora")
        if found is not None:
            written.append(found)
    return PlannedUnit(result, estimator, plan, tuple(written))


def _spelt(speller: Speller, unit: Unit, name: str, value: Any, preferred: str = "qlora") -> Written | None:
    """The setting as the format has it; None where it has no key for the value."""
    return next((found for each in _names(name, unit) if (found := speller.spell(unit, each, value, preferred))), None)


def _arguments(unit: Unit, plan: Plan, speller: Speller) -> dict[str, str]:
    """By setting, the argument that says it: the one that is written, else the format's."""
    named = {}
    for name, (_, value) in changes_of(plan).items():
        there = next((unit.settings[each] for each in _names(name, unit) if each in unit.settings), None)
        found = _spelt(speller, unit, name, value)
        if there is not None and there.path:
            named[name] = str(there.path[-1])
        elif found is not None:
            named[name] = found.path[-1]
    return named


def _names(name: str, unit: Unit) -> tuple[str, ...]:
    """The settings that may say it in the unit's format: of TRL's trainers one length holds the whole row."""
    if name == FUSED:
        return FUSED, "model.fused_loss"
    said = [each for each in ("trl.max_seq_length", "trl.max_length") if each in unit.settings]
    if name == LENGTH and LENGTH not in unit.settings and (said or unit.dialect == "trl"):
        return (said[0] if said else "trl.max_length",)
    return (name,)


# What follows from other settings in a format: types, and the adapters that its program makes unless it is told others.
READ_AGAIN = ("weights", "prepare_for_kbit", "half_tables", "trained_type", "lora_r", "lora_dropout")


class _Reading:
    """What a config says once it has other settings; asked once for each method and type of computing."""

    def __init__(self, result: UnitResult, speller: Speller, pasting: Pasting) -> None:
        assert result.setup is not None
        self._result, self._first, self._speller, self._pasting = result, result.setup, speller, pasting
        self._found: dict[tuple[str, bool, bool], dict[str, Any]] = {_kind(self._first): _types(self._first)}

    def loaded(self, setup: TrainingSetup) -> TrainingSetup:
        """``setup`` with the types in which its format loads and trains what is trained and computed in as it says, and
        the adapters that it then makes."""
        kind = _kind(setup)
        if kind not in self._found:
            values = {"lora.enabled": setup.method != "full", "training.bf16": setup.bf16, "training.fp16": setup.fp16}
            if setup.method == "qlora":
                values["quantization.load_in_4bit"] = True
            first = _values(self._first)
            spelt = [
                self._speller.spell(self._result.unit, name, value, setup.method)
                for name, value in values.items()
                if value != first.get(name)
            ]
            read = self._pasting([one for one in spelt if one is not None])
            self._found[kind] = _types(read if read is not None else setup)
        return setup._replace(**self._found[kind])


def _types(setup: TrainingSetup) -> dict[str, Any]:
    return {name: getattr(setup, name) for name in READ_AGAIN}


def _kind(setup: TrainingSetup) -> tuple[str, bool, bool]:
    return setup.method, setup.bf16, setup.fp16


def _values(setup: TrainingSetup) -> dict[str, bool]:
    return {"lora.enabled": setup.method != "full", "training.bf16": setup.bf16, "training.fp16": setup.fp16}


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
