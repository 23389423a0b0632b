"""What was read of a run at one moment: GPUs, host, the watched processes, speed. Bytes; None is not known."""

from kb.core.record import NamedTuple


class GpuProcess(NamedTuple):
    """A process on a GPU. ``name`` is empty where its number is not one of this process's own namespace."""

    pid: int
    used_bytes: int | None = None
    name: str = ""
    watched: bool = False


class GpuState(NamedTuple):
    """One GPU or MIG slice. ``key`` stays the same over a recording: nvidia-smi's number, with ``.1`` … for slices."""

    key: str
    name: str = ""
    uuid: str = ""
    used_bytes: int | None = None
    total_bytes: int | None = None
    utilisation: float | None = None  # share of time, 0 … 1
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    slowdown_celsius: float | None = None  # where the driver itself slows the GPU down
    throttle: tuple[str, ...] = ()  # why the clocks are held down: names of i18n under `monitor.throttle.`
    processes: tuple[GpuProcess, ...] = ()


class HostState(NamedTuple):
    """The host's or the container's memory, by which of the two is smaller, and /dev/shm."""

    used_bytes: int | None = None
    limit_bytes: int | None = None
    source: str = "unknown"
    oom_kills: int | None = None  # counted by the control group since it was made
    shm_used_bytes: int | None = None
    shm_total_bytes: int | None = None


class ProcessState(NamedTuple):
    """One process of the watched tree. Pages that several share count in ``pss_bytes`` by their part."""

    pid: int
    parent: int
    name: str
    rss_bytes: int | None = None
    pss_bytes: int | None = None
    worker: bool = False  # a data loader's


class TreeState(NamedTuple):
    """The watched process and what it started; ``count_all`` of them, the largest of which are in ``processes``."""

    processes: tuple[ProcessState, ...] = ()
    count_all: int = 0
    pss_bytes: int | None = None  # of all; None until each was measured once
    workers: int = 0
    worker_pss_bytes: int | None = None  # of the largest worker


class SpeedState(NamedTuple):
    """Training speed as the log shows it. ``ratio`` is the step time over the baseline's."""

    seconds_per_step: float
    ratio: float | None = None
    done: int | None = None
    of: int | None = None
    remaining_seconds: float | None = None


class ServerState(NamedTuple):
    """An inference server as its own metrics show it; where they cannot be read, ``reason`` says why."""

    engine: str = ""
    kv_usage: float | None = None  # share of the KV cache in use, 0 … 1, of the fullest rank
    running: int | None = None  # requests
    waiting: int | None = None
    preemptions: int | None = None  # since the server's start: requests put back for want of room, and computed again
    reason: str = ""


class Snapshot(NamedTuple):
    """Everything read at ``time`` (seconds since 1970). ``gpu_note`` says why there are no GPUs."""

    time: float
    gpus: tuple[GpuState, ...] = ()
    host: HostState = HostState()
    tree: TreeState | None = None
    speed: SpeedState | None = None
    gpu_note: str | None = None
    notes: tuple[str, ...] = ()
    server: ServerState | None = None


class Sample(NamedTuple):
    """What was read at one time; None is not known. Bytes, shares as ratios, ``step_ratio`` over the baseline.

    ``host_limit`` is the container's limit, or the host's memory where there is none.
    """

    gpu_used: int | None = None
    gpu_total: int | None = None
    gpu_utilisation: float | None = None
    host_used: int | None = None
    host_limit: int | None = None
    step_ratio: float | None = None
    worker_bytes: int | None = None
