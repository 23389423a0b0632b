"""What a run prints, taken apart as it comes: lines and redrawn bars, the speed that they show, their diagnosis;
and the command that prints it. Whatever happens here, it is not ended.
"""

import codecs
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Generic, TypeVar

from kb.advice.speed_log import SpeedReader, pace
from kb.core.snapshot import SpeedState
from kb.core.text import UserError

LONGEST = 1 << 16  # characters of one stretch; of a longer one the end is kept, where a bar has its speed
MOST_WAITING = 4096  # lines that wait to be diagnosed before the run itself has to
_MOST_AT_ONCE = 4 << 20  # bytes read of a log between two readings
_TAIL = 8 << 20  # bytes of a log that was there before the watch
Found = TypeVar("Found")
_MARKS = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
CHUNK = 1 << 16
# After the command itself has ended: something that it left running may hold its output open for ever.
DRAIN_SECONDS = 2.0


class Splitter:
    """Bytes into stretches between line feeds and carriage returns, with the line that each stands in."""

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = None
        self._pending = ""
        self.line = 1

    def feed(self, data: bytes, final: bool = False) -> Iterator[tuple[int, str]]:
        """The stretches that ``data`` ends; UTF-8 unless a byte order mark says UTF-16."""
        if self._decoder is None:
            encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8-sig")
            self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        *rows, rest = (self._pending + self._decoder.decode(data, final)).split("\n")
        for row in rows:
            for part in row.split("\r"):
                if part:
                    yield self.line, part[-LONGEST:]
            self.line += 1
        *drawn, self._pending = rest.split("\r")
        self._pending = self._pending[-LONGEST:]
        for part in [*drawn, self._pending] if final else drawn:
            if part:
                yield self.line, part
        if final:
            self._pending = ""


class LiveSpeed:
    """The training speed that the lines so far show; safe to feed from another thread."""

    def __init__(self, baseline_seconds: float | None = None) -> None:
        self._reader, self._baseline = SpeedReader(), baseline_seconds
        self._lock = threading.Lock()
        self._news = False
        self._state: SpeedState | None = None

    def feed(self, line: int, text: str) -> None:
        """Take the next stretch of the log."""
        with self._lock:
            self._news = self._reader.feed(line, text) or self._news

    def read(self) -> SpeedState | None:
        """The speed of the longest bar: the training itself. None until the log shows one."""
        with self._lock:
            if self._news:
                self._news = False
                self._state = self._work_out()
            return self._state

    def _work_out(self) -> SpeedState | None:
        log = self._reader.log()
        if not log.bars:
            rate = log.summary.get("train_steps_per_second")
            return SpeedState(1 / rate) if rate else None
        bar = log.bars[0]
        held = pace(bar, self._baseline)
        return SpeedState(
            seconds_per_step=bar.latest,
            ratio=held.ratio if held else None,
            done=bar.last.done,
            of=bar.last.of,
            remaining_seconds=bar.remaining_seconds,
        )


class Diagnoser(Generic[Found]):
    """Hands lines to a diagnosis that runs beside, in bounded memory.

    Args:
        diagnose: takes the lines until they end; its answer is :meth:`result`.
    """

    def __init__(self, diagnose: Callable[[Iterator[tuple[int, str]]], Found]) -> None:
        self._queue: queue.Queue[tuple[int, str] | None] = queue.Queue(MOST_WAITING)
        self._found: list[Found] = []
        self._thread = threading.Thread(target=self._run, args=(diagnose,), name="diagnosis", daemon=True)
        self._thread.start()

    def feed(self, line: int, text: str) -> None:
        """Take the next stretch; waits while too many wait already."""
        if self._thread.is_alive():
            self._queue.put((line, text))

    def result(self, seconds: float = 30.0) -> Found | None:
        """The diagnosis of all that was fed; None where it does not end in time."""
        if self._thread.is_alive():
            self._queue.put(None)
        self._thread.join(seconds)
        return self._found[0] if self._found else None

    def _run(self, diagnose: Callable[[Iterator[tuple[int, str]]], Found]) -> None:
        rest = iter(self._queue.get, None)
        try:
            self._found.append(diagnose(row for row in rest if row is not None))
        finally:
            for _ in rest:  # so that whoever feeds does not wait for ever
                pass


class LogFollower:
    """A log that something else writes: read on at every reading, also where it is cut short or made anew."""

    def __init__(self, path: str, take: Callable[[int, str], None]) -> None:
        self.path, self._take = path, take
        self._at = 0
        self._inode: int | None = None
        self._splitter = Splitter()

    def read(self) -> bool:
        """Take what was added; False where the file cannot be read just now."""
        try:
            with open(self.path, "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._at:
                    first = self._inode is None
                    self._inode, self._splitter = found.st_ino, Splitter()
                    self._at = max(found.st_size - _TAIL, 0) if first else 0
                file.seek(self._at)
                data = file.read(_MOST_AT_ONCE)
        except OSError:
            return False
        self._at += len(data)
        for line, text in self._splitter.feed(data):
            self._take(line, text)
        return True


class Command:
    """A command with its output passed on.

    Args:
        words: the command and its arguments.
        environ: its environment.
        put: takes what it writes: (1 or 2, bytes).
        take: takes (line, text) of both outputs, in the order in which they come.

    Raises:
        UserError: it cannot be started.
    """

    def __init__(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        put: Callable[[int, bytes], None],
        take: Callable[[int, str], None],
    ) -> None:
        self._put, self._take = put, take
        self._lock = threading.Lock()
        self._splitters = {1: Splitter(), 2: Splitter()}
        self._line, self._last = 0, (0, 0)
        self.done = threading.Event()
        self.fault: Exception | None = None  # the first of the watch's own, to be raised once the command has ended
        # Python holds back what it prints into a pipe; the command should show its lines as it would on a terminal.
        environ = {"PYTHONUNBUFFERED": "1", **environ}
        try:
            self._process = subprocess.Popen(
                list(words), env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError("monitor.cannot_start", command=words[0], reason=reason) from None
        self.pid = self._process.pid
        pipes = {1: self._process.stdout, 2: self._process.stderr}
        self._pumps = [self._thread(self._pump, number, pipe) for number, pipe in pipes.items()]
        self._thread(self._wait)

    @staticmethod
    def _thread(target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, name="command", daemon=True)
        thread.start()
        return thread

    def _pump(self, number: int, pipe: IO[bytes]) -> None:
        while data := os.read(pipe.fileno(), CHUNK):
            self._handle(number, data)
        self._handle(number, b"", final=True)

    def _handle(self, number: int, data: bytes, final: bool = False) -> None:
        """A fault in here must not stop the reading: the command would wait for ever with a full pipe."""
        try:
            if data:
                self._put(number, data)
            # both outputs are numbered as one, as a terminal shows them
            with self._lock:
                for line, text in self._splitters[number].feed(data, final):
                    if (number, line) != self._last:
                        self._line, self._last = self._line + 1, (number, line)
                    self._take(self._line, text)
        except Exception as error:
            self.fault = self.fault or error

    def _wait(self) -> None:
        self._process.wait()
        for pump in self._pumps:
            pump.join(DRAIN_SECONDS)
        self.done.set()

    @property
    def code(self) -> int | None:
        """As Python gives it: less than 0 for a signal; None while it runs."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Hand a signal on, if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end, whatever else goes wrong."""
        while not self.done.is_set():
            try:
                self.done.wait(1.0)
            except KeyboardInterrupt:
                self.send(signal.SIGINT)
        return self._process.wait()
