"""How far off predictions are, as tables: the bench's figures with other programs beside, also by release of
transformers, and every measured run of ``rules/measurements`` predicted again.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import Any

from kb.advice.question import RunSettings
from kb.advice.run.question_settings import optimizer_named, unit_of
from kb.advice.run.setup import setup_of
from kb.core.catalog import Catalog
from kb.core.memory_report import WORKING
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.core.units import GIB
from kb.guide.library import Library, say
from kb.guide.markup import Told, badge, code, filter_box, prose, told, wide_table
from kb.memory import architecture_from_config, predict
from kb.memory.architecture import known_types
from kb.memory.engine.families.decoder_types import REMOTE

SCRIPT = "measure.py"  # fitcheck-llm's, which is no Trainer
OF_THE_BENCH = {"setup", "config"}
# settings of a measurement that a flag of kb.estimate has under another name or type
_OWN = {"padded", "lora_dropout", "optimizer", "lora_targets", "model", "phases"}


class Run(NamedTuple):
    """One measured run. Bytes; None where a figure was not taken."""

    model: str
    setup: TrainingSetup
    allocated_bytes: int | None
    predicted_allocated_bytes: int
    process_bytes: int | None
    predicted_process_bytes: int


def measured_runs(campaign: Mapping[str, Any], catalog: Catalog) -> Iterator[Run]:
    """The runs of one file that trained on a GPU; none where it measured something else, and of a campaign of whole
    setups or of commands (bench/gpu), whose hundreds of rows ``bench/accuracy.py`` scores instead."""
    gpu = catalog.gpus.get(campaign["machine"].get("gpu", ""))
    if campaign["kind"] != "gpu" or gpu is None or OF_THE_BENCH & campaign["rows"][0].keys():
        return
    by_script = SCRIPT in campaign["command"]
    for row in campaign["rows"]:
        truth = row["phases"].get("train")
        if not truth:
            continue
        config = campaign["models"][row["model"]]["architecture"]
        setup = _setup({**campaign.get("settings", {}), **row}, catalog)
        if by_script:
            setup = as_measured(setup)
        architecture = architecture_from_config(config)
        report = predict(setup, architecture, constants=catalog.constants, gpu=gpu, gpu_memory_bytes=gpu.memory_total)
        phase = report.phase("train")
        assert phase is not None  # it trains
        yield Run(
            model=row["model"],
            setup=setup,
            allocated_bytes=truth.get("allocated_bytes"),
            predicted_allocated_bytes=phase.peak_allocated_bytes,
            process_bytes=truth.get("process_bytes"),
            predicted_process_bytes=phase.process_used_bytes,
        )


def as_measured(setup: TrainingSetup) -> TrainingSetup:
    """The setup as :data:`SCRIPT` runs it: a function makes a step and keeps the model's outputs to its end. With sdpa
    it repeats grouped heads itself, for the kernel that a mask gets."""
    return setup._replace(keeps_outputs="step", padded=setup.padded or setup.attn_implementation == "sdpa")


def _setup(settings: Mapping[str, Any], catalog: Catalog) -> TrainingSetup:
    """A setup from a measurement's settings, which carry the names of kb.estimate's flags."""
    targets = settings.get("lora_targets")
    given = {name: settings[name] for name in RunSettings._fields if name in settings and name not in _OWN}
    if "generation_length" in settings:
        given["generation_length"] = settings["generation_length"]
    flags = RunSettings(
        **{"task": "train", **given},
        optimizer=optimizer_named(settings.get("optimizer")),
        lora_targets=tuple(targets) if targets else None,
    )
    unit = unit_of(flags)
    setup = setup_of(
        unit, None, facts=catalog.facts, constants=catalog.constants, gpu_count=None, versions=lambda *_: None
    )
    return setup._replace(padded=bool(settings.get("padded")), lora_dropout=float(settings.get("lora_dropout", 0)))


PREDICTORS = ("kb", "kb, roughly", "kb, level 1", "fitcheck-llm", "accelerate", "DeepSpeed", "the notes' formula")
# As bench/accuracy_lengths.py calls its two answers: with the data's lengths, and were every batch at the maximum.
BY_LENGTHS = {
    "kb, lengths of the data": "accuracy.by_lengths",
    "kb, every batch at the maximum": "accuracy.at_maximum",
}
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
    traces = [line for line in results["traces"] if line["quantity"] == "allocated"]
    about = say(language, "accuracy.about", date=results["date"], versions=escape(", ".join(versions)))
    verdicts = [
        say(language, "accuracy.verdict.ran", **judged),
        f"{say(language, 'accuracy.limits', **_limited(results['limits']['train']))} {badge(library, 'measured')}",
        f"{say(language, 'accuracy.limits_generation', **_limited(results['limits']['generate']))} "
        f"{badge(library, 'measured')}",
    ]
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
            prose(say(language, "accuracy.traces_about", rows=sum(line["rows"] for line in traces))),
            _scores(library, "accuracy.traces", traces),
        ]
    )


def _limited(runs: Mapping[str, Any]) -> dict[str, int]:
    """Of runs that were held to a limit of memory, how many went as predicted."""
    near, away = runs["near"], runs["away"]
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
    groups: dict[str, list[tuple[str, ...]]] = {}
    for line in lines:
        campaign, rest = _campaign(library, line["group"])
        groups.setdefault(escape(campaign), []).append(
            (
                escape(_group(library, rest)),
                escape(say(language, f"accuracy.{line['quantity']}")),
                str(line["rows"]),
                *(_score(line["scores"].get(name), line["rows"]) for name in shown),
            )
        )
    return wide_table(say(language, label), [escape(cell) for cell in head], groups.items(), told(library, "computed"))


def _score(score: Mapping[str, Any] | None, rows: int) -> str:
    if score is None:
        return "–"
    of = f" ({score['rows']})" if score["rows"] != rows else ""
    return f"{100 * score['mean']:.2g} %<br><small>{_percent(score['worst'])}{of}</small>".replace(" %", "&nbsp;%")


def _percent(ratio: float) -> str:
    return f"{100 * ratio:+.2g} %" if abs(ratio) < 0.995 else f"{100 * ratio:+.0f} %"


def _program(language: str, name: str) -> str:
    known = {
        "kb, roughly": "accuracy.roughly",
        "kb, level 1": "accuracy.simulated",
        PREDICTORS[-1]: "accuracy.notes_formula",
        **BY_LENGTHS,
    }
    return say(language, known[name]) if name in known else name


def _group(library: Library, name: str) -> str:
    """A group of the bench in the reader's words: family or what was trained, method, phase."""
    known: dict[str, str] = {phase: library.words.named("phase", phase) for phase in (*WORKING, "load", "save")}
    known |= {method: library.words.named("method", method) for method in ("full", "lora", "qlora")}
    known["all"] = say(library.language, "accuracy.all")
    known["varied lengths"] = say(library.language, "accuracy.varied")
    known["expandable segments"] = say(library.language, "accuracy.segments")
    return " · ".join(known.get(part, part) for part in name.split(", "))


def _campaign(library: Library, group: str) -> tuple[str, str]:
    """The title of the campaign whose runs a group of the bench holds ("" for none), and the rest of its name."""
    for name, campaign in library.rows("measurements").items():
        if group.startswith((f"{name} ", f"{name}, ")):
            return campaign["title"][library.language], group[len(name) :].lstrip(", ")
    return "", group


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


def followed_types(library: Library) -> str:
    """The ``model_type`` of every model whose run the memory engine follows, as its ``config.json`` writes it."""
    del library  # the same in every language
    return ", ".join(code(kind) for kind in sorted(known_types()) if kind not in REMOTE)


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
