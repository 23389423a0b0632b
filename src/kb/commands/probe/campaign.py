"""A probe from beginning to end: prepare, journal, run, and say what came of it.

``--record`` writes the measured rows as a file for ``rules/measurements``; nothing that was not measured.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any

from kb.advice.batches import Ceiling, splits_of, tried_by_accelerate
from kb.advice.formulas import ramp
from kb.advice.run.row_lengths import reads_target
from kb.commands.probe.built_in import BuiltIn, Place, built_in, check_packages, place_of
from kb.commands.probe.own_command import OwnCommand, own_command
from kb.commands.probe.request import ProbeRequest
from kb.core.catalog import Catalog
from kb.core.record import NamedTuple
from kb.core.release import parse_version
from kb.core.setup import TrainingSetup
from kb.core.setup_json import setup_json
from kb.core.text import UserError
from kb.machine.software import installed_versions
from kb.memory.search import LARGEST_BATCH, largest_within
from kb.torch_runs.probe.campaign import (
    Bench,
    Probed,
    Recommended,
    Tell,
    climb,
    count_workers,
    doubling,
    recommend_batch,
    search_batch,
    target_of,
)
from kb.torch_runs.probe.rows import architecture_of, campaign_yaml, rows_of
from kb.torch_runs.probe.trial import Limits, Trial, opened_journal

if TYPE_CHECKING:
    from kb.torch_runs.probe.running import Runner

MOST_OF_RAMP = 256
MOST_OF_COMMAND = 1024  # without a prediction or a GPU's limit somebody has to stop
HOST_SHARE = 0.9  # of what this machine or container has; kb and the rest need some too
ITS_OWN_START = 128  # accelerate's starting_batch_size
NEWEST_ACCELERATE = (1, 15, 0)
SOURCE = "kb-probe"
_NAME = re.compile(r"([a-z0-9]+(?:-[a-z0-9.]+)*)\.yaml")
_MODEL = re.compile(r"[^a-z0-9.]+")
ABOUT = {
    "ko": "임의 가중치의 모델을 Trainer로 학습하고 평가하고 생성하며, 단계마다 torch의 할당·예약 메모리 최댓값과 "
    "NVML의 프로세스 메모리를 쟀습니다. 배치 하나가 프로세스 하나이고, 평가와 생성은 옵티마이저 상태가 남은 채로 "
    "학습 뒤에 합니다.",
    "en": "A model of random weights trained and evaluated by the Trainer, then generating; torch's peaks of allocated "
    "and reserved memory by phase, and the process's memory by NVML. One process a batch; evaluation and generation "
    "come after training, beside the optimizer's states.",
}


def probe(
    request: ProbeRequest,
    catalog: Catalog,
    guide: Mapping[str, Any],
    *,
    runner: "Runner",
    tell: Tell,
    journal_path: str | None = None,
    resume: bool = False,
) -> Probed:
    """Run the whole campaign; each trial is on disk before the next begins.

    Args:
        guide: ``load_guide()``, for the ramp and the targets.
        tell: hears of each trial when it ended.
        journal_path: None keeps none.

    Raises:
        UserError: what was asked cannot be run here, or the journal cannot be used.
    """
    place = place_of(request, catalog)
    request = _within_host(request, place)
    run: BuiltIn | OwnCommand | None = None
    if request.command:
        run = own_command(request, place)
    elif request.kind != "host":
        run = built_in(request, place, catalog)
    else:
        check_packages(("torch",))
    plan = _plan(request, place, run)
    with closing(runner), opened_journal(journal_path, plan, resume) as journal:
        bench = Bench(runner, journal, tell)
        share = catalog.constants["host_target_share"]
        return _PROCEDURES[request.kind](_Campaign(request, place, run, bench, guide["formulas"], share))


def _within_host(request: ProbeRequest, place: Place) -> ProbeRequest:
    """With a limit of host memory, so that a trial is ended before the kernel ends something of its choice."""
    memory = place.machine.host_memory_bytes
    if request.host_bytes is not None or memory is None or place.backend == "fake":
        return request
    return request._replace(host_bytes=int(memory * HOST_SHARE))


def _plan(request: ProbeRequest, place: Place, run: BuiltIn | OwnCommand | None) -> dict[str, Any]:
    """What decides the trials: a journal of another plan is not gone on with."""
    flags = {name: value for name, value in request.run._asdict().items() if value}
    own: dict[str, Any] = {"kind": request.kind, "backend": place.backend, "most": request.most}
    own |= {"workers": request.workers, "flags": flags, "phases": request.phases, "steps": request.steps}
    own |= {"fake": place.fake, "gpu": place.card.name, "effective_batch": request.question.effective_batch}
    own |= {"command": list(run.words) if isinstance(run, OwnCommand) else []}
    if isinstance(run, BuiltIn):
        own |= {"model": run.name, "config": run.config, "setup": repr(run.setup._replace(assumed=()))}
    return own


class _Campaign(NamedTuple):
    """One probe while it runs. ``host_share``: of host memory, what workers may take; ``formulas`` are the guide's."""

    request: ProbeRequest
    place: Place
    run: Any  # BuiltIn, OwnCommand or, of a loader alone, None
    bench: Bench
    formulas: Mapping[str, Any]
    host_share: float

    def smoke(self) -> Probed:
        run, batch = self.run, self.request.run.batch
        if batch is None:
            batch = run.setup.per_device_train_batch_size if isinstance(run, BuiltIn) else run.batch or 1
        elif isinstance(run, OwnCommand) and not run.template:
            raise UserError("probe.no_batch_flag", command=shlex.join(run.words)[:300], place="{batch}")
        trial = run.trial(batch)
        if isinstance(run, OwnCommand) and self.request.run.batch is None:
            trial = trial._replace(command=run.words)
        self.bench.run(trial)
        return self._probed()

    def ramp(self) -> Probed:
        most, start = self.request.most or MOST_OF_RAMP, self.request.run.batch
        rungs: Iterable[int] = (rung.batch for rung in ramp(self.formulas["batch-ramp"], most))
        if start is not None:
            rungs = chain((start,), [batch for batch in rungs if batch > start])
        return self._probed(climb(self.bench, self.run.trial, rungs, self.place.card, self.formulas["targets"]))

    def max_batch(self) -> Probed:
        run, usable = self.run, self.place.card.usable_bytes
        expected = run.expected if isinstance(run, BuiltIn) and run.estimator is not None else None
        most = self.request.most or (LARGEST_BATCH if expected is not None else MOST_OF_COMMAND)
        own = self.request.run.batch or (run.batch if isinstance(run, OwnCommand) else None) or 1
        start = own if expected is None or usable is None else max(largest_within(expected, usable, 1, most), 1)
        sought = search_batch(self.bench, run.trial, min(start, most), most=most, expected=expected, limit_bytes=usable)
        found = recommend_batch(sought, expected, self.place.card, target_of(self.formulas["targets"]))
        probed = self._probed(found)
        begun = own if own > 1 else ITS_OWN_START
        tried = tried_by_accelerate(begun, sought.largest, _accelerate()) if sought.largest else ()
        return probed._replace(sought=sought, auto_find=tried)

    def host(self) -> Probed:
        request, machine = self.request, self.place.machine
        counts = request.workers or tuple(doubling(request.most or machine.cpus or 1))
        make: Callable[[int], Trial] = self.run.trial if self.run is not None else lambda count: _loader(request, count)
        found = count_workers(self.bench, make, counts, machine.host_memory_bytes, self.host_share)
        return self._probed(found)._replace(host_limit_bytes=machine.host_memory_bytes)

    def _probed(self, recommended: Recommended | None = None) -> Probed:
        request, place, run, pairs = self.request, self.place, self.run, self.bench.pairs
        name = shlex.join(request.command) if request.command else "DataLoader"
        setup, whole = None, False
        notes = place.machine.notes if place.backend == "cuda" else ()
        if isinstance(run, BuiltIn):
            notes += ("one_process",) * run.buckets_apart
            name = run.name
            whole = run.model is not None and not reads_target(run.model.architecture)
            setup = run.setup_with(pairs[-1][0].batch) if recommended is None else _held(run, recommended.number)
        return Probed(
            kind=request.kind,  # type: ignore[arg-type]
            backend=place.backend,
            name=name,
            pairs=tuple(pairs),
            card=place.card,
            recommended=recommended,
            setup=setup,
            command=request.command,
            target=target_of(self.formulas["targets"]),
            one_sequence=whole,
            notes=notes,
        )


