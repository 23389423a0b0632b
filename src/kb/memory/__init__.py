"""The memory model: from a model's dimensions and a run's settings to a ledger in bytes. Pure.

A check that predicts nothing does without most of it: each name is imported where it is first asked for.
"""

from kb.core import late
from kb.core.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from kb.memory.architecture import architecture_from_config
    from kb.memory.architecture.decoder import MIXTURES
    from kb.memory.config_fields import UnsupportedArchitectureError
    from kb.memory.engine.nearest import not_near
    from kb.memory.engine.report import reserved_by_lengths, why_not
    from kb.memory.parameters import (
        LinearModule,
        UnknownTargetsError,
        adapter_parameters,
        default_targets,
        match_targets,
        modules,
        names_of_pattern,
        parameter_count,
        targets_for,
    )
    from kb.memory.picture_tiles import tiles_of
    from kb.memory.prediction import is_followed, predict, surely_out_of_memory
    from kb.memory.search import largest_batch, workers_that_fit
    from kb.memory.throughput import throughput_of

__all__ = [
    "MIXTURES",
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
    "names_of_pattern",
    "not_near",
    "parameter_count",
    "predict",
    "reserved_by_lengths",
    "surely_out_of_memory",
    "targets_for",
    "throughput_of",
    "tiles_of",
    "why_not",
    "workers_that_fit",
]
_OTHERS = {  # what does not stand in `parameters`
    "architecture_from_config": "architecture",
    "MIXTURES": "architecture.decoder",
    "UnsupportedArchitectureError": "config_fields",
    "not_near": "engine.nearest",
    "reserved_by_lengths": "engine.report",
    "why_not": "engine.report",
    "is_followed": "prediction",
    "predict": "prediction",
    "surely_out_of_memory": "prediction",
    "largest_batch": "search",
    "workers_that_fit": "search",
    "throughput_of": "throughput",
    "tiles_of": "picture_tiles",
}
__getattr__ = late(__name__, {name: _OTHERS.get(name, "parameters") for name in __all__})
