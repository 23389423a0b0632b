"""The live view: redrawn in place on a terminal (rich), which may change its size at any time."""

from collections.abc import Sequence
from typing import Any


class LiveView:
    """A block of lines that stays at the bottom of the terminal; what the watched command prints goes above it.

    Args:
        stream: the terminal.
    """

    def __init__(self, stream: Any) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._live.start()

    @property
    def columns(self) -> int:
        """Of the terminal, as it is now."""
        return self._console.size.width

    def show(self, lines: Sequence[str], last: str = "") -> None:
        """Draw these lines instead of the last ones; no more than the terminal has rows for, ``last`` always."""
        from rich.text import Text

        room = max(self._console.size.height - 1 - bool(last), 1)
        shown = list(lines)[:room] + ([last] if last else [])
        text = Text("\n").join(Text.from_ansi(line) for line in shown)
        text.no_wrap, text.overflow = True, "crop"
        self._live.update(text, refresh=True)

    def above(self, text: str) -> None:
        """Print a line above the block."""
        from rich.text import Text

        self._console.print(Text.from_ansi(text), soft_wrap=True)

    def close(self) -> None:
        """Leave the last block standing."""
        self._live.stop()
