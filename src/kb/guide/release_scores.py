"""How close the memory engine is under a project's own release of transformers, by ``bench/releases.py``."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kb.guide.accuracy import bench_results
from kb.guide.library import Library
from kb.guide.markup import badge, told, wide_table
from kb.guide.site_words import say

_NOTHING = 1e-5  # some 512 bytes: less than a table says
_COLUMNS = ("release", "phases", "allocated", "reserved", "phases_held_out", "held_out", "refused")


def release_scores(library: Library) -> str:
    """A row for each release that ``make bench-releases`` last simulated.

    Raises:
        ValueError: the bench's results are not there.
    """
    language, found = library.language, bench_results("releases")
    phases = sum(each["score"][name] for each in found.values() for name in ("phases", "phases_held_out"))
    about = say(language, "release_scores.about", phases=f"{phases:,}", releases=len(found))
    head = [escape(say(language, f"release_scores.{name}")) for name in _COLUMNS]
    rows = [_row(each) for each in found.values()]
    table = wide_table(say(language, "release_scores.table"), head, [("", rows)], told(library, "computed"))
    return f"{about} {badge(library, 'computed')}\n\n{table}"


def _row(found: Mapping[str, Any]) -> Sequence[str]:
    score = found["score"]
    return (
        escape(found["transformers"]),
        f"{score['phases']:,}",
        _mean_and_worst(score["allocated"]),
        _mean_and_worst(score["reserved"]),
        f"{score['phases_held_out']:,}",
        _mean_and_worst(score["held_out"]),
        escape(", ".join(score["refused"]) or "–"),
    )


def _mean_and_worst(errors: Sequence[float]) -> str:
    mean, worst = (0.0 if abs(error) < _NOTHING else error for error in errors)
    return f"{100 * mean:.2g}&nbsp;%<br><small>{100 * worst:+.2g}&nbsp;%</small>"
