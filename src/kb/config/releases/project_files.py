"""The TOML files that declare a project: pyproject.toml of every kind, and Pipfile."""

import os
import re
from collections.abc import Mapping
from typing import Any

from kb.config.releases.requirement import (
    library_of,
    poetry_requirement,
    read_requirement,
    specified,
    tagged,
)
from kb.config.releases.statements import DECLARED, OPTIONAL, Folder, Requirement, line_of

MAX_TOML_BYTES = 256 << 10
MAX_DOTS = 60


def read_pyproject(folder: Folder, path: str) -> None:
    """PEP 621, Poetry, PEP 735's groups; PDM's and uv's groups for development."""
    loaded = _toml(folder, path)
    if loaded is None:
        return
    data, text = loaded
    project, tool = _table(data, "project"), _table(data, "tool")
    _listed(folder, path, text, project.get("dependencies"), DECLARED)
    weak = [
        *_table(project, "optional-dependencies").values(),
        *_table(data, "dependency-groups").values(),
        *_table(_table(tool, "pdm"), "dev-dependencies").values(),
        _table(tool, "uv").get("dev-dependencies"),
    ]
    for each in weak:
        _listed(folder, path, text, each, OPTIONAL)
    _listed(folder, path, text, _table(tool, "uv").get("constraint-dependencies"), DECLARED)
    for name, source in _table(_table(tool, "uv"), "sources").items():
        if isinstance(source, dict) and source.keys() & {"git", "path", "workspace", "url"}:
            _tabled(folder, path, text, {name: source}, DECLARED)  # it takes the place of what is released
    poetry = _table(tool, "poetry")
    _tabled(folder, path, text, _table(poetry, "dependencies"), DECLARED)
    groups = [_table(group, "dependencies") for group in _table(poetry, "group").values() if isinstance(group, dict)]
    for group in (_table(poetry, "dev-dependencies"), *groups):
        _tabled(folder, path, text, group, OPTIONAL)
    dynamic = _table(_table(_table(tool, "setuptools"), "dynamic"), "version").get("file")
    if isinstance(dynamic, str) and "version" in (project.get("dynamic") or ()):
        _itself_in(folder, path, project.get("name"), dynamic)
    for own in (project, poetry):
        say_itself(folder, path, text, own.get("name"), own.get("version"))


def read_pipfile(folder: Folder, path: str) -> None:
    """pipenv's Pipfile: ``packages`` and ``dev-packages``, in pip's form."""
    loaded = _toml(folder, path)
    if loaded is None:
        return
    data, text = loaded
    _tabled(folder, path, text, _table(data, "packages"), DECLARED, poetry=False)
    _tabled(folder, path, text, _table(data, "dev-packages"), OPTIONAL, poetry=False)


def _toml(folder: Folder, path: str) -> tuple[dict[str, Any], str] | None:
    text = folder.text(path, MAX_TOML_BYTES)
    if text is None:
        return None
    try:
        return parse_toml(text), text
    except ValueError as error:
        found = re.search(r"line (\d+)", str(error))
        folder.report("not_toml", path, int(found[1]) if found else None, error=str(error))
        return None


def parse_toml(text: str) -> dict[str, Any]:
    """What a TOML text says.

    Raises:
        ValueError: it is none, or one made to keep the parser busy: its time grows with the square of a key's dots.
    """
    import tomllib

    for word in re.split(r"[\s={},\[\]\"']+", text):
        if word.count(".") > MAX_DOTS:
            raise ValueError(f"{word[:20]}…: {word.count('.')} dots in a key")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(str(error)[:200]) from None


def _table(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _listed(folder: Folder, path: str, text: str, items: Any, level: int) -> None:
    for item in items if isinstance(items, list) else ():
        if isinstance(item, str):
            requirement = read_requirement(item)
            if requirement is not None:
                folder.say(requirement, path, line_of(text, (f'"{item}"', f"'{item}'", item)), level)


def _tabled(folder: Folder, path: str, text: str, table: Mapping[str, Any], level: int, *, poetry: bool = True) -> None:
    for name, value in table.items():
        library = library_of(name)
        if library is None:
            continue
        found = re.search(rf"^[ \t]*[\"']?{re.escape(name)}[\"']?[ \t]*=|\.{re.escape(name)}\]", text, re.M)
        line = text.count("\n", 0, found.start()) + 1 if found else None
        for each in value if isinstance(value, list) else [value]:
            optional = isinstance(each, dict) and each.get("optional") is True
            requirement = _entry(library, each, poetry)
            folder.say(requirement, path, line, OPTIONAL if optional else level)


def _entry(library: str, value: Any, poetry: bool) -> Requirement:
    """One value of Poetry's or pipenv's tables: a specifier, or a table with one or with a repository."""
    table = value if isinstance(value, dict) else {"version": value}
    version = table.get("version")
    if isinstance(version, str):
        pip = "" if version.strip() == "*" else version
        requirement = poetry_requirement(library, version) if poetry else specified(library, pip)
        requirement = requirement or Requirement(library, fault=version[:40])
    elif "git" in table:
        requirement = tagged(library, str(table.get("tag") or table.get("ref") or table.get("rev") or ""))
    elif table.keys() & {"path", "file", "workspace"}:
        requirement = Requirement(library, floating=True)
    else:
        address = table.get("url")
        requirement = (read_requirement(f"{library} @ {address}") if address else None) or Requirement(library)
    if isinstance(table.get("markers"), str):
        return requirement._replace(marker=table["markers"])
    # `python = "^3.10"` is no marker of PEP 508: that the requirement is one of several is enough to know
    return requirement._replace(marker="python_version > '3'") if table.keys() & {"python", "platform"} else requirement


def _itself_in(folder: Folder, path: str, name: object, file: str) -> None:
    """The project's own release where a file beside holds nothing but it."""
    place = os.path.join(os.path.dirname(path), file)
    if (
        isinstance(name, str)
        and library_of(name)
        and "\0" not in file
        and os.path.isfile(place)
        and folder.holds(place)
    ):
        say_itself(folder, place, "", name, (folder.text(place) or "").strip()[:80])


def say_itself(folder: Folder, path: str, text: str, name: object, version: object) -> None:
    """The project's own release: a config in TRL's repository is for that TRL."""
    library = library_of(name) if isinstance(name, str) else None
    if library is not None and isinstance(version, str) and version[:1].isdigit():
        line = line_of(text, (f'version = "{version}"', f"version='{version}'", f'version="{version}"', version))
        folder.say(read_requirement(f"{library}=={version}"), path, line, DECLARED)
