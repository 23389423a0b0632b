"""What to choose for a model on a GPU: the table of batches, and the small chooser of the first page."""

from kb.advice.fit.estimator import Estimator, on_gpu
from kb.advice.fit.recommend_answer import answer
from kb.advice.question import Question
from kb.advice.run.row_lengths import reads_target
from kb.core.hardware import Gpu
from kb.core.memory_report import STATUSES
from kb.core.text import UserError
from kb.guide.choices import Choice, Way, choices
from kb.guide.figures import memory_bars
from kb.guide.fits_tables import by_family
from kb.guide.library import Library, say
from kb.guide.markup import attribute, badge, computed, fenced, origin, quantity, scripted, table, text
from kb.machine.detect import find_gpu
from kb.report.recommend.choice import choice_object
from kb.report.recommend.text import config_file
from kb.report.values import short_name


def choose_table(library: Library, folder: str, preview: bool = False) -> str:
    """For each model and GPU the way that the chooser starts from, with the largest batch that fits in it, and the way
    that fits most; each leads to its pages.

    Args:
        folder: where what takes long to compute is kept.
        preview: of few models on few GPUs.
    """
    language, catalog = library.language, library.catalog
    found = choices(folder, preview)
    models, gpus = (list(dict.fromkeys(names)) for names in zip(*found, strict=True))
    head = [say(language, "fits.model")]
    head += [f"[{text(short_name(catalog.gpus[gpu]))}](gpus/{gpu}.md)" for gpu in gpus]
    rows = [[f"[{name}](models/{name}.md)", *(ways(library, found[name, gpu]) for gpu in gpus)] for name in models]
    return f"{table(head, rows)}\n\n{badge(library, 'computed')} {say(language, 'fits.all_computed')}"


def ways(library: Library, choice: Choice) -> str:
    """The way that is recommended with its largest batch, and the way that fits most; ``–`` where none fits."""
    own, most = choice
    if own is None or most is None:
        return "–"
    bold = f"**{_batch(own)}**"
    shown = f"{computed(library, bold)} {library.words.named('attempt', own.name)}"
    if most.batch <= own.batch:
        return shown
    return f"{shown}<br><small>{computed(library, _batch(most))} {library.words.named('attempt', most.name)}</small>"


def _batch(way: Way) -> str:
    """A rough answer is marked so, as ``kb recommend`` marks it."""
    return f"~{way.batch}" if way.rough else str(way.batch)


def recommended(library: Library, model: str, gpu: str, effective_batch: int | None = None) -> str:
    """The config that ``kb recommend --as hf`` gives, ready to paste, and its memory by phase."""
    catalog = library.catalog
    library.entry("models", model)
    estimator = Estimator(catalog.models[model], on_gpu(find_gpu(gpu, catalog.gpus)), catalog.constants)
    question = Question(effective_batch=effective_batch)
    found = answer("train", question, estimator, catalog, library.guide, all_ways=False)
    config = config_file(found, "hf", library.words)
    if config is None or found.setup is None:
        raise UserError("recommend.no_model")
    report = estimator.predict(found.setup._replace(do_predict=False))
    largest = max(report.phases, key=lambda phase: phase.process_used_bytes)
    named = {"model": catalog.models[model].name, "gpu": short_name(catalog.gpus[gpu])}
    title = say(library.language, "choose.bars", phase=library.words.phase(largest), **named)
    return f"{fenced(config)}\n\n{memory_bars(library, report, estimator.limit_bytes, title)}"


def constant(library: Library, name: str) -> str:
    """A figure of ``rules/constants.yaml`` with its unit, status and source; a ratio is said in per cent."""
    row = library.entry("constants", name)
    if row["unit"] == "ratio":
        row = {**row, "value": round(100 * row["value"], 2), "unit": "%"}
    return quantity(library, row)


def error_band(library: Library, name: str) -> str:
    """A ratio of ``rules/constants.yaml`` as the error that a report gives: ± and per cent."""
    row = library.entry("constants", name)
    return f'<span class="kb-value">±{100 * row["value"]:.2g}&nbsp;%</span> {badge(library, row["status"], row)}'


def note_figure(library: Library, kind: str, name: str, *path: str | int) -> str:
    """Any quantity of the rules by its place: ``note_figure("histories", "mt5-qlora", "limits", "gpu_memory")``.

    Raises:
        ValueError: nothing is there; the message says up to where the place was found.
    """
    found = library.entry(kind, name)
    for number, part in enumerate(path):
        try:
            found = found[part]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"{kind}/{name} has nothing at {list(path[: number + 1])}") from None
    return quantity(library, found)


WORDS = (
    "accumulation", "answer", "auto", "batch", "beams", "chart", "compute", "config", "done", "effective",
    "evaluation", "failed", "fits_most", "form", "form_axolotl", "form_command", "form_hf", "form_kb",
    "form_llamafactory", "form_python", "form_trl", "full", "gpu", "inference", "largest", "loading", "lora",
    "method", "model", "no_such", "no_wasm", "nothing", "precision", "precision_auto", "qlora", "source",
    "stuck", "target", "used", "usual", "way", "whole",
)  # fmt: skip
SHARED = {"chart", "done", "failed", "loading", "stuck"}  # said by the playground too


def chooser(library: Library, model: str, gpu: str) -> str:
    """The chooser's place, with ``model`` on ``gpu`` picked; without a script the tables below it serve."""
    library.entry("models", model)
    library.entry("hardware", gpu)
    language, catalog = library.language, library.catalog
    words: dict[str, object] = {
        name: say(language, f"{'playground' if name in SHARED else 'chooser'}.{name}") for name in WORDS
    }
    words |= {name: library.words(f"bars.{name}") for name in ("band", "limit", "small", "unused")}
    words["computed"] = library.words.named("status", "computed")
    words["computed_title"] = say(language, "source.status.computed")
    words["verdict"] = {name: library.words.named("verdict", name) for name in (*STATUSES, "unknown")}
    models = [
        [family, [[one.id, one.name, reads_target(one.architecture)] for one in found]]
        for family, found in by_family(list(catalog.models.values()))
    ]
    gpus = sorted(catalog.gpus.values(), key=lambda one: (one.memory_total, one.name))
    held = {"words": words, "model": model, "gpu": gpu, "models": models}
    held["gpus"] = [_card(library, one) for one in gpus]
    # as the page's own engine and the table below say it: whoever asks for the same reads the same numbers
    held["chosen"] = choice_object({"model": model, "gpu": gpu}, library.words)
    place = f'<div id="kb-choose" class="kb-choose" data-given="{attribute(held)}"></div>'
    return scripted(place, say(language, "chooser.no_script"))


def _card(library: Library, gpu: Gpu) -> list[str]:
    """Its id and name with its memory, and where that comes from: the place on the sources page, and its words."""
    rows = library.entry("hardware", gpu.id)["memory_total"]
    datum = rows[0] if isinstance(rows, list) else rows
    title, place = origin(library, datum["status"], datum)
    return [gpu.id, f"{short_name(gpu)} ({gpu.memory_total / 2**30:.0f} GiB)", place, title]
