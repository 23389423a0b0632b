"""How far off predictions are, in one sentence and one drawing, from every measured run predicted again."""

from collections.abc import Sequence
from functools import lru_cache
from html import escape

from kb.core.record import NamedTuple
from kb.core.units import GIB
from kb.guide.accuracy import OF_THE_BENCH, Run, bench_results, measured_runs
from kb.guide.library import Library, load_library, say
from kb.guide.markup import Told, badge, held, svg, svg_text, wide_table
from kb.report.values import short_name

DRAWN = "--drawn"  # of a command whose runs' settings nobody chose
METHODS = ("full", "lora", "qlora")
SIZE, LEFT, TOP, FOOT = 296, 46, 12, 44  # pixels of the drawing
STEP = 4  # GiB between two marks


class Proof(NamedTuple):
    """Errors are predicted over measured, less one; ``gpus`` are ids."""

    runs: list[Run]
    allocated: list[float]
    process: list[float]
    gpus: list[str]


@lru_cache(maxsize=1)
def _proof() -> Proof:
    library = load_library("en")
    runs, gpus = [], []
    for campaign in library.rows("measurements").values():
        found = list(measured_runs(campaign, library.catalog))
        runs += found
        gpus += [campaign["machine"]["gpu"]] if found else []
    allocated = [run.predicted_allocated_bytes / run.allocated_bytes - 1 for run in runs if run.allocated_bytes]
    process = [run.predicted_process_bytes / run.process_bytes - 1 for run in runs if run.process_bytes]
    return Proof(runs, allocated, process, list(dict.fromkeys(gpus)))


class Scored(NamedTuple):
    """A campaign that ``bench/accuracy.py`` scores: phases, and errors of allocated memory."""

    id: str
    gpu: str
    methods: frozenset[str]
    phases: int
    mean: float
    worst: float


def _scored(library: Library) -> list[Scored]:
    """The campaigns of many rows, as the bench last found them; none of one that it has not seen."""
    results, found = bench_results()["measured"], []
    campaigns = library.rows("measurements")
    for name in sorted(campaigns, key=lambda name: DRAWN in campaigns[name]["command"]):
        campaign, rows = campaigns[name], campaigns[name]["rows"]
        if not OF_THE_BENCH & rows[0].keys():
            continue
        lines = [
            (line["rows"], line["scores"]["kb"])
            for line in results
            if line["group"].startswith(f"{name}, ") and line["quantity"] == "allocated"
        ]
        if lines:
            phases = sum(count for count, _ in lines)
            mean = sum(count * score["mean"] for count, score in lines) / phases
            worst = max((score["worst"] for _, score in lines), key=abs)
            methods = frozenset(row["setup"].get("method", "full") for row in rows if "setup" in row)
            found.append(Scored(name, campaign["machine"]["gpu"], methods, phases, mean, worst))
    return found


def accuracy_summary(library: Library) -> str:
    """How far off, on what, and what no measured run has tested."""
    found, scored = _proof(), _scored(library)
    gpus = library.catalog.gpus
    methods = {run.setup.method for run in found.runs}
    values = {
        "runs": len(found.runs),
        "models": len({run.model for run in found.runs}),
        "gpus": ", ".join(short_name(gpus[name]) for name in found.gpus),
        "methods": ", ".join(library.words.named("attempt", name) for name in METHODS if name in methods),
        "allocated": _mean(found.allocated),
        "allocated_worst": _worst(found.allocated),
        "process": _mean(found.process),
        "process_worst": _worst(found.process),
    }
    tested = methods.union(*(each.methods for each in scored))
    untested = [library.words.named("attempt", name) for name in METHODS if name not in tested]
    untested += [
        say(library.language, "proof.other_gpus", count=len(gpus) - len({*found.gpus, *(each.gpu for each in scored)}))
    ]
    left = say(library.language, "proof.untested", what=", ".join(untested))
    lead = f"{say(library.language, 'proof.summary', **values)} {badge(library, 'measured')}"
    return "\n\n".join([lead, _campaigns(library, scored), left])


