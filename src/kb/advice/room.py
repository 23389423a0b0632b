"""One model on one machine: predictions, and the batches and workers that fit there with their whole error band."""

from collections.abc import Iterable, Mapping

from kb.advice.fit import Fit
from kb.core.hardware import DetectedGpu, Gpu, Machine
from kb.core.memory_report import MemoryReport, Phase
from kb.core.model import Model
from kb.core.setup import TrainingSetup
from kb.memory import largest_batch, predict, workers_that_fit
from kb.memory.process import usable_bytes
from kb.memory.search import BatchField

SHARED_PHASES = ("train", "evaluate", "generate")


class Room:
    """What a run has: the GPU's memory, the container's, the cores.

    Args:
        model: whose predictions.
        machine: where; every rank needs the same, so its smallest GPU decides.
        constants: the figures of ``rules/constants.yaml`` by name.
    """

    def __init__(self, model: Model, machine: Machine, constants: Mapping[str, float]) -> None:
        fit = Fit(TrainingSetup(), model, machine, constants, None)
        self.model = model
        self.machine = machine
        self.constants = constants
        self.gpu: DetectedGpu | None = fit.gpu
        self.limit_bytes: int | None = fit.limit_bytes

    @property
    def usable_bytes(self) -> int | None:
        """What processes can use of the GPU: a little less than the driver reports."""
        if self.limit_bytes is None:
            return None
        return usable_bytes(self.limit_bytes, self.constants)

    @property
    def host_target_bytes(self) -> int | None:
        """The share of the container's memory that the field notes advise to use."""
        limit = self.machine.host_memory_bytes
        return None if limit is None else round(limit * self.constants["host_target_share"])

    def predict(self, setup: TrainingSetup) -> MemoryReport:
        """Raises: UnsupportedArchitectureError: no closed form for the model's family."""
        return predict(
            setup,
            self.model.architecture,
            constants=self.constants,
            gpu=self.gpu.gpu if self.gpu else None,
            gpu_memory_bytes=self.limit_bytes,
            compute_capability=self.gpu.compute_capability if self.gpu else None,
            host_limit_bytes=self.machine.host_memory_bytes,
        )

    def largest(self, setup: TrainingSetup, field: BatchField) -> int:
        """The largest value of a batch setting whose phases fit with their whole band; 0 where not even 1 does.

        0 too where the model has no such phase: an encoder generates nothing.
        """
        usable = self.usable_bytes
        if usable is None or (field == "inference_batch_size" and self.model.architecture.family == "encoder"):
            return 0
        return largest_batch(
            setup,
            self.model.architecture,
            field,
            usable,
            constants=self.constants,
            gpu=self.gpu.gpu if self.gpu else None,
            compute_capability=self.gpu.compute_capability if self.gpu else None,
            cautious=True,
        )

    def workers(self, setup: TrainingSetup) -> int | None:
        """Workers by a third of the cores and by the notes' share of host memory; None where both are unknown."""
        target = self.host_target_bytes
        cpus = self.machine.cpus
        if target is None:
            return max(cpus // 3, 1) if cpus else None
        return workers_that_fit(setup, self.model.architecture, target, constants=self.constants, cpus=cpus)

    def fits(self, phases: Iterable[Phase]) -> bool:
        """Whether phases stay inside the GPU with their whole band; True where no GPU is known."""
        usable = self.usable_bytes
        return usable is None or all(phase.high_bytes <= usable for phase in phases)


def on_gpu(gpu: Gpu) -> Machine:
    """A machine with one catalogued GPU, of which nothing else is known."""
    found = DetectedGpu(
        number=0, name=gpu.name, memory_total=gpu.memory_total, compute_capability=gpu.compute_capability, gpu=gpu
    )
    return Machine(gpus=(found,), gpu_source="named")
