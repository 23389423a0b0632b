"""The steps of a plan that bring host memory under its limit: workers, pinned memory."""

from typing import Any

from kb.advice.estimator import Estimator
from kb.advice.plan import NEGLIGIBLE, Ledger, Level, Step, host_level, host_state, level_of
from kb.core.memory_report import MemoryReport
from kb.core.setup import TrainingSetup

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
