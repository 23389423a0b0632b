"""The page of each GPU, model, remedy and erratum."""

import json
from collections.abc import Mapping
from typing import Any

from kb.core.hardware import Gpu
from kb.core.model import Model
from kb.guide.all_fits import TYPICAL_MODELS, USUAL_GPUS, Fits
from kb.guide.cases import noted_settings
from kb.guide.drawings import heat_maps
from kb.guide.fits_table import fits_by_gpu, fits_by_model
from kb.guide.library import Library
from kb.guide.markup import PLAIN, badge, cited, cited_source, code, prose, quantity, table, text
from kb.guide.site_words import say
from kb.report.rules.entry import figure

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
    models, noted = library.catalog.models, noted_settings(library, fits.models, gpu=gpu.id)
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
    """What the original guide says of the card, as they say it."""
    claims = library.entry("hardware", gpu.id).get("claims", [])
    if not claims:
        return ""
    lines = [f"- {prose(claim['text'][library.language])} {cited(library, claim)}" for claim in claims]
    return f"## {say(library.language, 'claims.heading')} {{ #claims }}\n\n" + "\n".join(lines)


def model_page(library: Library, model: Model, fits: Fits) -> str:
    """The page as Markdown, its heading first."""
    language = library.language
    data = library.entry("models", model.id)
    gpus = library.catalog.gpus
    mine = sorted((row for row in fits.rows if row.model == model.id), key=lambda row: gpus[row.gpu].memory_total)
    # as config.json writes them
    written = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in data["architecture"].items()
    }
    fields = [(code(name), code(value)) for name, value in written.items()]
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
    else:
        command = f"kb recommend --model {model.id} --gpu {USUAL_GPUS[-1]}"
        parts += [f"## {say(language, 'fits.where')} {{ #fits }}", say(language, "fits.asked", command=command)]
    if noted := noted_settings(library, fits.models, model=model.id):
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


def erratum_page(library: Library, entry: Mapping[str, Any]) -> str:
    """The page as Markdown, its heading first."""
    language, words = library.language, library.words
    claim, finding = entry["claim"], entry["finding"]
    parts = [
        f"# {prose(erratum_title(entry, language))}",
        f"**{text(words.named('erratum_verdict', entry['verdict']))}** · {code(entry['id'])}",
        f"## {say(language, 'erratum.claim')} {{ #claim }}",
        f"{prose(claim['text'][language])} {cited(library, claim)}",
        f"## {say(language, 'erratum.finding')} {{ #finding }}",
        f"{prose(finding['text'][language]) if 'text' in finding else ''} {badge(library, finding['status'])}",
    ]
    rows = [
        (text(value["label"][language]), figure(value["value"], value.get("unit"), words, PLAIN), _how(value))
        for value in finding.get("values", [])
    ]
    if rows:
        head = [say(language, key) for key in ("erratum.quantity", "gpu.value", "erratum.how")]
        parts.append(table(head, rows, numbers=(1,)))
    parts += [
        f"## {say(language, 'erratum.use')} {{ #use }}",
        f"{prose(entry['use'][language])} {badge(library, finding['status'])}",
    ]
    return "\n\n".join(parts) + "\n"


def erratum_title(entry: Mapping[str, Any], language: str) -> str:
    """The claim itself, without its full stop."""
    return str(entry["claim"]["text"][language]).rstrip(".")


def _how(value: Mapping[str, Any]) -> str:
    """The recipe by which a test computes the value again."""
    if "expression" in value:
        return f"`{value['expression']}`"
    for kind in ("memory", "formula", "host", "generation"):
        if isinstance(value.get(kind), Mapping):
            shown = ", ".join(f"{name} {part}" for name, part in value[kind].items() if not isinstance(part, Mapping))
            return text(f"{kind}: {shown}")
    return ""
