"""One run from its start to its end, whatever drives it: forecast, comparisons, diagnosis. Nothing here trains."""

import logging
import sys
from typing import Any

from kb.core.memory_report import MemoryReport
from kb.core.result import UnitResult
from kb.core.text import UserError
from kb.integrations.trainer import lines
from kb.integrations.trainer.forecast import Forecast, Knowledge
from kb.integrations.trainer.lengths import Shapes
from kb.integrations.trainer.live import LiveRun
from kb.integrations.trainer.meter import EVALUATION, Comparison, Meter, Reading, compare, host_bytes
from kb.session.cli import worded

GREW = 1.02  # a later peak that is worth another line


def logger() -> logging.Logger:
    """``kb.transformers``, heard on standard error where the program has set up no logging of its own."""
    found = logging.getLogger("kb.transformers")
    if not found.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        found.addHandler(handler)
        found.propagate = False
    if found.level == logging.NOTSET:
        found.setLevel(logging.INFO)
    return found


class Watching:
    """What happens to one run.

    Args:
        knowledge: rules and language.
        meter: measures on the run's device.
        device: the ``torch.device``.
        aloud: whether this process speaks: of several, the main one does.
    """

    def __init__(self, knowledge: Knowledge, meter: Meter, device: Any, *, aloud: bool = True) -> None:
        self.knowledge = knowledge
        self.meter = meter
        self.device = device
        self.aloud = aloud
        self.shapes = Shapes()
        self.forecast: Forecast | None = None
        self.comparisons: list[Comparison] = []
        self._said: set[tuple[Any, ...]] = set()
        self._stepped = False
        self._train_peak = Reading()
        self._host_before = 0

    @property
    def result(self) -> UnitResult | None:
        return self.forecast.result if self.forecast else None

    def start(self, run: LiveRun) -> Forecast:
        """Lint and predict; say each once, and again only where the run has changed (a batch that was lowered)."""
        reading = self.meter.read()
        self.forecast = Forecast(run, self.knowledge, device=self.device, ours=reading.reserved or 0)
        text = run.text()
        if (text,) not in self._said:
            self._said.add((text,))
            self._say(lines.findings(self.forecast, self.knowledge.words))
            self._say(lines.prediction(self.forecast, self.knowledge.words, self.meter.kind))
        self._stepped, self._train_peak, self._host_before = False, Reading(), host_bytes()
        self.shapes.forget()
        self.meter.reset()
        return self.forecast

    def stepped(self) -> Comparison | None:
        """After an optimizer step; a comparison after the first."""
        if self._stepped or self.forecast is None:
            return None
        self._stepped = True
        self._train_peak = _higher(self._train_peak, self.meter.read())
        return self._compared("train", self._train_peak)

    def before_evaluation(self) -> None:
        """Keep training's peak, and let evaluation's count from here."""
        self._train_peak = _higher(self._train_peak, self.meter.read())
        self.meter.reset()

    def evaluated(self) -> Comparison | None:
        """After an evaluation, or a prediction."""
        if self.forecast is None:
            return None
        found = self._compared("evaluate", self.meter.read())
        self.meter.reset()
        return found

    def end(self) -> Comparison | None:
        """At the end of training: training's peak over all steps, where it grew after the first."""
        if self.forecast is None or not self._stepped:
            return None
        first = next((each for each in self.comparisons if each.phase == "train"), None)
        self._train_peak = _higher(self._train_peak, self.meter.read())
        self.meter.reset()
        found = self._of("train", self._train_peak)
        grew = (found.pair[1] or 0) > GREW * ((first.pair[1] if first else 0) or 0)
        return self._tell(found) if grew else None

    def _compared(self, phase: str, reading: Reading) -> Comparison:
        return self._tell(self._of(phase, reading))

    def _of(self, phase: str, reading: Reading) -> Comparison:
        forecast = self.forecast
        assert forecast is not None
        counted = ["train"] if phase == "train" else list(EVALUATION)
        if phase != "train" and not self.meter.resets and self._stepped:
            counted.append("train")
        return compare(
            phase,
            self.meter.kind,
            self._report(phase),
            reading,
            counted=counted,
            host_before=self._host_before,
            parameters_bytes=forecast.run.parameters_bytes,
        )

    def _report(self, phase: str) -> MemoryReport | None:
        """Training at the lengths that were seen: like with like. Before the first step no optimizer states exist."""
        forecast, seen = self.forecast, self.shapes.most
        assert forecast is not None
        if phase == "train" and seen is not None:
            return forecast.at(seen)
        return forecast.report if self._stepped or phase == "train" else forecast.before_training

    def _tell(self, comparison: Comparison) -> Comparison:
        self.comparisons.append(comparison)
        seen = self.shapes.most
        if seen is not None and self.forecast is not None and not self.forecast.reads_target:
            seen = seen._replace(target=None)
        self._say(lines.comparison(comparison, seen, self.knowledge.words))
        return comparison

    def _say(self, found: list[tuple[int, str]]) -> None:
        if self.aloud:
            for level, text in found:
                logger().log(level, text)


def _higher(one: Reading, other: Reading) -> Reading:
    peaks = ([size for size in pair if size is not None] for pair in zip(one, other, strict=True))
    return Reading(*(max(sizes, default=None) for sizes in peaks))


def reason_of(fault: Exception, language: str) -> str:
    """A fault of kb's own in one line."""
    if isinstance(fault, UserError):
        return worded(fault, language)
    return f"{type(fault).__name__}: {(str(fault).splitlines() or [''])[0]}"[:300]
