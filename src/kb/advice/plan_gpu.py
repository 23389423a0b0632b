"""The steps of a plan that bring GPU memory under its limit, and the plan as a whole."""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.attempts import is_predicted, smallest_gpu
from kb.advice.batches import Ceiling, Splits, splits_of
from kb.advice.estimator import Estimator
from kb.advice.plan import (
    SHORTER,
    TRAIN_BATCH,
    Ledger,
    Level,
    Option,
    Step,
    Steps,
    compatible,
    gpu_state,
    level_of,
    options_for,
    said,
    with_options,
)
from kb.advice.recommend import SHORTEST_SOURCE
from kb.core.hardware import Gpu
from kb.core.memory_report import MemoryReport, Phase
from kb.core.setup import TrainingSetup
from kb.memory.search import largest_within

SAME_RESULT = ("checkpointing", "fused_loss")  # worth it for a larger batch alone
_NOTE, _ORDER = "guide-memory", "100-104"
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
                self._step("eval_batch", changed, None, values=values, lines=_ORDER)
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
        self._step("train_batch", changed, "train", values=values, lines=_ORDER)

    # --- options, and inference ---------------------------------------------------------------------------------

    def _switch_on(self, options: Sequence[Option], fields: Mapping[str, Any]) -> None:
        """The steps in order. What helps only together with a later one is still a step of its own."""
        for option in options:
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
        source = _NOTE if lines else None
        self.steps.append(Step(name, said, levels[0], levels[1], phase, values or {}, source, lines))


def _phases(report: MemoryReport, names: tuple[str, ...]) -> tuple[Phase, ...]:
    return tuple(phase for phase in report.phases if phase.name in names)


def _nearest(splits: Splits | None) -> tuple[tuple[int, int], ...]:
    """(batch, accumulation) of the nearest two."""
    if splits is None:
        return ()
    return tuple((split.batch, split.accumulation) for split in (splits.below, splits.above) if split)


def plan_gpu(setup: TrainingSetup, estimator: Estimator, gpus: Mapping[str, Gpu], steps: Steps) -> Ledger:
    """The GPU's ledger for ``setup``; without steps where it fits, or where no GPU is known."""
    return GpuPlanner(setup, estimator, steps).plan(gpus)
