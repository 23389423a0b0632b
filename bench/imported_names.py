"""What a library lets be imported, read from its wheels: ``python bench/imported_names.py FOLDER LIBRARY``.

Prints rules/exports/LIBRARY.yaml. FOLDER holds wheels of the library (``pip download --no-deps transformers==5.24.0``),
best of every minor release the first and the last. The library must be installed too, in a new release: a name that it
still hands out, by an alias, is not gone. No wheel is run. Of vLLM, whose wheels are hundreds of MB, FOLDER holds the
``vllm`` of each source release, zipped under the name that its wheel would have; it need not be installed.
"""

import ast
import importlib
import importlib.util
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
CAME_AFTER = {  # older releases are hardly met any more
    "transformers": (4, 40),
    "trl": (0, 9),
    "peft": (0, 8),
    "huggingface_hub": (0, 19),
    "accelerate": (0, 26),
    "datasets": (2, 14),
    "vllm": (0, 6),
}
# of their modules' public names those that came later are told, too
SMALL = ("huggingface_hub", "accelerate", "datasets")
SKIPPED = re.compile(
    r"\.(?:models|data|pipelines|quantizers|loss|kernels|testing\w*|tests?|commands|cli|scripts|onnx|sagemaker|tools|benchmark)\b|\.dummy_|_(?:tf|flax)_|_tf$|\.examples"
)
# parts of vLLM that hardly any other program imports from
INNER = re.compile(
    r"^vllm\.(?:\w+\.)*(?:adapter_commons|assets|benchmarks|compilation|device_allocator|fla|fused_moe|grpc|kernels|kv_offload|"
    r"kv_transfer|mamba|mem|metrics|ops|parser|plugins|pool|profiler|prompt_adapter|punica_wrapper|quantization|ray|reasoning|"
    r"renderers|sample|spec_decode|structured_output|third_party|tool_parsers|tracing|vllm_flash_attn)\b|^vllm\.v1\.attention\b|\._"
)
ALIASED = re.compile(r"(?:Tokenizer|TokenizerFast|ImageProcessor|ImageProcessorFast)$")  # handed out under other names
# names that hardly any program imports: most of all there are
SELDOM = re.compile(
    r"(?:PreTrainedModel|Backbone|FeatureExtractor|(?:Image|Video)Processor\w*|(?:Text|Vision|Audio|Encoder|Decoder|"
    r"QFormer|Thinker|Talker|Code2Wav|Token2Wav)\w*(?:Config|Model))$|^Flax(?!Auto)|^load_tf_|"
    r"^TF(?!Auto|Bert|DistilBert|Roberta|XLMRoberta|GPT2|T5|Bart|Albert|Electra|Trainer|Training|ViT|CLIP|Whisper)|"
    r"^\w{4,60}(?:(?:Input|Output)(?:[A-Z]\w*)?|Parameters)$"
)
Release = tuple[int, ...]
NEVER: Release = (9999,)
MOST_DOTS = {"vllm": 3}  # of a module whose names are looked at; of others 2


class Exports(NamedTuple):
    """Names at the top, names of each module, types of model, what any module defines itself, and what each one means
    to be taken from it: what it defines, and all names of a package. ``places``: name → the modules that define it.
    """

    top: set[str]
    modules: dict[str, set[str]]
    types: set[str]
    defined: set[str]
    own: dict[str, set[str]]
    places: dict[str, set[str]]


def texts_in(node: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those at the module's own level, under an if or in a try too."""
    rest: list[ast.stmt] = list(tree.body)
    while rest:
        node = rest.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for part in ("body", "orelse", "finalbody"):
                rest += getattr(node, part, [])
            for handler in getattr(node, "handlers", []):
                rest += handler.body


def names_of(tree: ast.Module, library: str) -> set[str]:
    """A library's own names in a module: defined, imported, or listed to be loaded when they are asked for."""
    names: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            if node.name == "__getattr__":  # names that it hands out are texts
                names |= texts_in(tree)
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith(library)):
            names |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr):
            said = ast.unparse(node)
            if re.search("_import_structure|_SUBMOD_ATTRS|MODULE_ATTRS", said.split("(")[0].split("=")[0]):
                names |= texts_in(node)
            names |= {
                each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            }
    return {name for name in names if re.fullmatch(r"(?!__)[A-Za-z_]\w{1,79}", name)}


