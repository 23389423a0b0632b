"""GPUs × models × batches on a Ray cluster: every trial of the matrix, journalled as any other."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from kb.commands.probe.built_in import Place, built_in, read_script
from kb.commands.probe.request import ProbeRequest
from kb.core.catalog import Catalog
from kb.core.hardware import Gpu, Machine
from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.machine.detect import find_gpu, named_gpus, names_of
from kb.torch_runs.probe.campaign import Card, Tell
from kb.torch_runs.probe.ray_runner import RayRunner
from kb.torch_runs.probe.running import measure
from kb.torch_runs.probe.trial import Cell, Matrix, Outcome, Trial, as_json, opened_journal, trial_key

MOST_TRIALS = 1000
SAME_GPU = 0.1  # how far the memory that was found may be from the GPU's, as a share of it


class Axes(NamedTuple):
    """What is combined: GPUs by any name, models by any name, batches. An empty axis takes the one of the flags."""

    gpus: tuple[str, ...]
    models: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()


def read_axes(gpus: str | None, models: str | None, batches: str | None) -> Axes:
    """Lists with commas as axes.

    Raises:
        UserError: no GPU is named, or a batch is none.
    """
    named = _names(gpus)
    if not named:
        raise UserError("probe.ray_needs_gpus")
    sizes = _names(batches)
    for size in sizes:
        if not (size.isdecimal() and 0 < int(size) <= 1_000_000):
            raise UserError("probe.bad_batches", value=size[:100])
    return Axes(named, _names(models), tuple(dict.fromkeys(map(int, sizes))))


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))


def run_matrix(
    request: ProbeRequest,
    catalog: Catalog,
    axes: Axes,
    *,
    address: str,
    tell: Tell,
    tell_lost: Callable[["Trial", tuple[str, ...]], None],
    journal_path: str | None = None,
    resume: bool = False,
) -> Matrix:
    """Run every trial of the matrix on the cluster.

    Args:
        tell: hears of each trial when it ended, in the order in which they end.
        tell_lost: hears of a trial whose node was lost.

    Raises:
        UserError: the matrix cannot be run, there is no such cluster, or the journal cannot be used.
    """
    if request.kind != "smoke" or request.command:
        raise UserError("probe.ray_runs_smoke")
    rows = {gpu.id: gpu for gpu in (find_gpu(name, catalog.gpus) for name in axes.gpus)}
    trials = _trials(request, catalog, axes, rows)
    runner = RayRunner(address, names={name: tuple(names_of(gpu)) for name, gpu in rows.items()}, tell=tell_lost)
    found: dict[str, Outcome] = {}
    with closing(runner):
        runner.check(list(rows))
        plan = {"matrix": [{**as_json(trial), "limits": None, "predicted": None} for trial in trials]}
        with opened_journal(journal_path, plan, resume) as journal:
            for trial, outcome in measure(trials, runner, journal):
                found[trial_key(trial)] = outcome
                tell(len(found), trial, outcome)
    cells = [_cell(rows[str(trial.gpu)], trial, found[trial_key(trial)]) for trial in trials]
    return Matrix(trials[0].backend, address, tuple(cells))


def _cell(gpu: Gpu, trial: Trial, outcome: Outcome) -> Cell:
    memory, name = outcome.machine.get("gpu_memory_bytes"), outcome.machine.get("gpu_name")
    other = memory is not None and abs(memory - gpu.memory_total) > SAME_GPU * gpu.memory_total
    return Cell(gpu, trial, outcome, str(name) if other else None)


def _trials(request: ProbeRequest, catalog: Catalog, axes: Axes, rows: Mapping[str, Gpu]) -> list[Trial]:
    """One trial for each cell, GPU by GPU.

    Raises:
        UserError: no model is named, it cannot be used, or there are too many cells.
    """
    own = request.run.model
    named = own or request.question.config or request.question.model_config
    models: Sequence[str | None] = axes.models or ((own,) if named else ())
    batches: Sequence[int | None] = axes.batches or (request.run.batch,)
    if not models:
        raise UserError("probe.nothing_named")
    count = len(rows) * len(models) * len(batches)
    if count > MOST_TRIALS:
        raise UserError("probe.matrix_too_large", count=count, most=MOST_TRIALS)
    trials = []
    for gpu in rows:
        place = _place(gpu, request, catalog)
        for model in models:
            own_model = request.run if model is None else request.run._replace(model=model)
            one = request._replace(question=request.question._replace(run=own_model))
            run = built_in(one, place, catalog, here=False)
            for batch in batches:
                chosen = run.setup.per_device_train_batch_size if batch is None else batch
                trials.append(run.trial(chosen)._replace(gpu=gpu))
    return trials


def _place(gpu: str, request: ProbeRequest, catalog: Catalog) -> Place:
    """A node that has the GPU: what a prediction is for. This machine is not looked at."""
    backend = request.backend or "cuda"
    if backend == "cpu":
        raise UserError("probe.ray_wants_gpus")
    found = named_gpus(gpu, None, catalog.gpus)[0]
    script = None
    if backend == "fake":
        script = read_script(request.fake_script) if request.fake_script else {}
        script["limit_bytes"] = request.fake_limit or found.memory_total
        found = found._replace(memory_total=script["limit_bytes"])
    total = found.memory_total
    card = Card(found.name, total, int(total * catalog.constants["usable_memory_ratio"]))
    return Place(backend, Machine(gpus=(found,), gpu_source="named"), card, None, script)
