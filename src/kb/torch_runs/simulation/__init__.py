"""Level 1 of the memory model: the real model's code on fake CUDA tensors. Only its subprocess imports torch."""

from kb.torch_runs.simulation.entry import Limits, Simulated, simulate
from kb.torch_runs.simulation.job import SimulationError

__all__ = ["Limits", "Simulated", "SimulationError", "simulate"]
