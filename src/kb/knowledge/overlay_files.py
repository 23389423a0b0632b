"""The files of an overlay: found, read, and held against the schemas of rules/.

An overlay is laid over the shipped rules: a folder of a team, or of an installed package. It has the folders and the
formats of rules/; what only a published rule needs (version, since, sources, a second language) may be left out.
"""

import os
from collections.abc import Iterator
from typing import Any

from kb.core.text import LANGUAGES, did_you_mean, nearest
from kb.knowledge.locations import Overlay
from kb.knowledge.problems import KnowledgeError, Problem
from kb.knowledge.schema import KINDS, SchemaSet
from kb.knowledge.source import Located, read_source

FORMAT = 1  # of overlays; raised when an older kb would misread a newer one
MANIFEST, TEXTS = "knowledge.yaml", "i18n"
FOLDERS = ("checks", "hardware", "models", "dialects", "remedies")
PLACES = (*FOLDERS, "sources", TEXTS)
FILES = {MANIFEST: "overlay", "sources.yaml": "sources"}
MOST_FILES = 5000
OPTIONAL = frozenset((
    *("version", "since", "sources", "source", "status", *LANGUAGES),
    *("aliases", "native_bf16", "parameters", "architecture_source"),
))  # fmt: skip
STATUSES = ["claimed", "computed", "measured"]


def relaxed(schema: Any) -> Any:
    """A schema of rules/ as an overlay has to answer to it: with what it may leave out, with any status, and with
    ``replaces`` at the top."""
    made = _without_duties(schema)
    if "id" in made.get("properties", {}):
        made["properties"]["replaces"] = {"type": "string"}
    return made


def _without_duties(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_duties(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _without_duties(each) for name, each in schema.items()}
    required = made.get("required")
    if isinstance(required, list):
        made["required"] = [name for name in required if name not in OPTIONAL]
        if set(LANGUAGES) <= set(required):
            made.setdefault("minProperties", 1)
    status = made.get("properties", {}).get("status") if isinstance(made.get("properties"), dict) else None
    if isinstance(status, dict):
        made["properties"]["status"] = {"enum": STATUSES}
    return made


def read_overlay(overlay: Overlay, schemas: SchemaSet) -> tuple[dict[str, list[Located]], list[Problem]]:
    """Every file by kind (a folder's name, ``i18n``, or a file's own name), and what is wrong with them."""
    found: dict[str, list[Located]] = {name: [] for name in (*PLACES, *FILES)}
    paths, problems = files_of(overlay)
    for name in paths:
        path = os.path.join(overlay.root, name)
        kind = name.split("/", 1)[0]
        try:
            with open(path, encoding="utf-8") as stream:
                located = read_source(path, stream.read())
        except UnicodeDecodeError as error:
            english = f"not UTF-8 at byte {error.start}; save it as UTF-8"
            korean = f"{error.start}번째 바이트가 UTF-8이 아닙니다. UTF-8로 저장하십시오"
            problems.append(Problem.of_file(path, english, korean))
        except OSError as error:
            problems.append(_unreadable(path, error))
        except KnowledgeError as error:
            problems += error.problems
        else:
            schema = FILES.get(kind) or KINDS.get(kind)
            faults = schemas.check(schema, located) if schema else []
            if kind == MANIFEST and isinstance(located.data, dict):
                faults = _newer(located) or faults
            problems += faults
            if not faults:
                found[kind].append(located)
    return found, problems


def _newer(located: Located) -> list[Problem]:
    wanted = located.data.get("format")
    if not isinstance(wanted, int) or wanted <= FORMAT:
        return []
    return [
        located.problem(
            ("format",),
            f"format {wanted} is newer than this kb, which reads format {FORMAT}; upgrade kb: "
            "pip install -U gpu-memory-kb",
            f"{wanted}번 형식은 이 kb보다 새것입니다. 이 kb는 {FORMAT}번 형식까지 읽습니다. "
            "kb를 올리십시오: pip install -U gpu-memory-kb",
        )
    ]


def files_of(overlay: Overlay) -> tuple[list[str], list[Problem]]:
    """The names of its YAML files, sorted, and what may not stand in it: links that lead elsewhere, unknown places."""
    found: list[str] = []
    problems: list[Problem] = []
    root = os.path.realpath(overlay.root)
    folders = [""]
    while folders:
        folder = folders.pop()
        for entry in _entries(os.path.join(overlay.root, folder), problems):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if name in overlay.without:
                continue
            if not folder and _is_elsewhere(entry, problems):
                continue
            if entry.is_symlink() and (entry.is_dir() or not _within(entry.path, root)):
                problems.append(_link(entry.path))
            elif entry.is_dir():
                folders.append(name)
            elif entry.name.endswith(".yaml"):
                found.append(name)
            elif entry.name.endswith(".yml"):
                said = "is not read: name it .yaml", "읽지 않는 파일입니다. 이름을 .yaml로 바꾸십시오"
                problems.append(Problem.of_file(entry.path, *said))
        if len(found) > MOST_FILES:
            english = f"holds more than {MOST_FILES} files; name the folder that holds only rules"
            korean = f"파일이 {MOST_FILES}개보다 많습니다. 규칙만 든 폴더를 적으십시오"
            return [], [Problem.of_file(overlay.root, english, korean)]
    return sorted(found), problems


def _entries(folder: str, problems: list[Problem]) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            every = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        problems.append(_unreadable(folder, error))
        return
    yield from (entry for entry in every if not entry.name.startswith((".", "__")))


def _is_elsewhere(entry: os.DirEntry[str], problems: list[Problem]) -> bool:
    """Whether something at the top is none of the overlay's; a place that looks as if it were meant is a problem."""
    if entry.name in (PLACES if entry.is_dir() else FILES):
        return False
    if entry.is_dir():
        meant = entry.name in KINDS or bool(nearest(entry.name, PLACES))
    else:
        meant = entry.name.endswith((".yaml", ".yml"))
    if meant:
        hint, hint_ko = did_you_mean(entry.name, (*PLACES, *FILES))
        known = f"{', '.join(f'{name}/' for name in PLACES)}, {', '.join(FILES)}"
        english = f"nothing of this name is laid over; what is: {known}{hint}"
        korean = f"이 이름은 덧씌울 수 없습니다. 덧씌울 수 있는 것: {known}{hint_ko}"
        problems.append(Problem.of_file(entry.path, english, korean))
    return True


def _within(path: str, root: str) -> bool:
    return os.path.realpath(path).startswith(root.rstrip(os.sep) + os.sep)


def _link(path: str) -> Problem:
    return Problem.of_file(
        path,
        f"is a link that leads to {os.path.realpath(path)}; links to folders or out of an overlay are not followed: "
        "copy the files here, or name that folder in `knowledge`",
        f"{os.path.realpath(path)} 경로로 가는 링크입니다. 폴더로 가거나 덧씌우는 폴더 밖으로 나가는 링크는 따라가지 "
        "않습니다. 파일을 여기에 복사하거나 그 폴더를 `knowledge` 설정에 적으십시오",
    )


def _unreadable(path: str, error: OSError) -> Problem:
    reason = error.strerror or str(error)
    return Problem.of_file(path, f"cannot be read: {reason}", f"읽을 수 없습니다: {reason}")
