"""A run handed to the simulator, and kb's own prediction kept where the simulator cannot answer."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.estimate import Estimated, ModelFiles
from kb.advice.models import unknown_model
from kb.core.catalog import Catalog
from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.knowledge import load_guide
from kb.knowledge.locations import Rules
from kb.report.estimate_report import timeline_json
from kb.report.timeline import timeline_svg
from kb.session.models import config_file, read_config
from kb.session.plot_file import write_plot


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
    from kb.torch_runs.simulation import Limits, simulate
    from kb.torch_runs.simulation.job import BadJobError, BadModelError, BeyondPositionsError, SimulationError

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
    except (BadJobError, BadModelError, BeyondPositionsError):
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


def write_pictures(found: Sequence[Estimated], plot: str | None, timeline: str | None, words: Any) -> None:
    """Each run over time as a drawing and as JSON, where it is known; the second run's file gets a number, and so on.

    Raises:
        UserError: a file cannot be written, or no converter to PNG is here.
    """
    done = [one for one in found if one.drawn is not None]
    for number, one in enumerate(done, 1):
        if plot is not None:
            write_plot(numbered(plot, number), timeline_svg(one, words))
        if timeline is not None:
            path = numbered(timeline, number)
            try:
                with open(path, "w", encoding="utf-8") as stream:
                    stream.write(timeline_json(one.drawn))
            except OSError as error:
                raise UserError("history.plot_unwritable", path=path, reason=error.strerror or str(error)) from None


def numbered(path: str, number: int) -> str:
    """``plot.svg`` for the first run, ``plot-2.svg`` for the second."""
    stem, suffix = os.path.splitext(path)
    return path if number == 1 else f"{stem}-{number}{suffix}"
