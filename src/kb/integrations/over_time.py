"""What the playground calls for the run over time: a module of its own, which is loaded when a reader asks for it."""

import json

from kb.advice.estimate import Estimated, estimate, with_timeline
from kb.core.catalog import Catalog
from kb.core.text import UserError
from kb.integrations.browser import checker_of, kind_of, path_of, words_of
from kb.report.estimate.timeline_page import MOMENTS, timeline_html
from kb.session.cli import load_words_or_none, said
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
        return json.dumps({"fault": said(load_words_or_none(language), error.key, **error.values)}, ensure_ascii=False)


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
