"""What annotations name, for the modules of a check: to import ``typing`` takes a fortieth of a short one.

A type checker sees :mod:`typing` itself, and so does a program that has imported it, which may ask for the hints of
kb's records; a check needs the names alone, and the values of a ``Literal``.
"""

import sys
from types import GenericAlias

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING or "typing" in sys.modules:
    from typing import IO as IO
    from typing import Any as Any
    from typing import Literal as Literal
    from typing import NoReturn as NoReturn
    from typing import Protocol as Protocol
    from typing import TextIO as TextIO
    from typing import TypeVar as TypeVar
    from typing import cast as cast
    from typing import get_args as get_args
else:
    Any = NoReturn = TextIO = object

    class Protocol:
        """The base of what is known by its methods."""

    class Literal:
        """One of the values in brackets."""

        __class_getitem__ = classmethod(GenericAlias)

    class IO:
        """A stream of what stands in brackets."""

        __class_getitem__ = classmethod(GenericAlias)

    class TypeVar:
        """Some type."""

        def __init__(self, name, **bounds):
            pass

    def get_args(literal):
        """The values of a ``Literal``."""
        return literal.__args__

    def cast(kind, value):
        """The value."""
        return value
