"""A project's own settings: ``kb.toml``, or ``[tool.kb]`` in ``pyproject.toml``; the command line wins over them."""

import os
import re
from collections.abc import Collection, Iterator, Mapping

from kb.config.files import read_at_most, upwards
from kb.core.expression import is_unknown
from kb.core.facts import FactType, coerce
from kb.core.finding import SEVERITIES, Severity
from kb.core.record import NamedTuple
from kb.core.release import parse_version
from kb.core.setup import LENGTH_SHARES
from kb.core.text import UserError, nearest
from kb.core.typed import Any
from kb.core.units import read_size
from kb.knowledge.locations import shipped

MAX_BYTES = 1 << 20
NAMEABLE = (
    "transformers",
    "torch",
    "peft",
    "accelerate",
    "trl",
    "deepspeed",
)  # whose release an option or kb.toml may name
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
    lengths: Mapping[str, Mapping[str, int]] = {}
    models: Mapping[str, str] = {}
    knowledge: tuple[str, ...] = ()

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
    for folder in upwards(os.path.abspath(start)):
        path = os.path.join(folder, "kb.toml")
        if os.path.isfile(path):
            return _project(path, _toml(path))
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path) and _mentions_kb(path):
            return _project(path, _toml(path).get("tool", {}).get("kb", {}))
    return Project()


def folder_of(config: str | None) -> str:
    """The folder that a config lies in; of standard input (``-``), and of None, the working folder."""
    return os.getcwd() if config in (None, "-") else os.path.dirname(os.path.abspath(config))


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


def _project(path: str, data: Mapping[str, Any]) -> Project:
    written = {key.replace("-", "_"): key for key in data}
    settings = {name: data[key] for name, key in written.items()}
    with open(os.path.join(shipped().rules, "schema", "project.json"), encoding="utf-8") as stream:
        import json  # few runs need it

        schema = json.load(stream)
    if not _fits(settings, schema, schema["$defs"]):
        raise _fault_of(path, schema, settings, written)
    return Project(path=path, **{name: _frozen(name, value) for name, value in settings.items()})


def _fits(value: Any, schema: Mapping[str, Any], defined: Mapping[str, Any]) -> bool:
    """Whether a value is what the schema allows, of the words that the schema of settings uses.

    jsonschema takes longer to import than most configs to check: it is asked only what the fault is.
    """
    if "$ref" in schema:
        return _fits(value, defined[schema["$ref"].rpartition("/")[2]], defined)
    kinds = schema.get("type", ())
    if kinds and not any(_is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str):
        return re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, list):
        return all(_fits(each, schema.get("items", {}), defined) for each in value)
    if isinstance(value, int | float) and value < schema.get("minimum", value):
        return False
    if isinstance(value, dict) and not value.keys() >= set(schema.get("required", ())):
        return False
    if isinstance(value, dict) and "additionalProperties" in schema:
        known, others = schema.get("properties", {}), schema["additionalProperties"]
        if others is False and not value.keys() <= known.keys():
            return False
        return all(_fits(each, known.get(name, others), defined) for name, each in value.items())
    return True


def _is(value: Any, kind: str) -> bool:
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()  # 2.0 is an integer to JSON Schema
    return isinstance(value, _TYPES[kind]) and not isinstance(value, bool)


_TYPES: Mapping[str, type] = {"string": str, "integer": int, "number": float, "array": list, "object": dict}


_TOML_TYPES = {"string": "string", "integer": "integer", "number": "float", "array": "array", "object": "table"}
_LISTS = ("select", "ignore", "per_file_ignores", "knowledge")


