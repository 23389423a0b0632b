"""``kb rules new-model``, ``new-gpu``, ``new``: an entry written from what is known; what is not known is left out."""

import argparse
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from kb import __version__
from kb.core.catalog import Catalog
from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.core.units import MIB, read_size
from kb.knowledge import KnowledgeError, load_catalog
from kb.knowledge.compile import read_one_file
from kb.knowledge.drafts import as_yaml, gpu_entry, head_of, model_entry
from kb.knowledge.locations import Location
from kb.knowledge.problems import Problem
from kb.knowledge.source import Located, read_source
from kb.machine.detect import detect, fold_name
from kb.session import cli
from kb.session.lookups import cached_config, is_hub_name
from kb.session.models import model_of_config, read_config

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
ID = re.compile(r"[a-z0-9][a-z0-9.]*(-[a-z0-9.]+)*")
CAPABILITY = re.compile(r"\d{1,2}\.\d")


class Draft(NamedTuple):
    """An entry to be written: its folder under rules/, its id, its text, and the source that is its own, if any."""

    kind: str
    id: str
    text: str
    source: str = ""
    about: Mapping[str, str] = {}


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
    head = head_of(entry, name, [name.rpartition("/")[2]])
    made = model_entry(head, data, path, location)
    return write_draft(Draft("models", entry, entry_text("models", made, options)), options, location, words)


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
    made = gpu_entry(
        head_of(entry, name, [fold_name(name)]),
        round(memory / MIB),
        capability,
        status="measured" if measured else "claimed",
        more={},
        note=how,
    )
    return write_draft(Draft("hardware", entry, entry_text("hardware", made, options)), options, location, words)


def entry_text(kind: str, made: Mapping[str, Any], options: argparse.Namespace) -> str:
    """The file, for rules/ or, with ``--into``, for an overlay."""
    return as_yaml(kind, dict(made), overlay=options.into is not None)


def _config_of(given: str, name: str | None) -> tuple[str, str | None]:
    """The path of the config, and the model's name where that is known."""
    if os.path.exists(given) or given.endswith(".json") or not is_hub_name(given):
        return given, name
    path = cached_config(given, os.environ)
    if path is None:
        raise UserError("rules.new_model_hub", name=given)
    return path, name or given


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


def write_draft(draft: Draft, options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """Write the entry and its source; of one that would not be valid nothing is left."""
    overlay = options.into is not None
    if location.sealed and not overlay:
        raise UserError("rules.sealed", path=location.rules)
    root = options.into if overlay else location.rules
    path = os.path.join(root, draft.kind, f"{draft.id}.yaml")
    source = os.path.join(root, "sources", f"{draft.source}.yaml")
    written = []
    try:
        for file, text in ((path, draft.text), *(((source, _source_text(draft, overlay)),) if draft.source else ())):
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "x", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
            written.append(file)
        if not overlay:
            read_one_file(location, f"{draft.kind}/{draft.id}.yaml")
    except FileExistsError as error:
        _take_back(written)
        raise UserError("rules.new_known", name=draft.id, known=error.filename or path) from None
    except OSError as error:
        raise UserError("fix.unwritable", path=error.filename or path, reason=error.strerror) from None
    except KnowledgeError:
        _take_back(written)
        raise
    print(cli.said(words, "rules.new_written", path=path, checked=root if overlay else path))
    return cli.CLEAN


def _source_text(draft: Draft, overlay: bool) -> str:
    """A file of one source: two branches that each add one have no line in common."""
    about = ", ".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in draft.about.items())
    first = "" if overlay else "# yaml-language-server: $schema=../schema/sources.json\n"
    return f"{first}version: 1\nsources:\n  {draft.source}: {{{about}}}\n"


def _take_back(written: list[str]) -> None:
    for path in written:
        os.remove(path)


