"""GPUs as catalogued and as found, and the machine around them. Sizes in bytes."""

from kb.core.record import NamedTuple
from kb.core.typed import Literal


class Gpu(NamedTuple):
    """One row of ``rules/hardware``. ``memory_total`` is what current drivers report, in bytes."""

    id: str
    name: str
    memory_total: int
    compute_capability: tuple[int, int]
    native_bf16: bool
    aliases: tuple[str, ...] = ()
    context_bytes: int | None = None  # CUDA context and libraries, where a measurement is known
    tensor_flops: float | None = None  # a second: dense fp16 or bf16 on the tensor cores, as claimed
    memory_bandwidth: float | None = None  # bytes a second, as claimed
    cuda_memory: tuple[int, int] | None = None  # what CUDA offers of the total, least and most that programs printed

    of_host: bool = False  # its memory is the host's, too

    def visible_bytes(self, ratio: float, *, best: bool = False) -> int:
        """What CUDA offers at least, or at the ``best``: as printed, or the share of the total that other GPUs have."""
        return round(self.memory_total * ratio) if self.cuda_memory is None else self.cuda_memory[best]


class DetectedGpu(NamedTuple):
    """One GPU, or MIG slice, as the driver reports it. ``number`` is nvidia-smi's; a slice has its GPU's."""

    number: int
    name: str
    memory_total: int
    memory_free: int | None = None
    memory_reserved: int | None = None  # of the total, what the driver keeps for itself; free is without it
    compute_capability: tuple[int, int] | None = None
    driver: str | None = None
    uuid: str | None = None
    mig: bool = False
    processes: tuple[tuple[int, int | None], ...] = ()  # (pid, bytes used) of those already on it
    gpu: Gpu | None = None  # its row in rules/hardware, where one matches

    def visible_bytes(self, ratio: float, *, best: bool = False) -> int:
        """What CUDA offers of it: as for its row, where that has the same total."""
        if self.gpu is not None and self.gpu.memory_total == self.memory_total:
            return self.gpu.visible_bytes(ratio, best=best)
        return round(self.memory_total * ratio)

    @property
    def native_bf16(self) -> bool | None:
        """Ampere (8.0) and later compute in bf16; earlier ones emulate it. None where nothing says."""
        if self.compute_capability is not None:
            return self.compute_capability >= (8, 0)
        return self.gpu.native_bf16 if self.gpu else None


class Machine(NamedTuple):
    """Where the run is to happen. None is unknown. ``named`` says which values came from the command line."""

    gpus: tuple[DetectedGpu, ...] = ()
    gpu_source: Literal["named", "nvml", "nvidia-smi", "torch", "none"] = "none"
    gpu_note: str | None = None  # why no GPU was found: a key of i18n under `machine.`
    host_memory_bytes: int | None = None  # the container's limit, or the host's memory
    host_memory_used_bytes: int | None = None
    host_memory_source: Literal["named", "cgroup-v2", "cgroup-v1", "meminfo", "unknown"] = "unknown"
    cpus: int | None = None
    cpu_source: Literal["named", "cgroup-v2", "cgroup-v1", "affinity", "unknown"] = "unknown"
    shm_bytes: int | None = None
    notes: tuple[str, ...] = ()  # what else is worth saying about it: keys of i18n under `machine.`
    gpu_count: int | None = None  # over how many GPUs the user said that a run goes

    @property
    def counted_gpus(self) -> int | None:
        """Over how many GPUs a run goes, where somebody says it: who names several of a GPU has counted them."""
        several = self.gpu_source == "named" and len(self.gpus) > 1
        return len(self.gpus) if self.gpu_count is None and several else self.gpu_count

    @property
    def smallest_gpu(self) -> DetectedGpu | None:
        """Every rank needs the same memory, so the smallest GPU decides."""
        return min(self.gpus, key=lambda gpu: gpu.memory_total, default=None)

    @property
    def gpu_limit_bytes(self) -> int | None:
        """What a run may use of a GPU: what is free now where the GPU was asked, else all of it."""
        gpu = self.smallest_gpu
        if gpu is None:
            return None
        return gpu.memory_total if self.gpu_source == "named" or gpu.memory_free is None else gpu.memory_free

    @property
    def most_workers(self) -> int | None:
        """A third of the cores, at least one: the original guide's most for data loader workers."""
        return max(self.cpus // 3, 1) if self.cpus else None

    @property
    def sayings(self) -> tuple[str, ...]:
        """All of it, each once: why there is no GPU, then the notes."""
        return tuple(dict.fromkeys(filter(None, (self.gpu_note, *self.notes))))
