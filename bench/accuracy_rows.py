"""Rows to judge a memory prediction by: stored traces and rules/measurements."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from edges import as_released

from kb.advice.question import RunSettings
from kb.advice.run.question_settings import optimizer_named, unit_of
from kb.advice.run.setup import setup_of
from kb.config.text.parsing import LOADER
from kb.core.catalog import Catalog
from kb.core.hardware import Gpu
from kb.core.setup import TrainingSetup
from kb.guide.accuracy import SCRIPT, as_measured
from kb.memory import UnsupportedArchitectureError, architecture_from_config

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "tests" / "data" / "traces"
TRACED_ON = (8, 6)  # compute capability of the stored traces
# By the last part of a file's name; a grid's rows name their phases themselves.
PHASES = {"training": "train", "evaluation": "evaluate", "generation": "generate"}
QUANTITIES = ("allocated", "reserved", "process")


@dataclass(frozen=True)
class Row:
    """One truth: a phase of one run. Sizes in bytes, by quantity: allocated, reserved, process.

    ``campaign`` groups rows that are not independent of one another. ``memory_bytes`` is the card's, where known;
    ``ran_out``: the run did not fit into it, and nothing else is known. ``lengths`` are those of its batches, where
    they vary; ``expandable``: PyTorch's allocator has expandable segments. ``own``: one of bench/gpu's
    hundreds, which neither level 1 nor another program is asked about.
    """

    campaign: str
    id: str
    model: str
    config: Mapping[str, Any]
    setup: TrainingSetup
    phase: str
    truth: Mapping[str, int] = field(default_factory=dict)
    gpu: Gpu | None = None
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    ran_out: bool = False
    lengths: tuple[int, ...] = ()
    expandable: bool = False
    own: bool = False
    simulated: bool = False  # the truth is a trace, not a measurement

    @property
    def family(self) -> str:
        """The architecture's family, and the model's own type beside it."""
        return f"{architecture_from_config(self.config).family}/{self.config['model_type']}"


@dataclass(frozen=True)
class Left:
    """A row that nothing can be predicted for, and why."""

    campaign: str
    id: str
    reason: str


def stored_traces() -> list[Row]:
    """Every row of tests/data/traces, made by a simulator; a grid's row is one for each of its phases."""
    rows: list[Row] = []
    for path in sorted(TRACES.glob("*.json")):
        document = json.loads(path.read_text("utf-8"))
        for number, row in enumerate(document["rows"]):
            config = document["models"][row["model"]]
            phases = row.get("phases") or {PHASES[path.stem.rpartition("_")[2]]: [row["allocated"], row["reserved"]]}
            for phase, (allocated, reserved) in phases.items():
                rows.append(
                    Row(
                        campaign=path.stem,
                        id=f"{path.stem}-{number}-{phase}",
                        model=row["model"],
                        config=config,
                        setup=as_released(row["setup"], config, document["software"]["transformers"]),
                        phase=phase,
                        truth={"allocated": allocated, "reserved": reserved},
                        capability=TRACED_ON,
                        simulated=True,
                    )
                )
    return rows


def measured(catalog: Catalog) -> Iterator[Row]:
    """The GPU campaigns of rules/measurements, but for those of commands (``accuracy_commands``)."""
    for path in sorted((ROOT / "rules" / "measurements").glob("*.yaml")):
        document = yaml.load(path.read_text("utf-8"), LOADER)
        if document.get("kind") != "gpu" or "config" in document["rows"][0]:
            continue
        if "setup" in document["rows"][0]:
            yield from _whole_runs(document, catalog)
            continue
        gpu, by_script = catalog.gpus.get(document["machine"].get("gpu", "")), SCRIPT in document["command"]
        for number, row in enumerate(document["rows"]):
            model = document["models"][row["model"]]
            setup = _setup_from({**document.get("settings", {}), **row}, catalog)
            if by_script:
                setup = as_measured(setup)
            name = f"{document['id']} {setup.method}"
            for phase in ("load", "train", "evaluate", "generate"):
                found = row["phases"].get(phase, {})
                truth = {kind: found[f"{kind}_bytes"] for kind in QUANTITIES if f"{kind}_bytes" in found}
                if truth:
                    yield Row(
                        campaign=name if phase == "train" else f"{name}, {phase}",
                        id=f"{document['id']}-{number}-{phase}",
                        model=row["model"],
                        config=model["architecture"],
                        setup=setup,
                        phase=phase,
                        truth=truth,
                        gpu=gpu,
                        memory_bytes=gpu.memory_total if gpu else None,
                    )


def _whole_runs(document: Mapping[str, Any], catalog: Catalog) -> Iterator[Row]:
    """The phases of a campaign whose rows are whole setups (bench/gpu), but for loading: what was read is what lives
    when it is over."""
    gpu = catalog.gpus[document["machine"]["gpu"]]
    for number, row in enumerate(document["rows"]):
        if "limit_bytes" in row:  # what it took is not what it would take; bench/edges.py looks at these
            continue
        config = document["models"][row["model"]]["architecture"]
        setup = as_released(row["setup"], config, document["stack"]["transformers"])
        lengths, expandable = tuple(row.get("lengths", ())), row.get("expandable_segments", False)
        for phase in ("train", "evaluate", "generate"):
            found = row["phases"].get(phase, {})
            truth = {kind: found[f"{kind}_bytes"] for kind in QUANTITIES if f"{kind}_bytes" in found}
            kind = phase + (", varied lengths" if lengths else "") + (", expandable segments" if expandable else "")
            if truth:
                yield Row(
                    campaign=f"{document['id']}, {kind}",
                    id=f"{document['id']}-{number}-{phase}",
                    model=row["model"],
                    config=config,
                    setup=setup,
                    phase=phase,
                    truth=truth,
                    gpu=gpu,
                    memory_bytes=gpu.memory_total,
                    lengths=lengths,
                    expandable=expandable,
                    own=True,
                )


def _setup_from(settings: Mapping[str, Any], catalog: Catalog) -> TrainingSetup:
    """A setup from a measurement's settings, which carry the names of kb.estimate's flags."""
    targets = settings.get("lora_targets")
    flags = RunSettings(
        task=settings.get("task", "train"),
        method=settings.get("method"),
        precision=settings.get("precision"),
        optimizer=optimizer_named(settings.get("optimizer")),
        batch=settings.get("batch"),
        source_length=settings.get("source_length"),
        target_length=settings.get("target_length"),
        accumulation=settings.get("accumulation"),
        gradient_checkpointing=bool(settings.get("gradient_checkpointing")),
        reentrant=bool(settings.get("reentrant")),
        attention=settings.get("attention"),
        lora_rank=settings.get("lora_rank"),
        lora_targets=tuple(targets) if targets else None,
        double_quant=bool(settings.get("double_quant")),
        eval_batch=settings.get("eval_batch"),
        beams=settings.get("beams"),
        generation_length=settings.get("generation_length"),
    )
    setup = setup_from_flags(flags, catalog)
    return setup._replace(padded=bool(settings.get("padded")), lora_dropout=float(settings.get("lora_dropout", 0)))


def setup_from_flags(flags: RunSettings, catalog: Catalog) -> TrainingSetup:
    def unknown(library: str, since: str | None = None) -> None:
        return None

    unit = unit_of(flags)
    return setup_of(unit, None, facts=catalog.facts, constants=catalog.constants, gpu_count=None, versions=unknown)


def is_known(config: Mapping[str, Any]) -> bool:
    """Whether kb knows how the model is built."""
    try:
        architecture_from_config(config)
    except UnsupportedArchitectureError:
        return False
    return True
