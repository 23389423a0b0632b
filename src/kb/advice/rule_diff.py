"""Two editions of the rules compared: entries added, changed or gone, version bumps that are missing; and what the
change makes of recommendations, verdicts and findings, over models × GPUs × presets. Pure.

Both editions are asked by the same code, so that only the rules can make a difference.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb.advice.check import Checker
from kb.advice.fit.estimator import Estimator, on_gpu, precision_for
from kb.advice.fit.recommend import base_setup, recommend_training
from kb.advice.fit.recommend_answer import notes_for
from kb.advice.history import METHODS, unit_of
from kb.advice.question import Question, RunSettings
from kb.core.catalog import Catalog
from kb.core.memory_report import Status
from kb.core.record import NamedTuple
from kb.core.text import LANGUAGES
from kb.memory import UnsupportedArchitectureError


class Edition(NamedTuple):
    """The rules at one time. ``entries`` maps ``kind/id`` to its version, a hash of what it means, and one of all that
    it says, prose included."""

    catalog: Catalog
    guide: Mapping[str, Any]
    entries: Mapping[str, tuple[int, str, str]]
    schemas: Mapping[str, str] = {}  # a schema's file name → a hash of its content
    contents: Mapping[str, Any] = {}  # what each entry says, by the names of ``entries``


class EntryChange(NamedTuple):
    """One entry that is not as it was; the version is None where it did not exist or does not any more."""

    name: str
    before: int | None
    after: int | None

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]


class FieldChange(NamedTuple):
    """One value of an entry that is not as it was; None where it was not, or is not any more."""

    entry: str
    field: str  # its path: ``memory_bandwidth.value``
    before: Any
    after: Any
    unit: str = ""

    @property
    def is_prose(self) -> bool:
        return self.field.rpartition(".")[2] in (*LANGUAGES, "note")


class ConstantChange(NamedTuple):
    name: str
    before: Any
    after: Any


class Entries(NamedTuple):
    """``unbumped`` mean something else under the same version, or have a lower one; ``changed`` have a higher;
    ``reworded`` say the same in other words."""

    added: tuple[EntryChange, ...]
    changed: tuple[EntryChange, ...]
    removed: tuple[EntryChange, ...]
    unbumped: tuple[EntryChange, ...]
    reworded: tuple[EntryChange, ...]
    constants: tuple[ConstantChange, ...]
    facts_added: tuple[str, ...]
    facts_removed: tuple[str, ...]
    schemas: tuple[str, ...]  # names of schema files that differ
    errata: tuple[str, ...]  # ids of errata that are new, differ or are gone
    fields: tuple[FieldChange, ...] = ()  # figures first, prose last

    @property
    def none(self) -> bool:
        return not any(self)


def entries_of(before: Edition, after: Edition) -> Entries:
    """What differs between two editions, entry by entry."""
    old, new = before.entries, after.entries
    both = [name for name in new if name in old and old[name] != new[name]]
    raised = [name for name in both if new[name][0] > old[name][0]]
    reworded = [name for name in both if old[name][:2] == new[name][:2]]
    lowered = [name for name in both if name not in raised and name not in reworded]
    constants = before.catalog.constants.keys() | after.catalog.constants.keys()
    return Entries(
        added=tuple(EntryChange(name, None, new[name][0]) for name in sorted(new.keys() - old.keys())),
        changed=tuple(EntryChange(name, old[name][0], new[name][0]) for name in sorted(raised)),
        removed=tuple(EntryChange(name, old[name][0], None) for name in sorted(old.keys() - new.keys())),
        unbumped=tuple(EntryChange(name, old[name][0], new[name][0]) for name in sorted(lowered)),
        reworded=tuple(EntryChange(name, old[name][0], new[name][0]) for name in sorted(reworded)),
        constants=tuple(
            ConstantChange(name, before.catalog.constants.get(name), after.catalog.constants.get(name))
            for name in sorted(constants)
            if before.catalog.constants.get(name) != after.catalog.constants.get(name)
        ),
        facts_added=tuple(sorted(after.catalog.facts.keys() - before.catalog.facts.keys())),
        facts_removed=tuple(sorted(before.catalog.facts.keys() - after.catalog.facts.keys())),
        schemas=tuple(
            sorted(
                name
                for name in before.schemas.keys() | after.schemas.keys()
                if before.schemas.get(name) != after.schemas.get(name)
            )
        ),
        errata=_errata(before, after),
        fields=_fields(before.contents, after.contents, sorted(both)),
    )


def _fields(before: Mapping[str, Any], after: Mapping[str, Any], names: Sequence[str]) -> tuple[FieldChange, ...]:
    """What differs in each entry that both editions have."""
    found: list[FieldChange] = []
    for name in names:
        old, new = dict(_flat(before.get(name))), dict(_flat(after.get(name)))
        for field in dict.fromkeys((*new, *old)):
            if field != "version" and old.get(field) != new.get(field):
                beside = f"{field.rpartition('.')[0]}.unit"
                unit = str(new.get(beside, old.get(beside, "")))
                found.append(FieldChange(name, field, old.get(field), new.get(field), unit))
    return tuple(sorted(found, key=lambda change: (change.is_prose, not _is_figure(change))))


def _is_figure(change: FieldChange) -> bool:
    return any(isinstance(each, int | float) for each in (change.before, change.after))


def _flat(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its path; a list of plain values is one."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(data, list) and any(isinstance(each, dict | list) for each in data):
        for number, value in enumerate(data, 1):
            yield from _flat(value, f"{path}.{number}")
    else:
        yield path, data


def _errata(before: Edition, after: Edition) -> tuple[str, ...]:
    old, new = (
        {entry["id"]: entry for entry in edition.guide.get("errata", {}).get("errata", ())}
        for edition in (before, after)
    )
    return tuple(sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)))


def readable_by_this_code(before: Edition, after: Edition) -> Edition:
    """``before`` with the facts and constants that this code asks for and that its own rules did not have yet."""
    catalog = before.catalog._replace(
        facts={**after.catalog.facts, **before.catalog.facts},
        constants={**after.catalog.constants, **before.catalog.constants},
    )
    return before._replace(catalog=catalog)


class Recommended(NamedTuple):
    """What a training run is recommended to start from; ``way`` is a key of i18n under ``attempt.``."""

    way: str
    precision: str
    batch: int
    accumulation: int
    eval_batch: int
    inference_batch: int  # 0 where none fits


class RecommendationFlip(NamedTuple):
    """None is: nothing fits."""

    model: str
    gpu: str
    before: Recommended | None
    after: Recommended | None


class VerdictFlip(NamedTuple):
    """A row of a preset on one of its GPUs, as the note writes it: whether it fits."""

    preset: str
    lines: str
    gpu: str
    before: Status
    after: Status


class FindingFlip(NamedTuple):
    """A rule's severity on a row of a preset; None where it does not fire."""

    rule: str
    preset: str
    row: str
    gpu: str
    before: str | None
    after: str | None


