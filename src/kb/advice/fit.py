"""The prediction for one run on one machine, and the settings that would fit it."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kb.core.hardware import DetectedGpu, Gpu, Machine
from kb.core.memory_report import MemoryReport
from kb.core.model import Model
from kb.core.result import GpuFit
from kb.core.setup import TrainingSetup
from kb.memory import largest_batch, predict, workers_that_fit
from kb.memory.process import usable_bytes
from kb.memory.search import BatchField

if TYPE_CHECKING:
    from kb.memory.throughput import Throughput


class Fit:
    """Predictions of one setup, made when first asked for."""

    def __init__(
        self,
        setup: TrainingSetup,
        model: Model | None,
        machine: Machine,
        constants: Mapping[str, float],
        said: int | None,
    ) -> None:
        self.setup = setup
        self.model = model
        self.machine = machine
        self.constants = constants
        self.said = said

    @cached_property
    def gpu(self) -> DetectedGpu | None:
        """The smallest GPU: every rank needs the same memory, so it decides."""
        return min(self.machine.gpus, key=lambda gpu: gpu.memory_total, default=None)

    @cached_property
    def limit_bytes(self) -> int | None:
        """What the run may use of the GPU: what is free now where it was asked, else all of it."""
        if self.gpu is None:
            return None
        named = self.machine.gpu_source == "named"
        return self.gpu.memory_total if named or self.gpu.memory_free is None else self.gpu.memory_free

    @cached_property
    def report(self) -> MemoryReport | None:
        """The prediction; None where the model is not known."""
        return self.predict(self.setup)

    @cached_property
    def inference_report(self) -> MemoryReport | None:
        """The prediction of inference alone, in a process of its own."""
        if not (self.setup.do_train or self.setup.do_eval):
            return self.report
        return self.predict(self.setup._replace(do_train=False, do_eval=False))

    @cached_property
    def evaluation_report(self) -> MemoryReport | None:
        """The prediction of training with its evaluation, without the inference that comes after."""
        return self.predict(self.setup._replace(do_predict=False)) if self.setup.do_predict else self.report

    @cached_property
    def usable_bytes(self) -> int | None:
        """What CUDA gives a process of the limit: up to here a run is said to fit."""
        limit = self.limit_bytes
        return None if limit is None else usable_bytes(limit, self.constants)

    @cached_property
    def throughput(self) -> "Throughput | None":
        """The band of a training step's time; None where something that decides it is not known."""
        if self.model is None or self.gpu is None or self.report is None:
            return None
        from kb.memory.throughput import throughput_of  # a check does without

        return throughput_of(self.setup, self.model.architecture, self.gpu.gpu, self.constants)

    def predict(self, setup: TrainingSetup) -> MemoryReport | None:
        if self.model is None:
            return None
        return predict(
            setup,
            self.model.architecture,
            constants=self.constants,
            gpu=self.gpu.gpu if self.gpu else None,
            gpu_memory_bytes=self.limit_bytes,
            compute_capability=self.gpu.compute_capability if self.gpu else None,
            host_limit_bytes=self.machine.host_memory_bytes,
        )

    def on_gpus(self, gpus: Mapping[str, Gpu]) -> tuple[GpuFit, ...]:
        """The verdict on each known GPU, smallest first: the answer where no GPU is named or found."""
        if self.model is None:
            return ()
        fits = []
        for gpu in sorted(gpus.values(), key=lambda gpu: (gpu.memory_total, gpu.id)):
            report = predict(
                self.setup,
                self.model.architecture,
                constants=self.constants,
                gpu=gpu,
                gpu_memory_bytes=gpu.memory_total,
                compute_capability=gpu.compute_capability,
            )
            used = max((phase.process_used_bytes for phase in report.phases), default=0)
            fits.append(GpuFit(gpu=gpu, verdict=report.verdict, process_used_bytes=used, limit_bytes=gpu.memory_total))
        return tuple(fits)

    def fact(self, name: str) -> Any:
        """A fact under ``fit.``; None where nothing fits or there is nothing to fit into."""
        match name:
            case "fit.train_batch":
                return self._held_batch
            case "fit.accumulation":
                batch = self._held_batch
                return self._per_rank // batch if batch else None
            case "fit.accumulation_as_said":
                per_step = self.setup.per_device_train_batch_size * self.setup.world_size
                return self.said // per_step if self.said and self.said % per_step == 0 else None
            case "fit.eval_batch":
                return self._largest("per_device_eval_batch_size")
            case "fit.inference_batch":
                return self._largest("inference_batch_size")
            case "fit.workers":
                return self._workers
        return None

    @property
    def _per_rank(self) -> int:
        return self.setup.per_device_train_batch_size * self.setup.gradient_accumulation_steps

    @cached_property
    def largest_train_batch(self) -> int | None:
        return self._largest("per_device_train_batch_size")

    @cached_property
    def _held_batch(self) -> int | None:
        """The largest training batch that fits and divides the effective batch, so that accumulation holds it."""
        largest = self.largest_train_batch
        if largest is None:
            return None
        whole = self._per_rank
        return next((batch for batch in range(min(largest, whole), 0, -1) if whole % batch == 0), None)

    def _largest(self, field: BatchField) -> int | None:
        """The largest value of a batch setting whose phases fit with their whole error band; None where none does."""
        limit = self.usable_bytes
        if self.model is None or limit is None:
            return None
        largest = largest_batch(
            self.setup,
            self.model.architecture,
            field,
            limit,
            constants=self.constants,
            gpu=self.gpu.gpu if self.gpu else None,
            compute_capability=self.gpu.compute_capability if self.gpu else None,
            cautious=True,
        )
        return largest or None

    @cached_property
    def _workers(self) -> int | None:
        """The most data loader workers whose upper host estimate stays within the guide's share of the limit."""
        limit = self.machine.host_memory_bytes
        if self.model is None or limit is None:
            return None
        share = round(limit * self.constants["host_target_share"])
        workers = workers_that_fit(
            self.setup, self.model.architecture, share, constants=self.constants, cpus=self.machine.cpus
        )
        if workers == 0:
            # the search says 0 too where not even that fits
            without = self.predict(self.setup._replace(dataloader_num_workers=0))
            return 0 if without is not None and without.host.peak_bytes <= share else None
        return workers
