"""Where a watch's readings go beside the screen: recordings and Prometheus, opened before anything is started.
A full disk costs readings, never the watch.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from kb.commands.monitor.columns import FORMAT, csv_header, csv_rows, json_line
from kb.core.snapshot import GpuState, Snapshot
from kb.core.text import UserError
from kb.report.words import Words

Sink = Callable[[Snapshot], object]
"""Takes every snapshot: a recording, a server."""


class Outputs:
    """All outputs that were asked for.

    Raises:
        UserError: a file cannot be written, or the port cannot be listened at.
    """

    def __init__(self, options: argparse.Namespace, words: Words) -> None:
        self._words = words
        self.say: Callable[[str], None] = _to_stderr
        self._recorders: list[Recorder] = []
        self._exporter: Exporter | None = None
        try:
            if options.csv:
                self._recorders.append(csv_recorder(options.csv, self._trouble))
            if options.json_lines:
                self._recorders.append(json_recorder(options.json_lines, self._trouble))
            if options.prometheus is not None:
                self._exporter = Exporter(options.prometheus, options.prometheus_host)
        except ValueError:
            self.close()
            raise

    @property
    def sinks(self) -> list[Sink]:
        sinks: list[Sink] = [recorder.write for recorder in self._recorders]
        return sinks + ([self._exporter.show] if self._exporter else [])

    @property
    def address(self) -> str | None:
        """Where Prometheus may ask."""
        return self._exporter.address if self._exporter else None

    def lost(self) -> list[str]:
        """A sentence for each recording that lacks readings."""
        return [
            self._words("monitor.lost", path=each.path, readings=self._words.count("monitor.readings", each.lost))
            for each in self._recorders
            if each.lost
        ]

    def close(self) -> None:
        """Close the files, stop serving."""
        for recorder in self._recorders:
            recorder.close()
        if self._exporter is not None:
            self._exporter.close()

    def _trouble(self, path: str, reason: str | None) -> None:
        key = "monitor.writing_fails" if reason else "monitor.writing_again"
        self.say(self._words(key, path=path, reason=reason or ""))


def _to_stderr(text: str) -> None:
    print(f"kb: {text}", file=sys.stderr)


class Recorder:
    """Appends to a recording of its own kind, or begins one. Each snapshot is handed to the system at once.

    Args:
        rows: the text of a snapshot.
        header: what the file begins with; empty for none.
        trouble: told once, with the reason, when a write fails, and once with None when writing works again.

    Raises:
        UserError: the file cannot be opened for writing, or holds something else.
    """

    def __init__(
        self, path: str, rows: Callable[[Snapshot], str], header: str, trouble: Callable[[str, str | None], None]
    ) -> None:
        self.path, self._rows, self._trouble = path, rows, trouble
        self.lost = 0
        self._failing = False
        try:
            own = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # Windows would end lines by two characters
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | own, 0o666)
        except OSError as error:
            raise UserError("monitor.unwritable", path=path, reason=error.strerror or str(error)) from None
        self._header = header if self._is_new(header) else ""

    def _is_new(self, header: str) -> bool:
        """Whether the header is still to be written."""
        try:
            start = self._read(4096, 0) if self._regular() else b""
            if not start:
                return True
            known = (
                start.startswith(header.encode()) if header else start.startswith(f'{{"kb_monitor":{FORMAT}'.encode())
            )
            if known and not self._ends_a_line():
                os.write(self._file, b"\n")  # what was cut off stays a line of its own
        except OSError as error:
            os.close(self._file)
            raise UserError("monitor.unwritable", path=self.path, reason=error.strerror or str(error)) from None
        if not known:
            os.close(self._file)
            raise UserError("monitor.other_file", path=self.path)
        return False

    def _ends_a_line(self) -> bool:
        size = os.fstat(self._file).st_size
        return self._read(1, size - 1) == b"\n"

    def _read(self, count: int, start: int) -> bytes:
        """Bytes from a place in the file; what is written goes to its end whatever was read."""
        os.lseek(self._file, start, os.SEEK_SET)
        return os.read(self._file, count)

    def _regular(self) -> bool:
        import stat

        return stat.S_ISREG(os.fstat(self._file).st_mode)

    def write(self, snapshot: Snapshot) -> None:
        """Append the snapshot; where that fails, say so once and go on."""
        data = (self._header + self._rows(snapshot)).encode()
        try:
            self._append(data)
        except OSError as error:
            self.lost += 1
            if not self._failing:
                self._failing = True
                self._trouble(self.path, error.strerror or str(error))
            return
        self._header = ""
        if self._failing:
            self._failing = False
            self._trouble(self.path, None)

    def _append(self, data: bytes) -> None:
        """All of ``data`` or none of it: half a row would be read as a broken one.

        Raises:
            OSError: it does not fit.
        """
        before = os.fstat(self._file).st_size
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            if self._regular():
                os.ftruncate(self._file, before)
            raise

    def close(self) -> None:
        os.close(self._file)


def csv_recorder(path: str, trouble: Callable[[str, str | None], None]) -> Recorder:
    """A recording as CSV: a row for each GPU and time."""
    return Recorder(path, csv_rows, csv_header(), trouble)


def json_recorder(path: str, trouble: Callable[[str, str | None], None]) -> Recorder:
    """A recording as JSON lines: an object for each time, with every process."""
    return Recorder(path, json_line, "", trouble)


class Exporter:
    """Serves what :meth:`show` was given last.

    Raises:
        UserError: prometheus_client is not installed, or the address cannot be listened at.
    """

    def __init__(self, port: int, host: str) -> None:
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
