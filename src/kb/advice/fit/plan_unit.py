"""The steps of a plan that bring GPU memory under its limit; and the plan of one config as a whole, with what it
changes there, in the config's own format.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kb.advice.batches import Ceiling, Splits, splits_of
from kb.advice.fit.attempts import is_predicted, smallest_gpu
from kb.advice.fit.estimator import Estimator
from kb.advice.fit.plan import (
    NOTE,
    ORDER,
    SHORTER,
    TRAIN_BATCH,
    Ledger,
    Level,
    Option,
    Plan,
    Step,
    Steps,
    combined,
    compatible,
    gpu_state,
    level_of,
    options_for,
    plan_host,
    said,
    with_options,
)
from kb.advice.fit.recommend import SHORTEST_SOURCE
from kb.config.dialect.spelling import Speller, Written
from kb.core.document import Unit
from kb.core.hardware import Gpu
from kb.core.memory_report import MemoryReport, Phase
from kb.core.record import NamedTuple
from kb.core.result import UnitResult
from kb.core.setup import TrainingSetup
from kb.memory.search import largest_within

SAME_RESULT = ("checkpointing", "fused_loss")  # worth it for a larger batch alone
EVALUATION = ("evaluate", "generate")
# vocabulary name → field of TrainingSetup, where the two differ
_FIELDS = {
    "lora.enabled": "method",
    "quantization.load_in_4bit": "load_in_4bit",
    "inference.batch_size": "inference_batch_size",
    "inference.num_beams": "inference_num_beams",
    "training.generation_num_beams": "generation_num_beams",
}


class GpuPlanner:
    """Finds the fewest options with which batches that fit exist, and then the largest such batches."""

    def __init__(self, setup: TrainingSetup, estimator: Estimator, wanted: Steps) -> None:
        self.estimator = estimator
        self.wanted = wanted
        self.setup = setup
        self.steps: list[Step] = []

    def plan(self, gpus: Mapping[str, Gpu]) -> Ledger:
        first, before = self.setup, self.estimator.predict(self.setup)
        state = gpu_state(before)
        if state in ("tight", "short"):
            options = self._options_needed()
            there = with_options(self.setup, options, self.wanted)
            fields = {
                field: value
                for field, value in zip(there._fields, there, strict=True)
                if value != getattr(self.setup, field)
            }
            self._evaluation(fields)
            self._switch_on(options, fields)
            self._inference()
        after = self.estimator.predict(self.setup)
        return Ledger(
            resource="gpu",
            state=state,
            limit_bytes=self.estimator.limit_bytes,
            target_bytes=self.estimator.usable_bytes,
            before=level_of(before.phases),
            after=level_of(after.phases),
            state_after=gpu_state(after),
            steps=tuple(self.steps),
            setup=self.setup,
            other_change=after.host.peak_bytes - before.host.peak_bytes,
            larger_gpu=smallest_gpu(first, self.estimator, gpus) if state in ("tight", "short") else None,
            larger_after=smallest_gpu(self.setup, self.estimator, gpus)
            if gpu_state(after) in ("tight", "short")
            else None,
        )

    def _options_needed(self) -> list[Option]:
        """The first options in order with which it fits, without those it fits without; all where none do."""
        options = [one for one in options_for(self.setup, self.estimator, self.wanted) if self._is_followed(one)]
        chosen: list[Option] = []
        for number in range(len(options) + 1):
            chosen = compatible(options[:number])
            if self._can_fit(chosen):
                break
        chosen = self._shortened(chosen)
        if chosen and chosen[-1].name == SHORTER and not self._can_fit(chosen):
            chosen = chosen[:-1]  # what does not help is not advised
        for option in reversed(chosen[:-1]):  # what costs most goes first
            fewer = [other for other in chosen if other is not option]
            if self._can_fit(fewer) and not (option.name in SAME_RESULT and self._passes(fewer) > self._passes(chosen)):
                chosen = fewer
        return chosen

    def _is_followed(self, option: Option) -> bool:
        """Whether the memory engine follows the run with an option, or does not follow it as it is either."""
        after = with_options(self.setup, [option], self.wanted)
        return is_predicted(after, self.estimator) or not is_predicted(self.setup, self.estimator)

    def _passes(self, options: Sequence[Option]) -> int:
        """Passes for one update with the largest batch that fits, roughly: it ranks options."""
        setup = with_options(self.setup, options, self.wanted)
        ceiling = self._ceiling(setup, self.estimator.roughly())
        rank = setup.effective_batch_size // setup.world_size
        return 1 if ceiling.single >= rank else -(-rank // max(ceiling.accumulated, 1))

    def _shortened(self, chosen: list[Option]) -> list[Option]:
        """The same with inputs halved as often as it takes."""
        while chosen and chosen[-1].name == SHORTER and not self._can_fit(chosen):
            length = chosen[-1].fields["max_source_length"] // 2
            if length < SHORTEST_SOURCE:
                break
            chosen = [*chosen[:-1], Option(SHORTER, {"max_source_length": length})]
        return chosen

    def _can_fit(self, options: Sequence[Option]) -> bool:
        """Whether training fits with the options on, and evaluation with a batch of 1. The training batch may shrink
        only where that is among the options.
        """
        setup = with_options(self.setup, options, self.wanted)
        smallest = setup._replace(
            per_device_eval_batch_size=1, generation_num_beams=1, do_predict=False, eval_accumulation_steps=1
        )
        phases = self.estimator.predict(smallest).phases
        evaluates = self.estimator.fits(phase for phase in phases if phase.name in EVALUATION)
        if not setup.do_train or not evaluates:
            return evaluates
        if any(option.name == TRAIN_BATCH for option in options):
            return self._reaches(setup)
        return self.estimator.fits(phase for phase in phases if phase.name == "train")

    def _reaches(self, setup: TrainingSetup) -> bool:
        """Whether the effective batch can be held: sample by sample, or all at once without gradients beside."""
        by_one = setup._replace(gradient_accumulation_steps=max(2, setup.gradient_accumulation_steps))
        if self.estimator.largest(by_one, "per_device_train_batch_size", most=1):
            return True
        rank = setup.effective_batch_size // setup.world_size
        at_once = setup._replace(gradient_accumulation_steps=1, per_device_train_batch_size=rank, do_eval=False)
        return self.estimator.fits(self.estimator.predict(at_once._replace(do_predict=False)).phases)

    def _ceiling(self, setup: TrainingSetup, estimator: Estimator | None = None) -> Ceiling:
        """The largest batches, each as far as the effective batch has a use for it."""
        estimator, rank = estimator or self.estimator, max(setup.effective_batch_size // setup.world_size, 1)
        single, accumulated = (
            estimator.largest(setup._replace(gradient_accumulation_steps=steps), "per_device_train_batch_size", most)
            for steps, most in ((1, rank), (max(2, setup.gradient_accumulation_steps), max(rank - 1, 1)))
        )
        return Ceiling(single, accumulated)

    # --- evaluation ---------------------------------------------------------------------------------------------

    def _evaluation(self, fields: Mapping[str, Any]) -> None:
        """Collected logits, then the evaluation batch, then beams; each only where evaluation is still too large."""
        if not self.setup.do_eval:
            return
        collects = not (self.setup.predict_with_generate or self.setup.prediction_loss_only)
        if collects and self.setup.eval_accumulation_steps is None and self._too_large(EVALUATION, fields):
            self._step("eval_accumulation", {"training.eval_accumulation_steps": 1}, "evaluate")
            if self.setup.eval_samples is None:  # how much was collected depends on their number
                self.steps[-1] = self.steps[-1]._replace(after=None)
        if self._too_large(EVALUATION, fields):
            fitting = max(self.estimator.largest(self.setup._replace(**fields), "per_device_eval_batch_size"), 1)
            old = self.setup.per_device_eval_batch_size
            if fitting < old:
                values = {"ratio": old / fitting}
                changed = {"training.per_device_eval_batch_size": fitting}
                self._step("eval_batch", changed, None, values=values, lines=ORDER)
        if self._too_large(EVALUATION, fields) and self.setup.generation_num_beams > 1:
            beams = self._most_beams("generation_num_beams", fields)
            self._step("beams", {"training.generation_num_beams": max(beams, 1)}, "generate")

    def _most_beams(self, field: str, fields: Mapping[str, Any]) -> int:
        """The most beams, of those there are, with which generation fits."""

        def used(beams: int) -> int:
            setup = self.setup._replace(**{**fields, field: beams})
            if field == "generation_num_beams":
                setup = setup._replace(do_predict=False)
            return level_of(_phases(self.estimator.predict(setup), EVALUATION)).high

        usable = self.estimator.usable_bytes
        assert usable is not None  # without a limit nothing is too large
        return largest_within(used, usable, 1, getattr(self.setup, field))

    def _too_large(self, phases: tuple[str, ...], fields: Mapping[str, Any]) -> bool:
        report = self.estimator.predict(self.setup._replace(do_predict=False, **fields))
        return not self.estimator.fits(phase for phase in report.phases if phase.name in phases)

    # --- training -----------------------------------------------------------------------------------------------

    def _training(self, fields: Mapping[str, Any]) -> None:
        """A smaller batch and more accumulation, so that the effective batch stays."""
        setup = self.setup
        if not setup.do_train or not self._too_large(("train",), fields):
            return
        ceiling = self._ceiling(setup._replace(**fields))
        effective, world = setup.effective_batch_size, setup.world_size
        if ceiling.reaches(effective, world):
            splits = splits_of(effective, ceiling, world)
            split = splits.exact[0] if splits.exact else splits.nearest()
            assert split is not None  # a batch of what was there is at least one sample for each GPU
            batch, accumulation = split.batch, split.accumulation
        else:
            splits, batch, accumulation = None, 1, max(effective // world, 1)
        changed = {
            "training.per_device_train_batch_size": batch,
            "training.gradient_accumulation_steps": accumulation,
        }
        values = {
            "before": setup.gradient_accumulation_steps,
            "after": accumulation,
            "effective": effective,
            "now": batch * accumulation * world,
            "nearest": _nearest(splits),
        }
        self._step("train_batch", changed, "train", values=values, lines=ORDER)

    # --- options, and inference ---------------------------------------------------------------------------------

    def _switch_on(self, options: Sequence[Option], fields: Mapping[str, Any]) -> None:
        """The steps in order, the batch last: how small it must be is known with all others on. What helps only
        together with a later one is still a step of its own.
        """
        for option in sorted(options, key=lambda each: each.name == TRAIN_BATCH):
            if option.name == TRAIN_BATCH:
                self._training(fields)
                continue
            before = level_of(self.estimator.predict(self.setup).phases)
            changed = said(option.fields, self.setup)
            self.setup = with_options(self.setup, [option], self.wanted)
            after = level_of(self.estimator.predict(self.setup).phases)
            name = f"precision_{next(iter(option.fields))}" if option.name == "autocast" else option.name
            self.steps.append(Step(name, changed, before, after))

    def _inference(self) -> None:
        """Inference runs alone; its batch, then its beams."""
        if not self.setup.do_predict or not self._inference_too_large(self.setup):
            return
        old = self.setup.inference_batch_size or 1
        fitting = max(self.estimator.largest(self.setup, "inference_batch_size"), 1)
        if fitting < old:
            values = {"ratio": old / fitting}
            self._step("inference_batch", {"inference.batch_size": fitting}, "generate", values=values)
        if self._inference_too_large(self.setup) and self.setup.inference_num_beams > 1:
            beams = self._most_beams("inference_num_beams", {"do_train": False, "do_eval": False})
            self._step("beams", {"inference.num_beams": max(beams, 1)}, "generate")

    def _inference_too_large(self, setup: TrainingSetup) -> bool:
        report = self.estimator.predict(setup._replace(do_train=False, do_eval=False))
        return not self.estimator.fits(phase for phase in report.phases if phase.name == "generate")

    def _step(
        self,
        name: str,
        changed: Mapping[str, Any],
        phase: str | None,
        *,
        values: Mapping[str, Any] | None = None,
        lines: str | None = None,
    ) -> None:
        before = self.estimator.predict(self.setup)
        said = {}
        for setting, value in changed.items():
            field = _FIELDS.get(setting, setting.rpartition(".")[2])
            said[setting] = (getattr(self.setup, field), value)
            self.setup = self.setup._replace(**{field: value})
        after = self.estimator.predict(self.setup)
        phase = phase or max(_phases(before, EVALUATION), key=lambda one: one.high_bytes).name
        names = (phase,)
        levels: list[Level] = [level_of(_phases(report, names)) for report in (before, after)]
        source = NOTE if lines else None
        self.steps.append(Step(name, said, levels[0], levels[1], phase, values or {}, source, lines))


def _phases(report: MemoryReport, names: tuple[str, ...]) -> tuple[Phase, ...]:
    return tuple(phase for phase in report.phases if phase.name in names)


def _nearest(splits: Splits | None) -> tuple[tuple[int, int], ...]:
    """(batch, accumulation) of the nearest two that are within a tenth of what is wanted."""
    if splits is None:
        return ()
    found = (split for split in (splits.below, splits.above) if split is not None)
    return tuple(
        (each.batch, each.accumulation) for each in found if abs(each.effective - splits.wanted) * 10 <= splits.wanted
    )


def plan_gpu(setup: TrainingSetup, estimator: Estimator, gpus: Mapping[str, Gpu], steps: Steps) -> Ledger:
    """The GPU's ledger for ``setup``; without steps where it fits, or where no GPU is known."""
    return GpuPlanner(setup, estimator, steps).plan(gpus)


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

    def in_own_words(self, key: str) -> tuple[Any, Any] | None:
        """What the file has for one of its keys and what is written there, where they are no values of kb's setting
        (``finetuning_type: full``)."""
        there, then = self.result.unit.keys.get(key), [each.value for each in self.written if each.path[-1] == key]
        return (there.value, then[0]) if there is not None and then and isinstance(then[0], str) else None

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Every setting that the steps change: its value before the first and after the last step."""
        return changes_of(self.plan)


def changes_of(plan: Plan) -> dict[str, tuple[Any, Any]]:
    found: dict[str, tuple[Any, Any]] = {}
    for step in (*plan.gpu.steps, *plan.host.steps):
        for name, (before, after) in step.set.items():
            found[name] = (found[name][0] if name in found else before, after)
    return {name: (before, after) for name, (before, after) in found.items() if before != after}


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
    if result.unit.as_written("run.own_loop") is True:
        steps = steps._replace(fused_types=())  # Liger's kernels are switched on by an argument of the Trainer
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
            liger=steps.liger if speller.spell(result.unit, FUSED, True, "qlora") is not None else None,
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
            values, first = _values(setup), _values(self._first)
            if setup.method == "qlora":
                values["quantization.load_in_4bit"] = True
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
