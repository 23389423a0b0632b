"""The memory engine: a torch of shapes, in pure Python.

Tensors have a shape, a type and a storage but no numbers. Operators allocate what PyTorch's allocate, the tape keeps
what autograd keeps, and a storage gives its block back when its last holder lets go, because CPython counts references
as PyTorch does. So a model written as its modelling file in transformers reads has the lifetimes that it has there, and
every request goes through the model of the caching allocator that the simulation (level 1) uses too.

A function's docstring names the source of what it books: a file of PyTorch (ATen), transformers, PEFT or bitsandbytes.

What others ask of it is named here, and imported where it is first asked for: what is known already does without.
"""

from kb.core import late
from kb.core.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from kb.memory.engine.allocator import block_size
    from kb.memory.engine.follow import over_at_rest
    from kb.memory.engine.kept import kept_of
    from kb.memory.engine.report import follows, limits_of, phases_inside, report_of
    from kb.memory.engine.rough import phases_by_batch, rough_report

__all__ = [
    "block_size",
    "follows",
    "kept_of",
    "limits_of",
    "over_at_rest",
    "phases_by_batch",
    "phases_inside",
    "report_of",
    "rough_report",
]
_OTHERS = {  # what does not stand in `report`
    "block_size": "allocator",
    "kept_of": "kept",
    "over_at_rest": "follow",
    "phases_by_batch": "rough",
    "rough_report": "rough",
}
__getattr__ = late(__name__, {name: _OTHERS.get(name, "report") for name in __all__})
