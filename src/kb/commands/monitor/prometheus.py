"""The last snapshot as Prometheus asks for it: a page on this machine's loopback, unless told otherwise."""

from collections.abc import Iterator
from typing import Any

from kb.core.snapshot import GpuState, Snapshot
from kb.core.text import UserError

LOOPBACK = "127.0.0.1"


class Exporter:
    """Serves what :meth:`show` was given last.

    Raises:
        UserError: prometheus_client is not installed, or the address cannot be listened at.
    """

    def __init__(self, port: int, host: str = LOOPBACK) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise UserError("monitor.needs_prometheus") from None
        self._snapshot: Snapshot | None = None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError("monitor.port_taken", host=host, port=str(port), reason=reason) from None
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._server.server_port}/metrics"

    def show(self, snapshot: Snapshot) -> None:
        """What is served from now on."""
        self._snapshot = snapshot

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)

    def collect(self) -> Iterator[Any]:
        """Every value that is known; of what is not known there is no line."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        yield from _of_gpus(snapshot.gpus)
        yield from _of_host(snapshot)


def _of_gpus(gpus: tuple[GpuState, ...]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    rows = (
        ("kb_gpu_memory_used_bytes", "GPU memory in use", lambda gpu: gpu.used_bytes),
        ("kb_gpu_memory_total_bytes", "GPU memory", lambda gpu: gpu.total_bytes),
        ("kb_gpu_utilisation_ratio", "share of time in which anything ran", lambda gpu: gpu.utilisation),
        ("kb_gpu_power_watts", "power drawn", lambda gpu: gpu.power_watts),
        ("kb_gpu_temperature_celsius", "temperature", lambda gpu: gpu.temperature_celsius),
    )
    for name, about, value in rows:
        family = GaugeMetricFamily(name, about, labels=("gpu", "uuid", "name"))
        for gpu in gpus:
            if (known := value(gpu)) is not None:
                family.add_metric((gpu.key, gpu.uuid, gpu.name), known)
        yield family
    held = GaugeMetricFamily("kb_gpu_throttled", "1 where this holds the clocks down", labels=("gpu", "reason"))
    for gpu in gpus:
        for reason in gpu.throttle:
            held.add_metric((gpu.key, reason), 1)
    yield held


def _of_host(snapshot: Snapshot) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    host, tree, speed = snapshot.host, snapshot.tree, snapshot.speed
    rows = (
        ("kb_host_memory_used_bytes", "host or container memory in use", host.used_bytes),
        ("kb_host_memory_limit_bytes", "the container's limit, or the host's memory", host.limit_bytes),
        ("kb_shm_used_bytes", "/dev/shm in use", host.shm_used_bytes),
        ("kb_shm_total_bytes", "/dev/shm", host.shm_total_bytes),
        ("kb_tree_pss_bytes", "memory of the watched processes", tree.pss_bytes if tree else None),
        ("kb_workers", "data loader workers", tree.workers if tree else None),
        ("kb_worker_pss_bytes", "memory of the largest worker", tree.worker_pss_bytes if tree else None),
        ("kb_seconds_per_step", "step time as the log shows it", speed.seconds_per_step if speed else None),
        ("kb_step_time_ratio", "step time over the baseline", speed.ratio if speed else None),
        ("kb_time_seconds", "when this was read", snapshot.time),
    )
    for name, about, value in rows:
        if value is not None:
            yield GaugeMetricFamily(name, about, value=value)
    if host.oom_kills is not None:
        yield CounterMetricFamily("kb_oom_kills", "processes killed for the memory limit", value=host.oom_kills)
