"""The Python API: `kb.lint`, `kb.predict`, `kb.recommend` and what they give.

A config is a path, a dict or the library's own arguments.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NoReturn, Protocol, runtime_checkable

from kb.advice.fit.attempts import MethodChoice
from kb.advice.fit.estimator import Estimator
from kb.advice.fit.recommend_answer import Answer, answer
from kb.advice.question import Question
from kb.advice.run.no_prediction import QUANTIZED_ALONE, trains_packed, unpredictable
from kb.config.discovery import discover
from kb.core.catalog import Catalog
from kb.core.finding import Finding
from kb.core.hardware import Machine
from kb.core.memory_report import MemoryReport
from kb.core.model import Model
from kb.core.result import CheckResult, UnitResult, Unusable
from kb.core.setup import TrainingSetup
from kb.core.text import UserError
from kb.knowledge import load_catalog, load_guide
from kb.memory import UnsupportedArchitectureError
from kb.report.words import Words
from kb.session.around import AS_SET, Checking
from kb.session.cli import load_words_or_none, said
from kb.session.file import FileChecker
from kb.session.knowledge import catalog_of
from kb.session.models import named_model
from kb.session.prepare import file_checker
from kb.session.project import Project, find_project
from kb.session.run import Input, run

NAME = "<config>.json"  # the path of what is no file
# Kept whatever their values: by these the format is recognised.
MARKS = ("per_device_train_batch_size", "gradient_accumulation_steps")
Language = Literal["ko", "en"]
Place = Machine | str | Mapping[str, Any] | None


@runtime_checkable
class Arguments(Protocol):
    """Something like transformers' ``TrainingArguments``: it says its settings as a dict."""

    def to_dict(self) -> dict[str, Any]: ...


Config = str | os.PathLike[str] | Mapping[str, Any] | Arguments


def machine_of(
    gpu: str | None = None, *, gpus: int | None = None, host_memory: str | None = None, cpus: int | None = None
) -> Machine:
    """A machine to run on, by name, or this one.

    Args:
        gpu: an id or a name of ``rules/hardware`` (``rtx-3090``, ``NVIDIA A100 80GB``), ``auto`` for the GPUs here,
            ``none`` for none. None is ``auto``.
        gpus: how many of them.
        host_memory: the container's memory, with its unit: ``"60GB"``, ``"64GiB"``.
        cpus: processor cores.

    Raises:
        UserError: there is no such GPU, or a value cannot be used.
    """
    cores = None if cpus is None else str(cpus)
    return session(Question.of(gpu=gpu, gpus=gpus, host_memory=host_memory, cpus=cores)).machine


def lint(
    config: Config,
    machine: Place = None,
    *,
    model: str | Model | None = None,
    dialect: str | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    versions: Mapping[str, str] | None = None,
) -> CheckResult:
    """Check configs: ``result.units`` holds, for each run found, its findings, its setup and its predicted memory.

    Args:
        config: a file or a folder; a dict in any format that files may have; or ``TrainingArguments``, of which what
            differs from the library's defaults counts.
        machine: a :class:`Machine`, a GPU's name, a dict of :func:`machine_of`'s arguments, or None for this machine.
        model: the model to take instead of the one that the config names: a hub name, a folder, or a :class:`Model`.
        dialect: the format, where it cannot be told by its marks.
        select: rules or areas to apply; empty is all.
        ignore: rules or areas to leave out.
        versions: library versions of the place where the run is to happen: ``{"transformers": "5.0"}``.

    Raises:
        UserError: a name or a value cannot be used, or nothing of what is given can be read.
    """
    question = Question.of(dialect=dialect, versions=versions or {}, **machine_options(machine))
    inputs, faults = inputs_of(config)
    project = find_project(_folder(config)) if isinstance(config, str | os.PathLike) else None
    found = machine if isinstance(machine, Machine) else None
    checker = session(question, Checking(select=select, ignore=ignore), project, model=model, machine=found)
    result = run(inputs, checker, faults).result(checker)
    if result.unusable and not result.units:
        fault = result.unusable[0]
        refuse(UserError(fault.key, **{"path": fault.path, **fault.values}))
    return result


def predict(setup: TrainingSetup | Config, machine: Place = None, *, model: str | Model | None = None) -> MemoryReport:
    """GPU memory by phase and host memory of a run, and whether it fits.

    ``report.phases`` have ``peak_allocated_bytes``, ``peak_reserved_bytes`` and ``process_used_bytes``, with
    ``low_bytes`` to ``high_bytes`` as the error band, and their ``terms``; ``report.host`` is the host's ledger;
    ``report.verdict.status`` is ``fits``, ``tight``, ``oom`` or ``unknown`` (no GPU). ``report.level`` is
    ``engine`` (the memory engine follows the run tensor by tensor, in nearly every phase to the byte of the real code
    under ``kb estimate --simulate``), or ``rough`` of a run that it does not follow in every part: the nearest that it
    does, in a wider band.

    Args:
        setup: a :class:`TrainingSetup`, or whatever :func:`lint` takes; of several runs in it the first counts.
        machine: as in :func:`lint`.
        model: as in :func:`lint`; a ``TrainingSetup`` names its own in ``model_name``.

    Raises:
        UserError: the model is not known, or a value that matters is not.
    """
    if isinstance(setup, TrainingSetup):
        catalog = _catalog()
        if trains_packed(setup):
            refuse(UserError(f"note.{QUANTIZED_ALONE[0]}"))
        estimator = Estimator(known_model(model or setup.model_name, catalog), _place(machine), catalog.constants)
        try:
            return estimator.predict(setup)
        except UnsupportedArchitectureError as fault:
            refuse(unpredictable(fault, estimator.model.name))
    units = lint(setup, machine, model=model).units
    unit = next((each for each in units if each.prediction is not None), None)
    if unit is None or unit.prediction is None:
        note = units[0].note or "no_model_named"
        refuse(UserError(f"note.{note}", **dict(units[0].note_values)))
    return unit.prediction


