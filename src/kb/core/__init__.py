"""The pure floor: units, expressions, facts, findings. Standard library only; no I/O, no clock, no printing."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from kb.core.typed import Any


def late(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose names are imported where they are first asked for (PEP 562).

    A type checker reads the imports themselves, which stand beside it under ``TYPE_CHECKING``.

    Args:
        modules: the module in the package that each name stands in.
    """

    def found(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return found
