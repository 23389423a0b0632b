"""One model on one machine: the precision that suits it, what a run takes there, and the batches and workers that
fit.
"""

from collections.abc import Iterable, Mapping

from kb import memory
from kb.core.hardware import DetectedGpu, Gpu, Machine
from kb.core.memory_report import MemoryReport, Phase
from kb.core.model import Architecture, Model
from kb.core.record import NamedTuple
from kb.core.result import GpuFit
from kb.core.setup import TrainingSetup, WeightType
from kb.core.typed import TYPE_CHECKING, Any, Literal
from kb.memory import (
    UnsupportedArchitectureError,
    largest_batch,
    predict,
    surely_out_of_memory,
    workers_that_fit,
)
from kb.memory.prediction import reservable_bytes
from kb.memory.process import usable_on
from kb.memory.search import GRAIN, LARGEST_BATCH, BatchField, largest_share

if TYPE_CHECKING:
    from kb.memory.throughput import Throughput


# Activations of these pass fp16's largest number, 65504 (transformers issues 5651, 10956).
OVERFLOWS_IN_FP16 = ("t5", "mt5", "umt5", "longt5")
# Used in fp16 since before GPUs had bf16, or trained in it (OPT, GPT-NeoX); Whisper's encoder clamps for it.
USED_IN_FP16 = (
    "bart", "mbart", "bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "albert", "gpt2", "opt",
    "gpt_neox", "whisper",
)  # fmt: skip

AUTOCASTS: tuple[WeightType, ...] = ("fp32", "bf16", "fp16")
Reason = Literal["native_bf16", "no_bf16_t5", "no_bf16_fp16", "no_bf16_untested", "no_gpu"]


class Precision(NamedTuple):
    """``autocast`` is fp32 where there is none. ``reason`` is a key of i18n under ``recommend.precision.``."""

    autocast: WeightType
    reason: Reason

    def of(self, setup: TrainingSetup) -> TrainingSetup:
        return setup._replace(bf16=self.autocast == "bf16", fp16=self.autocast == "fp16")


def precision_taken(asked: str | None, gpu: DetectedGpu | None, architecture: Architecture) -> Precision:
    """What the run is asked to compute in, else what suits the GPU; the reason is of what suits it."""
    suits = precision_for(gpu, architecture)
    return suits._replace(autocast=asked) if asked in AUTOCASTS else suits


def precision_for(gpu: DetectedGpu | None, architecture: Architecture) -> Precision:
    """bf16 where the GPU has it; before Ampere fp16, but fp32 for the T5 family; fp32 where no GPU is known."""
    if gpu is None:
        return Precision("fp32", "no_gpu")
    if gpu.native_bf16:
        return Precision("bf16", "native_bf16")
    if architecture.model_type in OVERFLOWS_IN_FP16:
        return Precision("fp32", "no_bf16_t5")
    used = architecture.model_type in USED_IN_FP16
    return Precision("fp16", "no_bf16_fp16" if used else "no_bf16_untested")


