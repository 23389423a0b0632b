"""The playground: the archive of kb that its page loads, and the page itself."""

import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from html import escape
from importlib.util import find_spec
from typing import Any

import yaml

from kb.core.memory_report import STATUSES
from kb.guide.library import Library
from kb.guide.site_words import say
from kb.integrations.contribution import VOCABULARY
from kb.knowledge import load_catalog, load_guide
from kb.knowledge.bundle import encoded, load_part
from kb.knowledge.catalog import TABLE
from kb.knowledge.locations import shipped

# what no page needs: commands, the site itself, runs with torch, a Trainer, an editor; tests of what comes with it
LEFT_OUT = ("commands", "guide", "torch_runs", "trainer", "editor", "_data", "__pycache__", "tests", "benchmarks")
PARTS = ("hot", "cold", "serving", "ko", "en")
PAGE_KINDS = ("presets", "errata", "remedies")  # what a recommendation and a diagnosis read of the guide's data
UNREAD = ("claims", "examples", "sources")  # of a remedy: what its page shows, and no diagnosis reads
EPOCH = (2020, 1, 1, 0, 0, 0)  # the same content gives the same zip


def write_playground(root: str) -> None:
    """Fill ``docs/theme/assets/playground`` of the checkout ``root``."""
    folder = os.path.join(root, "docs", "theme", "assets", "playground")
    os.makedirs(folder, exist_ok=True)
    for file, contents in (("kb.zip", _contents()), ("validator.zip", _validator())):
        with zipfile.ZipFile(os.path.join(folder, file), "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(contents):
                archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
    with open(os.path.join(folder, "examples.json"), "w", encoding="utf-8") as stream:
        json.dump(_examples(os.path.join(root, "examples")), stream, ensure_ascii=False)
    with open(os.path.join(folder, "choices.json"), "w", encoding="utf-8") as stream:
        stream.write(_choices())


def _validator() -> Iterator[tuple[str, str]]:
    """What the forms of the Contribute page need besides: jsonschema and its own, the schemas, every GPU and model, the
    vocabulary, which files have the names of measurements."""
    for name in ("attr", "attrs", "jsonschema", "jsonschema_specifications", "referencing"):
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None  # a dependency of kb
        yield from _modules(os.path.dirname(spec.origin), name, (".py", ".json"))
    with open(os.path.join(os.path.dirname(__file__), "rpds.py"), encoding="utf-8") as stream:
        yield "rpds.py", stream.read()
    for name in ("check", "hardware", "measurement", "model", "sources"):
        with open(os.path.join(shipped().rules, "schema", f"{name}.json"), encoding="utf-8") as stream:
            yield f"kb/_data/rules/schema/{name}.json", stream.read()
    guide = _guide((*PAGE_KINDS, "hardware", "models"))
    guide["measurements"] = {name: {} for name in load_guide()["measurements"]}
    yield "kb/_data/rules/.bundle/guide.json", encoded(guide)
    with open(os.path.join(shipped().rules, "vocabulary.yaml"), encoding="utf-8") as stream:
        vocabulary = yaml.load(stream, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    yield (
        f"kb/_data/rules/{VOCABULARY}",
        json.dumps(vocabulary, ensure_ascii=False),
    )  # as JSON: a page would parse YAML for seconds


def _guide(kinds: Sequence[str]) -> dict[str, Any]:
    """Kinds of the guide's data; of remedies what a diagnosis reads."""
    whole = load_part(shipped(), "guide")
    remedies = {
        name: {key: value for key, value in remedy.items() if key not in UNREAD}
        for name, remedy in whole["remedies"].items()
    }
    return {kind: remedies if kind == "remedies" else whole[kind] for kind in kinds}


def _contents() -> Iterator[tuple[str, str]]:
    """Path in the zip and text: kb's modules, its knowledge compiled, and PyYAML without its C part."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    yield from _modules(package, "kb")
    hot = load_part(shipped(), "hot")
    tables = [TABLE + name for name in hot["tables"] if name not in hot["same_tables"]]
    for part in (*PARTS, *tables):
        yield f"kb/_data/rules/.bundle/{part}.json", encoded(load_part(shipped(), part))
    yield "kb/_data/rules/.bundle/guide.json", encoded(_guide(PAGE_KINDS))
    yield from _modules(os.path.dirname(yaml.__file__), "yaml")


def _modules(folder: str, name: str, endings: tuple[str, ...] = (".py",)) -> Iterator[tuple[str, str]]:
    for top, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each not in LEFT_OUT]
        for file in files:
            if file.endswith(endings):
                path = os.path.join(top, file)
                with open(path, encoding="utf-8") as stream:
                    yield f"{name}/{os.path.relpath(path, folder).replace(os.sep, '/')}", stream.read()


def _examples(folder: str) -> list[dict[str, str]]:
    found = []
    for name in sorted(os.listdir(folder)):
        if name.endswith((".yaml", ".yml", ".json", ".sh")):
            with open(os.path.join(folder, name), encoding="utf-8") as stream:
                kind = "shell" if name.endswith(".sh") else "config"
                found.append({"name": name, "kind": kind, "text": stream.read()})
    return found


def _choices() -> str:
    """What the pickers offer: GPUs and models, as JSON."""
    catalog = load_catalog()
    gpus = sorted(catalog.gpus.values(), key=lambda gpu: (gpu.memory_total, gpu.name))
    models = sorted(catalog.models.values(), key=lambda model: (model.architecture.model_type, model.parameters))
    return json.dumps(
        {
            "gpus": [{"id": gpu.id, "name": gpu.name.removeprefix("NVIDIA ")} for gpu in gpus],
            "models": [{"id": model.id, "name": model.name} for model in models],
            "rules": catalog.version,
        },
        ensure_ascii=False,
    )


WORDS = (
    "chart", "check", "copied", "copy_by_hand", "cpus", "done", "editor", "example", "examples", "failed", "fix",
    "fix_all", "fix_unsafe", "gpu", "gpus", "host", "loading", "no_gpu", "no_wasm", "nothing", "over_time", "share",
    "still", "stuck", "too_long", "versions",
)  # fmt: skip


def playground(library: Library) -> str:
    """The playground's place on the page; without a script it says what it needs."""
    language, words = library.language, library.words
    texts: dict[str, object] = {name: say(language, f"playground.{name}") for name in WORDS}
    texts |= {name: words(f"bars.{name}") for name in ("band", "limit", "small", "unused")}
    texts |= {"computed": words.named("status", "computed"), "computed_title": say(language, "source.status.computed")}
    texts["severity"] = {name: words.named("severity", name) for name in ("error", "warning", "info")}
    texts["verdict"] = {name: words.named("verdict", name) for name in (*STATUSES, "unknown")}
    held = escape(json.dumps(texts, ensure_ascii=False), quote=True)
    needs = escape(say(language, "playground.no_script"))
    return f'<div id="kb-playground" data-words="{held}"></div>\n<noscript><p class="kb-notice">{needs}</p></noscript>'
