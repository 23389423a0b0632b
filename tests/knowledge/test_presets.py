"""rules/presets: each row's numbers hold together, and the memory model predicts it on each of its GPUs.

A row that cannot be as the note has it (predicted out of memory where the note recommends it, or the other way round)
must name an erratum, and a setting beyond the note with which it fits must do so.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from catalog_sample import load_catalog, load_guide
from kb.advice.fit.recommend import together
from kb.advice.run.setup import setup_of
from kb.core.document import Setting, Unit
from kb.core.finding import Span
from kb.core.hardware import Gpu
from kb.core.memory_report import STATUSES
from kb.memory import predict

CATALOG = load_catalog()
GUIDE = load_guide()
PRESETS: dict[str, Any] = dict(GUIDE["presets"])
NOWHERE = Span(1, 1, 1, 1)


def rows() -> Iterator[tuple[str, Any, Any]]:
    for name, preset in PRESETS.items():
        for row in preset["rows"]:
            yield f"{name}-{row['id']}", preset, row


each_row = pytest.mark.parametrize(
    ("preset", "row"), [pytest.param(preset, row, id=name) for name, preset, row in rows()]
)
on_each_gpu = pytest.mark.parametrize(
    ("preset", "row", "gpu"),
    [pytest.param(preset, row, gpu, id=f"{name}-on-{gpu}") for name, preset, row in rows() for gpu in preset["gpus"]],
)


def written(row: Any) -> dict[str, Any]:
    """What the row sets and what is assumed to read it; of a range the upper end."""
    values = {name: quantity["value"] for key in ("assumes", "settings") for name, quantity in row.get(key, {}).items()}
    if row.get("method", {}).get("value", "full") != "full":
        values |= {"lora.enabled": True, "quantization.load_in_4bit": row["method"]["value"] == "qlora"}
    return {name: max(value) if isinstance(value, list) else value for name, value in values.items()}


def status(preset: Any, row: Any, gpu: Gpu, beyond: Mapping[str, Any]) -> str:
    """``fits``, ``tight`` or ``oom``: the worse of the training run and the inference run, everything else default."""
    values = written(row) | beyond
    training = {name: value for name, value in values.items() if not name.startswith("inference.")}
    inference = {name: value for name, value in values.items() if not name.startswith("training.")}
    found = []
    if any(name.startswith("training.") for name in row["settings"]):
        found.append(verdict(preset, {"training.do_eval": True, **training}, gpu, 1))
    if "inference.batch_size" in row["settings"]:
        found.append(verdict(preset, inference, gpu, row["copies"]["value"] if "copies" in row else 1))
    worst = max(found, key=STATUSES.index)
    return "tight" if worst == "likely_oom" else worst


def verdict(preset: Any, values: Mapping[str, Any], gpu: Gpu, copies: int) -> str:
    model = CATALOG.models[preset["model"]]
    settings = {
        name: Setting(value, NOWHERE, NOWHERE, ()) for name, value in {"model.name": model.name, **values}.items()
    }
    unit = Unit(path="", section=None, dialect=None, settings=settings, span=NOWHERE)
    setup = setup_of(
        unit, model, facts=CATALOG.facts, constants=CATALOG.constants, gpu_count=1, versions=lambda *_: None
    )
    report = predict(setup, model.architecture, constants=CATALOG.constants, gpu=gpu)
    if copies == 1:
        return report.verdict.status
    phases = [together(phase, copies, CATALOG.constants) for phase in report.phases]
    if max(phase.low_bytes for phase in phases) > gpu.memory_total:
        return "oom"
    usable = gpu.memory_total * CATALOG.constants["usable_memory_ratio"]
    return "tight" if max(phase.high_bytes for phase in phases) > usable else "fits"


def test_the_notes_tables_are_whole() -> None:
    """6 groups of the first note, 7 rows of the second, 4 batches and the small GPUs of the third, 1 of the fourth."""
    by_source: dict[str, int] = {}
    for _, _, row in rows():
        by_source[row["source"]] = by_source.get(row["source"], 0) + 1
    assert by_source == {"guide-batch-by-gpu": 6, "guide-memory": 7, "guide-batch-inference": 5, "history-mt5-qlora": 1}


@pytest.mark.parametrize(
    ("preset", "numbers"),
    [
        ("v100-16gb-mt5-xlsum", (1, 2, 4, 2)),
        ("v100-16gb-eenzeenee", (4, 4, 2, 8)),
        ("a100-40gb-mt5-xlsum", (4, 8, 2, 8)),
        ("a100-40gb-eenzeenee", (8, 8, 2, 16)),
        ("rtx-3080-4090-mt5-xlsum", (1, 1, 8, 1)),
    ],
)
def test_the_first_notes_numbers(preset: str, numbers: tuple[int, ...]) -> None:
    """S1: training, evaluation, accumulation, inference."""
    row = PRESETS[preset]["rows"][0]
    assert tuple(quantity["value"] for quantity in row["settings"].values()) == numbers


def test_t5_large_on_an_rtx_3090() -> None:
    """S1: 12 / 16, 16 workers, about 18 GB."""
    row = PRESETS["rtx-3090-t5-large"]["rows"][0]
    assert [quantity["value"] for quantity in row["settings"].values()] == [12, 16, 16]
    assert (row["memory"]["value"], row["memory"]["unit"], row["memory"]["bound"]) == (18, "GB", "about")


@each_row
def test_names_are_those_of_the_catalog(preset: Any, row: Any) -> None:
    assert preset["model"] in CATALOG.models
    assert [gpu for gpu in preset["gpus"] if gpu not in CATALOG.gpus] == []
    named = {name for key in ("settings", "assumes", "missing", "fits_with") for name in row.get(key, {})}
    assert [name for name in named if name not in CATALOG.facts or not CATALOG.facts[name].setting] == []
    ids = [other["id"] for other in preset["rows"]]
    assert len(ids) == len(set(ids))


@each_row
def test_the_effective_batch_is_batch_times_accumulation(preset: Any, row: Any) -> None:
    if "effective_batch" in row:
        batch = row["settings"]["training.per_device_train_batch_size"]["value"]
        assert (
            row["effective_batch"]["value"] == batch * row["settings"]["training.gradient_accumulation_steps"]["value"]
        )


def known_errata() -> set[str]:
    return {entry["id"] for entry in GUIDE["errata"].get("errata", [])}


@on_each_gpu
def test_a_row_that_cannot_be_as_written_names_an_erratum(preset: Any, row: Any, gpu: str) -> None:
    found = status(preset, row, CATALOG.gpus[gpu], {})
    said = row.get("outcome", "fits")
    if (found == "oom") != (said == "oom"):
        assert "erratum" in row, f"{found} by prediction, {said} by the note"


@each_row
def test_the_erratum_that_a_row_names_exists(preset: Any, row: Any) -> None:
    if "erratum" in row:
        assert row["erratum"] in known_errata()


@on_each_gpu
def test_a_row_fits_with_what_it_is_said_to_need(preset: Any, row: Any, gpu: str) -> None:
    if "fits_with" in row:
        assert status(preset, row, CATALOG.gpus[gpu], row["fits_with"]) != "oom"


@each_row
def test_only_a_row_that_does_not_fit_says_what_it_needs(preset: Any, row: Any) -> None:
    if "fits_with" in row:
        assert "oom" in {status(preset, row, CATALOG.gpus[gpu], {}) for gpu in preset["gpus"]}
