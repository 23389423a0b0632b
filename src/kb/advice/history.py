"""A config's versions side by side: settings that matter, effective batch, predicted and measured memory. Pure.

The versions are files, or the stages of a row of ``rules/histories``, whose figures also stand beside versions that
were read elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from kb.advice.facts.memory_facts import PredictedFacts
from kb.advice.facts.unit_facts import UnitFacts
from kb.advice.run.no_prediction import why_no_prediction
from kb.core.document import Setting, Unit
from kb.core.facts import FactType
from kb.core.finding import Span
from kb.core.memory_report import MemoryReport, Phase
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.core.text import UserError

EFFECTIVE = "batch.effective"
# Shown whether they changed or not: the four of the original guide's matrix, and the step that makes up the batch.
ALWAYS = (
    "training.per_device_train_batch_size",
    "training.per_device_eval_batch_size",
    "training.gradient_accumulation_steps",
    EFFECTIVE,
    "training.dataloader_num_workers",
)
# Of the others, those that decide about memory come first.
FIRST = (
    "model.name",
    "model.torch_dtype",
    "training.bf16",
    "training.fp16",
    "training.optim",
    "training.gradient_checkpointing",
    "data.max_source_length",
    "data.max_target_length",
    "training.predict_with_generate",
    "training.generation_num_beams",
    "training.generation_max_length",
    "training.eval_accumulation_steps",
    "lora.r",
    "lora.target_modules",
    "quantization.load_in_4bit",
    "inference.batch_size",
)
# Where a run writes and what it calls itself: neither memory, nor time, nor the result depends on it.
COSMETIC = (
    "training.log",
    "training.output_dir",
    "training.overwrite_output_dir",
    "training.report_to",
    "training.run_name",
    "training.project",
    "training.trackio",
    "training.disable_tqdm",
)
NO_AMOUNTS = ("training.seed", "training.data_seed")  # numbers of which more is not more
NOWHERE = Span(1, 1, 1, 1, 0, 0)


class Measured(NamedTuple):
    """What a run of one version was seen to use, in bytes, and the words and source it was said in.

    ``gpu_said`` is the figure as written: notes say GB where a tool showed GiB, and a conversion would hide that.
    """

    gpu_bytes: int | None = None
    host_bytes: int | None = None
    gpu_said: str = ""
    host_said: str = ""
    source: str = ""


class Version(NamedTuple):
    """One version as read. ``fault`` says why there is no unit: a key of i18n and its values."""

    label: str
    path: str
    unit: Unit | None = None
    fault: tuple[str, Mapping[str, Any]] | None = None
    commit: str | None = None
    when: str | None = None
    subject: str | None = None
    measured: Measured | None = None
    claimed: Mapping[str, str] = {}  # a note's own estimates as written: of the "gpu", the "host", or both "mixed"


class Entry(NamedTuple):
    """One column of the matrix."""

    version: Version
    setup: TrainingSetup | None = None
    report: MemoryReport | None = None
    model: str | None = None  # an id of rules/models
    note: tuple[str, Mapping[str, Any]] | None = None  # why there is no prediction

    def gpu_peak(self) -> Phase | None:
        """The phase that takes the most of the GPU."""
        phases = self.report.phases if self.report else ()
        return max(phases, key=lambda phase: phase.process_used_bytes, default=None)


class Row(NamedTuple):
    """One line of the matrix: a value for each version (None: nothing says it), and how it changed.

    ``changes[i]`` is against the last version before that could be read, ``change`` from the first such to the last,
    both as a ratio (-0.4 is -40 %); None where they cannot be told. ``defaults[i]`` is true where the library's default
    stands in for what is not written; ``moved`` where not all versions that can be read have one value.
    """

    name: str
    values: tuple[Any, ...]
    changes: tuple[float | None, ...]
    change: float | None
    defaults: tuple[bool, ...]
    moved: bool


class History(NamedTuple):
    """``rows`` are the settings to show, ``same`` the other ones that matter and never changed."""

    entries: tuple[Entry, ...]
    rows: tuple[Row, ...]
    same: tuple[Row, ...]
    gpu_limit_bytes: int | None
    host_limit_bytes: int | None


Prepare = Callable[[Unit], tuple[TrainingSetup, str | None, PredictedFacts]]


def preparing(facts_of: Callable[[Unit], UnitFacts]) -> Prepare:
    """What :func:`history_of` asks of a version, from a checker's ``prepare``."""

    def prepare(unit: Unit) -> tuple[TrainingSetup, str | None, PredictedFacts]:
        facts = facts_of(unit)
        return facts.setup, facts.model.id if facts.model else None, facts.predicted

    return prepare


