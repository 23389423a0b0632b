"""The runs of one config file that a command is asked about: the named section, or each whose model is known."""

from collections.abc import Sequence

from kb.advice.models import unknown_model
from kb.advice.no_prediction import NO_MODEL_OF_THE_RUN
from kb.config.files import ConfigError
from kb.core.catalog import Catalog
from kb.core.result import UnitResult
from kb.core.text import UserError
from kb.session.file import FileChecker
from kb.session.run import read_bytes


def sections_of(path: str, section: str | None, checker: FileChecker) -> Sequence[UnitResult]:
    """The file's sections, or the named one.

    Args:
        path: the file, ``-`` for standard input.

    Raises:
        ConfigError: the file cannot be read as a config.
        UserError: there is no such section.
    """
    try:
        results = checker.check(read_bytes(path), path).results
    except ConfigError as fault:
        fault.values.setdefault("path", path)
        raise
    return chosen_section(results, path, section)


def chosen_section(results: Sequence[UnitResult], path: str, section: str | None) -> Sequence[UnitResult]:
    """The named section alone, or all.

    Raises:
        UserError: there is no such section.
    """
    if section is None:
        return results
    named = {result.unit.section: result for result in results if result.unit.section is not None}
    if section not in named:
        key = "plan.no_section" if named else "plan.no_sections"
        raise UserError(key, path=path, section=section[:100], known=", ".join(named))
    return (named[section],)


def why_unusable(result: UnitResult, path: str, catalog: Catalog) -> UserError:
    """Why nothing can be predicted for a unit: its format, or its model, is not known, or a value is open."""
    setup = result.setup
    if result.unit.dialect is None:
        return UserError("plan.no_dialect", path=path)
    if setup is not None and setup.model_name and result.model is None:
        return unknown_model(setup.model_name, catalog)
    if result.note in NO_MODEL_OF_THE_RUN:
        return UserError(f"note.{result.note}", **result.note_values)
    if result.note == "unresolved_values":
        return UserError("plan.unresolved", path=path, settings=result.note_values["settings"])
    return UserError("plan.no_model" if result.model is None else "plan.no_run", path=path)
