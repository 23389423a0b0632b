"""The facts that predictions give, under ``memory.``, ``fit.`` and ``saving.``, by vocabulary name."""

from functools import cached_property

from kb import memory
from kb.advice.run.no_prediction import Note, refusal_of
from kb.core.hardware import Machine
from kb.core.memory_report import OVER, MemoryReport, Status
from kb.core.setup import TrainingSetup
from kb.core.typed import TYPE_CHECKING, Any
from kb.memory import UnsupportedArchitectureError

if TYPE_CHECKING:
    from kb.advice.fit.estimator import Estimator

# Which terms of a phase's ledger make up a fact.
TERMS_OF = {
    "logits": ("activations_head", "loss", "logits"),
    "gathered": ("gathered",),
    "cache": ("kv_cache_self", "kv_cache_cross"),
}
PHASES = {"inference": "generate", "eval_generate": "generate"}
NEARLY = 4  # a batch to change to is found to this part of itself: it fits, and a quarter more need not be tried
CHANGES: dict[str, dict[str, Any]] = {
    "saving.gradient_checkpointing": {"gradient_checkpointing": True},
    "saving.optimizer_8bit": {"optim": "adamw_8bit"},
    "saving.adafactor": {"optim": "adafactor"},
    "saving.lora": {"method": "lora"},
    "saving.zero_grad_earlier": {"gradients_kept": False},
}