def history_of(versions: Sequence[Version], prepare: Prepare, facts: Mapping[str, FactType]) -> History:
    """The versions compared.

    Args:
        versions: oldest first; at least one of them can be read.
        prepare: a unit's setup, model id and predictions on the machine.
        facts: the vocabulary, for the library's defaults.
    """
    gpu_limit = host_limit = None
    entries = []
    for version in versions:
        if version.unit is None:
            entries.append(Entry(version))
            continue
        setup, model, predicted = prepare(version.unit)
        gpu_limit, host_limit = predicted.machine.gpu_limit_bytes, predicted.machine.host_memory_bytes
        note = why_no_prediction(version.unit, setup, known=model is not None) or predicted.refusal
        entries.append(Entry(version, setup, predicted.report, model, note))
    rows, same = _rows(entries, facts)
    return History(tuple(entries), rows, same, gpu_limit, host_limit)


def _rows(entries: Sequence[Entry], facts: Mapping[str, FactType]) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    written = {name for entry in entries if entry.version.unit for name in entry.version.unit.settings}
    found = sorted(name for name in written if name not in (*ALWAYS, *FIRST) and _matters(name, facts))
    others = [*(name for name in FIRST if name in written), *found]
    shown = [_row(name, entries, facts) for name in ALWAYS]
    rest = [_row(name, entries, facts) for name in others]
    first = [row for row in shown if any(value is not None for value in row.values)]
    return (*first, *(row for row in rest if row.moved)), tuple(row for row in rest if not row.moved)


def _matters(name: str, facts: Mapping[str, FactType]) -> bool:
    """An old name says again what the setting under its new name says."""
    return name in facts and facts[name].renamed is None and not name.startswith(COSMETIC)


def _row(name: str, entries: Sequence[Entry], facts: Mapping[str, FactType]) -> Row:
    known = [_value(name, entry, facts) for entry in entries]
    read = [value for (value, _), entry in zip(known, entries, strict=True) if entry.setup]
    compared = name not in NO_AMOUNTS
    steps = iter([None, *(change(before, after) if compared else None for before, after in pairwise(read))])
    return Row(
        name=name,
        values=tuple(value for value, _ in known),
        changes=tuple(next(steps) if entry.setup else None for entry in entries),
        change=change(read[0], read[-1]) if compared else None,
        defaults=tuple(default for _, default in known),
        moved=any(value != read[0] for value in read),
    )


def _value(name: str, entry: Entry, facts: Mapping[str, FactType]) -> tuple[Any, bool]:
    """The value in one version, and whether it is only the library's default."""
    unit, setup = entry.version.unit, entry.setup
    if unit is None or setup is None:
        return None, False
    if name == EFFECTIVE:
        return (setup.effective_batch_size if setup.do_train else None), False
    setting = unit.settings.get(name)
    if setting is not None and setting.value is not None:
        return setting.value, False
    default = facts[name].default
    return default, default is not None


def change(before: Any, after: Any) -> float | None:
    """``after`` against ``before`` as a ratio; None where either is no number, or the first is zero."""
    numbers = [value for value in (before, after) if isinstance(value, int | float) and not isinstance(value, bool)]
    return None if len(numbers) < 2 or not before else (after - before) / abs(before)


def held_against(measured_bytes: int, low_bytes: int, high_bytes: int) -> Literal["inside", "below", "above"]:
    """Where a measurement lies against a predicted range."""
    if measured_bytes < low_bytes:
        return "below"
    return "above" if measured_bytes > high_bytes else "inside"


def unit_of(path: str, settings: Mapping[str, Any]) -> Unit:
    """A unit from settings by canonical name that no file holds: a document's of the original guide, a preset's."""
    made = {name: Setting(value, NOWHERE, NOWHERE, (name,)) for name, value in settings.items()}
    return Unit(path=path, section=None, dialect="team", settings=made, span=NOWHERE)


def distinct(versions: Sequence[Version]) -> tuple[list[Version], int]:
    """The versions whose settings are others than those before, or that cannot be read; and how many were left out."""
    kept: list[Version] = []
    last: dict[str, Any] | None = None
    for version in versions:
        settings = _settings(version)
        if settings is None or settings != last:
            kept.append(version)
        last = last if settings is None else settings
    return kept, len(versions) - len(kept)


