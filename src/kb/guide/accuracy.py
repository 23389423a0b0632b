"""How far off predictions are: the bench's table with other programs beside, and every measured run predicted again."""

import json
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import Any

from kb.core.memory_report import WORKING
from kb.core.units import GIB
from kb.guide.library import Library
from kb.guide.markup import Told, badge, filter_box, prose, told, wide_table
from kb.guide.measured_runs import Run, measured_runs
from kb.guide.site_words import say

PREDICTORS = ("kb", "kb, roughly", "kb, level 1", "fitcheck-llm", "accelerate", "DeepSpeed", "the notes' formula")
# As bench/accuracy_lengths.py calls its two answers: with the data's lengths, and were every batch at the maximum.
BY_LENGTHS = {
    "kb, lengths of the data": "accuracy.by_lengths",
    "kb, every batch at the maximum": "accuracy.at_maximum",
}
QUANTITIES = ("allocated", "reserved", "process")
HELD_OUT = "held out"  # as bench/accuracy_engine.py calls rows that decided nothing about the engine
_WHOLE = "all, "  # begins the lines over all families
_LIVE = {"allocated": "accuracy.allocated", "reserved": "accuracy.reserved"}


def accuracy_tables(library: Library) -> str:
    """What ``make bench-accuracy`` last found: against measured runs, against traces, and verdicts.

    Raises:
        ValueError: the bench's results are not there.
    """
    language, results = library.language, bench_results()
    versions = [f"{name} {version}" for name, version in results["rivals"]["versions"].items()]
    judged = results["verdicts"]
    about = say(language, "accuracy.about", date=results["date"], versions=escape(", ".join(versions)))
    limited = f"{say(language, 'accuracy.limits', **_limited(results))} {badge(library, 'measured')}"
    verdicts = [say(language, "accuracy.verdict.ran", **judged), limited]
    if judged["ran_out"]:
        verdicts.insert(0, say(language, "accuracy.verdict.ran_out", **judged))
    return "\n\n".join(
        [
            about,
            f"### {say(language, 'accuracy.measured')} {{ #measured }}",
            prose(say(language, "accuracy.measured_about")),
            _scores(library, "accuracy.measured", results["measured"]),
            "\n".join(f"- {verdict}" for verdict in verdicts),
            *_published(library, results["published"]),
            f"### {say(language, 'accuracy.traces')} {{ #traces }}",
            prose(say(language, "accuracy.traces_about", rows=_traced(results["traces"]))),
            _scores(
                library, "accuracy.traces", [line for line in results["traces"] if line["quantity"] == "allocated"]
            ),
        ]
    )


def _limited(results: Mapping[str, Any]) -> dict[str, int]:
    """Of runs that were held to a limit of memory, how many went as predicted."""
    near, away = results["limits"]["near"], results["limits"]["away"]
    return {
        "rows": near["rows"] + away["rows"],
        "near": near["rows"],
        "near_right": near["right"],
        "away": away["rows"],
        "away_right": away["right"],
        "ran_out": near["ran_out"] + away["ran_out"],
        "wrong": near["ran_out_said_ends"] + away["ran_out_said_ends"],
    }


def _published(library: Library, found: Mapping[str, Any]) -> list[str]:
    """Published runs on data of varied lengths: the share that is near, the scores by model, and what is far off."""
    language = library.language
    values = {**found, "band": f"{found['band'] * 100:.0f} %"}
    far = [
        say(
            language,
            "accuracy.published_far",
            model=escape(each["model"]),
            tokens=f"{each['tokens']:,}",
            measured=f"{each['measured'] / GIB:.1f}",
            predicted=f"{each['predicted'] / GIB:.1f}",
        )
        for each in found["far"]
    ]
    mark = badge(library, "computed")
    return [
        f"### {say(language, 'accuracy.published')} {{ #published }}",
        prose(say(language, "accuracy.published_about", **values)) + f" {mark}",
        _scores(library, "accuracy.published", found["lines"]),
        "\n".join(f"- {each} {mark}" for each in far),
    ]


def engine_scores(library: Library) -> str:
    """The memory engine beside traces of the real code, by phase: those it was made with, and those held out.

    Raises:
        ValueError: the bench's results are not there.
    """
    language, found = library.language, bench_results()["engine"]
    lines = [line for line in found["lines"] if line["group"].startswith(_WHOLE)]
    held_out = [line for line in lines if line["part"] == HELD_OUT]
    values = {
        "date": found["date"],
        "runs": f"{found['runs']:,}",
        "followed": f"{found['runs'] - found['not_followed']:,}",
        "held_out": _sum(held_out, "rows"),
        "equal": _sum(held_out, "equal"),
        "worst": _furthest(held_out),
        "older": _sum(found["older"], "rows"),
        "older_equal": _sum(found["older"], "equal"),
        "older_worst": _furthest(found["older"]),
    }
    mark = badge(library, "computed")
    said = [f"{say(language, f'engine_scores.{key}', **values)} {mark}" for key in ("about", "held_out", "older")]
    keys = ("accuracy.group", "engine_scores.part", "engine_scores.phases", "engine_scores.equal", *_LIVE.values())
    head = [escape(say(language, key)) for key in keys]
    rows = [_engine_row(library, line) for line in lines]
    title = say(language, "engine_scores.table")
    return "\n\n".join([*said[:2], wide_table(title, head, [("", rows)], told(library, "computed")), said[2]])


