"""``NamedTuple`` for kb's records: a class costs a start a tenth of what :class:`typing.NamedTuple` costs.

That one takes 0.1 ms a class, and the start of a check meets a hundred: it looks at every annotation and compiles a
function. Here a class is made a named tuple when the first record of it is. A type checker sees
:class:`typing.NamedTuple`; what asks a record for its fields, a copy, a match or a pickle finds the same as there.
"""

import collections
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    _WAITING = ("__new__", "_make")  # what makes a record, and so a named tuple of its class first

    def _fields_of(names: dict[str, Any]) -> tuple[str, ...]:
        """The annotated names of a class body. From Python 3.14 on a function in it makes them when it is asked."""
        if "__annotations__" in names:
            return tuple(names["__annotations__"])
        made = names.get("__annotate__") or names.get("__annotate_func__")
        if made is None:
            return ()
        import annotationlib

        return tuple(annotationlib.call_annotate_function(made, annotationlib.Format.FORWARDREF))

    class _Records(type):
        """Makes a class of tuples of one whose fields are annotated; what is assigned to a field is its default."""

        def __new__(cls, name: str, bases: tuple[type, ...], names: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, names)  # NamedTuple itself
            fields = _fields_of(names)
            defaults = {field: names.pop(field) for field in fields if field in names}

            def new(kind: type, /, *values: Any, **named: Any) -> Any:
                _finish(record)
                return record.__new__(kind, *values, **named)

            def make(kind: type, values: Any) -> Any:
                _finish(record)
                return record._make.__func__(kind, values)

            about = {"_fields": fields, "_field_defaults": defaults, "__match_args__": fields, "__slots__": ()}
            record: Any = type(name, (tuple,), {**names, **about, "__new__": new, "_make": classmethod(make)})
            return record

    def _finish(record: Any) -> None:
        """Give it what :func:`collections.namedtuple` makes, but for what the class has of its own."""
        defaults = tuple(record._field_defaults.values())
        whole = collections.namedtuple(record.__name__, record._fields, defaults=defaults)
        own = vars(record)
        for name, value in vars(whole).items():
            if name in _WAITING or name not in own:
                setattr(record, name, value)

    class NamedTuple(metaclass=_Records):
        """The base of every record."""