class Estimator:
    """Predictions of one model on one machine, for any setup.

    Args:
        model: whose predictions.
        machine: where; every rank needs the same, so its smallest GPU decides.
        constants: the figures of ``rules/constants.yaml`` by name.
        rough: from a model of few layers: for many answers at once, and for a first guess.
    """

    def __init__(self, model: Model, machine: Machine, constants: Mapping[str, float], *, rough: bool = False) -> None:
        self.rough = rough
        self.model = model
        self.machine = machine
        self.constants = constants
        self.gpu: DetectedGpu | None = machine.smallest_gpu
        self.limit_bytes: int | None = machine.gpu_limit_bytes

    @property
    def usable_bytes(self) -> int | None:
        """What CUDA gives a process of the limit: up to here a run is said to fit."""
        return usable_on(self.machine, self.constants)

    def reservable_bytes(self, setup: TrainingSetup) -> int | None:
        """What PyTorch can surely reserve of the limit; None where no GPU is known."""
        if self.limit_bytes is None:
            return None
        gpu = self.gpu.gpu if self.gpu else None
        capability = self.gpu.compute_capability if self.gpu else None
        return reservable_bytes(
            setup, constants=self.constants, memory=self.limit_bytes, gpu=gpu, capability=capability
        )

    @property
    def host_target_bytes(self) -> int | None:
        """The share of the container's memory that the original guide advises to use."""
        limit = self.machine.host_memory_bytes
        return None if limit is None else round(limit * self.constants["host_target_share"])

    def roughly(self) -> "Estimator":
        """The same from a model of few layers."""
        return self if self.rough else Estimator(self.model, self.machine, self.constants, rough=True)

    @property
    def _known(self) -> dict[str, Any]:
        """What every question to the memory model says beside the run: the figures, the GPU, and how exactly."""
        return {
            "constants": self.constants,
            "gpu": self.gpu.gpu if self.gpu else None,
            "compute_capability": self.gpu.compute_capability if self.gpu else None,
            "rough": self.rough,
        }

    def predict(self, setup: TrainingSetup, *, among: bool = False) -> MemoryReport:
        """The run's report; ``among``: the machine's GPU is one of many.

        Raises:
            UnsupportedArchitectureError: the memory engine follows neither the run nor any near it.
        """
        return predict(
            setup,
            self.model.architecture,
            gpu_memory_bytes=self.limit_bytes,
            host_limit_bytes=self.machine.host_memory_bytes,
            among=among,
            **self._known,
        )

    def surely_over(self, setup: TrainingSetup) -> bool:
        """Whether training is out of memory by the weights alone: asked before a prediction that takes long."""
        return self.limit_bytes is not None and surely_out_of_memory(
            setup, self.model.architecture, self.limit_bytes, **self._known
        )

    def throughput(self, setup: TrainingSetup) -> "Throughput | None":
        """The band of a training step's time; None where something that decides it is not known."""
        if self.gpu is None:
            return None
        return memory.throughput_of(setup, self.model.architecture, self.gpu.gpu, self.constants)

    def fits(self, phases: Iterable[Phase]) -> bool:
        """Whether phases stay inside the GPU with their whole band; True where no GPU is known."""
        usable = self.usable_bytes
        return usable is None or all(phase.high_bytes <= usable for phase in phases)

    def largest(
        self,
        setup: TrainingSetup,
        field: BatchField,
        most: int = LARGEST_BATCH,
        first: int | None = None,
        grain: int = GRAIN,
    ) -> int:
        """The largest value, up to ``most``, of a batch setting whose phases fit with their whole band; 0 where not
        even 1 does. ``first`` is asked about first: the answer of a like question, by default the rough one.
        ``grain``: what the memory engine answers is known to this part of itself.

        0 too where the model has no such phase: an encoder generates nothing.
        """
        usable = self.usable_bytes
        if usable is None or (field == "inference_batch_size" and self.model.architecture.family == "encoder"):
            return 0
        if field == "per_device_train_batch_size" and self.surely_over(setup):
            return 0
        return largest_batch(
            setup,
            self.model.architecture,
            field,
            usable,
            most=most,
            first=first,
            grain=grain,
            **self._known,
        )

    def largest_share(self, setup: TrainingSetup, own: Phase | None = None) -> int:
        """The largest training batch that fits and divides what a process takes for one optimizer step, so that
        accumulation holds the effective batch; 0 where not even 1 fits.

        Args:
            own: the setup's own training, where it is predicted already.
        """
        usable = self.usable_bytes
        if usable is None or self.surely_over(setup):
            return 0
        return largest_share(
            setup,
            self.model.architecture,
            usable,
            gpu_memory_bytes=self.limit_bytes,
            own=own,
            **self._known,
        )

    def workers(self, setup: TrainingSetup) -> int | None:
        """The data loader workers to use.

        As many as keep the upper host estimate within the notes' share of the limit, a third of the cores at most. 0
        where not even the training process alone stays within that share; None where nothing says the memory or cores.
        """
        target, most = self.host_target_bytes, self.machine.most_workers
        if target is None:
            return most
        return workers_that_fit(setup, self.model.architecture, target, constants=self.constants, most=most)

    def workers_within_target(self, setup: TrainingSetup) -> int | None:
        """The same where host memory is known and they do stay within its share, else None."""
        target = self.host_target_bytes
        if target is None:
            return None
        workers = self.workers(setup)
        alone = workers or self.predict(setup._replace(dataloader_num_workers=0)).host.peak_bytes <= target
        return workers if alone else None

    def on_gpus(self, setup: TrainingSetup, gpus: Mapping[str, Gpu]) -> tuple[GpuFit, ...]:
        """The verdict on each known GPU, smallest first: the answer where no GPU is named or found.

        GPUs on which the run takes kernels that the memory engine does not follow are left out.
        """
        fits = []
        for gpu in sorted(gpus.values(), key=lambda gpu: (gpu.memory_total, gpu.id)):
            try:
                report = Estimator(self.model, on_gpu(gpu), self.constants, rough=self.rough).predict(setup, among=True)
            except UnsupportedArchitectureError:
                continue
            used = max((phase.process_used_bytes for phase in report.phases), default=0)
            fits.append(GpuFit(gpu=gpu, verdict=report.verdict, process_used_bytes=used, limit_bytes=gpu.memory_total))
        return tuple(fits)


def on_gpu(gpu: Gpu) -> Machine:
    """A machine with one catalogued GPU, of which nothing else is known."""
    found = DetectedGpu(
        number=0, name=gpu.name, memory_total=gpu.memory_total, compute_capability=gpu.compute_capability, gpu=gpu
    )
    return Machine(gpus=(found,), gpu_source="named")
