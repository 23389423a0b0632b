"""``kb rules new-model`` and ``new-gpu``: an entry written from what is known; what is not known is left out."""

import argparse
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kb import __version__
from kb.core.catalog import Catalog
from kb.core.text import UserError
from kb.core.units import MIB, read_size
from kb.knowledge import KnowledgeError, load_catalog
from kb.knowledge.compile import read_one_file
from kb.knowledge.locations import Location, opened
from kb.knowledge.rows import NATIVE_BF16_FROM
from kb.machine.detect import detect
from kb.machine.match import fold_name
from kb.memory import architecture_from_config, parameter_count
from kb.session import cli
from kb.session.models import cached_config, is_hub_name, model_of_config, read_config

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
ID = re.compile(r"[a-z0-9][a-z0-9.]*(-[a-z0-9.]+)*")
CAPABILITY = re.compile(r"\d{1,2}\.\d")
TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
LENGTHS = ("max_position_embeddings", "n_positions")


class Draft(NamedTuple):
    """An entry to be written: its folder under rules/, its id, its lines, and the source that its values have."""

    kind: str
    id: str
    lines: tuple[str, ...]
    source: str
    about: Mapping[str, str]


def new_model(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """An entry of ``models/`` from a config.json, or from that of a hub model in the Hugging Face cache."""
    path, name = _config_of(options.config[0], options.name)
    data = read_config(path)
    model_of_config(data, path)  # says what is wrong with it
    name = name or str(data.get("_name_or_path") or "")
    if not HUB_NAME.fullmatch(name):
        raise UserError("rules.new_model_name", path=path)
    catalog = load_catalog(options.rules)
    folded = name.rpartition("/")[2].lower().replace("_", "-")
    entry = free_id(options.id or folded, [name], catalog.models)
    source = f"hub-{entry}"
    made = _dimensions(location, data, path)
    counted = parameter_count(architecture_from_config(data))
    lines = [
        *_head("model", entry, name, name.rpartition("/")[2]),
        "architecture:",
        *(f"  {key}: {json.dumps(value)}" for key, value in made.items()),
        f"architecture_source: {source}",
        "parameters:",
        f"  - {{value: {counted}, unit: parameters, status: computed, source: {source}, "
        'note: "By the closed form of its dimensions."}',
    ]
    length = next((made[key] for key in LENGTHS if key in made), None)
    if length is not None:
        lines.append(f"max_length: {{value: {length}, unit: tokens, status: claimed, source: {source}}}")
    stored = TYPES.get(str(data.get("dtype") or data.get("torch_dtype")).removeprefix("torch."))
    if stored is not None:
        lines += ["weights_dtype:", f"  - {{value: {stored}, status: claimed, source: {source}}}"]
    about = {"title": f"{name}, config.json", "url": f"https://huggingface.co/{name}", "kind": "model hub"}
    lines.append(f"sources: [{source}]")
    return write_draft(Draft("models", entry, tuple(lines), source, about), options, location, words)


def new_gpu(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """An entry of ``hardware/`` from options, or from what the driver of this machine says."""
    catalog = load_catalog(options.rules)
    given = (options.name, options.memory, options.compute_capability)
    if any(given):
        if not all(given):
            raise UserError("rules.new_gpu_all")
        if not CAPABILITY.fullmatch(options.compute_capability):
            raise UserError("rules.new_gpu_capability", text=options.compute_capability[:40])
        name, memory, capability = options.name, read_size("--memory", options.memory), options.compute_capability
        measured, how = options.measured, "Given on the command line, as the driver reports it."
        if not measured and options.into is None:
            raise UserError("rules.new_gpu_claimed")
    else:
        name, memory, capability, how = _found_here(catalog)
        measured = True
    folded = re.sub(r"[^a-z0-9]+", "-", re.sub(r"nvidia|geforce", "", name.lower())).strip("-")
    entry = free_id(options.id or folded, [name], catalog.gpus)
    status, source = "measured" if measured else "claimed", f"read-{entry}"
    native = str(tuple(map(int, capability.split("."))) >= NATIVE_BF16_FROM).lower()
    lines = [
        *_head("hardware", entry, name, fold_name(name)),
        "memory_total:",
        f"  - {{value: {round(memory / MIB)}, unit: MiB, status: {status}, source: {source}}}",
        f'compute_capability: {{value: "{capability}", status: {status}, source: {source}}}',
        f"native_bf16: {{value: {native}, status: computed, source: {source}, note: From its compute capability.}}",
        f"sources: [{source}]",
    ]
    about = {"title": f"What the driver says of an {name}", "kind": "measurement", "note": how}
    return write_draft(Draft("hardware", entry, tuple(lines), source, about), options, location, words)


def _config_of(given: str, name: str | None) -> tuple[str, str | None]:
    """The path of the config, and the model's name where that is known."""
    if os.path.exists(given) or given.endswith(".json") or not is_hub_name(given):
        return given, name
    path = cached_config(given, os.environ)
    if path is None:
        raise UserError("rules.new_model_hub", name=given)
    return path, name or given


def _dimensions(location: Location, data: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The fields of the config that an entry of its type has; one that is left out is the type's default.

    Raises:
        UserError: a field is neither there nor told by its type, or kb keeps no entries of the type.
    """
    with open(os.path.join(opened(location).rules, "schema", "model.json"), encoding="utf-8") as stream:
        schema = json.load(stream)
    kind = str(data["model_type"])
    part = schema["properties"]["architecture"]
    if kind not in part["properties"]["model_type"]["enum"]:
        raise UserError("rules.new_model_type", type=kind)
    wanted: list[str] = []
    known: dict[str, Any] = {}
    for row in part["allOf"]:
        asked = row["if"]["properties"]["model_type"]
        if kind in asked.get("enum", [asked.get("const")]):
            then = row["then"]
            shape = schema["$defs"][then["$ref"].rpartition("/")[2]] if "$ref" in then else then
            known |= {name: rule for name, rule in shape.get("properties", {}).items() if name not in known}
            wanted += [name for name in shape.get("required", ()) if name not in wanted]
            known |= {name: False for name, rule in shape.get("properties", {}).items() if rule is False}
    made = {"model_type": kind} | {
        name: data[name] for name, rule in known.items() if rule is not False and data.get(name) is not None
    }
    for name in wanted:
        if name not in made:
            made[name] = _left_out(data, name, path)
    return {name: made[name] for name in dict.fromkeys([*wanted, *made])}


def _left_out(data: Mapping[str, Any], name: str, path: str) -> Any:
    """What a config means by leaving a field out: the one value that gives the same architecture when it is written."""
    meant, beside = architecture_from_config(data), [value for value in data.values() if isinstance(value, int)]
    alike = []
    for value in dict.fromkeys(map(json.dumps, (True, False, *beside, 2, 32, 512, 2048))):
        try:
            if architecture_from_config({**data, name: json.loads(value)}) == meant:
                alike.append(json.loads(value))
        except ValueError:
            continue
    if len(alike) != 1:
        raise UserError("model_config.missing", path=path, name=name)
    return alike[0]


def _found_here(catalog: Catalog) -> tuple[str, int, str, str]:
    """Name, bytes, compute capability and how it was read, of the GPU of this machine.

    Raises:
        UserError: there is none, it is a slice, kb knows it, or the driver does not say what is needed.
    """
    machine = detect(catalog.gpus, gpu="auto")
    if not machine.gpus:
        raise UserError("rules.new_gpu_none")
    gpu = machine.gpus[0]
    if gpu.mig:
        raise UserError("rules.new_gpu_slice", name=gpu.name)
    if gpu.gpu is not None:
        raise UserError("rules.new_known", name=gpu.name, known=gpu.gpu.id)
    if gpu.compute_capability is None:
        raise UserError("rules.new_gpu_all")
    how = f"Read by kb {__version__} from {machine.gpu_source}, driver {gpu.driver or 'not known'}."
    return gpu.name, gpu.memory_total, ".".join(map(str, gpu.compute_capability)), how


def free_id(entry: str, names: Iterable[str], known: Mapping[str, Any]) -> str:
    """The id, where it is one and neither it nor a name belongs to another entry."""
    if not ID.fullmatch(entry):
        raise UserError("rules.new_id", name=entry[:100])
    taken = {folded.casefold(): one.id for one in known.values() for folded in (one.id, one.name, *one.aliases)}
    for name in (entry, *names):
        if name.casefold() in taken:
            raise UserError("rules.new_known", name=name, known=taken[name.casefold()])
    return entry


def _head(schema: str, entry: str, name: str, alias: str) -> list[str]:
    return [
        f"# yaml-language-server: $schema=../schema/{schema}.json",
        f"id: {entry}",
        "version: 1",
        f'since: "{__version__}"',
        f"name: {json.dumps(name, ensure_ascii=False)}",
        f"aliases: [{json.dumps(alias, ensure_ascii=False)}]",
    ]


def write_draft(draft: Draft, options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """Write the entry and its source; of one that would not be valid nothing is left."""
    overlay = options.into is not None
    if location.sealed and not overlay:
        raise UserError("rules.sealed", path=location.rules)
    root = options.into if overlay else location.rules
    path = os.path.join(root, draft.kind, f"{draft.id}.yaml")
    sources = os.path.join(root, "sources.yaml")
    before = _text_of(sources)
    about = ", ".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in draft.about.items())
    start = before.rstrip("\n") + "\n" if before else "version: 1\nsources:\n"
    lines = draft.lines[1:] if overlay else draft.lines
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "x", encoding="utf-8", newline="\n") as stream:
            stream.write("\n".join(lines) + "\n")
        if f"  {draft.source}:" not in before:
            _put(sources, f"{start}  {draft.source}: {{{about}}}\n")
    except FileExistsError:
        raise UserError("rules.new_known", name=draft.id, known=path) from None
    except OSError as error:
        raise UserError("fix.unwritable", path=error.filename or path, reason=error.strerror) from None
    if not overlay:
        try:
            read_one_file(location, f"{draft.kind}/{draft.id}.yaml")
        except KnowledgeError:
            os.remove(path)
            _put(sources, before)
            raise
    print(cli.said(words, "rules.new_written", path=path, checked=root if overlay else path))
    return cli.CLEAN


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def _put(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
