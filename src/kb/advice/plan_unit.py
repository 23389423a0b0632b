"""The plan of one config, and what it changes there, in the config's own format."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kb.advice.estimator import Estimator
from kb.advice.plan import Plan, Steps, combined
from kb.advice.plan_gpu import plan_gpu
from kb.advice.plan_host import plan_host
from kb.config.dialect.spelling import Speller, Written
from kb.core.document import Unit
from kb.core.hardware import Gpu
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
) -> PlannedUnit:
    """Both ledgers of a checked unit whose model is known.

    Args:
        speller: of the unit's format; then no step is taken that the format cannot say.
        pasting: reads the config again with keys pasted into it.

    Raises:
        UnsupportedArchitectureError: the model's family is not known.
    """
    setup = result.setup
    if setup is None:
        raise ValueError(f"{result.unit.path}: nothing is set up to run")
    if speller is None:
        gpu = plan_gpu(setup, estimator, gpus, steps)
        return PlannedUnit(result, estimator, combined(gpu, plan_host(setup, gpu.setup, estimator), setup))

    def spelt(name: str, value: Any, preferred: str = "qlora") -> Written | None:
        names = _names(name, result.unit)
        return next((found for each in names if (found := speller.spell(result.unit, each, value, preferred))), None)

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


def _names(name: str, unit: Unit) -> tuple[str, ...]:
    """The settings that may say it in the unit's format: of TRL's trainers one length holds the whole row."""
    if name == FUSED:
        return FUSED, "model.fused_loss"
    said = [each for each in ("trl.max_seq_length", "trl.max_length") if each in unit.settings]
    if name == LENGTH and LENGTH not in unit.settings and (said or unit.dialect == "trl"):
        return (said[0] if said else "trl.max_length",)
    return (name,)


class _Reading:
    """What a config says once it has other settings; asked once for each method and type of computing."""

    def __init__(self, result: UnitResult, speller: Speller, pasting: Pasting) -> None:
        assert result.setup is not None
        self._result, self._first, self._speller, self._pasting = result, result.setup, speller, pasting
        self._found: dict[tuple[str, bool, bool], dict[str, Any]] = {_kind(self._first): _types(self._first)}

    def loaded(self, setup: TrainingSetup) -> TrainingSetup:
        """``setup`` with the types in which its format loads and trains what is trained and computed in as it says."""
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
    return {name: getattr(setup, name) for name in ("weights", "prepare_for_kbit", "half_tables", "trained_type")}


def _kind(setup: TrainingSetup) -> tuple[str, bool, bool]:
    return setup.method, setup.bf16, setup.fp16


def _values(setup: TrainingSetup) -> dict[str, bool]:
    return {"lora.enabled": setup.method != "full", "training.bf16": setup.bf16, "training.fp16": setup.fp16}
