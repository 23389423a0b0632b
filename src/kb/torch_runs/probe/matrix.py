"""A matrix of trials and what came of each: GPUs × models × batches."""

from typing import NamedTuple

from kb.core.hardware import Gpu
from kb.torch_runs.probe.trial import Outcome, Trial


class Cell(NamedTuple):
    """One trial of the matrix. ``found`` is the GPU that ran it, where that is another than was asked for."""

    gpu: Gpu
    trial: Trial
    outcome: Outcome
    found: str | None = None


class Matrix(NamedTuple):
    """All cells in the order of the axes."""

    backend: str
    address: str
    cells: tuple[Cell, ...]
