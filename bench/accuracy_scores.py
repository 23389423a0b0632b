"""Errors by campaign: mean and worst of |predicted / true − 1|, for each predictor and quantity."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from accuracy_rows import QUANTITIES, Row

Predictions = Mapping[str, Mapping[str, Mapping[str, int]]]  # row id → predictor → quantity → bytes


@dataclass(frozen=True)
class Score:
    """Errors as ratios; ``worst`` keeps its sign: below zero the prediction was too low."""

    rows: int
    mean: float
    worst: float

    @staticmethod
    def of(errors: Sequence[float]) -> "Score":
        return Score(len(errors), mean(map(abs, errors)), max(errors, key=abs))


@dataclass(frozen=True)
class Line:
    """One campaign and quantity, with a score for each predictor that said something of it."""

    group: str
    quantity: str
    rows: int
    scores: Mapping[str, Score]


def lines_of(rows: Iterable[Row], predictions: Predictions, group: Callable[[Row], str]) -> list[Line]:
    """Scores by group and quantity, in the order of their first rows."""
    errors: dict[tuple[str, str], dict[str, list[float]]] = {}
    counted: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for quantity in QUANTITIES:
            true = row.truth.get(quantity)
            if not true:
                continue
            key = (group(row), quantity)
            counted[key] += 1
            found = errors.setdefault(key, defaultdict(list))
            for name, answer in predictions.get(row.id, {}).items():
                if quantity in answer:
                    found[name].append(answer[quantity] / true - 1)
    return [
        Line(name, quantity, counted[name, quantity], {by: Score.of(values) for by, values in found.items() if values})
        for (name, quantity), found in errors.items()
    ]


def as_data(lines: Iterable[Line]) -> list[dict[str, Any]]:
    return [
        {
            "group": line.group,
            "quantity": line.quantity,
            "rows": line.rows,
            "scores": {
                name: {"rows": score.rows, "mean": round(score.mean, 5), "worst": round(score.worst, 5)}
                for name, score in line.scores.items()
            },
        }
        for line in lines
    ]


def as_table(lines: Sequence[Line], predictors: Sequence[str], head: str) -> str:
    """A Markdown table: mean / worst in percent, with the number of rows where a predictor answered only some."""
    shown = [name for name in predictors if any(name in line.scores for line in lines)]
    text = [f"| {head} | quantity | rows | {' | '.join(shown)} |", f"|---|---|---:|{'---:|' * len(shown)}"]
    for line in lines:
        cells = [_cell(line.scores.get(name), line.rows) for name in shown]
        text.append(f"| {line.group} | {line.quantity} | {line.rows} | {' | '.join(cells)} |")
    return "\n".join(text)


def _cell(score: Score | None, rows: int) -> str:
    if score is None:
        return "–"
    some = f" ({score.rows})" if score.rows != rows else ""
    return f"{_percent(score.mean)} / {score.worst * 100:+.{_digits(score.worst)}f} %{some}"


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.{_digits(ratio)}f}"


def _digits(ratio: float) -> int:
    return 3 if abs(ratio) < 0.001 else 2 if abs(ratio) < 0.1 else 0
