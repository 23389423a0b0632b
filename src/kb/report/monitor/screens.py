"""Where a watch is shown: redrawn in place on a terminal; elsewhere the first reading and what is news after it."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from kb.advice.watching import Alert, Watch
from kb.core.snapshot import Snapshot
from kb.report.monitor.text import Reading, alert_text, clock, reading_lines
from kb.report.terminal import NARROWEST, WIDEST, Style, wrap
from kb.report.values import printable
from kb.report.words import Words

_MOST_ALERTS = 4
STDERR = 2


def reading_of(snapshot: Snapshot, watch: Watch) -> Reading:
    """The snapshot with its verdicts."""
    return Reading(snapshot, watch.judged(snapshot), {gpu.key: watch.utilisation(gpu.key) for gpu in snapshot.gpus})


class PlainScreen:
    """Lines on a stream that is no terminal."""

    def __init__(self, stream: Any, words: Words, style: Style, log: str | None = None) -> None:
        self._stream, self._words, self._style, self._log = stream, words, style, log
        self._shown = False
        self.midline = False  # whether somebody else left a line of the stream unfinished
        self.off = False

    def show(self, snapshot: Snapshot, watch: Watch) -> None:
        """The first reading; of the later ones only :meth:`warn` speaks."""
        if not self._shown:
            self._shown = True
            self.say("\n".join(reading_lines(reading_of(snapshot, watch), self._words, self._style)))

    def warn(self, alert: Alert) -> None:
        said = f"{clock(alert.time)} {alert_text(alert, self._words, self._log)}"
        self.say("\n".join(wrap(said, self._style.width, "", "  ")))

    def say(self, text: str) -> None:
        """A line; where nobody reads any more, nothing from then on."""
        if self.off:
            return
        begin, self.midline = "\n" if self.midline else "", False
        try:
            self._stream.write(f"{begin}{text}\n")
            self._stream.flush()
        except (OSError, ValueError):
            self.off = True
            abandon(self._stream)

    def close(self) -> None:
        """Nothing is held."""


class LiveScreen:
    """The block at the bottom of a terminal: the reading, the last warnings, the command's progress bar."""

    def __init__(self, stream: Any, words: Words, style: Style, log: str | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._live.start()
        self._words, self._style, self._log = words, style, log
        self._alerts: list[str] = []
        self.bar = ""
        self.off = False

    def show(self, snapshot: Snapshot, watch: Watch) -> None:
        """Draw the reading, as wide as the terminal is now."""
        from rich.text import Text

        if self.off:
            return
        size = self._console.size
        style = self._style._replace(width=min(max(size.width, NARROWEST), WIDEST))
        lines = [style.paint(f"kb monitor {style.rule * 3} {clock(snapshot.time)} UTC", "dim")]
        # warnings stand first: a low terminal loses the last lines
        lines += [style.paint(row, "warning") for said in self._alerts for row in wrap(said, style.width, "! ", "  ")]
        lines += reading_lines(reading_of(snapshot, watch), self._words, style)
        bar = [printable(self.bar)] if self.bar else []
        shown = lines[: max(size.height - 1 - len(bar), 1)] + bar
        text = Text("\n").join(Text.from_ansi(line) for line in shown)
        text.no_wrap, text.overflow = True, "crop"
        with self._terminal():
            self._live.update(text, refresh=True)

    def warn(self, alert: Alert) -> None:
        said = f"{clock(alert.time)} {alert_text(alert, self._words, self._log)}"
        self._alerts = [*self._alerts, said][-_MOST_ALERTS:]

    def say(self, text: str) -> None:
        """A line above the block."""
        from rich.text import Text

        with self._terminal():
            self._console.print(Text.from_ansi(text), soft_wrap=True)

    def close(self) -> None:
        """Leave the last block standing."""
        with self._terminal():
            self._live.stop()

    @contextlib.contextmanager
    def _terminal(self) -> Iterator[None]:
        """Off from now on where the terminal is gone."""
        try:
            yield
        except (OSError, ValueError):
            self.off = True


class SilentScreen:
    """For what is asked for once and printed as a whole."""

    off = False

    def show(self, snapshot: Snapshot, watch: Watch) -> None:
        """Nothing."""

    def warn(self, alert: Alert) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr)

    def close(self) -> None:
        """Nothing is held."""


def abandon(stream: Any) -> None:
    """Nobody reads this stream any more; without this Python complains of it once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def choose_screen(
    stream: Any, words: Words, style: Style, log: str | None, environ: Mapping[str, str]
) -> "PlainScreen | LiveScreen":
    """The live view on a terminal that can be redrawn, where rich is installed."""
    import importlib.util

    if not stream.isatty() or environ.get("TERM") in ("dumb", ""):
        return PlainScreen(stream, words, style, log)
    if importlib.util.find_spec("rich"):
        return LiveScreen(stream, words, style, log)
    screen = PlainScreen(stream, words, style, log)
    screen.say(words("monitor.needs_rich"))
    return screen


class PassedOn:
    """What the watched command writes, on its way to where kb's own output goes.

    On a terminal that shows the live view, whole lines go above it and the bar that is being drawn goes into it;
    anywhere else the bytes go on as they are. An end that is closed takes no more, and the command is not ended.
    """

    def __init__(self, screen: Any) -> None:
        self._screen = screen
        self._pending = {1: b"", 2: b""}
        self._closed: set[int] = set()
        self._lock = threading.Lock()
        live = isinstance(screen, LiveScreen)
        self._drawn = {number for number in (1, 2) if live and os.isatty(number)}

    def put(self, number: int, data: bytes) -> None:
        """Pass on what the command wrote to 1 or 2."""
        with self._lock:
            if number in self._drawn and not self._screen.off:
                *whole, rest = (self._pending[number] + data).split(b"\n")
                self._pending[number] = rest[-65536:]
                if whole:
                    lines = (line.rstrip(b"\r").rpartition(b"\r")[2] for line in whole)
                    self._screen.say(b"\n".join(lines).decode("utf-8", "replace"))
                self._screen.bar = rest.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
            elif number not in self._closed:
                self._raw(number, data)

    def _raw(self, number: int, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(number, rest) :]
        except OSError:
            self._closed.add(number)
        if number == STDERR and isinstance(self._screen, PlainScreen):
            self._screen.midline = not data.endswith(b"\n")

    def end(self) -> None:
        """What was never ended by a line feed."""
        with self._lock:
            for number in sorted(self._drawn):
                if self._pending[number]:
                    self._screen.say(self._pending[number].rpartition(b"\r")[2].decode("utf-8", "replace"))
            self._screen.bar = ""