def _campaigns(library: Library, scored: Sequence[Scored]) -> str:
    """A row for each campaign of many runs: what was measured, how far off, and whether anything was fitted to it."""
    language = library.language
    keys = ("campaign", "gpu", "runs", "models", "mean", "worst", "note")
    head = [escape(say(language, f"proof.head.{key}")) for key in keys]
    rows = [_campaign(library, each) for each in scored]
    title = say(language, "proof.campaigns")
    caption = f"{escape(title)} {badge(library, 'measured')}"
    return wide_table(title, head, [("", rows)], Told(caption, title))


def _campaign(library: Library, scored: Scored) -> list[str]:
    campaign = library.rows("measurements")[scored.id]
    kind = "commands" if "config" in campaign["rows"][0] else "runs"
    if DRAWN in campaign["command"]:
        kind = "drawn"
    for own in ("unmeasured", "generation", "large"):
        if f"--{own}" in campaign["command"]:
            kind = own
    return [
        escape(say(library.language, f"proof.campaign.{kind}")),
        escape(short_name(library.catalog.gpus[scored.gpu])),
        str(len(campaign["rows"])),
        str(len(campaign["models"])),
        f"{100 * scored.mean:.2g}&nbsp;%",
        f"{100 * scored.worst:+.2g}&nbsp;%",
        f'<span class="kb-prose">{escape(say(library.language, f"proof.note.{kind}"))}</span>',
    ]


def proof_line(library: Library) -> str:
    """The same in a line, for the first page."""
    found, catalog = _proof(), library.catalog
    counts = {"runs": len(found.runs), "gpus": len(catalog.gpus), "models": len(catalog.models)}
    return say(library.language, "proof.line", process=_mean(found.process), **counts)


def proof_chart(library: Library) -> str:
    """Predicted against measured memory of the process, a dot a run; on the line both are the same."""
    runs = [run for run in _proof().runs if run.process_bytes]
    most = max(max(run.process_bytes or 0, run.predicted_process_bytes) for run in runs) / GIB
    top = STEP * (int(most / STEP) + 1)

    def place(measured: float, predicted: float) -> tuple[float, float]:
        return LEFT + SIZE * measured / top, TOP + SIZE * (1 - predicted / top)

    left, foot = LEFT, TOP + SIZE
    parts = [f'<path class="kb-axis" d="M{left} {TOP}V{foot}H{left + SIZE}"/>']
    parts.append(f'<path class="kb-equal" d="M{left} {foot}L{left + SIZE} {TOP}"/>')
    for mark in range(0, top + 1, STEP):
        x, y = place(mark, mark)
        parts += [svg_text(x, foot + 16, str(mark), "middle"), svg_text(left - 6, y + 4, str(mark), "end")]
    for run in runs:
        measured, predicted = (run.process_bytes or 0) / GIB, run.predicted_process_bytes / GIB
        x, y = place(measured, predicted)
        parts.append(f'<circle class="kb-dot" cx="{x:.0f}" cy="{y:.0f}" r="4"/>')
    parts.append(svg_text(left + SIZE / 2, foot + 36, say(library.language, "proof.measured"), "middle"))
    parts.append(svg_text(left + 8, TOP + 10, say(library.language, "proof.predicted"), "start"))
    title = say(library.language, "proof.title", runs=len(runs), process=_mean(_proof().process))
    drawing = svg(left + SIZE + 14, foot + FOOT, title, parts)
    caption = f"<figcaption><b>{escape(title)}</b> {badge(library, 'measured')}</figcaption>"
    return held(f'<figure class="kb-figure kb-proof">{caption}{drawing}</figure>')


def _mean(errors: Sequence[float]) -> str:
    return f"{100 * sum(map(abs, errors)) / len(errors):.2g} %"


def _worst(errors: Sequence[float]) -> str:
    return f"{100 * max(errors, key=abs):+.2g} %"
