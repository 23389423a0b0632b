"""A project's own settings: ``kb.toml``, or ``[tool.kb]`` in ``pyproject.toml``; the command line wins over them."""

import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kb.core.errors import UserError
from kb.core.finding import SEVERITIES, Severity
from kb.core.suggest import nearest


class Project(NamedTuple):
    """The settings as written. Rule names may be ids or areas (``text``)."""

    path: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    host_memory: str | None = None
    cpus: str | None = None
    lang: str | None = None
    fail_on: str | None = None
    baseline: str | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    severity: Mapping[str, Severity] = {}
    per_file_ignores: Mapping[str, tuple[str, ...]] = {}
    versions: Mapping[str, str] = {}

    def folder(self) -> str:
        """Where the settings lie; paths in them are relative to it."""
        return os.path.dirname(self.path) if self.path else os.getcwd()


def find_project(start: str) -> Project:
    """The settings that govern ``start``: of its folder, or the nearest above that has some.

    Raises:
        UserError: the file is not TOML, or holds something that is not a setting.
    """
    folder = os.path.abspath(start)
    while True:
        path = os.path.join(folder, "kb.toml")
        if os.path.isfile(path):
            return _project(path, _toml(path))
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path) and _mentions_kb(path):
            return _project(path, _toml(path).get("tool", {}).get("kb", {}))
        parent = os.path.dirname(folder)
        if parent == folder:
            return Project()
        folder = parent


def _mentions_kb(path: str) -> bool:
    """Whether it is worth parsing: tomllib takes longer to import than most configs to check."""
    try:
        with open(path, "rb") as stream:
            return b"[tool.kb" in stream.read(1 << 20)
    except OSError:
        return False


def _toml(path: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as stream:
            return tomllib.load(stream)
    except tomllib.TOMLDecodeError as error:
        raise UserError("project.not_toml", path=path, error=str(error)) from None
    except UnicodeDecodeError:
        raise UserError("project.not_toml", path=path, error="UTF-8") from None
    except OSError as error:
        raise UserError("project.unreadable", path=path, error=error.strerror or str(error)) from None


_KINDS: Mapping[str, tuple[type, ...]] = {
    "gpu": (str,),
    "gpus": (int,),
    "host_memory": (str, int),
    "cpus": (str, int),
    "lang": (str,),
    "fail_on": (str,),
    "baseline": (str,),
    "select": (list,),
    "ignore": (list,),
    "severity": (dict,),
    "per_file_ignores": (dict,),
    "versions": (dict,),
}


def _project(path: str, data: Mapping[str, Any]) -> Project:
    values: dict[str, Any] = {"path": path}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name not in _KINDS:
            meant = nearest(name, _KINDS)
            known = meant[0] if meant else ", ".join(sorted(_KINDS))
            raise UserError("project.unknown_setting", path=path, name=key, known=known)
        if not isinstance(value, _KINDS[name]) or isinstance(value, bool):
            raise UserError("project.wrong_type", path=path, name=key, want=_KINDS[name][0].__name__)
        values[name] = _frozen(path, name, value)
    return Project(**values)


def _frozen(path: str, name: str, value: Any) -> Any:
    if name in ("host_memory", "cpus"):
        return str(value)
    if name in ("select", "ignore"):
        return tuple(map(str, value))
    if name == "per_file_ignores":
        return {pattern: tuple(map(str, rules)) for pattern, rules in value.items()}
    if name == "versions":
        return {library: str(version) for library, version in value.items()}
    if name == "severity":
        for rule, severity in value.items():
            if severity not in SEVERITIES:
                raise UserError("project.wrong_severity", path=path, rule=rule, value=severity)
    return value


def chosen_rules(select: Collection[str], ignore: Collection[str], areas: Mapping[str, str]) -> list[str]:
    """Rule ids by ``select`` (all where empty) less ``ignore``; each may be an id or an area.

    Args:
        areas: every rule's area, by id.

    Raises:
        UserError: a name is neither a rule nor an area.
    """
    known_areas = set(areas.values())

    def expand(names: Collection[str]) -> set[str]:
        found: set[str] = set()
        for name in names:
            if name in areas:
                found.add(name)
            elif name in known_areas:
                found.update(rule for rule, area in areas.items() if area == name)
            else:
                raise unknown_rule(name, [*areas, *known_areas])
        return found

    wanted = expand(select) if select else set(areas)
    return sorted(wanted - expand(ignore))


def unknown_rule(name: str, known: Collection[str]) -> UserError:
    """The error for a rule id that does not exist, with the nearest that does."""
    meant = nearest(name, known)
    key = "rules.unknown_meant" if meant else "rules.unknown"
    return UserError(key, name=name, meant=meant[0] if meant else "")
