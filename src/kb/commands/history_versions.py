"""A config's versions, from files or from git, ready to be compared; and what was measured of them."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.history import Measured, Version
from kb.config.files import MAX_BYTES, ConfigError
from kb.config.text.encoding import decode
from kb.core.document import Unit
from kb.core.text import UserError
from kb.core.units import read_size
from kb.integrations.git_files import file_history
from kb.knowledge import KnowledgeError
from kb.knowledge.source import read_source
from kb.session.file import FileChecker
from kb.session.run import kind_of, read_bytes
from kb.session.seen import contents

SEPARATORS = "._/\\- "
HEXADECIMAL = frozenset("0123456789abcdef")
Fault = tuple[str, Mapping[str, Any]]


def file_versions(paths: Sequence[str], checker: FileChecker, section: str | None) -> list[Version]:
    """One version for each file, in the order given; one that cannot be read keeps its place, with its fault.

    Raises:
        UserError: a file has no such section.
    """
    versions = []
    for path, label in zip(paths, labels_of(paths), strict=True):
        try:
            unit, fault = _read(read_bytes(path), path, checker, section)
        except ConfigError as error:
            unit, fault = None, _fault(error)
        commit = label if len(label) >= 7 and HEXADECIMAL.issuperset(label) else None
        versions.append(Version(label=label, path=path, unit=unit, fault=fault, commit=commit))
    return versions


def git_versions(
    path: str, revisions: str | None, checker: FileChecker, section: str | None, working_label: str
) -> tuple[list[Version], bool]:
    """The versions that git knows of ``path``, oldest first, and the file on disk where it differs from the last.

    A version that cannot be read keeps its place, with its fault. The second value is whether the clone is shallow.

    Raises:
        GitError: as :func:`kb.integrations.git_files.file_history`.
        UserError: a version has no such section.
    """
    history = file_history(path, revisions)
    versions = []
    for each in history.versions:
        unit, fault = _read(each.content, each.path, checker, section)
        versions.append(Version(each.short, each.path, unit, fault, each.commit, each.when, each.subject))
    if history.working is not None:
        unit, fault = _read(history.working, path, checker, section)
        versions.append(Version(working_label, path, unit, fault))
    return versions, history.shallow


def _read(raw: bytes | None, path: str, checker: FileChecker, section: str | None) -> tuple[Unit | None, Fault | None]:
    """The unit to compare, or why there is none; ``raw`` is None where git's blob is larger than a config may be."""
    if raw is None:
        return None, ("config.too-large", {"size": MAX_BYTES + 1, "limit": MAX_BYTES})
    try:
        made = checker.made_of_several(raw, path) if kind_of(path) == "config" else None
        if made is not None:
            if contents(path) != raw:  # its group files are those of today
                return None, ("history.made_of_several", {"path": path})
            return _chosen([result.unit for result in made.results], path, section), None
        decoded = decode(raw)
        text = decoded.text if decoded.text is not None else ""
        units = checker.read(text, path, kind_of(path), decoded.events, readable=decoded.text is not None)
    except ConfigError as error:
        return None, _fault(error)
    return _chosen(units, path, section), None


def _fault(error: ConfigError) -> Fault:
    return error.key, {**error.values, "line": error.line, "column": error.column}


def _chosen(units: Sequence[Unit], path: str, section: str | None) -> Unit:
    """The section that was asked for, else the first that trains, else the first."""
    if section is None:
        training = (unit for unit in units if any(name.startswith("training.") for name in unit.settings))
        return next(training, units[0])
    for unit in units:
        if unit.section == section:
            return unit
    known = ", ".join(unit.section for unit in units if unit.section) or "–"
    raise UserError("history.no_section", path=path, section=section, known=known)


def labels_of(paths: Sequence[str]) -> list[str]:
    """Short names that tell the paths apart: what differs between their first and their last common part."""
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) < len(names):
        names = [path.replace(os.sep, "/") for path in paths]
    if len(set(names)) < 2:
        return [f"{name} #{at}" if len(names) > 1 else name for at, name in enumerate(names, 1)]
    start = _common(names)
    end = _common([name[start:][::-1] for name in names])
    short = [name[start : len(name) - end].strip(SEPARATORS) for name in names]
    whole = all(short) and len(set(short)) == len(short)
    return short if whole else names


def _common(names: Sequence[str]) -> int:
    """How many characters the names begin with alike, back to where a name in them ends."""
    first, last = min(names), max(names)  # what these two share, all between them do
    length = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    while length and first[length - 1] not in SEPARATORS:
        length -= 1
    return length


def read_measured(path: str) -> dict[str, Measured]:
    """What was measured, by version: a size of the GPU's memory, or ``{gpu: …, host: …}``; YAML or JSON.

    A size is a text with its unit (``18.3GB``) or a number of bytes.

    Raises:
        UserError: the file cannot be read, or an entry is of another shape; said at its line where it has one.
    """
    raw = read_bytes(path)
    try:
        data = read_source(path, raw.decode("utf-8")).data
    except UnicodeDecodeError as error:
        raise UserError("history.measured_unreadable", path=path, reason=f"UTF-8, {error.start}") from None
    except KnowledgeError as error:
        raise UserError("history.measured_unreadable", path=path, reason=str(error.problems[0])) from None
    if not isinstance(data, dict) or not data:
        raise UserError("history.measured_shape", path=path, name="–")
    return {name: _measured(path, name, value) for name, value in data.items()}


def _measured(path: str, name: str, value: Any) -> Measured:
    sizes = value if isinstance(value, dict) else {"gpu": value}
    if not sizes or not sizes.keys() <= {"gpu", "host"}:
        raise UserError("history.measured_shape", path=path, name=name)
    found = {kind: _bytes(path, name, size) for kind, size in sizes.items()}
    said = {kind: size if isinstance(size, str) else "" for kind, size in sizes.items()}
    return Measured(found.get("gpu"), found.get("host"), said.get("gpu", ""), said.get("host", ""), path)


def _bytes(path: str, name: str, size: Any) -> int:
    if size is None or isinstance(size, bool | list | dict):
        raise UserError("history.measured_shape", path=path, name=name)
    try:
        return read_size(name, size)
    except UserError as error:
        error.values["within"] = path
        raise
