"""A GPU's page: its figures with their sources, what of each model fits, heat maps, what the notes say of it."""

from kb.core.hardware import Gpu
from kb.guide.all_fits import TYPICAL_MODELS, Fits
from kb.guide.fits_table import fits_by_model
from kb.guide.heat import heat_maps
from kb.guide.library import Library
from kb.guide.markup import cited, cited_source, prose, quantity, table, text
from kb.guide.noted_settings import noted_settings
from kb.guide.site_words import say

FIGURES = (
    "memory_total",
    "cuda_memory",
    "compute_capability",
    "native_bf16",
    "tensor_flops",
    "memory_bandwidth",
    "tdp",
)


def gpu_page(library: Library, gpu: Gpu, fits: Fits) -> str:
    """The page as Markdown, its heading first."""
    language = library.language
    data = library.entry("hardware", gpu.id)
    rows = []
    for name in FIGURES:
        values = data.get(name)
        for row in values if isinstance(values, list) else [values] if values else []:
            note = row.get("note") or row.get("drivers") or ""
            rows.append((say(language, f"gpu.figure.{name}"), quantity(library, row), text(note)))
    models, noted = library.catalog.models, noted_settings(library, gpu=gpu.id)
    head = [say(language, key) for key in ("gpu.figure", "gpu.value", "gpu.note")]
    parts = [
        f"# {text(gpu.name)}",
        say(language, "gpu.names", names=", ".join(f"`{name}`" for name in (gpu.id, *gpu.aliases))),
        f"## {say(language, 'fits.heading')} {{ #fits }}",
        say(language, "fits.about"),
        fits_by_model(library, [row for row in fits.rows if row.gpu == gpu.id]),
        f"## {say(language, 'heat.heading')} {{ #lengths }}",
        say(language, "heat.about"),
        heat_maps(library, [(models[name], gpu) for name in TYPICAL_MODELS if name in models], fits.maps),
        *(
            [f"## {say(language, 'preset.heading')} {{ #notes }}", say(language, "preset.about"), noted]
            if noted
            else []
        ),
        f"## {say(language, 'gpu.figures')} {{ #figures }}",
        table(head, rows),
        _claims(library, gpu),
        f"## {say(language, 'rule.sources')} {{ #sources }}",
        "\n".join(f"- {cited_source(library, name)}" for name in data["sources"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _claims(library: Library, gpu: Gpu) -> str:
    """What the field notes say of the card, as they say it."""
    claims = library.entry("hardware", gpu.id).get("claims", [])
    if not claims:
        return ""
    lines = [f"- {prose(claim['text'][library.language])} {cited(library, claim)}" for claim in claims]
    return f"## {say(library.language, 'claims.heading')} {{ #claims }}\n\n" + "\n".join(lines)
