"""How far off is kb? Against measured runs, against traces of the real code, and beside other programs.

    make bench-accuracy                              # rules/measurements and tests/data/traces
    make bench-accuracy ARGS="--simulate"            # level 1 too, on the measured rows (slow; kept between runs)
    make bench-accuracy ARGS="--truth ../rows"       # and a folder of further measured rows, as JSON lines
    make bench-accuracy ARGS="--engine"              # the memory engine against level 1 alone, half a minute
    make bench-accuracy ARGS="--published"           # published runs on data of varied lengths alone, half a minute

Writes bench/results/accuracy.md and accuracy.json; with --truth only prints, as those rows are not the project's.
Rows of one campaign are not independent of one another, so each campaign has a line of its own.
"""

import argparse
import datetime
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import accuracy_engine
import accuracy_lengths
import edges
import rivals
from accuracy_commands import measured_commands
from accuracy_rows import ROOT, Left, Row, is_known, stored_traces
from accuracy_rows import measured as measured_rows
from accuracy_scores import Line, Score, as_data, as_table, lines_of
from truth_rows import truth_rows

from kb import __version__
from kb.core.catalog import Catalog
from kb.core.memory_report import MemoryReport
from kb.knowledge import load_catalog, load_guide
from kb.memory import UnsupportedArchitectureError, architecture_from_config, predict
from kb.memory.engine.expandable import ExpandableAllocator
from kb.memory.engine.predict import record_training
from kb.memory.process import context_of

RESULTS = ROOT / "bench" / "results"
KB, ROUGHLY, LEVEL_1 = "kb", "kb, roughly", "kb, level 1"
ENGINE = "## The memory engine against level 1"
PREDICTORS = (KB, ROUGHLY, LEVEL_1, *rivals.NAMES)


def main() -> int:
    options = _options()
    catalog = load_catalog()
    if options.published:
        return _one_section(accuracy_lengths.HEAD, "published", *_published(catalog, []), write=not options.no_write)
    if options.limits:
        return _one_section(edges.HEAD, "limits", *edges.limited(), write=not options.no_write)
    engine, about_engine = _engine()
    if options.engine:
        return _one_section(ENGINE, "engine", engine, about_engine, write=not options.no_write)
    traces = [row for row in stored_traces() if is_known(row.config)]
    rows: list[Row] = list(measured_rows(catalog))
    left: list[Left] = []
    for folder in options.truth:
        for row in truth_rows(folder, catalog):
            left.append(row) if isinstance(row, Left) else rows.append(row)
    left += [Left(row.campaign, row.id, "unknown type") for row in rows if not is_known(row.config)]
    rows = [row for row in rows if is_known(row.config)]
    published, about_published = _published(catalog, [row for row in rows if row.setup.lengths is not None])
    rows = [row for row in rows if row.setup.lengths is None]
    predictions, reports = _predicted([*traces, *rows], catalog, left)
    commands = list(measured_commands(catalog))
    predictions |= {row.id: {KB: found} for row, found in commands}
    ran = [row for row, _ in commands]
    if options.simulate:
        from accuracy_simulated import level_1

        for name, answer in level_1([row for row in rows if not row.own], catalog.constants).items():
            predictions[name][LEVEL_1] = answer
    python = None if options.no_rivals else rivals.install()
    others = rivals.ask(
        [*traces, *(row for row in rows if not row.own)], load_guide()["formulas"]["guide-gpu-memory"], python
    )
    for name, answers in others.answers.items():
        predictions[name].update(answers)
    measured_lines = lines_of([*rows, *ran], predictions, lambda row: row.campaign)
    if not options.simulate:
        measured_lines = _with_level_1_of_before(measured_lines)
    limits, about_limits = edges.limited()
    results = {
        "date": datetime.date.today().isoformat(),
        "kb": __version__,
        "rivals": {"versions": dict(others.versions), "failed": dict(others.failed)},
        "measured": as_data(measured_lines),
        "traces": as_data(lines_of(traces, predictions, _kind)),
        "verdicts": verdicts(rows, reports),
        "left": _counted(left),
        "published": published,
        "limits": limits,
        "engine": engine,
    }
    tables = as_markdown(measured_lines, traces, predictions, results)
    text = "\n".join([tables, about_published, about_limits, about_engine])
    print(text)
    if not (options.no_write or options.truth):
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "accuracy.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
        (RESULTS / "accuracy.md").write_text(text, "utf-8")
    return 0


