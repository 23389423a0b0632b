"""A GPU's page: its figures with their sources, what of each model fits, heat maps, what the notes say of it."""

from collections.abc import Sequence

from kb.core.hardware import Gpu
from kb.guide.drawings import heat_map_svg
from kb.guide.fits import LENGTHS, SHOWN_WAYS, Row, heat_map
from kb.guide.library import Library
from kb.guide.markup import cited, cited_source, prose, quantity, table, text
from kb.guide.site_words import say
from kb.report.gpu_names import short_name

TYPICAL_MODELS = ("mt5-base", "t5-base", "kobart")
BATCHES = (1, 2, 4, 8, 16, 32, 64)
FIGURES = (
    "memory_total",
    "cuda_memory",
    "compute_capability",
    "native_bf16",
    "tensor_flops",
    "memory_bandwidth",
    "tdp",
)


def gpu_page(library: Library, gpu: Gpu, fits: Sequence[Row]) -> str:
    """The page as Markdown, its heading first."""
    language = library.language
    data = library.entry("hardware", gpu.id)
    rows = []
    for name in FIGURES:
        values = data.get(name)
        for row in values if isinstance(values, list) else [values] if values else []:
            note = row.get("note") or row.get("drivers") or ""
            rows.append((say(language, f"gpu.figure.{name}"), quantity(library, row), text(note)))
    head = [say(language, key) for key in ("gpu.figure", "gpu.value", "gpu.note")]
    parts = [
        f"# {text(gpu.name)}",
        say(language, "gpu.names", names=", ".join(f"`{name}`" for name in (gpu.id, *gpu.aliases))),
        f"## {say(language, 'gpu.figures')} {{ #figures }}",
        table(head, rows),
        f"## {say(language, 'fits.heading')} {{ #fits }}",
        say(language, "fits.about"),
        fits_table(library, [row for row in fits if row.gpu == gpu.id], by="model"),
        f"## {say(language, 'heat.heading')} {{ #lengths }}",
        say(language, "heat.about"),
        *(heat(library, model, gpu.id) for model in TYPICAL_MODELS if model in library.catalog.models),
        _claims(library, gpu),
        f"## {say(language, 'rule.sources')} {{ #sources }}",
        "\n".join(f"- {cited_source(library, name)}" for name in data["sources"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def fits_table(library: Library, rows: Sequence[Row], by: str) -> str:
    """The largest batches by way; the rows named by ``model`` or by ``gpu``."""
    language, catalog = library.language, library.catalog
    ways = [say(language, f"way.{way}") for way in SHOWN_WAYS]
    head = [say(language, f"fits.{by}"), say(language, "fits.precision"), say(language, "fits.lengths"), *ways]
    head += [say(language, "fits.evaluation"), say(language, "fits.inference")]
    lines = []
    for row in rows:
        named = row.model if by == "model" else row.gpu
        name = named if by == "model" else short_name(catalog.gpus[named])
        link = f"[{text(name)}](../{by}s/{named}.md)"
        cells = [str(row.train[way] or "–") for way in SHOWN_WAYS] + [str(row.evaluation or "–")]
        lengths = f"{row.source_length}/{row.target_length}"
        lines.append((link, row.precision, lengths, *cells, str(row.inference or "–")))
    return table(head, lines, numbers=range(3, 5 + len(SHOWN_WAYS)))


def heat(library: Library, model_id: str, gpu_id: str) -> str:
    """Batch × length of full training, one model on one GPU."""
    language, catalog = library.language, library.catalog
    model, gpu = catalog.models[model_id], catalog.gpus[gpu_id]
    cells = heat_map(model, gpu, catalog.constants, BATCHES)
    names = {status: say(language, f"verdict.{status}") for status in ("fits", "tight", "oom", "beyond", "unknown")}
    title = say(language, "heat.title", model=model.name, gpu=gpu.name)
    axes = (say(language, "heat.length"), say(language, "heat.batch"))
    drawing = heat_map_svg(title, [str(n) for n in LENGTHS], [str(n) for n in BATCHES], cells, names, axes)
    largest = [max([b for b, s in zip(BATCHES, row, strict=True) if s == "fits"], default=0) for row in cells]
    said = "; ".join(
        say(language, "heat.row", length=length, batch=batch or "–")
        for length, batch in zip(LENGTHS, largest, strict=True)
    )
    caption = f"<figcaption>{title}. {said}.</figcaption>"
    return f'<figure class="kb-figure">{drawing}{caption}</figure>'


def _claims(library: Library, gpu: Gpu) -> str:
    """What the field notes say of the card, as they say it."""
    claims = library.entry("hardware", gpu.id).get("claims", [])
    if not claims:
        return ""
    lines = [f"- {prose(claim['text'][library.language])} {cited(library, claim)}" for claim in claims]
    return f"## {say(library.language, 'claims.heading')} {{ #claims }}\n\n" + "\n".join(lines)
