"""Which setting of a project is at fault, in the user's words; asked only once the settings do not fit their schema."""

from collections.abc import Mapping
from typing import Any

from kb.core.setup import LENGTH_SHARES
from kb.core.text import UserError, nearest
from kb.knowledge.schema import library

_TOML_TYPES = {"string": "string", "integer": "integer", "number": "float", "array": "array", "object": "table"}
_LISTS = ("select", "ignore", "per_file_ignores", "knowledge")


def settings_fault(
    path: str, schema: Mapping[str, Any], data: Mapping[str, Any], written: Mapping[str, str]
) -> UserError:
    """The first fault of a file of settings, in its order.

    Args:
        written: each name of ``data`` as the file has it.
    """
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
        return _unknown(path, error, parts, written)
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


def _unknown(path: str, error: Any, parts: list[str], written: Mapping[str, str]) -> UserError:
    known = error.schema["properties"]
    name = next(name for name in error.instance if name not in known)
    if parts:
        return UserError("project.unknown_library", path=path, name=name, known=list(known))
    meant = nearest(name, known)
    if meant:
        return UserError("project.unknown_setting", path=path, name=written[name], meant=meant[0])
    return UserError("project.no_such_setting", path=path, name=written[name], known=sorted(known))