def exports_of(wheel: Path, library: str) -> Exports:
    found = Exports(set(), {}, set(), set(), {}, {})
    with zipfile.ZipFile(wheel) as archive:
        structured = b"define_import_structure" in archive.read(f"{library}/__init__.py")
        for name in archive.namelist():
            if not name.endswith(".py") or not name.startswith(f"{library}/"):
                continue
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            text = archive.read(name).decode()
            if module in (f"{library}.models.auto.configuration_auto", f"{library}.models.auto.auto_mappings"):
                found.types.update(types_in(ast.parse(text)))
            if ".models." in module and library == "transformers":
                if structured:
                    for listed in re.findall(r"__all__ \+?= \[(.*?)\]", text, re.DOTALL):
                        found.top.update(re.findall(r"[\"'](\w+)[\"']", listed))
            elif module == library or not left_out(module, library):
                tree = ast.parse(text)
                found.modules[module] = names_of(tree, library)
                found.defined.update(
                    each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.ClassDef)
                )
                defines = {each.name for each in statements(tree) if isinstance(each, ast.FunctionDef | ast.ClassDef)}
                for each in defines:
                    found.places.setdefault(each, set()).add(module)
                if re.search(r"^from \.\S* import \*", text, re.MULTILINE):
                    found.modules[module].add("*")  # and all names of another
                found.own[module] = found.modules[module] if name.endswith("/__init__.py") else defines
    found.top.update(found.modules.pop(library))
    return found


def left_out(module: str, library: str) -> bool:
    """Whether none of a module's names is looked at."""
    if library == "vllm" and (INNER.search(module) or module.count(".") > MOST_DOTS[library]):
        return True
    return SKIPPED.search(module) is not None


def types_in(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value
            and "CONFIG_MAPPING_NAMES" in ast.unparse(node)[:40]
        ):
            pairs = (
                each.elts[0] for each in ast.walk(node.value) if isinstance(each, ast.Tuple) and len(each.elts) == 2
            )
            keys = (key for each in ast.walk(node.value) if isinstance(each, ast.Dict) for key in each.keys)
            yield from (each.value for each in (*pairs, *keys) if isinstance(each, ast.Constant))


def spans(by_release: dict[Release, Iterable[str]]) -> dict[str, dict[str, list[str]]]:
    """``came`` and ``gone``: release → names; none that came back, as they have no one span."""
    releases = sorted(by_release)
    have: dict[str, list[int]] = {}
    for index, release in enumerate(releases):
        for name in by_release[release]:
            have.setdefault(name, []).append(index)
    made: dict[str, dict[str, list[str]]] = {"came": {}, "gone": {}}
    for name, held in sorted(have.items()):
        if held == list(range(held[0], held[-1] + 1)):
            if held[0]:
                made["came"].setdefault(said(releases[held[0]], releases), []).append(name)
            if held[-1] + 1 < len(releases):
                made["gone"].setdefault(said(releases[held[-1] + 1], releases), []).append(name)
    return made


def said(release: Release, releases: Iterable[Release]) -> str:
    """``4.51``, or ``4.51.3`` where an earlier wheel of that minor release was looked at, too."""
    first = min(each for each in releases if each[:2] == release[:2])
    return ".".join(map(str, release[:2] if release == first else release))


def written(group: dict[str, dict[str, list[str]]], keeps: Any, after: Release = ()) -> dict[str, dict[str, str]]:
    """The group as the file holds it: what came after a release, and what is gone and ``keeps`` says so."""
    order = lambda row: tuple(map(int, row[0].split(".")))  # noqa: E731
    came = {
        release: " ".join(names)
        for release, names in sorted(group["came"].items(), key=order)
        if order((release,)) > after
    }
    gone = {
        release: " ".join(kept)
        for release, names in sorted(group["gone"].items(), key=order)
        if (kept := list(filter(keeps, names)))
    }
    return {key: rows for key, rows in (("came", came), ("gone", gone)) if rows}


def handed_out(module: str, name: str, newest: Exports) -> bool:
    """Whether the installed library, or where none is installed the newest wheel, still has the name there."""
    if importlib.util.find_spec(module.split(".")[0]) is None:
        return name in newest.modules.get(module, newest.top)
    try:
        getattr(importlib.import_module(module), name)
    except Exception:
        return False
    return True