_PROCEDURES: Mapping[str, Callable[[_Campaign], Probed]] = {
    "smoke": _Campaign.smoke,
    "ramp": _Campaign.ramp,
    "max-batch": _Campaign.max_batch,
    "host": _Campaign.host,
}


def _loader(request: ProbeRequest, workers: int) -> Trial:
    flags, plain = request.run, TrainingSetup()
    setup = plain._replace(
        dataloader_num_workers=workers,
        per_device_train_batch_size=flags.batch or plain.per_device_train_batch_size,
        max_source_length=flags.source_length or plain.max_source_length,
        max_target_length=flags.target_length or plain.max_target_length,
    )
    limits = Limits(request.seconds, request.host_bytes)
    return Trial("host", "cpu", setup_json(setup), phases=("loader",), steps=request.steps or 10, limits=limits)


def _held(run: BuiltIn, batch: int) -> TrainingSetup:
    """The run at ``batch``, or at what holds its effective batch with none larger."""
    setup = run.setup_with(batch)
    if run.effective is None:
        return setup._replace(gradient_accumulation_steps=1)
    splits = splits_of(run.effective, Ceiling(batch, batch))
    split = splits.exact[0] if splits.exact else splits.nearest()
    assert split is not None  # a batch of 1 reaches every effective batch
    return setup._replace(per_device_train_batch_size=split.batch, gradient_accumulation_steps=split.accumulation)


