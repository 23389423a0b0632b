"""The memory model: from a model's dimensions and a run's settings to a ledger in bytes. Pure.

A check that predicts nothing does without most of it: each name is imported where it is first asked for.
"""

from importlib import import_module

from kb.core.typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kb.memory.architecture import architecture_from_config
    from kb.memory.config_fields import UnsupportedArchitectureError
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
    from kb.memory.prediction import is_followed, predict, surely_out_of_memory
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
    "names_of_pattern",
    "parameter_count",
    "predict",
    "surely_out_of_memory",
    "targets_for",
    "workers_that_fit",
]
_OTHERS = {  # what does not stand in `parameters.py`
    "architecture_from_config": "architecture",
    "UnsupportedArchitectureError": "config_fields",
    "is_followed": "prediction",
    "predict": "prediction",
    "surely_out_of_memory": "prediction",
    "largest_batch": "search",
    "workers_that_fit": "search",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_OTHERS.get(name, 'parameters')}"), name)
    globals()[name] = value
    return value
