"""What pages load besides their own, served from the site itself: what is fetched from npm by a lock file and checked
by hash, and the archives of kb that run in the browser.
"""

import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import yaml

from kb.core.text import UserError
from kb.integrations.contribution import VOCABULARY
from kb.knowledge import load_catalog, load_guide
from kb.knowledge.bundle import encoded, load_part
from kb.knowledge.catalog import TABLE
from kb.knowledge.locations import shipped

# what of a package is served, and where under assets/vendor/
SERVED = {
    "pyodide/pyodide.mjs": "pyodide/pyodide.mjs",
    "pyodide/pyodide.asm.mjs": "pyodide/pyodide.asm.mjs",
    "pyodide/pyodide.asm.wasm": "pyodide/pyodide.asm.wasm",
    "pyodide/python_stdlib.zip": "pyodide/python_stdlib.zip",
    "pyodide/pyodide-lock.json": "pyodide/pyodide-lock.json",
}
NPM_SECONDS = 600


def fetch_assets(root: str, say: Callable[[str], None]) -> bool:
    """Fill ``docs/theme/assets/vendor`` of the checkout ``root``; nothing is done where the lock has not changed.

    Returns:
        Whether anything was fetched.

    Raises:
        UserError: npm is missing or fails.
    """
    vendor = os.path.join(root, "docs", "theme", "assets", "vendor")
    stamp = os.path.join(vendor, "stamp")
    wanted = _mark(root)
    if _read(stamp) == wanted:
        return False
    npm = _program("npm")
    folder = os.path.join(root, "docs", "npm")
    say("npm ci")
    _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], folder)
    shutil.rmtree(vendor, ignore_errors=True)
    for source, target in SERVED.items():
        served = os.path.join(vendor, target)
        os.makedirs(os.path.dirname(served), exist_ok=True)
        shutil.copyfile(os.path.join(folder, "node_modules", source), served)
    # the editor's modules as one file
    esbuild = os.path.join(folder, "node_modules", "esbuild", "bin", "esbuild")
    entry = os.path.join(folder, "editor.mjs")
    options = ["--bundle", "--format=esm", "--minify", "--legal-comments=linked", "--log-level=error"]
    _run([_program("node"), esbuild, entry, *options, f"--outfile={os.path.join(vendor, 'editor.mjs')}"], root)
    _run([_program("node"), "snapshot.mjs", os.path.join(vendor, "pyodide", "snapshot.bin")], folder)
    with open(stamp, "w", encoding="utf-8") as stream:
        stream.write(wanted)
    return True


def _program(name: str) -> str:
    """Where ``node`` or ``npm``, which come together, are."""
    found = shutil.which(name)
    if found is None:
        raise UserError("site.no_npm")
    return found


def _mark(root: str) -> str:
    """A hash of what decides the assets."""
    seen = hashlib.sha256(repr(sorted(SERVED.items())).encode())
    for name in ("package-lock.json", "editor.mjs", "snapshot.mjs"):
        with open(os.path.join(root, "docs", "npm", name), "rb") as stream:
            seen.update(stream.read())
    return seen.hexdigest()


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        return None


def _run(command: list[str], folder: str) -> None:
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=NPM_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError("site.npm_failed", command=command[0], reason=str(error)) from None
    if run.returncode:
        reason = (run.stderr or run.stdout).strip()[-400:]
        raise UserError("site.npm_failed", command=" ".join(command[:2]), reason=reason)


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
    yield "kb/_data/rules/.bundle/guide.json", encoded(guide, "guide")
    with open(os.path.join(shipped().rules, "vocabulary.yaml"), encoding="utf-8") as stream:
        vocabulary = yaml.load(stream, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    # as JSON: a page would parse YAML for seconds
    yield f"kb/_data/rules/{VOCABULARY}", json.dumps(vocabulary, ensure_ascii=False)


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
        yield f"kb/_data/rules/.bundle/{part}.json", encoded(load_part(shipped(), part), part)
    yield "kb/_data/rules/.bundle/guide.json", encoded(_guide(PAGE_KINDS), "guide")
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
