"""A project's own settings: ``kb.toml``, or ``[tool.kb]`` in ``pyproject.toml``; the command line wins over them."""

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from kb.config.files import read_at_most
from kb.core.finding import SEVERITIES, Severity
from kb.core.release import parse_version
from kb.core.text import LANGUAGES, UserError, nearest

MAX_BYTES = 1 << 20
LIBRARIES = ("transformers", "torch", "peft", "accelerate", "trl", "deepspeed")
FAIL_ON = (*SEVERITIES, "never")


class Project(NamedTuple):
    """The settings as written. Rule names may be ids or areas (``text``); facts are by vocabulary name."""

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
    facts: Mapping[str, Any] = {}

    def folder(self) -> str:
        """Where the settings lie; paths in them are relative to it."""
        return os.path.dirname(self.path) if self.path else os.getcwd()

    def answers_for(self, fault: UserError) -> UserError:
        """The fault, to be said with the file whose settings caused it."""
        fault.values["within"] = self.path
        return fault


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
        return b"[tool.kb" in read_at_most(path, MAX_BYTES)
    except OSError:
        return False


def _toml(path: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(read_at_most(path, MAX_BYTES).decode("utf-8"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError("project.not_toml", path=path, error=str(error)) from None
    except UnicodeDecodeError:
        raise UserError("project.not_toml", path=path, error="UTF-8") from None
    except OSError as error:
        raise UserError("project.unreadable", path=path, error=error.strerror or str(error)) from None


_KINDS: Mapping[str, tuple[type, ...]] = {
    "gpu": (str,),
    "gpus": (int,),
    "host_memory": (str, int, float),
    "cpus": (int, str),
    "lang": (str,),
    "fail_on": (str,),
    "baseline": (str,),
    "select": (list,),
    "ignore": (list,),
    "severity": (dict,),
    "per_file_ignores": (dict,),
    "versions": (dict,),
    "facts": (dict,),
}
_CHOICES: Mapping[str, tuple[str, ...]] = {"lang": LANGUAGES, "fail_on": FAIL_ON}
_TOML_TYPES: Mapping[type, str] = {str: "string", int: "integer", float: "float", list: "array", dict: "table"}


def _project(path: str, data: Mapping[str, Any]) -> Project:
    values: dict[str, Any] = {"path": path}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name not in _KINDS:
            raise _unknown_setting(path, key, name)
        if not isinstance(value, _KINDS[name]) or isinstance(value, bool):
            raise _wrong_type(path, key, *_KINDS[name])
        values[name] = _frozen(path, key, name, value)
    return Project(**values)


def _unknown_setting(path: str, key: str, name: str) -> UserError:
    meant = nearest(name, _KINDS)
    if meant:
        return UserError("project.unknown_setting", path=path, name=key, meant=meant[0])
    return UserError("project.no_such_setting", path=path, name=key, known=sorted(_KINDS))


def _wrong_type(path: str, key: str, *kinds: type) -> UserError:
    return UserError("project.wrong_type", path=path, name=key, want=[_TOML_TYPES[kind] for kind in kinds])


def _frozen(path: str, key: str, name: str, value: Any) -> Any:
    """The value as :class:`Project` holds it, once it is one that can be used."""
    if name in ("host_memory", "cpus"):
        return str(value)
    if name in ("select", "ignore"):
        return _names(path, key, value)
    if name == "per_file_ignores":
        return {pattern: _names(path, f"{key}.{pattern}", rules) for pattern, rules in value.items()}
    if name == "versions":
        return {library: _version(path, library, version) for library, version in value.items()}
    if name == "facts":
        return dict(_flat(value))
    if name == "severity":
        for rule, severity in value.items():
            if severity not in SEVERITIES:
                raise UserError("project.wrong_severity", path=path, rule=rule, value=severity)
    if name in _CHOICES and value not in _CHOICES[name]:
        raise UserError("project.wrong_choice", path=path, name=key, value=value, known=list(_CHOICES[name]))
    return value


def _names(path: str, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UserError("project.wrong_list", path=path, name=key)
    return tuple(value)


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """``data.streaming = true`` is a table in a table, ``"data.streaming" = true`` is not; both mean the same."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _version(path: str, library: str, version: Any) -> str:
    if library not in LIBRARIES:
        raise UserError("project.unknown_library", path=path, name=library, known=list(LIBRARIES))
    try:
        parse_version(str(version))
    except ValueError:
        raise UserError("project.bad_version", path=path, name=library, value=str(version)) from None
    return str(version)


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
