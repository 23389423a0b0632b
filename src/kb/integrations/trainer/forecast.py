"""What kb says of a run before it starts: findings, and the memory of each phase."""

import os
from functools import cached_property
from typing import Any

from kb.advice.fit.estimator import Estimator
from kb.advice.question import Question
from kb.advice.run.row_lengths import reads_target
from kb.core.catalog import Catalog
from kb.core.hardware import Machine
from kb.core.memory_report import MemoryReport
from kb.core.result import UnitResult
from kb.core.setup import TrainingSetup
from kb.integrations.trainer.live import LiveRun, Seen
from kb.knowledge import load_catalog, load_words
from kb.report.words import Words
from kb.session import cli
from kb.session.around import Checking, named_machine
from kb.session.knowledge import rules_of
from kb.session.prepare import file_checker
from kb.session.project import Project, find_project

NAME = "TrainingArguments"  # stands where a config's path would


class Knowledge:
    """The rules, the project's settings and the language, read once for a process.

    Args:
        language: ``ko`` or ``en``; None is the project's, else the locale's.
    """

    def __init__(self, language: str | None = None) -> None:
        self.project: Project = find_project(os.getcwd())
        self.language = language or self.project.lang or cli.language_of((), os.environ)
        rules = rules_of(self.project)
        self.catalog: Catalog = load_catalog(rules)
        self.words = Words(self.language, load_words(self.language, rules), self.catalog.facts)


class Forecast:
    """One run as kb sees it.

    Args:
        run: what the live objects say.
        knowledge: the rules.
        device: the ``torch.device`` that the run is on; another than CUDA has no GPU to fit.
        ours: bytes that this process already holds there: they are no other's.
        machine: where the run is; None looks.
    """

    def __init__(
        self, run: LiveRun, knowledge: Knowledge, *, device: Any, ours: int = 0, machine: Machine | None = None
    ) -> None:
        self.run = run
        self.catalog = knowledge.catalog
        gpu = "auto" if device.type == "cuda" else "none"
        question = Question.of(gpu=gpu, host_memory="auto", cpus="auto", gpus=run.world_size, dialect="hf")
        found = machine or named_machine(knowledge.catalog, knowledge.project, question.machine)
        found = found._replace(gpu_count=run.world_size)  # a run that has started knows
        self.machine: Machine = without_ours(found, device.index or 0, ours)
        checker = file_checker(
            knowledge.catalog,
            knowledge.project,
            question,
            Checking(here=True),
            machine=self.machine,
            model=run.model,
            known=run.known,
        )
        self.result: UnitResult = checker.check(run.text().encode(), NAME, "config").results[0]
        self.facts = checker.facts(self.result.unit)

    @cached_property
    def setup(self) -> TrainingSetup:
        """As the Trainer runs it: without ``compute_metrics`` it evaluates the loss alone, whatever it is told."""
        setup = self.result.setup
        assert setup is not None  # the dialect is named, so the unit has one
        loss_only = self.run.known.get("script.has_compute_metrics") is False
        return setup._replace(prediction_loss_only=True, predict_with_generate=False) if loss_only else setup

    @cached_property
    def report(self) -> MemoryReport | None:
        """The prediction at the lengths that are known; None where none can be made."""
        return self._predict(self.setup) if self.predictable else None

    @property
    def predictable(self) -> bool:
        return self.run.model is not None and not self.setup.unresolved and self.run.unknown_adapter is None

    @property
    def reads_target(self) -> bool:
        """Whether targets are rows of their own."""
        return self.run.model is not None and reads_target(self.run.model.architecture)

    @property
    def limit_bytes(self) -> int | None:
        """What this run may use of the GPU."""
        return self.machine.gpu_limit_bytes

    @cached_property
    def before_training(self) -> MemoryReport | None:
        """The prediction of an evaluation before the first step: no optimizer states exist yet."""
        return self._predict(self.setup._replace(do_train=False)) if self.predictable else None

    def at(self, seen: Seen) -> MemoryReport | None:
        """The prediction for batches of a shape that was seen."""
        if not self.predictable:
            return None
        return self._predict(
            self.setup._replace(
                per_device_train_batch_size=seen.batch,
                max_source_length=seen.source,
                max_target_length=seen.target or self.setup.max_target_length,
            )
        )

    def _predict(self, setup: TrainingSetup) -> MemoryReport:
        assert self.run.model is not None  # asked of what is predictable
        return Estimator(self.run.model, self.machine, self.catalog.constants).predict(setup)


def without_ours(machine: Machine, number: int, ours: int) -> Machine:
    """The machine with what this process holds of its GPU counted as free: it is this run's own."""
    if number >= len(machine.gpus):
        return machine
    gpu = machine.gpus[number]
    own = max([ours, *(size or 0 for pid, size in gpu.processes if pid == os.getpid())])
    free = None if gpu.memory_free is None else min(gpu.memory_free + own, gpu.memory_total)
    others = tuple(each for each in gpu.processes if each[0] != os.getpid())
    mended = gpu._replace(memory_free=free, processes=others)
    return machine._replace(gpus=(*machine.gpus[:number], mended, *machine.gpus[number + 1 :]))
