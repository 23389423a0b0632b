"""What the playground and a chapter call for the run over time: a module of its own, loaded when it is asked for."""

import json
from collections.abc import Mapping
from typing import Any

from kb.advice.estimate import Estimated, estimate, with_timeline
from kb.core.catalog import Catalog
from kb.core.text import UserError
from kb.integrations.browser import checker_of, fault_of, training_of, words_of
from kb.integrations.own_tables import answer
from kb.memory.engine.trace import trace
from kb.report.lessons import Case, title_of
from kb.report.timeline import MOMENTS, timeline_html
from kb.report.words import Words


def timeline(text: str, asked: str, language: str) -> str:
    """The run of a config over time, as the memory engine follows it: the training, else the first run.

    Args:
        text, asked, language: as of :func:`kb.integrations.browser.check`.

    Returns:
        ``{"figure": HTML}``, or ``{"fault": sentence}`` where the run cannot be followed.
    """
    words = words_of(language)
    try:
        checker = checker_of(asked, language)
        unit = training_of(text, asked, checker)
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
    return answer(asked, language, lambda wanted, case, words: {"figure": chapter_timeline(case, words, wanted)})


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
