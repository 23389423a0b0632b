"""One run in several ways, side by side: attention, method, several GPUs, post-training. What each takes, by the
memory model."""

from html import escape

from kb.guide.figures import own_figure
from kb.guide.library import Library
from kb.guide.markup import cells, own_table, told, wide_table
from kb.guide.site_words import say
from kb.report.lessons import case_of, way_rows


def compare(
    library: Library, what: str, model: str, gpu: str, batch: int, length: int | None = None, drawn: bool = False
) -> str:
    """Training with a per-device ``batch`` in each way: states, activations and the rest, process memory, verdict.

    Args:
        what: ``attention``, ``checkpointing``, ``gpus``, ``method`` or ``post``.
        length: input tokens; None is the model's usual length.
        drawn: with a bar for each way above.

    Raises:
        ValueError: there is no such comparison.
    """
    library.entry("models", model)
    library.entry("hardware", gpu)
    language = library.language
    case = case_of(library.catalog, model, gpu, length)
    found = way_rows(case, library.words, what, batch)
    labels = {
        name: say(language, f"way.{name}" if what == "method" else f"compare.{what}.{name}") for name, _, _ in found
    }
    rows = [(escape(labels[name]), *cells(row)) for name, _, row in found]
    head = [say(language, f"compare.{key}") for key in ("way", "verdict", "process", "states", "rest")]
    title = say(language, "compare.title", **case.named(), batch=batch)
    asked = {"what": what, "batch": batch, "source_length": length, "model": model, "gpu": gpu}
    about = own_table(library, "compare.title", {**case.named(), "batch": batch}, {"table": "ways", **asked})
    below = told(library, "computed", alone=False)
    shown = wide_table(title, [escape(cell) for cell in head], [("", rows)], below)
    drawing = (
        [own_figure(library, f"compare.found.{what}", model, gpu, {"figure": "ways", **asked, "labels": labels})]
        if drawn
        else []
    )
    return "\n\n".join([*drawing, about, shown])
