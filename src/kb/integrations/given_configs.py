"""What the Python API takes as a config: a path, a dict or the library's own arguments, as what a check reads."""

import json
import os
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from kb.config.discovery import discover
from kb.core.result import Unusable
from kb.session.run import Input

NAME = "<config>.json"  # the path of what is no file
# Kept whatever their values: by these the format is recognised.
MARKS = ("per_device_train_batch_size", "gradient_accumulation_steps")


@runtime_checkable
class Arguments(Protocol):
    """Something like transformers' ``TrainingArguments``: it says its settings as a dict."""

    def to_dict(self) -> dict[str, Any]: ...


Config = str | os.PathLike[str] | Mapping[str, Any] | Arguments


def inputs_of(config: Config) -> tuple[list[Input], list[Unusable]]:
    """What to check, and the paths that lead to nothing."""
    if isinstance(config, str | os.PathLike):
        found = discover([os.fspath(config)])
        faults = [Unusable(path=path, key=fault.key, values=fault.values) for path, fault in found.faults]
        return [Input(path=file.path, named=file.named) for file in found.files], faults
    return [Input(path=NAME, kind="config", raw=text_of(settings_of(config)))], []


def settings_of(config: Mapping[str, Any] | Arguments) -> dict[str, Any]:
    """The settings of a config that is no file."""
    return dict(config) if isinstance(config, Mapping) else _differing(config)


def text_of(settings: Mapping[str, Any]) -> bytes:
    """Settings as a file has them."""
    return json.dumps(settings, default=_plain, indent=2).encode("utf-8", "surrogatepass")


def _differing(arguments: Arguments) -> dict[str, Any]:
    """The settings that say something: not None, and not what their class gives by itself."""
    import dataclasses

    usual: dict[str, Any] = {}
    if dataclasses.is_dataclass(arguments):
        usual = {field.name: field.default for field in dataclasses.fields(arguments)}
    return {
        name: value
        for name, value in arguments.to_dict().items()
        if value is not None and (name in MARKS or name not in usual or _plain(usual[name]) != value)
    }


def _plain(value: Any) -> Any:
    """An enum's value; plain values as they are; anything else by its name."""
    if isinstance(value, str | int | float | None) and not hasattr(value, "value"):
        return value
    return getattr(value, "value", str(value))
