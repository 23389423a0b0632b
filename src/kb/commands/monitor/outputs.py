"""Where a watch's readings go beside the screen: recordings and Prometheus, opened before anything is started."""

import argparse
import sys
from collections.abc import Callable

from kb.commands.monitor.prometheus import Exporter
from kb.commands.monitor.recording import Recorder, csv_recorder, json_recorder
from kb.commands.monitor.sampler import Sink
from kb.report.words import Words


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
