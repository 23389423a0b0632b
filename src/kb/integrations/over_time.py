"""What the playground and a chapter call for the run over time: a module of its own, loaded when it is asked for."""

import json
from collections.abc import Mapping
from typing import Any

from kb.advice.estimate import Estimated, estimate, with_timeline
from kb.core.catalog import Catalog
from kb.core.text import UserError
from kb.integrations.browser import catalog_of, checker_of, fault_of, kind_of, path_of, words_of
from kb.memory import UnsupportedArchitectureError
from kb.memory.engine.trace import trace
from kb.report.lessons import Case, case_of, title_of
from kb.report.timeline import MOMENTS, timeline_html
from kb.report.words import Words
from kb.session.prepare import first_training


def timeline(text: str, asked: str, language: str) -> str:
    """The run of a config over time, as the memory engine follows it: the training, else the first run.

    Args:
        text, asked, language: as of :func:`kb.integrations.browser.check`.

    Returns:
        ``{"figure": HTML}``, or ``{"fault": sentence}`` where the run cannot be followed.
    """
    words = words_of(language)
    try:
        checker, kind = checker_of(asked, language), kind_of(asked)
        path = path_of(text, kind)
        unit = first_training(checker.check(text.encode(), path, kind).results)
        if unit is None:
            raise UserError("diagnose.no_dialect", path=path)
        found, key = _followed(estimate(checker.prepare(unit), checker.catalog), checker.catalog)
        title = words(key, model=found.model.name if found.model else "")
        figure = timeline_html(found.followed, words, title, found.machine.gpu_limit_bytes)
        return json.dumps({"figure": figure}, ensure_ascii=False)
    except UserError as error:
        return fault_of(error, language)


def _followed(one: Estimated, catalog: Catalog) -> tuple[Estimated, str]:
    """The run followed whole, or its training alone, and the key of the figure's title.

    Raises:
        UserError: neither is followed.
    """
    found = with_timeline(one, catalog, MOMENTS)
    if found.followed is not None:
        return found, "timeline.of"
    if one.setup.do_train:
        alone = one._replace(setup=one.setup._replace(do_eval=False, do_predict=False))
        found = with_timeline(alone, catalog, MOMENTS)
    if found.followed is None:
        reason, values = found.notes[-1]
        raise UserError(reason, **values)
    return found, "timeline.of_training"


def own_figure(asked: str, language: str) -> str:
    """Two steps of full training over time, of the model and GPU that a chapter's reader chose.

    Args:
        asked: JSON: as of :func:`kb.integrations.own_tables.own_figure`.

    Returns:
        ``{"figure": HTML}``, or ``{"fault": sentence}`` where the run cannot be followed.
    """
    wanted = json.loads(asked)
    try:
        case = case_of(
            catalog_of(), wanted["model"], wanted["gpu"], wanted.get("source_length"), wanted.get("target_length")
        )
        return json.dumps({"figure": chapter_timeline(case, words_of(language), wanted)}, ensure_ascii=False)
    except UnsupportedArchitectureError:
        return json.dumps({"fault": words_of(language)("own.not_followed", model=wanted["model"])}, ensure_ascii=False)
    except UserError as error:
        return fault_of(error, language)


def chapter_timeline(case: Case, words: Words, asked: Mapping[str, Any]) -> str:
    """The figure of full training with ``batch``; ``title`` is a text with placeholders.

    Raises:
        UnsupportedArchitectureError: the engine does not follow the model's type.
    """
    estimator, setup = case.estimator, case.setup._replace(per_device_train_batch_size=asked["batch"])
    device = estimator.gpu
    assert device is not None and device.compute_capability is not None  # it is on a catalogued GPU
    limit = estimator.reservable_bytes(setup)
    found = trace(setup, estimator.model.architecture, device.compute_capability, limit, MOMENTS)
    return timeline_html(found, words, title_of(case, asked), estimator.limit_bytes)