TEMPLATE = """\
# yaml-language-server: $schema=../../schema/check.json
id: {id}
version: 1
since: "{release}"
severity: warning # error | warning | info
confidence: medium # high | medium | low: how often a finding is a real fault
area: {area}
# An expression over the facts of rules/vocabulary.yaml. What is unknown makes the rule "not evaluated".
when: training.per_device_train_batch_size > 4096
title:
  ko: 결함의 이름
  en: the fault's name
message:
  ko: "학습 배치 {{training.per_device_train_batch_size}}개는 …"
  en: "A training batch of {{training.per_device_train_batch_size}} …"
why:
  ko: 왜 문제인지 한 문단으로 씁니다.
  en: One paragraph on why it matters.
# fix:
#   - when: gpu.native_bf16
#     safety: unsafe # safe: the same result, or the config could not have run
#     set: {{training.per_device_train_batch_size: {{compute: fit.train_batch}}}}
#     title: {{ko: …, en: …}}
examples:
  - expect: fires
    config: |
      training: {{per_device_train_batch_size: 8192}}
      general: {{model_name: google/mt5-base}}
  - expect: silent
    config: |
      training: {{per_device_train_batch_size: 8}}
      general: {{model_name: google/mt5-base}}
sources: [guide-memory] # ids of rules/sources.yaml
"""
# Lines of the template that an overlay's rule needs not.
_OF_KB = ("# yaml-language-server", "version:", "since:", "sources:")


@cache
def _template() -> dict[str, Any]:
    data: dict[str, Any] = read_source("", TEMPLATE.format(id="", release="", area="")).data
    return data


def untouched(located: Located) -> list[Problem]:
    """Sentences of the template that nobody has replaced in a rule's file."""
    template = _template()
    problems = []
    for part in ("title", "message", "why"):
        for language, text in located.data.get(part, {}).items():
            if text == template[part].get(language):
                problems.append(
                    located.problem(
                        (part, language),
                        f"{part}.{language}: this is still the template's text",
                        f"{part}.{language}: 틀의 문장이 그대로 있습니다",
                    )
                )
    return problems


# Korean particles that have two forms; which is right depends on the sound before. "GiB가" does not: a form of the
# placeholder that writes a unit ends in the same sound whatever the value is.
_BY_SOUND = re.compile(
    r"\{[^{}:]*(?::,)?\}(?:은|는|이|가|을|를|과|와|으로|로|이나|나|이며|이고|이다|이라|라|아|야)(?=[\s.,;:)]|$)"
)


def particles_by_sound(located: Located) -> list[Problem]:
    """Korean sentences in which a value stands before a particle that is right for some values alone."""
    problems = []
    for path, text in _korean(located.data, ()):
        found = _BY_SOUND.search(text)
        if found:
            problems.append(
                located.problem(
                    path,
                    f"{found[0]}: which form of the particle is right depends on the value; put a noun between",
                    f"{found[0]}: 값에 따라 조사의 꼴이 달라집니다. 사이에 명사를 넣으십시오",
                )
            )
    return problems


def _korean(data: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in pairs:
        if key == "ko" and isinstance(value, str):
            yield (*path, key), value
        else:
            yield from _korean(value, (*path, key))


def write_new_rule(location: Location, rule: str, area: str, into: str | None = None) -> str:
    """Write ``checks/<area>/<rule>.yaml`` and return its path.

    Args:
        into: the folder of an overlay, to write it there, without what may be left out there.

    Raises:
        UserError: the id is not one, the area does not exist, or the rule does.
    """
    checks = os.path.join(location.rules, "checks")
    areas = sorted(entry for entry in os.listdir(checks) if os.path.isdir(os.path.join(checks, entry)))
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule):
        raise UserError("rules.bad_id", name=rule)
    if area not in areas:
        raise UserError("rules.unknown_area", name=area, known=", ".join(areas))
    own = os.path.join(into or location.rules, "checks")
    for folder in {checks, own}:
        for other in areas:
            if os.path.exists(os.path.join(folder, other, f"{rule}.yaml")):
                raise UserError("rules.exists", name=rule, path=os.path.join(folder, other, f"{rule}.yaml"))
    text = TEMPLATE.format(id=rule, release=__version__, area=area)
    if into is not None:
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(_OF_KB))
    path = os.path.join(own, area, f"{rule}.yaml")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    except OSError as error:
        raise UserError("fix.unwritable", path=error.filename or path, reason=error.strerror) from None
    return path
