"""`kb.predict_many`: many configs in one session. What was made ready for one of a grid serves the next, where numbers
alone differ.

Two things make that safe. A number that was never looked at while the first was made ready decides nothing of its run.
One that stands in a single field of the setup, as it is written, is put there; every other number has to be the same.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kb.advice.facts.memory_facts import PredictedFacts
from kb.advice.facts.unit_facts import UnitFacts
from kb.advice.question import Question
from kb.config.files import ConfigError
from kb.core.catalog import Dialect
from kb.core.document import Setting, Unit
from kb.core.hardware import Machine
from kb.core.memory_report import MemoryReport
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.core.text import UserError, nearest
from kb.integrations.api import NAME, Config, Place, machine_options, refuse, session, settings_of, text_of, worded
from kb.session.around import Checking
from kb.session.file import FileChecker

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


def predict_many(
    configs: Iterable[Config], machine: Place = None, *, model: str | Model | None = None, rough: bool = False
) -> list[dict[str, Any]]:
    """GPU memory of many runs, a row for each config in its order: ``pandas.DataFrame(kb.predict_many(grid, gpu))``.

    Each row has the same keys: ``model``, ``method``, ``train_batch``, ``verdict`` (as in :func:`kb.predict`),
    ``phase`` (the one that needs most) and its ``process_used_bytes``, ``low_bytes`` and ``high_bytes``,
    ``limit_bytes`` of the GPU, ``host_bytes`` at the upper end, and ``error``: None, or why there is no prediction, in
    a sentence. A config that cannot be used stops none of the others. Rules and machine are read once; configs that
    differ in numbers alone (batch, length, learning rate) are read once too.

    Args:
        configs: dicts or ``TrainingArguments``, as in :func:`kb.lint`; of several runs in one the first counts.
        machine: as in :func:`kb.lint`.
        model: as in :func:`kb.lint`, for all of them.
        rough: from models of few layers, in wider bands: for thousands of configs.

    Raises:
        UserError: the machine or the model is not known.
    """
    found = machine if isinstance(machine, Machine) else None
    question = Question.of(**machine_options(machine))
    checker = session(question, Checking(rough=rough), model=model, machine=found)
    grid = Grid()
    rows = []
    for config in configs:
        if isinstance(config, str | os.PathLike):
            refuse(UserError("api.not_a_dict", kind=type(config).__name__))
        settings = settings_of(config)
        apart = cut(settings)
        alike = None if apart is None else grid.find(apart)
        report = None if alike is None else alike.report
        if alike is not None and report is not None:
            rows.append(_told(alike.setup, report, None) | {"limit_bytes": checker.machine.gpu_limit_bytes})
        else:
            rows.append(_row(settings, checker, grid, apart))
    return rows


def _row(settings: Mapping[str, Any], checker: FileChecker, grid: Grid, apart: Cut | None) -> dict[str, Any]:
    text = text_of(settings).decode("utf-8", "replace")
    try:
        units = checker.reader.read(text, NAME, dialect=checker.dialect)
    except ConfigError as fault:
        return _told(None, None, worded(fault))
    prepared = [checker.prepare(watched(checker.joiner.join(unit))) for unit in units]
    first = next((each for each in prepared if each.predicted.report is not None), prepared[0] if prepared else None)
    if first is None or first.predicted.report is None:
        key, values = (first and (first.note or first.predicted.refusal)) or ("no_model_named", {})
        return _told(first.setup if first else None, None, worded(UserError(f"note.{key}", **dict(values))))
    if apart is not None and len(units) == 1:
        one = ready(first, apart.numbers, checker.catalog.dialects)
        if one is not None:
            grid.keep(apart, one)
    return _told(first.setup, first.predicted.report, None) | {"limit_bytes": checker.machine.gpu_limit_bytes}


def _told(setup: TrainingSetup | None, report: MemoryReport | None, error: str | None) -> dict[str, Any]:
    """One row; what is not known is None."""
    worst = max(report.phases, key=lambda phase: phase.process_used_bytes) if report and report.phases else None
    return {
        "model": setup.model_name if setup else None,
        "method": setup.method if setup else None,
        "train_batch": setup.per_device_train_batch_size if setup else None,
        "verdict": report.verdict.status if report else None,
        "phase": worst.name if worst else None,
        "process_used_bytes": worst.process_used_bytes if worst else None,
        "low_bytes": worst.low_bytes if worst else None,
        "high_bytes": worst.high_bytes if worst else None,
        "limit_bytes": None,
        "host_bytes": report.host.peak_bytes if report else None,
        "error": error,
    }


def replace(setup: TrainingSetup, **changes: Any) -> TrainingSetup:
    """The setup with some settings changed, the others as they are.

    Raises:
        UserError: it has no such setting; the sentence names the one that was probably meant.
    """
    for name in changes:
        if name not in setup._fields:
            meant = nearest(name, setup._fields)
            refuse(UserError("api.no_setting", name=name, meant=meant[0] if meant else ", ".join(setup._fields[:8])))
    return setup._replace(**changes)
