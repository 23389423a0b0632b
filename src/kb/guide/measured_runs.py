"""The measured training runs of ``rules/measurements``, each predicted again."""

from collections.abc import Iterator, Mapping
from typing import Any

from kb.advice.flags import optimizer_named, unit_of
from kb.advice.question import RunSettings
from kb.advice.setup import setup_of
from kb.core.catalog import Catalog
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory import architecture_from_config, predict

SCRIPT = "measure.py"  # fitcheck-llm's, which is no Trainer
OF_THE_BENCH = {"setup", "config"}
# settings of a measurement that a flag of kb.estimate has under another name or type
_OWN = {"padded", "lora_dropout", "optimizer", "lora_targets", "model", "phases"}


class Run(NamedTuple):
    """One measured run. Bytes; None where a figure was not taken."""

    model: str
    setup: TrainingSetup
    allocated_bytes: int | None
    predicted_allocated_bytes: int
    process_bytes: int | None
    predicted_process_bytes: int


def measured_runs(campaign: Mapping[str, Any], catalog: Catalog) -> Iterator[Run]:
    """The runs of one file that trained on a GPU; none where it measured something else, and of a campaign of whole
    setups or of commands (bench/gpu), whose hundreds of rows ``bench/accuracy.py`` scores instead."""
    gpu = catalog.gpus.get(campaign["machine"].get("gpu", ""))
    if campaign["kind"] != "gpu" or gpu is None or OF_THE_BENCH & campaign["rows"][0].keys():
        return
    by_script = SCRIPT in campaign["command"]
    for row in campaign["rows"]:
        truth = row["phases"].get("train")
        if not truth:
            continue
        config = campaign["models"][row["model"]]["architecture"]
        setup = _setup({**campaign.get("settings", {}), **row}, catalog)
        if by_script:
            setup = as_measured(setup)
        architecture = architecture_from_config(config)
        report = predict(setup, architecture, constants=catalog.constants, gpu=gpu, gpu_memory_bytes=gpu.memory_total)
        phase = report.phase("train")
        assert phase is not None  # it trains
        yield Run(
            model=row["model"],
            setup=setup,
            allocated_bytes=truth.get("allocated_bytes"),
            predicted_allocated_bytes=phase.peak_allocated_bytes,
            process_bytes=truth.get("process_bytes"),
            predicted_process_bytes=phase.process_used_bytes,
        )


def as_measured(setup: TrainingSetup) -> TrainingSetup:
    """The setup as :data:`SCRIPT` runs it: a function makes a step and keeps the model's outputs to its end. With sdpa
    it repeats grouped heads itself, for the kernel that a mask gets."""
    return setup._replace(keeps_outputs="step", padded=setup.padded or setup.attn_implementation == "sdpa")


def _setup(settings: Mapping[str, Any], catalog: Catalog) -> TrainingSetup:
    """A setup from a measurement's settings, which carry the names of kb.estimate's flags."""
    targets = settings.get("lora_targets")
    given = {name: settings[name] for name in RunSettings._fields if name in settings and name not in _OWN}
    if "generation_length" in settings:
        given["generation_length"] = settings["generation_length"]
    flags = RunSettings(
        **{"task": "train", **given},
        optimizer=optimizer_named(settings.get("optimizer")),
        lora_targets=tuple(targets) if targets else None,
    )
    unit = unit_of(flags)
    setup = setup_of(
        unit, None, facts=catalog.facts, constants=catalog.constants, gpu_count=None, versions=lambda *_: None
    )
    return setup._replace(padded=bool(settings.get("padded")), lora_dropout=float(settings.get("lora_dropout", 0)))
