"""Which runs ``kb estimate`` is about, the one that flags describe or those of a file; and a run that is simulated.

Where the simulator cannot answer, kb's own prediction is kept.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.estimate import Estimated, ModelFiles, estimate
from kb.advice.question import RunSettings
from kb.advice.run.named_model import unknown_model
from kb.advice.run.no_prediction import NO_MODEL_OF_THE_RUN
from kb.advice.run.question_settings import assumed_of, unit_of, with_flags
from kb.config.files import ConfigError
from kb.core.catalog import Catalog
from kb.core.record import NamedTuple
from kb.core.result import UnitResult
from kb.core.text import UserError
from kb.knowledge import load_guide
from kb.knowledge.locations import Rules
from kb.session.file import FileChecker
from kb.session.models import config_file, read_config
from kb.session.run import read_bytes


def estimate_flags(flags: RunSettings, checker: FileChecker, *, open_model: bool = False) -> Estimated:
    """The run that flags describe.

    Args:
        open_model: the model may be one that kb does not know, which a simulation will build.

    Raises:
        UserError: the model is not known, or the run cannot be.
    """
    return estimate(checker.prepare(unit_of(flags)), checker.catalog, assumed_of(flags), open_model=open_model)


def estimate_sections(
    sections: Sequence[UnitResult], path: str, flags: RunSettings, checker: FileChecker, *, open_model: bool = False
) -> tuple[list[Estimated], list[UserError]]:
    """The runs of a file's sections, with what the flags change; and why some have no prediction.

    Raises:
        UserError: nothing can be predicted for any.
    """
    estimated: list[Estimated] = []
    faults: list[UserError] = []
    for result in sections:
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


class Wish(NamedTuple):
    """What ``--simulate`` was asked beside the run; None leaves the simulator's own limits."""

    seconds: float | None = None
    memory_bytes: int | None = None
    trusted: bool = False  # the model's own code may run
    snapshot: str | None = None  # where to write a memory_viz snapshot
    sampling: bool = False
    static_cache: bool = False
    expandable_segments: bool = False


def with_model_files(one: Estimated, named: str | None) -> Estimated:
    """The run with its model's ``config.json``, where that is a file; with a note where it names code of its own.

    Args:
        named: the value of ``--model-config``.

    Raises:
        UserError: the file is missing, or is no JSON object.
    """
    name = one.setup.model_name or ""
    path = named if named is not None else name
    if named is None and not os.path.isfile(os.path.join(name, "config.json")):
        return one
    files = ModelFiles(read_config(path), os.path.dirname(os.path.abspath(config_file(path))))
    if not files.has_code:
        return one._replace(files=files)
    note = ("estimate.own_code", {"type": str(files.config.get("model_type"))[:100]})
    return one._replace(files=files, notes=(*one.notes, note))


def simulated(one: Estimated, catalog: Catalog, rules: Rules, wish: Wish) -> Estimated:
    """The run with the simulator's report, or with kb's own prediction and notes that say why.

    Args:
        rules: as of :func:`kb.knowledge.load_guide`.

    Raises:
        UserError: the simulator has no answer and neither has the memory engine, or the input is at fault.
    """
    from kb.torch_runs.simulation import Limits, simulate  # only --level 1 starts torch
    from kb.torch_runs.simulation.job import (  # likewise
        BadJobError,
        BadModelError,
        BeyondPositionsError,
        NoAdaptersError,
        SimulationError,
    )

    files = one.files or catalogued_files(one, catalog, rules)
    if wish.trusted and files.folder is None:
        raise UserError("estimate.no_code_folder", model=one.setup.model_name or "")
    gpu, own = one.machine.smallest_gpu, Limits()
    seconds = own.seconds if wish.seconds is None else wish.seconds
    limits = Limits(seconds, own.memory_bytes if wish.memory_bytes is None else wish.memory_bytes)
    try:
        found = simulate(
            one.setup,
            files.config,
            constants=catalog.constants,
            gpu=gpu.gpu if gpu else None,
            gpu_memory_bytes=one.machine.gpu_limit_bytes,
            compute_capability=gpu.compute_capability if gpu else None,
            host_limit_bytes=one.machine.host_memory_bytes,
            expandable_segments=wish.expandable_segments,
            sampling=wish.sampling,
            static_cache=wish.static_cache,
            code_folder=files.folder if wish.trusted else None,
            snapshot_path=wish.snapshot,
            limits=limits,
        )
    except (BadJobError, BadModelError, BeyondPositionsError, NoAdaptersError):
        raise
    except SimulationError as fault:
        if one.report is None:
            raise
        return one._replace(notes=(*one.notes, (fault.key, fault.values), ("estimate.level_0_instead", {})))
    return one._replace(report=found.report, gpu_fits=(), simulated=found)


def catalogued_files(one: Estimated, catalog: Catalog, rules: Rules) -> ModelFiles:
    """The dimensions of a row of rules/models, which are in ``config.json``'s own names.

    Raises:
        UserError: the run's model is none of them.
    """
    if one.model is None:
        raise unknown_model(one.setup.model_name, catalog) if one.setup.model_name else UserError("estimate.no_model")
    architecture: Mapping[str, Any] = load_guide(rules)["models"][one.model.id]["architecture"]
    return ModelFiles(architecture, None)