def _accelerate() -> tuple[int, ...]:
    text = installed_versions().get("accelerate")
    return parse_version(text) if text and text[0].isdigit() else NEWEST_ACCELERATE


def check_recordable(path: str, request: ProbeRequest) -> None:
    """Before anything is run: whether there could be rows, and the file written.

    Raises:
        UserError: a scripted GPU, a CPU, a command; a file that is there, or no name of rules/measurements.
    """
    if request.backend == "fake":
        raise UserError("probe.record_not_measured")
    if request.backend == "cpu" or request.command or request.kind == "host":
        raise UserError("probe.record_needs_gpu")
    if not _NAME.fullmatch(os.path.basename(path)):
        raise UserError("probe.record_bad_name", path=path)
    if os.path.exists(path):
        raise UserError("probe.record_exists", path=path)
    if not os.access(os.path.dirname(path) or ".", os.W_OK):
        raise UserError("probe.record_unwritable", path=path, reason=os.path.dirname(path) or ".")


def record(path: str, probed: Probed, command: str) -> None:
    """Write the rows of all trials.

    Raises:
        UserError: there is none, or the file cannot be written.
    """
    text = recorded(os.path.basename(path).removesuffix(".yaml"), probed, command)
    if text is None:
        raise UserError("probe.record_nothing", path=path)
    try:
        with open(path, "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UserError("probe.record_exists", path=path) from None
    except OSError as error:
        raise UserError("probe.record_unwritable", path=path, reason=error.strerror or str(error)) from None


def recorded(identity: str, probed: Probed, command: str) -> str | None:
    """The file's text; None where no trial was measured on a GPU."""
    import datetime

    pairs = [pair for pair in probed.pairs if pair[0].backend == "cuda" and pair[0].config is not None]
    machine = next((dict(outcome.machine) for _, outcome in pairs if outcome.machine.get("gpu_name")), None)
    stack = next((dict(outcome.stack) for _, outcome in pairs if outcome.stack), None)
    if machine is None or stack is None:
        return None
    model = _MODEL.sub("-", os.path.basename(probed.name.rstrip("/")).casefold()).strip("-.") or "model"
    rows = [row for pair in pairs for row in rows_of(pair, model)]
    if not rows:
        return None
    gpu = machine["gpu_name"]
    return campaign_yaml(
        identity,
        rows,
        title={"ko": f"{gpu}에서 잰 {model}의 GPU 메모리", "en": f"GPU memory of {model} measured on {gpu}"},
        about=ABOUT,
        date=datetime.date.today().isoformat(),
        command=command,
        machine=machine,
        stack=stack,
        models={model: architecture_of(pairs[0][0].config or {})},
        source=SOURCE,
        writer="kb probe --record",
    )
