"""Where a value that is watched is heading: its mean of late, and when it would reach a limit. Pure."""

from collections import deque

MOST_SAMPLES = 120
FEWEST_SAMPLES, FEWEST_SECONDS = 20, 60.0  # before that a run is still filling its caches, and any line fits
STRAIGHT = 0.8  # share of the variance that a straight line must explain: steps up and plateaus do not grow on
WINDOW_SECONDS = 60.0


class Trend:
    """The last readings of one value; bounded, however long it is watched."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: deque[tuple[float, float]] = deque(maxlen=MOST_SAMPLES)

    def add(self, time: float, value: float) -> None:
        """Take a reading; one from before the last means another record, and all is forgotten."""
        if self._rows and time < self._rows[-1][0]:
            self._rows.clear()
        self._rows.append((time, value))

    def mean(self) -> float | None:
        """Over the last minute, or the last reading where they are further apart."""
        if not self._rows:
            return None
        since = self._rows[-1][0] - WINDOW_SECONDS
        late = [value for time, value in self._rows if time >= since]
        return sum(late) / len(late)

    def seconds_to(self, limit: float) -> float | None:
        """Seconds until the value reaches ``limit`` if it goes on growing as it does; None where it does not grow.

        The slope is that of the least-squares line; the later half must grow on as well.
        """
        rows = self._rows
        if len(rows) < FEWEST_SAMPLES or rows[-1][0] - rows[0][0] < FEWEST_SECONDS or rows[-1][1] <= rows[0][1]:
            return None
        whole = list(rows)
        slope, explained = _line(whole)
        later, _ = _line(whole[len(whole) // 2 :])
        if slope <= 0 or explained < STRAIGHT or later < slope / 2:
            return None
        return max((limit - rows[-1][1]) / slope, 0.0)


def _line(rows: list[tuple[float, float]]) -> tuple[float, float]:
    """The slope of the least-squares line and the share of the variance that it explains."""
    count = len(rows)
    mean_time = sum(time for time, _ in rows) / count
    mean_value = sum(value for _, value in rows) / count
    times = sum((time - mean_time) ** 2 for time, _ in rows)
    values = sum((value - mean_value) ** 2 for _, value in rows)
    both = sum((time - mean_time) * (value - mean_value) for time, value in rows)
    if not times or not values:
        return 0.0, 0.0
    return both / times, both * both / (times * values)
