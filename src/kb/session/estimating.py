"""Which runs ``kb.estimate`` is about: the one that flags describe, or those of a file."""

from collections.abc import Sequence

from kb.advice.estimate import Estimated, estimate
from kb.advice.flags import assumed_of, unit_of, with_flags
from kb.advice.models import unknown_model
from kb.advice.no_prediction import NO_MODEL_OF_THE_RUN
from kb.advice.question import RunSettings
from kb.config.files import ConfigError
from kb.core.catalog import Catalog
from kb.core.result import UnitResult
from kb.core.text import UserError
from kb.session.file import FileChecker
from kb.session.run import read_bytes


def estimate_flags(flags: RunSettings, checker: FileChecker, *, open_model: bool = False) -> Estimated:
    """The run that flags describe.

    Args:
        open_model: the model may be one that kb does not know, which a simulation will build.

    Raises:
        UserError: the model is not known, or the run cannot be.
    """
    return estimate(checker.prepare(unit_of(flags)), checker.catalog, assumed_of(flags), open_model=open_model)


def estimate_file(
    path: str, section: str | None, flags: RunSettings, checker: FileChecker, *, open_model: bool = False
) -> tuple[list[Estimated], list[UserError]]:
    """The runs of a file, with what the flags change: the named section, else each; and why some have no prediction.

    Raises:
        ConfigError: the file cannot be read as a config.
        UserError: there is no such section, or nothing can be predicted for any.
    """
    estimated: list[Estimated] = []
    faults: list[UserError] = []
    for result in sections_of(path, section, checker):
        if result.unit.dialect is None:
            faults.append(why_unusable(result, path, checker.catalog))
            continue
        try:
            prepared, assumed = checker.prepare(with_flags(result.unit, flags)), assumed_of(flags, result.unit)
            estimated.append(estimate(prepared, checker.catalog, assumed, open_model=open_model))
        except UserError as fault:
            fault.values.setdefault("within", f"{path} [{result.unit.section}]" if result.unit.section else path)
            faults.append(fault)
    if not estimated:
        raise faults[0]
    return estimated, faults


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
