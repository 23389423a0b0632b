"""The watched command: started, its output passed on and read, its end told. Whatever happens here, it is not ended."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from kb.commands.monitor.output import Splitter
from kb.core.text import UserError

CHUNK = 1 << 16
# After the command itself has ended: something that it left running may hold its output open for ever.
DRAIN_SECONDS = 2.0


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
            self._tell(number, data, final)
        except Exception as error:
            self.fault = self.fault or error

    def _tell(self, number: int, data: bytes, final: bool = False) -> None:
        """Both outputs are numbered as one, as a terminal shows them."""
        with self._lock:
            for line, text in self._splitters[number].feed(data, final):
                if (number, line) != self._last:
                    self._line, self._last = self._line + 1, (number, line)
                self._take(self._line, text)

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