def _with_level_1_of_before(lines: Sequence[Line]) -> list[Line]:
    """With the scores of level 1 that the last run with ``--simulate`` wrote, an hour's work."""
    before = json.loads((RESULTS / "accuracy.json").read_text("utf-8"))["measured"]
    known = {(line["group"], line["quantity"]): line["scores"].get(LEVEL_1) for line in before}
    return [
        replace(line, scores={**line.scores, LEVEL_1: Score(**score)})
        if (score := known.get((line.group, line.quantity)))
        else line
        for line in lines
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--truth", type=Path, action="append", default=[], metavar="DIR", help="further measured rows")
    parser.add_argument("--simulate", action="store_true", help="level 1 too, on the measured rows")
    parser.add_argument("--engine", action="store_true", help="only the memory engine against level 1")
    parser.add_argument("--published", action="store_true", help="only published runs on data of varied lengths")
    parser.add_argument("--limits", action="store_true", help="only runs that were held to a limit of memory")
    parser.add_argument("--no-rivals", action="store_true", help="ask no other program")
    parser.add_argument("--no-write", action="store_true", help="leave bench/results/ as it is")
    options = parser.parse_args()
    for folder in options.truth:
        if not folder.is_dir():
            parser.error(f"--truth {folder}: no such folder")
    return options


def _engine() -> tuple[dict[str, Any], str]:
    """The engine beside level 1 on every stored trace, as data and as a section of the page."""
    drawn = list(accuracy_engine.engine_traces())
    found, left = accuracy_engine.all_compared(drawn)
    older, older_left = accuracy_engine.all_compared(accuracy_engine.older_traces())
    lines, older_lines = accuracy_engine.lines_of(found), accuracy_engine.lines_of(older)
    today = datetime.date.today().isoformat()
    whole = [line for line in older_lines if line["group"].startswith("all")]
    data = {"date": today, "runs": len(drawn), "not_followed": left, "lines": lines, "older": whole}
    parts = [
        ENGINE,
        f"{today}. {len(drawn)} runs of tests/data/engine_traces.json, {left} of what the engine does not follow. "
        "Errors are mean / worst of the engine over level 1, less one.",
        accuracy_engine.as_table(lines),
        "Derived phases further off than 0.2 % allocated or 6 % reserved:",
        accuracy_engine.far_off(found) or "none.",
        f"Traces of before (tests/data/traces), {older_left} of what the engine does not follow; most were made "
        "by earlier states of level 1 and not again since, so that what differs need not be the engine's.",
        accuracy_engine.as_table(whole),
    ]
    return data, "\n\n".join(parts) + "\n"


def _published(catalog: Catalog, more: Sequence[Row]) -> tuple[dict[str, Any], str]:
    """Published runs on varied lengths, as data and as a section of the page; ``more`` are not the project's."""
    return accuracy_lengths.compared([*accuracy_lengths.published_rows(catalog), *more])


def _one_section(head: str, key: str, data: Any, text: str, *, write: bool) -> int:
    """Print a section alone, and put it in the place of the last one's; the rest of the results stays."""
    print(text)
    if not write:
        return 0
    page, stored = RESULTS / "accuracy.md", RESULTS / "accuracy.json"
    before, _, last = page.read_text("utf-8").partition(head)
    after = last[last.find("\n## ") + 1 :] if "\n## " in last else ""
    if not last:  # it is new: above the engine's, which is the longest
        before, _, after = before.partition(ENGINE)
        after = ENGINE + after
    parts = [part.strip() for part in (before, text, after) if part.strip()]
    page.write_text("\n\n".join(parts) + "\n", "utf-8")
    results = json.loads(stored.read_text("utf-8")) | {key: data}
    stored.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 0


def _predicted(
    rows: Sequence[Row], catalog: Catalog, left: list[Left]
) -> tuple[dict[str, dict[str, dict[str, int]]], dict[str, MemoryReport]]:
    """kb's bytes by row, predictor (its answer, and its rough one) and quantity, and its whole answers."""
    predictions: dict[str, dict[str, dict[str, int]]] = {}
    reports: dict[str, MemoryReport] = {}
    for row in rows:
        predictions[row.id] = {}
        try:
            if row.lengths:
                predictions[row.id][KB] = _of_lengths(row, catalog)
                continue
            answer, roughly = (_report(row, catalog, rough=rough) for rough in (False, True))
        except UnsupportedArchitectureError as error:
            left.append(Left(row.campaign, row.id, str(error)[:80]))
            continue
        reports[row.id] = answer
        for name, report in ((KB, answer), (ROUGHLY, roughly)):
            phase = report.phase(row.phase)
            after_load = row.phase == "load" and not row.simulated  # measured once the model is there, not at its peak
            if phase is not None and not after_load:
                predictions[row.id][name] = {
                    "allocated": phase.peak_allocated_bytes,
                    "reserved": phase.peak_reserved_bytes,
                    "process": phase.process_used_bytes,
                }
    return predictions, reports


def _of_lengths(row: Row, catalog: Catalog) -> dict[str, int]:
    """The engine's own figures of a run whose batches' lengths are known one by one."""
    assert row.gpu is not None
    architecture = architecture_from_config(row.config)
    recording = record_training(row.setup, architecture, row.gpu.compute_capability, row.lengths)
    peak = recording.peaks(ExpandableAllocator())["train"] if row.expandable else recording.phases["train"]
    context = context_of(catalog.constants, row.gpu.compute_capability, row.gpu).expected
    return {"allocated": peak.allocated, "reserved": peak.reserved, "process": peak.reserved + context}


def _report(row: Row, catalog: Catalog, *, rough: bool) -> MemoryReport:
    return predict(
        row.setup,
        architecture_from_config(row.config),
        constants=catalog.constants,
        gpu=row.gpu,
        gpu_memory_bytes=row.memory_bytes,
        compute_capability=row.capability,
        rough=rough,
    )


def verdicts(rows: Sequence[Row], reports: dict[str, MemoryReport]) -> dict[str, int]:
    """What was said of runs whose end is known: those that ran out, and those that were measured on a known GPU."""
    known = [row for row in rows if row.memory_bytes and row.id in reports and row.phase != "load"]
    ran_out = [reports[row.id].verdict.status for row in known if row.ran_out]
    ran = [reports[row.id].verdict.status for row in known if not row.ran_out]
    return {
        "ran_out": len(ran_out),
        "ran_out_said_fits": ran_out.count("fits"),
        "ran": len(ran),
        "ran_said_oom": ran.count("oom"),
    }


def _kind(row: Row) -> str:
    family = architecture_from_config(row.config).family
    return f"{family}, {row.setup.method}, {row.phase}"


def _counted(left: Sequence[Left]) -> list[dict[str, Any]]:
    counts = Counter((row.campaign.partition(" ")[0], row.reason[:80]) for row in left)
    return [{"campaign": name, "reason": reason, "rows": number} for (name, reason), number in counts.items()]


def as_markdown(measured: Sequence[Line], traces: Sequence[Row], predictions: Any, results: Any) -> str:
    """The tables; each cell is mean / worst."""
    versions = ", ".join(f"{name} {version}" for name, version in results["rivals"]["versions"].items())
    trained = [row for row in traces if row.phase == "train"]
    families = lines_of(trained, predictions, lambda row: f"{architecture_from_config(row.config).family}, training")
    total = lines_of(traces, predictions, lambda row: f"all {row.phase}")
    judged = results["verdicts"]
    said = [
        f"Runs that ran out of memory: {judged['ran_out']}; of these kb said `fits`: {judged['ran_out_said_fits']}.",
        f"Runs that ran, on a GPU of known memory: {judged['ran']}; of these kb said `oom`: {judged['ran_said_oom']}.",
    ]
    failed = [f"- {name} could not answer some rows: {why}" for name, why in results["rivals"]["failed"].items()]
    parts = [
        "# Accuracy",
        f"kb {results['kb']}, {results['date']}. Beside it: {versions or 'no other program'}.\n"
        "Each cell: mean / worst of predicted over true, less one; in brackets, of how many rows where not of all.",
        "## Against measured runs",
        "fitcheck-llm was calibrated on the T4 rows, and kb's simulator was developed on them. The script behind them "
        "keeps the model's outputs to the end of its step, and is followed and simulated so; level 1 is of 2026-11-21. "
        '"kb, roughly" is its answer from few layers, which stands for what the memory engine does not follow.',
        as_table(measured, PREDICTORS, "campaign"),
        "\n".join(said),
        "## kb against level 1",
        f"{len(traces)} phases of stored traces (tests/data/traces): the real code on fake tensors.",
        as_table(_allocated(total), PREDICTORS, "phase"),
        as_table(_allocated(lines_of(traces, predictions, _kind)), (KB, ROUGHLY), "family, method, phase"),
        "## Other programs on the same training rows",
        as_table(_allocated(families), PREDICTORS, "family"),
        *(["\n".join(failed)] if failed else []),
        *_left_out(results["left"]),
    ]
    return "\n\n".join(parts) + "\n"


def _allocated(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.quantity == "allocated"]


def _left_out(left: Sequence[dict[str, Any]]) -> list[str]:
    if not left:
        return []
    lines = [f"- {row['campaign']}: {row['rows']} ({row['reason']})" for row in left]
    return ["## Left out", "\n".join(lines)]


if __name__ == "__main__":
    sys.exit(main())
