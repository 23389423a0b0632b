"""What every source of GPU information answers with, before ``CUDA_VISIBLE_DEVICES`` and the catalogue."""

from kb.core.hardware import DetectedGpu
from kb.core.record import NamedTuple
from kb.core.typed import Literal

# Each has its sentence in i18n, under `machine.`.
Note = Literal[
    "no_driver",
    "no_driver_in_container",
    "no_driver_in_wsl",
    "library_not_found",
    "pynvml_missing",
    "driver_not_loaded",
    "driver_mismatch",
    "no_permission",
    "no_device",
    "gpu_lost",
    "nvml_failed",
    "nvml_hangs",
    "nvidia_smi_hangs",
    "nvidia_smi_failed",
    "mig_needs_nvml",
    "mig_without_slices",
    "memory_not_reported",
    "torch_failed",
    "torch_sees_none",
    "gpus_hidden",
    "visible_devices_invalid",
    "device_order_uncertain",
    "mig_not_all_visible",
    "more_gpus_than_found",
    "named_none",
    "several_gpus",
    "mig_slices",
    "wsl",
    "foreign_processes",
]

NO_DRIVER: tuple[Note, ...] = ("no_driver", "no_driver_in_container", "no_driver_in_wsl")


class Reported(NamedTuple):
    """A GPU or MIG slice as reported. A slice knows its GPU's UUID and memory, and its GPU instance."""

    gpu: DetectedGpu
    parent_uuid: str | None = None
    parent_memory_total: int | None = None
    instance: int | None = None


class Reading(NamedTuple):
    """GPUs in the driver's order."""

    devices: tuple[Reported, ...]
    notes: tuple[Note, ...] = ()


class Unanswered(Exception):  # noqa: N818
    """A source could not answer, which is an outcome; ``note`` says why."""

    def __init__(self, note: Note) -> None:
        super().__init__(note)
        self.note = note
