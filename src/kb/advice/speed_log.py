"""The speed of training from its log: tqdm's ``it/s`` and, below one step a second, ``s/it``. Pure.

tqdm redraws its bar with carriage returns and may colour it; the reader of the log splits at those, and this module
takes one redrawn line at a time. Memory stays bounded however long the log is.
"""

import re
from collections.abc import Iterable, Sequence

from kb.advice.log_lines import clean
from kb.core.record import NamedTuple

SLOW_RATIO = 1.5  # step time over the baseline's, from which something holds the run up (systems S21)
LATEST = 5  # readings whose median is the present speed
FEWEST = 8  # fewer readings give no baseline of their own
MAX_READINGS = 4096  # kept of one bar; of more, every second, then every fourth …
MAX_BARS = 64

_SPEED = re.compile(
    r"(?:(?P<done>\d{1,12})(?:/(?P<of>\d{1,12}))?(?:it)? \[(?P<elapsed>[\d:]{1,12})(?:<[\d:?]{1,16})?, {0,8})?"
    r"(?P<rate>\d{1,9}(?:\.\d{1,6})?)(?P<scale>[kMG]?)(?P<unit>it/s|s/it)"
)
_PERCENT = re.compile(r"\s*\d{1,3}%\|")
_DIGITS = re.compile(r"\d+")
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_SUMMARY = re.compile(r"['\"](train_runtime|train_samples_per_second|train_steps_per_second)['\"]: ?(\d+(?:\.\d+)?)")


class Reading(NamedTuple):
    """One redrawn bar: its line in the file (from 1), and seconds a step; steps and elapsed seconds where it says."""

    line: int
    seconds_per_step: float
    done: int | None = None
    of: int | None = None
    elapsed_seconds: int | None = None


class Bar(NamedTuple):
    """All readings of one bar: training, an evaluation, a download. ``name`` is what stands before its percentage."""

    name: str
    readings: tuple[Reading, ...]
    count_all: int  # readings seen; of very many only a part is kept

    @property
    def last(self) -> Reading:
        return self.readings[-1]

    @property
    def seconds_per_step(self) -> float:
        """The median over the bar."""
        return _median(self.readings)

    @property
    def latest(self) -> float:
        """The present speed in seconds a step: the median of the last readings."""
        return _median(self.readings[-LATEST:])

    @property
    def weight(self) -> float:
        """Seconds that the bar took, so far as the log shows: the longest is the training itself."""
        if self.last.elapsed_seconds is not None:
            return float(self.last.elapsed_seconds)
        return self.count_all * self.seconds_per_step

    @property
    def remaining_seconds(self) -> float | None:
        if self.last.of is None or self.last.done is None:
            return None
        return max(self.last.of - self.last.done, 0) * self.latest


class SpeedLog(NamedTuple):
    """``bars``, longest first; ``summary`` is what the Trainer says at its end, by its own names."""

    bars: tuple[Bar, ...]
    summary: dict[str, float]
    lines: int


class Pace(NamedTuple):
    """One bar against a baseline in seconds a step. ``first_slow_line`` is where it first went past the ratio."""

    baseline: float
    given: bool  # the user named the baseline; else it is the first quarter of the bar's own readings
    ratio: float
    slow_readings: int
    first_slow_line: int | None

    @property
    def alert(self) -> bool:
        return self.ratio > SLOW_RATIO


class _Growing:
    """A bar while it is read: thins its readings out when they become too many."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.readings: list[Reading] = []
        self.last: Reading | None = None
        self.seen = 0
        self.stride = 1

    def add(self, reading: Reading) -> None:
        if self.seen % self.stride == 0:
            self.readings.append(reading)
        self.last = reading
        self.seen += 1
        if len(self.readings) > MAX_READINGS:
            self.readings = self.readings[::2]
            self.stride *= 2

    def bar(self) -> Bar:
        assert self.last is not None
        ends = () if self.readings[-1] == self.last else (self.last,)
        return Bar(name=self.name, readings=(*self.readings, *ends), count_all=self.seen)


class SpeedReader:
    """Reads a log piece by piece, for one that is still being written."""

    def __init__(self) -> None:
        self._bars: dict[tuple[str, int | None], _Growing] = {}
        self._summary: dict[str, float] = {}
        self._line = 0

    def feed(self, line: int, text: str) -> bool:
        """Take the next stretch between line feeds or carriage returns; whether it said something of the speed."""
        self._line = line
        told = ("it/s" in text or "s/it" in text) and self._read_bar(line, text)
        if "train_" in text:
            found = {name: float(value) for name, value in _SUMMARY.findall(text)}
            self._summary.update(found)
            told = told or bool(found)
        return told

    def log(self) -> SpeedLog:
        """What the log has shown so far."""
        done = sorted((growing.bar() for growing in self._bars.values()), key=lambda bar: -bar.weight)
        return SpeedLog(bars=tuple(done), summary=dict(self._summary), lines=self._line)

    def _read_bar(self, line: int, text: str) -> bool:
        text = clean(text)
        match = _SPEED.search(text)
        rate = float(match["rate"]) * _SCALES[match["scale"]] if match else 0.0
        if match is None or not rate:
            return False
        percent = _PERCENT.search(text)
        name = text[: percent.start()].strip().rstrip(":") if percent else ""
        of = int(match["of"]) if match["of"] else None
        key = (_DIGITS.sub("#", name), of)  # "Epoch 1" and "Epoch 2" are one bar
        if key not in self._bars:
            if len(self._bars) >= MAX_BARS:
                return False
            self._bars[key] = _Growing(name[:60])
        self._bars[key].add(
            Reading(
                line=line,
                seconds_per_step=1 / rate if match["unit"] == "it/s" else rate,
                done=int(match["done"]) if match["done"] else None,
                of=of,
                elapsed_seconds=_seconds(match["elapsed"]) if match["elapsed"] else None,
            )
        )
        return True


def read_speed(pieces: Iterable[tuple[int, str]]) -> SpeedLog:
    """The bars of a log.

    Args:
        pieces: ``(line number, text)`` for every stretch between line feeds or carriage returns.
    """
    reader = SpeedReader()
    for line, text in pieces:
        reader.feed(line, text)
    return reader.log()


def _median(readings: Sequence[Reading]) -> float:
    """Of an even number of readings, the lower of the middle two: a figure that the log itself shows."""
    times = sorted(reading.seconds_per_step for reading in readings)
    return times[(len(times) - 1) // 2]


def _seconds(clock: str) -> int:
    """``1:02:03`` or ``02:03`` in seconds."""
    return sum(int(part or 0) * 60**place for place, part in enumerate(reversed(clock.split(":"))))


def pace(bar: Bar, baseline: float | None = None) -> Pace | None:
    """The bar's present speed against a baseline in seconds a step; None where there is nothing to hold it against.

    Without a baseline the first quarter of the bar's own readings is one, from its second reading on: the first step
    also compiles, allocates and fills the data loaders.
    """
    own = bar.readings[1 : max(len(bar.readings) // 4, 2)]
    if baseline is None and len(bar.readings) < FEWEST:
        return None
    normal = baseline if baseline is not None else _median(own)
    rest = bar.readings if baseline is not None else bar.readings[len(own) + 1 :]
    slow = [reading.line for reading in rest if reading.seconds_per_step > SLOW_RATIO * normal]
    return Pace(
        baseline=normal,
        given=baseline is not None,
        ratio=bar.latest / normal,
        slow_readings=len(slow),
        first_slow_line=slow[0] if slow else None,
    )
