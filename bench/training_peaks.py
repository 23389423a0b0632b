"""The training peaks that other projects publish beside what kb predicts of the same run.

    python bench/training_peaks.py

bench/published/training_peaks.jsonl holds a run a line: the address of the figure (claimed: nobody here ran it), what
was recorded (PyTorch's ``allocated`` or ``reserved``, in GiB), model and GPU by kb's ids, settings as
``RunSettings`` names them, and in ``setup`` what only ``TrainingSetup`` has. Runs whose lengths, settings or kind of
memory nobody says are not here.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import yaml
from accuracy_rows import ROOT, setup_from_flags
from truth_rows import CONFIGS

from kb.advice.question import RunSettings
from kb.config.text.parsing import LOADER
from kb.core.catalog import Catalog
from kb.core.memory_report import Phase
from kb.core.release import parse_version
from kb.core.setup import TrainingSetup
from kb.core.units import GIB
from kb.knowledge.catalog import load_catalog
from kb.memory import architecture_from_config
from kb.memory.prediction import predict
from kb.memory.releases import earlier_release

PEAKS = ROOT / "bench" / "published" / "training_peaks.jsonl"
BAND = 0.05  # of what is allocated
ROUNDED = 0.01  # GiB


class Compared(NamedTuple):
    """One run: the row, and kb's figure of what was recorded as expected value and range, in GiB."""

    row: dict[str, Any]
    said: float
    low: float
    high: float

    @property
    def off(self) -> float:
        """Predicted over recorded, less one."""
        return self.said / self.row["gib"] - 1

    @property
    def inside(self) -> bool:
        return self.low - ROUNDED <= self.row["gib"] <= self.high + ROUNDED


def compared(catalog: Catalog, lines: list[str]) -> Iterator[Compared]:
    """kb's answer for each of these lines of the file."""
    for row in map(json.loads, lines):
        known = catalog.models.get(row["model"])
        path = ROOT / "rules" / "models" / f"{row['model']}.yaml"
        config = CONFIGS[row["model"]] if known is None else yaml.load(path.read_text("utf-8"), LOADER)["architecture"]
        setup = _setup(row, str(config["model_type"]), catalog)
        report = predict(
            setup, architecture_from_config(config), constants=catalog.constants, gpu=catalog.gpus[row["gpu"]]
        )
        phase = report.phase("train")
        assert phase is not None
        yield _of(row, phase)


def _setup(row: dict[str, Any], model_type: str, catalog: Catalog) -> TrainingSetup:
    run = {**row["run"], "lora_targets": tuple(row["run"].get("lora_targets", ())) or None}
    release = row.get("transformers")
    more = {"earlier": earlier_release(model_type, parse_version(release))} if release else {}
    setup = setup_from_flags(RunSettings(task="train", **run), catalog)
    return setup._replace(
        padded=False, prediction_loss_only=True, prepare_for_kbit=False, **more, **row.get("setup", {})
    )


def _of(row: dict[str, Any], phase: Phase) -> Compared:
    """The range is of the process, with CUDA's context; of what is allocated it is the band around the value."""
    if row["recorded"] == "allocated":
        said = phase.peak_allocated_bytes / GIB
        return Compared(row, said, said * (1 - BAND), said * (1 + BAND))
    context = phase.process_used_bytes - phase.peak_reserved_bytes
    ends = ((size - context) / GIB for size in (phase.low_bytes, phase.high_bytes))
    return Compared(row, phase.peak_reserved_bytes / GIB, *ends)


def main() -> None:
    """A line for each run, and how many lie inside."""
    found = list(compared(load_catalog(), PEAKS.read_text("utf-8").splitlines()))
    for each in found:
        run = each.row["run"]
        what = f"{each.row['model']} {run['method']} {run['precision']} {run['batch']}×{run['source_length']}"
        where = "inside" if each.inside else "outside"
        print(f"{what:48} {each.row['gib']:7.2f} {each.low:6.2f}–{each.high:5.2f} {each.off:+6.1%}  {where}")
    print(f"{sum(each.inside for each in found)} of {len(found)} inside")


if __name__ == "__main__":
    main()