def of_modules(found: dict[Release, Exports], library: str) -> dict[str, Any]:
    """Of each module that is still there, the names that are gone, and where those are that moved to another."""
    newest = found[max(found)]
    defined: set[str] = set().union(*(each.defined for each in found.values()))
    made: dict[str, Any] = {}
    public = (name for name in newest.modules if name.count(".") <= MOST_DOTS.get(library, 2) and "._" not in name)
    public = (name for name in public if "*" not in newest.modules[name])
    for module in sorted(public):
        if library == "vllm":
            defined = {name for each in found.values() for name in each.own.get(module, ()) if not name.startswith("_")}
        held = {
            release: {
                name for name in each.modules[module] & defined if not (name.startswith("_") and library in SMALL)
            }
            for release, each in found.items()
            if module in each.modules
        }
        after = CAME_AFTER[library] if library in SMALL else NEVER
        group = written(spans(held), lambda name, module=module: not handed_out(module, name, newest), after)
        gone = {name for names in group.get("gone", {}).values() for name in names.split()}
        moved = moved_to(newest, gone, library)
        if group:
            made[module.removeprefix(f"{library}.")] = {**group, **({"moved": moved} if moved else {})}
    return made


def moved_to(newest: Exports, names: Iterable[str], library: str) -> dict[str, str]:
    """Of names that are gone from where they were, the one package or module that has them now."""
    if library == "vllm":
        homes = {name: sorted(newest.places.get(name, ())) for name in sorted(names)}
        return {name: each[0] for name, each in homes.items() if len(each) == 1}
    places = {
        name: sorted((each for each in newest.modules if name in newest.modules[each]), key=len) for name in names
    }
    return {
        name: each[0]
        for name, each in sorted(places.items())
        if each and all(other.startswith(each[0]) for other in each) and handed_out(each[0], name, newest)
    }


def main(folder: Path, library: str) -> None:
    found: dict[Release, Exports] = {}
    for wheel in sorted(folder.glob(f"{library}-*.whl"), key=lambda each: release_of(each)):
        found[release_of(wheel)] = exports_of(wheel, library)
        print(wheel.name, file=sys.stderr)
    path = ROOT / "rules" / "exports" / f"{library}.yaml"
    before = yaml.safe_load(path.read_text("utf-8")) if path.exists() else {}
    newest = found[max(found)]
    top = {
        release: {
            name
            for name in each.top
            if not name.startswith("_") and not SELDOM.search(name) and f"{library}.{name}" not in each.modules
        }
        for release, each in found.items()
    }
    modules = {
        release: {
            name.removeprefix(f"{library}.") for name in each.modules if name.count(".") <= MOST_DOTS.get(library, 2)
        }
        for release, each in found.items()
    }
    gone = lambda name: not ALIASED.search(name) and not handed_out(library, name, newest)  # noqa: E731
    data = {
        "id": library,
        "version": before.get("version", 0) + 1,
        "since": before.get("since", "0.1.0"),
        "library": library,
        "newest": ".".join(map(str, max(found)[:2])),
        "names": written(spans(top), gone, CAME_AFTER[library]),
        "modules": written(
            spans(modules), lambda name: not can_import(f"{library}.{name}", newest), CAME_AFTER[library]
        ),
        "members": of_modules(found, library),
        "now": before.get("now", {}),
        "sources": before.get("sources", [f"{library}-wheels"]),
    }
    if newest.types:
        known = importlib.import_module(f"{library}.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
        data["types"] = written(
            spans({release: each.types for release, each in found.items()}),
            lambda name: name not in known,
            CAME_AFTER[library],
        )
    print(
        "# yaml-language-server: $schema=../schema/export.json\n"
        "# Written by bench/imported_names.py from wheels; `now` by hand."
    )
    print(
        yaml.safe_dump(
            {key: value for key, value in data.items() if value}, sort_keys=False, width=140, allow_unicode=True
        ),
        end="",
    )


def can_import(module: str, newest: Exports) -> bool:
    if importlib.util.find_spec(module.split(".")[0]) is None:
        return any(name == module or name.startswith(f"{module}.") for name in newest.modules)
    try:
        importlib.import_module(module)
    except Exception as error:
        return not isinstance(error, ModuleNotFoundError) or error.name is None or not module.startswith(error.name)
    return True


def release_of(wheel: Path) -> Release:
    return tuple(int(part) for part in wheel.name.split("-")[1].split(".") if part.isdecimal())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
