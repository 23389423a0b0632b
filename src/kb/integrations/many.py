"""`kb.predict_many`: many configs in one session, a flat row for each; and a setup with some of it changed."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from kb.advice.question import Question
from kb.config.files import ConfigError
from kb.core.hardware import Machine
from kb.core.memory_report import MemoryReport
from kb.core.model import Model
from kb.core.setup import TrainingSetup
from kb.core.text import UserError, nearest
from kb.integrations.alike import Cut, Grid, cut, ready, watched
from kb.integrations.api import Place, machine_options, refuse, session, worded
from kb.integrations.given_configs import NAME, Config, settings_of, text_of
from kb.session.file import FileChecker
from kb.session.prepare import Checking


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