class Fit(NamedTuple):
    """What is recommended on a GPU, or for a model, that is new; None: nothing fits."""

    model: str
    gpu: str
    recommended: Recommended | None


MOST_PAIRS = 200  # that are asked where a figure changed on which all of them rest
MOST_MODELS = 16  # that a new GPU is shown with


class Flips(NamedTuple):
    """``pairs`` of models and GPUs are in both editions; ``differing`` of them could differ at all; ``asked`` of these
    were: all of them, or a sample."""

    recommendations: tuple[RecommendationFlip, ...]
    verdicts: tuple[VerdictFlip, ...]
    findings: tuple[FindingFlip, ...]
    pairs: int
    differing: int
    asked: int
    preset_rows: int
    fits: tuple[Fit, ...] = ()


def flips_of(before: Edition, after: Edition) -> Flips:
    """Everything that comes out otherwise by ``after`` than by ``before``."""
    before = readable_by_this_code(before, after)
    models = sorted(before.catalog.models.keys() & after.catalog.models.keys())
    gpus = sorted(before.catalog.gpus.keys() & after.catalog.gpus.keys())
    pairs = [(model, gpu) for model in models for gpu in gpus]
    differing = [pair for pair in pairs if _may_differ(before, after, *pair)]
    asked = _sample(differing, after)
    recommendations = []
    verdicts = []
    for model, gpu in asked:
        old, new = _recommended(before, model, gpu), _recommended(after, model, gpu)
        if old != new:
            recommendations.append(RecommendationFlip(model, gpu, old, new))
        was, now = _verdicts(before, model, gpu), _verdicts(after, model, gpu)
        verdicts += [VerdictFlip(*key, gpu, was[key], now[key]) for key in now if key in was and was[key] != now[key]]
    findings, rows = _finding_flips(before, after)
    fits = _fits(before, after)
    return Flips(
        tuple(recommendations), tuple(verdicts), tuple(findings), len(pairs), len(differing), len(asked), rows, fits
    )


