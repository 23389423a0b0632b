"""Level 1 of the memory model: the real model's code on fake CUDA tensors. Only its subprocess imports torch."""

from kb.simulation.entry import simulate
from kb.simulation.faults import SimulationError
from kb.simulation.result import Simulated
from kb.simulation.runner import Limits

__all__ = ["Limits", "Simulated", "SimulationError", "simulate"]