class PredictedFacts:
    """What is predicted of one setup on one machine, each prediction made when first asked for.

    Args:
        estimator: the model there; None where nothing can be predicted.
        said: the effective batch that a comment beside the settings claims.
        supposed: nothing is asked for but what would turn; then a verdict may be found without a prediction.

    What would turn is asked roughly where a rough answer agrees with the exact one of the run as it is: a prediction
    by the memory engine takes long, and there is one for each assumption.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        estimator: "Estimator | None",
        machine: Machine,
        said: int | None = None,
        *,
        supposed: bool = False,
    ) -> None:
        self.setup = setup
        self.estimator = estimator
        self.machine = machine
        self.said = said
        self.supposed = supposed
        self.by_training = False  # whether it is likeliest training that decides
        self._fault: UnsupportedArchitectureError | None = None

    def otherwise(self, setup: TrainingSetup) -> "PredictedFacts":
        """The same, were the setup another."""
        return PredictedFacts(setup, self.estimator, self.machine, self.said)

    def supposing(self, setup: TrainingSetup) -> "PredictedFacts":
        """The same, to ask of another setup no more than what would turn."""
        over = self._over_anyway and self.estimator is not None and self.estimator.surely_over(setup)
        estimator = self.estimator if over else self._rough_enough
        supposed = PredictedFacts(setup, estimator, self.machine, self.said, supposed=True)
        train = self.report.phase("train") if self.report is not None and setup.post is None else None
        supposed.by_training = train is not None and train.status in OVER
        return supposed

    @cached_property
    def _over_anyway(self) -> bool:
        """Whether the run is out of memory whatever a step takes: then another may be known to be, unpredicted."""
        return self.estimator is not None and self.report is not None and self.estimator.surely_over(self.setup)

    @cached_property
    def _rough_enough(self) -> "Estimator | None":
        """What answers for another setup: roughly, where that gives each phase of this one its verdict; of a run that
        is out of memory, where it finds no fault with fewer phases: what fits is not what is asked about then.
        """
        if self.estimator is None or self.report is None or self.report.level == "rough":
            return self.estimator
        if self.setup.zero_stage == 3:  # of which a rough answer follows every layer, too
            return self.estimator
        over = self.report.verdict.status in OVER
        faults = [each for each in self.report.phases if each.status in ("tight", *OVER)]
        alone = over and all(each.name == "train" for each in faults)
        try:
            rough = self.estimator.roughly().predict(self.setup.training_alone if alone else self.setup)
        except UnsupportedArchitectureError:
            return self.estimator
        found = {phase.name: phase.status for phase in rough.phases}
        if over:
            enough = all(found.get(each.name) in (OVER if each.status in OVER else ("tight", *OVER)) for each in faults)
        else:
            enough = found == {phase.name: phase.status for phase in self.report.phases}
        return self.estimator.roughly() if enough else self.estimator

    @cached_property
    def report(self) -> MemoryReport | None:
        """The prediction; None where there can be none."""
        return self._predict(self.setup)

    @property
    def refusal(self) -> Note | None:
        """Why the memory engine gives no prediction, where it finds that on its way."""
        return refusal_of(self._fault) if self.report is None and self._fault is not None else None

    @cached_property
    def _inference_report(self) -> MemoryReport | None:
        """The prediction of inference alone, in a process of its own."""
        setup, report = self.setup, self.report
        if not (setup.do_train or setup.do_eval):
            return report
        if report is not None and not setup.do_predict:  # there is none: nothing is predicted of a process without it
            return report._replace(phases=())
        return self._predict(self.setup._replace(do_train=False, do_eval=False))

    @cached_property
    def _of_post_training(self) -> MemoryReport | None:
        """The prediction with one phase of training: what a trainer generates by itself is a part of its step, and
        neither evaluation nor inference.
        """
        report = self.report
        parts = [phase for phase in (report and (report.phase("train"), report.phase("generate"))) or () if phase]
        if report is None or len(parts) < 2:
            return report
        worse = max(parts, key=lambda phase: phase.low_bytes)._replace(name="train")
        rest = tuple(phase for phase in report.phases if phase.name not in ("train", "generate"))
        return report._replace(phases=(*rest, worse))

    @cached_property
    def _evaluation_report(self) -> MemoryReport | None:
        """The prediction of training with its evaluation, without the inference that comes after."""
        return self._predict(self.setup._replace(do_predict=False)) if self.setup.do_predict else self.report

    @cached_property
    def _training_report(self) -> MemoryReport | None:
        """The prediction of training alone, which what comes after it does not change."""
        return self._predict(self.setup.training_alone) if self.setup.do_train else self.report

    def report_on(self, part: str) -> MemoryReport | None:
        """The prediction that facts under ``memory.<part>.`` are taken from."""
        if self.setup.post is not None:
            return self._of_post_training
        if part == "train" and self.supposed:
            return self._training_report
        if part == "inference":
            return self._inference_report
        return self._evaluation_report if part == "eval_generate" else self.report

    def _predict(self, setup: TrainingSetup) -> MemoryReport | None:
        if self.estimator is None:
            return None
        try:
            return self.estimator.predict(setup)
        except UnsupportedArchitectureError as error:  # one that the memory engine does not follow
            self._fault = error if setup is self.setup else self._fault
            return None

    @cached_property
    def surely_over(self) -> bool:
        """Whether a run that is only supposed is out of memory by its weights alone, which takes no prediction."""
        return self.supposed and self.estimator is not None and self.estimator.surely_over(self.setup)

    @property
    def status(self) -> Status | None:
        """The verdict; None where there can be no prediction."""
        if self.surely_over:
            return "oom"
        if self.by_training and "report" not in self.__dict__:
            alone = self._training_report
            if alone is not None and alone.verdict.status == "oom":
                return "oom"
        return self.report.verdict.status if self.report else None

    def fit(self, name: str) -> Any:
        """A fact under ``fit.``; None where nothing fits or there is nothing to fit into."""
        if name == "fit.accumulation_as_said":
            per_step = self.setup.per_device_train_batch_size * self.setup.world_size
            return self.said // per_step if self.said and self.said % per_step == 0 else None
        if name == "fit.workers_advised":
            return self.machine.most_workers if self.estimator is None else self.estimator.workers(self.setup)
        if self.estimator is None or self.report is None:  # or the memory engine does not follow the run
            return None
        try:
            return self._fitting(name, self.estimator)
        except UnsupportedArchitectureError:  # nor with another batch
            return None

    def _fitting(self, name: str, estimator: "Estimator") -> int | None:
        match name:
            case "fit.train_batch":
                return self._held_batch
            case "fit.accumulation":
                batch = self._held_batch
                return self._per_rank // batch if batch else None
            case "fit.eval_batch":
                return estimator.largest(self.setup, "per_device_eval_batch_size", grain=NEARLY) or None
            case "fit.inference_batch":
                return estimator.largest(self.setup, "inference_batch_size", grain=NEARLY) or None
            case "fit.workers":
                return estimator.workers_within_target(self.setup)
        return None

    @property
    def _per_rank(self) -> int:
        return self.setup.per_device_train_batch_size * self.setup.gradient_accumulation_steps

    @cached_property
    def _held_batch(self) -> int | None:
        """The largest training batch that fits and divides the effective batch, so that accumulation holds it. None
        where the samples of a batch are each other's negatives, which no accumulation holds."""
        if self.setup.post is not None and self.setup.post.kind == "embedding":
            return None
        if self.estimator is None:
            return None
        train = self.report and self.report.phase("train")  # of training alone, too: evaluation comes after it
        return self.estimator.largest_share(self.setup, train) or None

    def ten_steps(self) -> int | None:
        """Bytes of process memory in evaluation when ten steps are joined: evaluation sets seldom have fewer."""
        report = self._predict(self.setup._replace(eval_samples=10 * self.setup.per_device_eval_batch_size))
        phase = report and report.phase("evaluate")
        return phase.process_used_bytes if phase else None

    def saving(self, name: str) -> int | None:
        """Bytes that one change would save in training, by predicting both: of what is alive, since what is cached
        beside it fills whatever GPU there is."""
        train = self.report and self.report.phase("train")
        if not train:
            return None
        changed = self._predict(self._changed(name)._replace(do_eval=False, do_predict=False))
        after = changed and changed.phase("train")
        return train.peak_allocated_bytes - after.peak_allocated_bytes if after else None

    def _changed(self, name: str) -> TrainingSetup:
        setup = self.setup._replace(**CHANGES[name])
        if setup.method == "lora" and setup.lora_target_modules is None and self.estimator is not None:
            return setup._replace(lora_target_modules=memory.targets_for(self.estimator.model.architecture))
        return setup


def memory_fact(report: MemoryReport, name: str) -> Any:
    """A fact under ``memory.`` from a prediction. A phase that the run does not have takes no memory, and fits."""
    if name == "memory.status":
        return None if report.verdict.status == "unknown" else report.verdict.status
    if name == "memory.phase":
        return report.verdict.phase
    if name == "memory.term":
        return report.verdict.term
    if name == "memory.peak":
        return max((phase.process_used_bytes for phase in report.phases), default=None)
    _, part, field = name.split(".")
    if part == "host":
        host = report.host
        if field in ("workers", "layer_inputs"):
            return sum(term.bytes for term in host.terms if term.name == field)
        return {"peak": host.peak_bytes, "low": host.low_bytes}[field]
    phase = report.phase(PHASES.get(part, part))
    if phase is None:
        return 0 if field != "status" else None if report.verdict.status == "unknown" else "fits"
    if field == "status":
        return None if phase.status == "unknown" else phase.status
    if field == "low" and not report.has_low_end:
        return None
    if field in TERMS_OF:
        return sum(term.bytes for term in phase.terms if term.name in TERMS_OF[field])
    return {
        "allocated": phase.peak_allocated_bytes,
        "peak": phase.process_used_bytes,
        "low": phase.low_bytes,
        "high": phase.high_bytes,
    }[field]
