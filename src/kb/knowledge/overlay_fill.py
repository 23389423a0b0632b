"""What the files of an overlay leave out, filled in; and kb's own sentences in a team's words."""

import json
import os
from collections.abc import Mapping
from typing import Any

from kb import __version__
from kb.core.text import LANGUAGES, did_you_mean, placeholders_in
from kb.knowledge.locations import Overlay
from kb.knowledge.problems import Problem
from kb.knowledge.rows import NATIVE_BF16_FROM, capability_of, cited
from kb.knowledge.source import KEY, Located
from kb.memory import architecture_from_config, parameter_count


def fill_in(kind: str, located: Located, own: str) -> None:
    """What the file leaves out: a version, a second language, a status (claimed) and a source: the file itself, whose
    id as one is ``own``."""
    data = located.data
    if kind == "hardware":
        data.setdefault("aliases", [data["name"]])
        native = capability_of(data) >= NATIVE_BF16_FROM
        data.setdefault("native_bf16", {"value": native, "status": "computed"})
    if kind == "models":
        data.setdefault("aliases", [data["id"]])
        data.setdefault("architecture_source", own)
        _count(data)
    data.setdefault("version", 1)
    data.setdefault("since", __version__)
    _fill_values(data, kind in ("hardware", "models"), kind != "dialects", own)
    if kind == "dialects":
        _fill_text(data["title"])
    named = [name for _, name in cited(data)]
    data["sources"] = list(dict.fromkeys([*data.get("sources", ()), *named])) or [own]


def _count(data: dict[str, Any]) -> None:
    """The parameters that the architecture gives, where the file does not say any."""
    if "parameters" not in data:
        try:
            counted = parameter_count(architecture_from_config(data["architecture"]))
        except ValueError:
            counted = 0  # what is wrong with the architecture is said where it is compiled
        data["parameters"] = [{"value": counted, "unit": "parameters", "status": "computed"}]


def _fill_values(data: Any, figures: bool, texts: bool, own: str) -> None:
    if isinstance(data, list):
        for each in data:
            _fill_values(each, figures, texts, own)
    elif isinstance(data, dict):
        if figures and "value" in data:
            data.setdefault("status", "claimed")
            data.setdefault("source", own)
        if texts:
            _fill_text(data)
        for each in list(data.values()):
            _fill_values(each, figures, texts, own)


def _fill_text(data: Any) -> None:
    """A sentence in one language stands for both."""
    written = [language for language in LANGUAGES if isinstance(data, dict) and isinstance(data.get(language), str)]
    if len(written) == 1:
        data.update(dict.fromkeys(LANGUAGES, data[written[0]]))


def read_texts(files: list[Located], words: Mapping[str, Mapping[str, str]]) -> tuple[dict[str, Any], list[Problem]]:
    """Sentences of kb in a team's own words, by language, and what is wrong with them.

    Args:
        words: kb's own, by language: a text must be one of them and keep its placeholders.
    """
    found: dict[str, Any] = {language: {} for language in LANGUAGES}
    problems: list[Problem] = []
    for located in files:
        language = os.path.basename(located.path).removesuffix(".yaml")
        if language not in LANGUAGES:
            known = ", ".join(f"{name}.yaml" for name in LANGUAGES)
            problems.append(located.problem((), f"is not one of {known}", f"쓸 수 있는 파일 이름: {known}"))
            continue
        for key, text in (located.data or {}).items():
            shipped = words[language].get(key)
            if shipped is None:
                hint, hint_ko = did_you_mean(key, words[language])
                said = f"kb has no text {key!r}{hint}", f"kb에 {key!r} 문장이 없습니다{hint_ko}"
                problems.append(located.problem((key, KEY), *said))
            elif _named(str(text)) != _named(shipped):
                said = (
                    f"{key!r}: the placeholders differ from kb's: {shipped}",
                    f"{key!r}: 자리 표시가 kb의 문장과 다릅니다: {shipped}",
                )
                problems.append(located.problem((key,), *said))
            else:
                found[language][key] = text
    return found, problems


def own_source(overlay: Overlay, located: Located) -> str:
    """The id of an overlay's file as a source: what its figures rest on where they name nothing else."""
    return f"{overlay.name}/{os.path.relpath(located.path, overlay.root).replace(os.sep, '/')}"


def with_sources(known: Mapping[str, Any], located: Located) -> dict[str, Any]:
    """The sources that a filled file cites and that nothing describes: by their name alone."""
    return {name: {"title": name} for name in located.data["sources"] if name not in known} | {
        name: {"title": name} for _, name in cited(located.data) if name not in known
    }


def digest_of(data: Any) -> str:
    """Eight characters that change with what an overlay says."""
    import hashlib

    return hashlib.sha256(json.dumps(data, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:8]


def _named(text: str) -> set[str]:
    """The names of a text's placeholders."""
    return {name for name, _, _ in placeholders_in(text)}
