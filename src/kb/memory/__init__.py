"""The memory model: from a model's dimensions and a run's settings to a ledger in bytes. Pure."""

from kb.memory.architecture import architecture_from_config
from kb.memory.config_fields import UnsupportedArchitectureError
from kb.memory.counts import parameter_count
from kb.memory.linear import (
    LinearModule,
    UnknownTargetsError,
    adapter_parameters,
    default_targets,
    match_targets,
    modules,
    targets_for,
)
from kb.memory.predict import is_followed, predict, surely_out_of_memory
from kb.memory.search import largest_batch, workers_that_fit

__all__ = [
    "LinearModule",
    "UnknownTargetsError",
    "UnsupportedArchitectureError",
    "adapter_parameters",
    "architecture_from_config",
    "default_targets",
    "is_followed",
    "largest_batch",
    "match_targets",
    "modules",
    "parameter_count",
    "predict",
    "surely_out_of_memory",
    "targets_for",
    "workers_that_fit",
]