def _settings(version: Version) -> dict[str, Any] | None:
    if version.unit is None:
        return None
    return {name: setting.value for name, setting in version.unit.settings.items() if not name.startswith(COSMETIC)}


BYTES = {"GB": 10**9, "MB": 10**6}
SHORTEST_COMMIT = 7
# What a config says to be of a method; the row names the method alone.
METHODS: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "lora": {"lora.enabled": True},
    "qlora": {"lora.enabled": True, "quantization.load_in_4bit": True},
}


def noted_versions(row: Mapping[str, Any], language: str) -> list[Version]:
    """Every stage of a note's history, in its order, with the note's own estimates and measurements.

    Args:
        language: of the labels.
    """
    shared = {**METHODS.get(row.get("method", ""), {}), **({"model.name": row["model"]} if "model" in row else {})}
    for told in ("unsaid", "code"):  # what the config says beside the note, then what the code does whatever it says
        shared |= {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in row.get(told, {}).get("settings", {}).items()
        }
    versions = []
    for stage in row["stages"]:
        settings = {name: entry["value"] for name, entry in stage["settings"].items()}
        event = stage["event"]
        versions.append(
            Version(
                label=event.get("commit") or stage["title"][language],
                path=row["config"]["path"],
                unit=unit_of(row["id"], {**shared, **settings}),
                commit=event.get("commit"),
                when=event["time"],
                subject=stage["title"][language],
                measured=_measured(stage, row),
                claimed=_claimed(stage, row),
            )
        )
    return versions


def with_notes(versions: Sequence[Version], rows: Mapping[str, Any]) -> list[Version]:
    """The versions, those whose commit a note tells of with that note's estimates and measurements."""
    noted = [(stage, row) for row in rows.values() for stage in row["stages"] if "commit" in stage["event"]]
    return [_noted(version, noted) for version in versions]


def _noted(version: Version, noted: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Version:
    name = version.commit or version.label
    for stage, row in noted:
        commit = stage["event"]["commit"]
        if len(name) >= SHORTEST_COMMIT and (name.startswith(commit) or commit.startswith(name)):
            measured = version.measured or _measured(stage, row)
            return version._replace(measured=measured, claimed=_claimed(stage, row))
    return version


def _measured(stage: Mapping[str, Any], row: Mapping[str, Any]) -> Measured | None:
    found = stage.get("measured", {})
    gpu, host = found.get("gpu_memory"), found.get("host_memory")
    if gpu is None and host is None:
        return None
    return Measured(_bytes(gpu), _bytes(host), _said(gpu), _said(host), (gpu or host or {}).get("source", ""))


def _claimed(stage: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, str]:
    claimed = {}
    for name, ledger in row["ledgers"].items():
        total = next((term for term in ledger["terms"] if term["id"] == "total"), None)
        if total is not None and stage["id"] in total["values"]:
            claimed[name] = _said({**total, "value": total["values"][stage["id"]]})
    if "memory" in stage.get("predicted", {}):
        claimed["mixed"] = _said(stage["predicted"]["memory"])
    return claimed


def _bytes(quantity: Mapping[str, Any] | None) -> int | None:
    return None if quantity is None else round(quantity["value"] * BYTES[quantity["unit"]])


def _said(quantity: Mapping[str, Any] | None) -> str:
    """The figure as the note writes it: ``~40 GB``."""
    if quantity is None:
        return ""
    return f"{'~' if quantity.get('approximate') else ''}{quantity['value']:g} {quantity['unit']}"


def with_measured(versions: Sequence[Version], found: Mapping[str, Measured]) -> list[Version]:
    """The versions with the user's own measurements, which win over a note's.

    Raises:
        UserError: a name is that of no version.
    """
    left = dict(found)
    made = []
    for version in versions:
        name = next((name for name in left if _names(version, name)), None)
        made.append(version if name is None else version._replace(measured=left.pop(name)))
    if left:
        labels = ", ".join(version.label for version in versions)
        raise UserError("history.measured_unknown", name=next(iter(left)), known=labels)
    return made


def _names(version: Version, name: str) -> bool:
    if name in (version.label, version.path, version.path.replace("\\", "/").rpartition("/")[2]):
        return True
    return bool(version.commit and len(name) >= 4 and version.commit.startswith(name))