def _sample(pairs: list[tuple[str, str]], edition: Edition) -> list[tuple[str, str]]:
    """All pairs where they are few; else those that presets name, and others evenly spaced, as many as are soon asked:
    a pull request is shown the same ones each time."""
    if len(pairs) <= MOST_PAIRS:
        return pairs
    drawn = [pairs[at * len(pairs) // MOST_PAIRS] for at in range(MOST_PAIRS)]
    named = [pair for pair in pairs if _presets(edition, *pair)]
    return sorted({*drawn, *named})


def _fits(before: Edition, after: Edition) -> tuple[Fit, ...]:
    """A new GPU with models from the smallest to the largest, a new model on every GPU, the smallest first."""
    catalog = after.catalog
    by_size = sorted(catalog.models, key=lambda name: (catalog.models[name].parameters, name))
    gpus = sorted(catalog.gpus, key=lambda name: (catalog.gpus[name].memory_total, name))
    step = max(1, -(-len(by_size) // MOST_MODELS))
    pairs = [(model, gpu) for gpu in gpus if gpu not in before.catalog.gpus for model in by_size[::step]]
    pairs += [(model, gpu) for model in by_size if model not in before.catalog.models for gpu in gpus]
    return tuple(Fit(model, gpu, _recommended(after, model, gpu)) for model, gpu in dict.fromkeys(pairs))


def _may_differ(before: Edition, after: Edition, model: str, gpu: str) -> bool:
    """Whether anything differs that a recommendation or a verdict rests on: figures, model, GPU, presets."""
    old, new = before.catalog, after.catalog
    if old.constants != new.constants or old.models[model] != new.models[model] or old.gpus[gpu] != new.gpus[gpu]:
        return True
    return _presets(before, model, gpu) != _presets(after, model, gpu)


def _presets(edition: Edition, model: str, gpu: str) -> list[Mapping[str, Any]]:
    presets = edition.guide.get("presets", {}).values()
    return [preset for preset in presets if preset["model"] == model and gpu in preset["gpus"]]


def _estimator(edition: Edition, model: str, gpu: str) -> Estimator:
    catalog = edition.catalog
    return Estimator(catalog.models[model], on_gpu(catalog.gpus[gpu]), catalog.constants, rough=True)


def _recommended(edition: Edition, model: str, gpu: str) -> Recommended | None:
    estimator = _estimator(edition, model, gpu)
    rows = [row for preset in _presets(edition, model, gpu) for row in preset["rows"]]
    noted = next((int(row["effective_batch"]["value"]) for row in rows if "effective_batch" in row), None)
    try:
        answer = recommend_training(Question(), estimator, edition.catalog.gpus, noted=noted, all_ways=False)
    except UnsupportedArchitectureError:
        return None
    setup = answer.setup
    if setup is None or answer.chosen is None:
        return None
    return Recommended(
        way=answer.chosen.name,
        precision="bf16" if setup.bf16 else "fp16" if setup.fp16 else "fp32",
        batch=setup.per_device_train_batch_size,
        accumulation=setup.gradient_accumulation_steps,
        eval_batch=setup.per_device_eval_batch_size,
        inference_batch=setup.inference_batch_size or 0,
    )


def _verdicts(edition: Edition, model: str, gpu: str) -> dict[tuple[str, str], Status]:
    """By preset and lines of the note: whether the row fits."""
    if not _presets(edition, model, gpu):
        return {}
    estimator = _estimator(edition, model, gpu)
    precision = precision_for(estimator.gpu, estimator.model.architecture)
    notes = notes_for(edition.guide, edition.catalog, estimator, precision.of(base_setup(RunSettings(), estimator)))
    return {(row.preset, row.lines): row.status for row in notes.own}


def _finding_flips(before: Edition, after: Edition) -> tuple[list[FindingFlip], int]:
    """Over the presets of ``after``, written as configs: rules that fire in one edition only, or otherwise."""
    flips = []
    rows = 0
    alike = _mean_the_same(before, after)
    checkers: dict[tuple[int, str], Checker] = {}

    def fired(edition: Edition, gpu: str, unit: Any) -> dict[str, str]:
        key = id(edition), gpu
        if key not in checkers:
            checkers[key] = Checker(edition.catalog, on_gpu(edition.catalog.gpus[gpu]))
            checkers[key].rough = True  # hundreds of configs
        return {finding.rule: finding.severity for finding in checkers[key].check(unit).findings}

    for preset, row, gpu, settings in _preset_configs(after):
        if gpu not in before.catalog.gpus or preset["model"] not in before.catalog.models:
            continue
        rows += 1
        if alike:
            continue
        unit = unit_of(f"{preset['id']}/{row['id']}", settings)
        old, new = fired(before, gpu, unit), fired(after, gpu, unit)
        flips += [
            FindingFlip(rule, preset["id"], row["id"], gpu, old.get(rule), new.get(rule))
            for rule in sorted(old.keys() | new.keys())
            if old.get(rule) != new.get(rule)
        ]
    return flips, rows


def _mean_the_same(before: Edition, after: Edition) -> bool:
    """Whether no entry means anything else, so that every config is told the same."""

    def meaning(edition: Edition) -> tuple[Any, ...]:
        one = edition.catalog
        entries = {name: entry[:2] for name, entry in edition.entries.items()}
        return entries, one.constants, one.facts, one.events, one.rules, one.gpus, one.models

    return meaning(before) == meaning(after)


def _preset_configs(
    edition: Edition,
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], str, Mapping[str, Any]]]:
    """(preset, row, GPU, settings) for each GPU that a row is meant for; of a range the larger value."""
    for preset in edition.guide.get("presets", {}).values():
        model = edition.catalog.models.get(preset["model"])
        if model is None:
            continue
        for row in preset["rows"]:
            method = row["method"]["value"] if "method" in row else "full"
            said = {name: _one(quantity["value"]) for name, quantity in row["settings"].items()}
            settings = {"model.name": model.name, **METHODS.get(method, {}), **said}
            for gpu in preset["gpus"]:
                if gpu in edition.catalog.gpus:
                    yield preset, row, gpu, settings


def _one(value: Any) -> Any:
    return max(value) if isinstance(value, list | tuple) else value
