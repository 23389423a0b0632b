"""The prediction for one run on one machine, and the settings that would fit it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from kb.core.hardware import DetectedGpu, Gpu, Machine
from kb.core.memory_report import MemoryReport
from kb.core.model import Model
from kb.core.result import GpuFit
from kb.core.setup import TrainingSetup
from kb.memory import predict

# A search for the largest batch stops here; no GPU that is catalogued takes more samples of a real model.
LARGEST_BATCH = 4096


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
                return self._largest("per_device_eval_batch_size", ("evaluate", "generate"))
            case "fit.inference_batch":
                return self._largest("inference_batch_size", ("generate",))
            case "fit.workers":
                return self._workers
        return None

    @property
    def _per_rank(self) -> int:
        return self.setup.per_device_train_batch_size * self.setup.gradient_accumulation_steps

    @cached_property
    def largest_train_batch(self) -> int | None:
        return self._largest("per_device_train_batch_size", ("train",))

    @cached_property
    def _held_batch(self) -> int | None:
        """The largest training batch that fits and divides the effective batch, so that accumulation holds it."""
        largest = self.largest_train_batch
        if largest is None:
            return None
        whole = self._per_rank
        return next((batch for batch in range(min(largest, whole), 0, -1) if whole % batch == 0), None)

    def _largest(self, field: str, phases: tuple[str, ...]) -> int | None:
        """The largest value of a batch setting whose phases fit with their whole error band, by bisection."""
        limit = self.limit_bytes
        if self.model is None or limit is None:
            return None

        def fits(batch: int) -> bool:
            report = self.predict(replace(self.setup, **{field: batch}))
            return report is not None and all(p.high_bytes <= limit for p in report.phases if p.name in phases)

        if not fits(1):
            return None
        low, high = 1, 2
        while high <= LARGEST_BATCH and fits(high):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    @cached_property
    def _workers(self) -> int | None:
        """The most data loader workers whose upper host estimate stays within the guide's share of the limit."""
        limit = self.machine.host_memory_bytes
        if self.model is None or limit is None:
            return None
        share = limit * self.constants["host-target-share"]
        for workers in range(self.setup.dataloader_num_workers, -1, -1):
            report = self.predict(replace(self.setup, dataloader_num_workers=workers))
            if report is not None and report.host.peak_bytes <= share:
                return workers
        return None
