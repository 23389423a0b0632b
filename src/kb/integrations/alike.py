"""Configs of a grid that differ in numbers alone: what was made ready for one serves the next.

Two things make that safe. A number that was never looked at while the first was made ready decides nothing of its run.
One that stands in a single field of the setup, as it is written, is put there; every other number has to be the same.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kb.advice.facts import UnitFacts
from kb.advice.memory_facts import PredictedFacts
from kb.core.catalog import Dialect
from kb.core.document import Setting, Unit
from kb.core.record import NamedTuple

NAMES = ("output_dir", "run_name", "logging_dir")  # keys whose texts tell the runs of a grid apart
_NAME = re.compile(r"(?![Nn](?:one|ull)\Z)[\w./ -]*[A-Za-z][\w./ =-]*")
LARGEST = 1_000_000  # beyond it a number may be refused
# Settings that only a field of the setup takes, as it is written: a whole number of at least one.
FIELDS = {
    "training.per_device_train_batch_size": "per_device_train_batch_size",
    "training.per_device_eval_batch_size": "per_device_eval_batch_size",
    "training.gradient_accumulation_steps": "gradient_accumulation_steps",
    "training.dataloader_num_workers": "dataloader_num_workers",
    "data.max_source_length": "max_source_length",
    "trl.max_length": "max_source_length",
    "trl.max_seq_length": "max_source_length",
    "lora.r": "lora_r",
}
# Settings of which a prediction asks only whether they are above zero, as every number of a :class:`Cut` is.
ABOVE_ZERO = frozenset(("training.num_train_epochs", "training.max_steps"))


class Watched(dict[str, Setting]):
    """Settings that remember which of them were asked for."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        super().__init__(settings)
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Setting:
        self.asked.add(name)
        return super().__getitem__(name)


class Cut(NamedTuple):
    """A config taken apart: ``shape`` is all of it but its ``numbers``, which stand under top-level keys, and the names
    of the run among them.
    """

    shape: tuple[Any, ...]
    numbers: dict[str, float | str]


def cut(settings: Mapping[str, Any]) -> Cut | None:
    """None where a value is none that JSON has: such a config is like no other."""
    shape: list[Any] = []
    numbers: dict[str, float | str] = {}
    for key, value in settings.items():
        kind = type(value)
        named = kind is str and key in NAMES and _NAME.fullmatch(value) is not None
        if named or ((kind is int or kind is float) and 0 < value <= LARGEST):
            numbers[key] = value
            shape.append((key, kind))
        elif kind is str or kind is bool or value is None:
            shape.append((key, kind, value))
        else:
            try:
                shape.append((key, json.dumps(value)))
            except (TypeError, ValueError):
                return None
    return Cut(tuple(shape), numbers)


class Ready(NamedTuple):
    """One config made ready. ``fixed`` are the numbers that another must share; ``fields`` those that it may change, by
    key, with the setup's field.
    """

    predicted: PredictedFacts
    fixed: tuple[str, ...]
    fields: dict[str, str]

    def otherwise(self, numbers: Mapping[str, float | str]) -> PredictedFacts:
        """What is predicted of another config of the same shape and fixed numbers."""
        changed: dict[str, Any] = {field: numbers[key] for key, field in self.fields.items()}
        return self.predicted.otherwise(self.predicted.setup._replace(**changed))


def ready(prepared: UnitFacts, numbers: Mapping[str, float | str], dialects: Mapping[str, Dialect]) -> Ready | None:
    """What can be shared of a config that was made ready with :class:`Watched` settings; None where nothing can."""
    settings, setup = prepared.unit.settings, prepared.setup
    report = prepared.predicted.report
    if not isinstance(settings, Watched) or report is None:
        return None
    if setup.post is not None or setup.lengths is not None or prepared.unit.dialect is None:
        return None
    meant = dialects[prepared.unit.dialect].values
    by_key: dict[tuple[str | int, ...], dict[str, Any]] = {}
    for name, setting in settings.items():
        by_key.setdefault(setting.path, {})[name] = setting.value
    fields: dict[str, str] = {}
    fixed = []
    for key, value in numbers.items():
        constant = _constant(dialects[prepared.unit.dialect].keys.get(key))
        said = {name: found for name, found in by_key.get((key,), {}).items() if name not in constant}
        if not said or any(found != value or name in meant for name, found in said.items()):
            fixed.append(key)  # what it means, the format decides by the number itself
        elif not settings.asked.isdisjoint(said.keys() - ABOVE_ZERO):
            field = _field(said, settings)
            if field is None or type(value) is not int or getattr(setup, field) != value:
                fixed.append(key)
            else:
                fields[key] = field
    return Ready(prepared.predicted, tuple(fixed), fields)


def _constant(meant: Any) -> set[str]:
    """The settings that a key makes by being there, whatever its value."""
    rows = meant if isinstance(meant, list | tuple) else (meant,)
    whole = (row for row in rows if isinstance(row, Mapping) and row.get("values", {}).keys() == {"*"})
    return {row["to"] for row in whole if isinstance(row["to"], str) and row.keys() == {"to", "values"}}


def _field(names: Iterable[str], settings: Mapping[str, Setting]) -> str | None:
    """The one field that a key's settings go to, where no other key's do."""
    fields = {FIELDS.get(name) for name in names}
    field = fields.pop() if len(fields) == 1 else None
    others = [name for name in settings if FIELDS.get(name) == field and name not in names]
    return None if others else field


class Grid:
    """What has been made ready so far, by shape and by the numbers that must be the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], dict[tuple[str, ...], dict[tuple[float | str, ...], Ready]]] = {}

    def find(self, config: Cut) -> PredictedFacts | None:
        """What is predicted of the config, by one that was ready; None where there is none like it."""
        for fixed, found in self._known.get(config.shape, {}).items():
            one = found.get(tuple(config.numbers[key] for key in fixed))
            if one is not None:
                return one.otherwise(config.numbers)
        return None

    def keep(self, config: Cut, one: Ready) -> None:
        """A config like it can be made of this one."""
        found = self._known.setdefault(config.shape, {}).setdefault(one.fixed, {})
        found[tuple(config.numbers[key] for key in one.fixed)] = one


def watched(unit: Unit) -> Unit:
    """The unit, made ready to be found alike another."""
    return unit._replace(settings=Watched(unit.settings))