def _engine_row(library: Library, line: Mapping[str, Any]) -> list[str]:
    part = "held_out" if line["part"] == HELD_OUT else "derived"
    return [
        escape(_group(library, line["group"].removeprefix(_WHOLE))),
        escape(say(library.language, f"engine_scores.part.{part}")),
        f"{line['rows']:,}",
        f"{line['equal']:,}",
        *(_score({**line[quantity], "rows": line["rows"]}, line["rows"]) for quantity in _LIVE),
    ]


def _sum(lines: Sequence[Mapping[str, Any]], key: str) -> str:
    return f"{sum(line[key] for line in lines):,}"


def _furthest(lines: Sequence[Mapping[str, Any]]) -> str:
    """The worst error of live tensors, up or down."""
    return f"{100 * max(abs(line['allocated']['worst']) for line in lines):.2g} %"


def measured_rows(library: Library) -> str:
    """Every run of ``rules/measurements`` beside what kb predicts for it now, campaign by campaign."""
    language = library.language
    head = ["run.model", "run.method", "run.size", "run.allocated", "run.predicted", "run.error"]
    head += ["run.process", "run.predicted", "run.error"]
    parts = [filter_box(library)]
    for campaign in library.rows("measurements").values():
        runs = list(measured_runs(campaign, library.catalog))
        if not runs:
            continue
        title = campaign["title"][language]
        source = badge(library, campaign["status"], campaign)
        stack = ", ".join(f"{name} {version}" for name, version in campaign["stack"].items())
        parts += [
            f"### {prose(title)} {{ #{campaign['id']} }}",
            f"{prose(campaign['about'][language])} {source}",
            say(language, "run.where", gpu=prose(campaign["machine"].get("gpu_name", "")), stack=prose(stack)),
            wide_table(
                title,
                [escape(say(language, key)) for key in head],
                [("", [_run(run) for run in runs])],
                _both(library, campaign),
            ),
        ]
    return "\n\n".join(parts)


def _both(library: Library, campaign: Mapping[str, Any]) -> Told:
    """What was measured and what kb computes beside it."""
    marks = {"measured": badge(library, campaign["status"], campaign), "computed": badge(library, "computed")}
    caption = say(library.language, "accuracy.both", **marks)
    return Told(caption, told(library, campaign["status"], campaign).hover)


def _run(run: Run) -> list[str]:
    setup = run.setup
    cells = [
        escape(run.model),
        escape(setup.method),
        f"{setup.per_device_train_batch_size} × {setup.max_source_length}",
    ]
    for measured, predicted in (
        (run.allocated_bytes, run.predicted_allocated_bytes),
        (run.process_bytes, run.predicted_process_bytes),
    ):
        if measured is None:
            cells += ["–"] * 3
            continue
        cells += [f"{measured / GIB:.2f}", f"{predicted / GIB:.2f}", _percent(predicted / measured - 1)]
    return cells


def _scores(library: Library, label: str, lines: Sequence[Mapping[str, Any]]) -> str:
    """Mean and worst error of each program, a row for each group and quantity."""
    language = library.language
    shown = [name for name in (*PREDICTORS, *BY_LENGTHS) if any(name in line["scores"] for line in lines)]
    head = [say(language, key) for key in ("accuracy.group", "accuracy.quantity", "accuracy.rows")]
    head += [_program(language, name) for name in shown]
    rows = [
        (
            escape(_group(library, line["group"])),
            escape(say(language, f"accuracy.{line['quantity']}")),
            str(line["rows"]),
            *(_score(line["scores"].get(name), line["rows"]) for name in shown),
        )
        for line in lines
    ]
    return wide_table(say(language, label), [escape(cell) for cell in head], [("", rows)], told(library, "computed"))


def _score(score: Mapping[str, Any] | None, rows: int) -> str:
    if score is None:
        return "–"
    of = f" ({score['rows']})" if score["rows"] != rows else ""
    return f"{100 * score['mean']:.2g} %<br><small>{_percent(score['worst'])}{of}</small>".replace(" %", "&nbsp;%")


def _percent(ratio: float) -> str:
    return f"{100 * ratio:+.2g} %" if abs(ratio) < 0.995 else f"{100 * ratio:+.0f} %"


def _program(language: str, name: str) -> str:
    known = {PREDICTORS[-1]: "accuracy.notes_formula", **BY_LENGTHS}
    return say(language, known[name]) if name in known else name


def _group(library: Library, name: str) -> str:
    """A group of the bench in the reader's words: family or campaign, method, phase."""
    known: dict[str, str] = {phase: library.words.named("phase", phase) for phase in (*WORKING, "load", "save")}
    return " · ".join(known.get(part, part) for part in name.split(", "))


def _traced(lines: Sequence[Mapping[str, Any]]) -> int:
    return sum(line["rows"] for line in lines if line["quantity"] == "allocated")


@lru_cache(maxsize=2)
def bench_results(name: str = "accuracy") -> Any:
    """What ``make bench-accuracy`` last wrote, or another bench.

    Raises:
        ValueError: it is not there, or no JSON.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    path = os.path.join(root, "bench", "results", f"{name}.json")
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError) as error:
        raise ValueError(f"bench/results/{name}.json: {error}; make it with `make bench-{name}`") from None
