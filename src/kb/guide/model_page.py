"""A model's page: dimensions, parameters by source, where it fits, heat maps on usual cards, what the notes say."""

from typing import Any

from kb.core.model import Model
from kb.guide.all_fits import USUAL_GPUS, Fits
from kb.guide.fits_table import fits_by_gpu
from kb.guide.heat import heat_maps
from kb.guide.library import Library
from kb.guide.markup import cited, cited_source, code, prose, quantity, table, text
from kb.guide.noted_settings import noted_settings
from kb.guide.site_words import say


def model_page(library: Library, model: Model, fits: Fits) -> str:
    """The page as Markdown, its heading first."""
    language = library.language
    data = library.entry("models", model.id)
    gpus = library.catalog.gpus
    mine = sorted((row for row in fits.rows if row.model == model.id), key=lambda row: gpus[row.gpu].memory_total)
    fields = [(code(name), code(value)) for name, value in data["architecture"].items()]
    parts = [
        f"# {text(model.name)}",
        say(language, "model.names", names=", ".join(f"`{name}`" for name in (model.id, *model.aliases))),
        _errata(library, data),
    ]
    if mine:
        parts += [
            f"## {say(language, 'fits.where')} {{ #fits }}",
            say(language, "fits.about"),
            fits_by_gpu(library, model, mine),
            f"## {say(language, 'heat.heading')} {{ #lengths }}",
            say(language, "heat.about"),
            heat_maps(library, [(model, gpus[name]) for name in USUAL_GPUS if name in gpus], fits.maps),
        ]
    if noted := noted_settings(library, model=model.id):
        parts += [f"## {say(language, 'preset.heading')} {{ #notes }}", say(language, "preset.about"), noted]
    claims = [f"- {prose(claim['text'][language])} {cited(library, claim)}" for claim in data.get("claims", [])]
    if claims:
        parts += [f"## {say(language, 'claims.heading')} {{ #claims }}", "\n".join(claims)]
    parts += [
        f"## {say(language, 'model.parameters')} {{ #parameters }}",
        "\n".join(f"- {quantity(library, row)}{_note(row)}" for row in data["parameters"]),
        f"## {say(language, 'model.stored')} {{ #stored }}",
        _stored(library, data),
        f"## {say(language, 'model.architecture')} {{ #architecture }}",
        table([say(language, "model.field"), say(language, "gpu.value")], fields),
        say(language, "model.from", source=cited_source(library, data["architecture_source"])),
        f"## {say(language, 'rule.sources')} {{ #sources }}",
        "\n".join(f"- {cited_source(library, name)}" for name in data["sources"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _note(row: dict[str, str]) -> str:
    return f": {text(row['note'])}" if row.get("note") else ""


def _stored(library: Library, data: dict[str, Any]) -> str:
    """The types that the checkpoint, and those of aliases that differ, are stored in; or that none is known."""
    rows = data.get("weights_dtype", [])
    named = [f"{code(row['of'])}: " if "of" in row else "" for row in rows]
    lines = [f"- {name}{quantity(library, row)}{_note(row)}" for name, row in zip(named, rows, strict=True)]
    return "\n".join(lines) or say(library.language, "model.stored_unknown")


def _errata(library: Library, data: dict[str, object]) -> str:
    """Links to the errata that contradict what the notes say of it."""
    claims = data.get("claims", [])
    assert isinstance(claims, list)
    names = dict.fromkeys(claim["erratum"] for claim in claims if claim.get("erratum"))
    if not names:
        return ""
    links = ", ".join(f"[{name}](../errata/{name}.md)" for name in names)
    return f'!!! warning "{say(library.language, "errata.about_this")}"\n\n    {links}'
