"""``NamedTuple`` for kb's records: a class costs a start a tenth of what :class:`typing.NamedTuple` costs.

That one takes 0.1 ms a class, and the start of a check meets a hundred: it looks at every annotation and compiles a
function. Here a class is made a named tuple when the first record of it is, of parts that records of one length share.
A type checker sees :class:`typing.NamedTuple`; what asks a record for its fields, a copy, a match or a pickle finds
the same as there.
"""

import collections
from functools import cache
from types import FunctionType
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

    @cache
    def _of_length(count: int) -> Any:
        """A named tuple of so many fields. It takes 0.1 ms to make one; what it has serves every record of that length,
        under other names."""
        return collections.namedtuple("_Fields", [f"field_{at}" for at in range(count)])

    def _finish(record: Any) -> None:
        """Give it what :func:`collections.namedtuple` makes, but for what the class has of its own."""
        fields, like = record._fields, _of_length(len(record._fields))
        made, name = like.__new__, f"{record.__name__}.__new__"
        code = made.__code__.replace(co_varnames=("_cls", *fields), co_qualname=name)
        new = FunctionType(code, made.__globals__, "__new__", tuple(record._field_defaults.values()))
        ours = {"__new__": new, "__repr__": _shown, "_replace": _replaced, "__replace__": _replaced}
        whole, own = {name: ours.get(name, value) for name, value in vars(like).items()}, vars(record)
        for at, field in enumerate(fields):
            setattr(record, field, whole.pop(f"field_{at}"))
        for name, value in whole.items():
            if name in _WAITING or name not in own:
                setattr(record, name, value)

    def _shown(self: Any) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
        return f"{type(self).__name__}({values})"

    def _replaced(self: Any, /, **changes: Any) -> Any:
        result = self._make(map(changes.pop, self._fields, self))
        if changes:
            _of_length(0)()._replace(**changes)  # which refuses them as this Python does
        return result

    class NamedTuple(metaclass=_Records):
        """The base of every record."""