def recommend(
    model: str | Model,
    machine: Place = None,
    *,
    task: Literal["train", "inference"] = "train",
    method: MethodChoice = "auto",
    effective_batch: int | None = None,
    source_length: int | None = None,
    target_length: int | None = None,
    eval_batch: int | None = None,
    beams: int | None = None,
    generation_length: int | None = None,
) -> Answer:
    """The config to start from: ``answer.training.setup`` with its prediction in ``answer.training.report``.

    Args:
        model: a hub name, a folder with a ``config.json``, or a :class:`Model`.
        machine: as in :func:`lint`; it must have a GPU.
        effective_batch: samples for each optimizer step over all GPUs, held by accumulation.
        source_length: tokens of an input; ``target_length`` and ``generation_length`` of an output.

    Raises:
        UserError: the model or GPU is not known, or the batch is smaller than the number of GPUs.
    """
    catalog, place = _catalog(), _place(machine)
    if not place.gpus:
        refuse(UserError("recommend.no_gpu"))
    question = Question.of(
        method=method,
        effective_batch=effective_batch,
        source_length=source_length,
        target_length=target_length,
        eval_batch=eval_batch,
        beams=beams,
        generation_length=generation_length,
    )
    estimator = Estimator(known_model(model, catalog), place, catalog.constants)
    try:
        return answer(task, question, estimator, catalog, load_guide(None), world=len(place.gpus))
    except UserError as fault:
        refuse(fault)
    except UnsupportedArchitectureError as fault:
        refuse(unpredictable(fault, estimator.model.name))


def message(finding: Finding, language: Language = "en") -> str:
    """What a finding says, with its numbers."""
    sentence: str = _words(language).message(finding)
    return sentence


def machine_options(machine: Place) -> dict[str, Any]:
    """What names the machine, as :class:`Question` has it."""
    if isinstance(machine, Mapping):
        return {name: str(value) if name == "cpus" else value for name, value in machine.items()}
    return {} if isinstance(machine, Machine) else {"gpu": machine}


def _place(machine: Place) -> Machine:
    return machine if isinstance(machine, Machine) else session(Question.of(**machine_options(machine))).machine


def session(
    question: Question,
    checking: Checking = AS_SET,
    project: Project | None = None,
    *,
    model: str | Model | None = None,
    machine: Machine | None = None,
) -> FileChecker:
    """Rules, machine and model, made ready once. Raises: UserError: one of them cannot be used."""
    try:
        catalog = catalog_of(project)
        found = None if model is None else known_model(model, catalog)
        return file_checker(catalog, project or Project(), question, checking, model=found, machine=machine)
    except UserError as fault:
        refuse(fault)


def known_model(model: str | Model | None, catalog: Catalog) -> Model:
    """The model of a name. Raises: UserError: kb knows none."""
    if isinstance(model, Model):
        return model
    try:
        return named_model(model or "", catalog)
    except UserError as fault:
        refuse(fault)


def _folder(config: "str | os.PathLike[str]") -> str:
    path = os.fspath(config)
    return path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))


def refuse(fault: UserError) -> NoReturn:
    """Raise it with its sentence, which is then what ``str`` gives."""
    fault.sentence = worded(fault)
    raise fault


def worded(fault: UserError) -> str:
    """The fault's sentence in English."""
    return said(load_words_or_none("en"), fault.key, **fault.values)


def _catalog() -> Catalog:
    """The rules where there is no file. Raises: UserError: the settings of the working folder cannot be used."""
    try:
        return catalog_of(None)
    except UserError as fault:
        refuse(fault)


@cache
def _words(language: Language) -> Any:
    return Words(language, load_words_or_none(language), load_catalog().facts)


def findings(result: CheckResult) -> Iterable[tuple[UnitResult, Finding]]:
    """Every finding that nothing suppresses, with the run it is about."""
    return ((unit, finding) for unit in result.units for finding in unit.counted())


def inputs_of(config: Config) -> tuple[list[Input], list[Unusable]]:
    """What to check, and the paths that lead to nothing."""
    if isinstance(config, str | os.PathLike):
        found = discover([os.fspath(config)])
        faults = [Unusable(path=path, key=fault.key, values=fault.values) for path, fault in found.faults]
        return [Input(path=file.path, named=file.named) for file in found.files], faults
    return [Input(path=NAME, kind="config", raw=text_of(settings_of(config)))], []


def settings_of(config: Mapping[str, Any] | Arguments) -> dict[str, Any]:
    """The settings of a config that is no file."""
    return dict(config) if isinstance(config, Mapping) else _differing(config)


def text_of(settings: Mapping[str, Any]) -> bytes:
    """Settings as a file has them."""
    return json.dumps(settings, default=_plain, indent=2).encode("utf-8", "surrogatepass")


def _differing(arguments: Arguments) -> dict[str, Any]:
    """The settings that say something: not None, and not what their class gives by itself."""
    import dataclasses

    usual: dict[str, Any] = {}
    if dataclasses.is_dataclass(arguments):
        usual = {field.name: field.default for field in dataclasses.fields(arguments)}
    return {
        name: value
        for name, value in arguments.to_dict().items()
        if value is not None and (name in MARKS or name not in usual or _plain(usual[name]) != value)
    }


def _plain(value: Any) -> Any:
    """An enum's value; plain values as they are; anything else by its name."""
    if isinstance(value, str | int | float | None) and not hasattr(value, "value"):
        return value
    return getattr(value, "value", str(value))
