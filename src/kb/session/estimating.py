"""Which runs ``kb.estimate`` is about: the one that flags describe, or those of a file."""

from kb.advice.estimate import Estimated, estimate
from kb.advice.flags import assumed_of, unit_of, with_flags
from kb.advice.question import RunSettings
from kb.core.text import UserError
from kb.session.file import FileChecker
from kb.session.sections import sections_of, why_unusable


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