def _fault_of(path: str, schema: Mapping[str, Any], data: Mapping[str, Any], written: Mapping[str, str]) -> UserError:
    """The first fault of a file of settings, in its order; ``written`` is each name of ``data`` as the file has it."""
    from kb.knowledge.schema import library  # it takes longer to import than most configs to check

    order = list(data)

    def place(error: Any) -> int:
        found = error.absolute_path or [name for name in order if name not in schema["properties"]]
        return order.index(found[0])

    error = min(library().Draft202012Validator(schema).iter_errors(dict(data)), key=place)
    parts = [str(part) for part in error.absolute_path]
    if parts and parts[0] == "lengths":
        within = ".".join(parts[:2])
        return UserError("project.lengths_shape", path=path, name=within, known=list(LENGTH_SHARES))
    if error.validator == "additionalProperties":
        return _unknown_setting(path, error, parts, written)
    name = parts[0]
    shown = ".".join((written[name], *(part for part in parts[1:] if not part.isdecimal())))
    if name == "severity" and len(parts) > 1:
        return UserError("project.wrong_severity", path=path, rule=parts[1], value=error.instance)
    if name == "versions" and len(parts) > 1:
        return UserError("project.bad_version", path=path, name=parts[1], value=str(error.instance))
    if name in _LISTS and (len(parts) > 1 or (name != "per_file_ignores" and isinstance(error.instance, list))):
        return UserError("project.wrong_list", path=path, name=shown)
    if error.validator == "enum":
        known = list(error.validator_value)
        return UserError("project.wrong_choice", path=path, name=shown, value=error.instance, known=known)
    want = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
    return UserError("project.wrong_type", path=path, name=shown, want=[_TOML_TYPES[kind] for kind in want])


def _unknown_setting(path: str, error: Any, parts: list[str], written: Mapping[str, str]) -> UserError:
    known = error.schema["properties"]
    name = next(name for name in error.instance if name not in known)
    if parts:
        return UserError("project.unknown_library", path=path, name=name, known=list(known))
    meant = nearest(name, known)
    if meant:
        return UserError("project.unknown_setting", path=path, name=written[name], meant=meant[0])
    return UserError("project.no_such_setting", path=path, name=written[name], known=sorted(known))


def _frozen(name: str, value: Any) -> Any:
    """A setting as :class:`Project` holds it."""
    if name in ("host_memory", "cpus"):
        return str(value)
    if name == "gpus":
        return int(value)
    if name in ("select", "ignore", "knowledge"):
        return tuple(value)
    if name == "per_file_ignores":
        return {pattern: tuple(rules) for pattern, rules in value.items()}
    if name == "versions":
        return {library: str(version) for library, version in value.items()}
    return dict(_flat(value)) if name == "facts" else value


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """``data.streaming = true`` is a table in a table, ``"data.streaming" = true`` is not; both mean the same."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def given_facts(table: Mapping[str, Any], facts: Mapping[str, FactType], path: str) -> dict[str, Any]:
    """The facts of ``table`` as rules read them: a size of ``60GB`` in bytes, a version as its numbers.

    Args:
        path: the file that says them, for the faults.

    Raises:
        UserError: a name that the vocabulary lacks or that no project can say, or a value of another type.
    """
    return {name: _fact(name, value, facts, path) for name, value in table.items()}


def _fact(name: str, value: Any, facts: Mapping[str, FactType], path: str) -> Any:
    fact = facts.get(name)
    if fact is None or not fact.given:
        raise _no_such_fact(name, facts, path)
    if fact.type == "bytes":
        return read_size(f"{path}: {name}", value)
    if isinstance(value, str) and fact.type == "version":
        try:
            value = parse_version(value)
        except ValueError:
            value = None
    known = coerce(value, fact.type, name)
    if is_unknown(known):
        raise UserError("project.wrong_fact_type", path=path, name=name, want=fact.type)
    if isinstance(known, int | float) and known < 0:  # all of them count something
        raise UserError("project.wrong_fact_type", path=path, name=name, want=f"{fact.type} (≥ 0)")
    return known


def _no_such_fact(name: str, facts: Mapping[str, FactType], path: str) -> UserError:
    if name.startswith("versions."):
        return UserError("project.fact_is_version", path=path, name=name)
    if name in facts:
        key = "project.fact_is_setting" if facts[name].setting else "project.fact_is_computed"
        return UserError(key, path=path, name=name)
    known = sorted(name for name, fact in facts.items() if fact.given)
    meant = nearest(name, known)
    if meant:
        return UserError("project.unknown_fact", path=path, name=name, meant=meant[0])
    return UserError("project.no_such_fact", path=path, name=name, known=known)


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
