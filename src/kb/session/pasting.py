"""A config with keys pasted into it, read again as any file is: what a plan promises is what the file then says."""

from collections.abc import Iterable, Sequence

from kb.config.dialect.spelling import Written
from kb.config.files import ConfigError
from kb.core.setup import TrainingSetup
from kb.session.file import FileChecker


def pasted(text: str, written: Iterable[Written]) -> str | None:
    """The text of one YAML or JSON document with the keys in it, as YAML; None where it is no such document."""
    import yaml  # a start that most runs do not need

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    for each in written:
        inside = data
        for step in each.path[:-1]:
            below = inside.get(step)
            if not isinstance(below, dict):
                below = inside[step] = {}
            inside = below
        inside[each.path[-1]] = each.value
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


class Pasting:
    """What one unit of a file says with keys pasted into it.

    Args:
        text: of the whole file.
        section: the unit's; None of the whole file.
    """

    def __init__(self, checker: FileChecker, path: str, text: str, section: str | None) -> None:
        self._checker, self._path, self._text, self._section = checker, path, text, section

    def __call__(self, written: Sequence[Written]) -> TrainingSetup | None:
        """The run that the file then describes; None where it can no longer be read."""
        text = pasted(self._text, written)
        if text is None:
            return None
        try:
            results = self._checker.check(text.encode(), self._path).results
        except ConfigError:
            return None
        return next((one.setup for one in results if one.unit.section == self._section), None)
