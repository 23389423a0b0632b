"""``NamedTuple`` for kb's records: a class costs a start a tenth of what :class:`typing.NamedTuple` costs.

That one takes 0.1 ms a class, and the start of a check meets a hundred: it looks at every annotation and compiles a
function. Here a class shares its parts with the others, and the function that makes a record is compiled where many
are made by name. A type checker sees :class:`typing.NamedTuple`; what asks a record for its fields, a copy, a match or
a pickle finds the same as there.
"""

import collections
from functools import cache
from types import FunctionType

from kb.core.typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    # How often a class makes records before the function for it is compiled, which takes as long as all that saves;
    # what is given by name, or left out, counts for more.
    _FEW, _BY_NAME = 1024, 16
    _new_tuple = tuple.__new__

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

            count, left = len(fields), _FEW
            usual, least = tuple(defaults.values()), len(fields) - len(defaults)  # what has a default stands last

            def new(kind: type, /, *values: Any, **named: Any) -> Any:
                nonlocal left
                given = len(values)
                if left > 0 and not named and least <= given <= count:
                    left -= 1
                    return _new_tuple(kind, values if given == count else values + usual[given - least :])
                left -= _BY_NAME
                whole = _whole(record, values, named) if left >= 0 else None
                if whole is None:
                    _compile(record)
                    return record.__new__(kind, *values, **named)
                return _new_tuple(kind, whole)

            def make(kind: type, values: Any) -> Any:
                made = _new_tuple(kind, values)
                return made if len(made) == count else _of_length(count)._make(made)  # which refuses it

            about = {"_fields": fields, "_field_defaults": defaults, "__match_args__": fields, "__slots__": ()}
            getters = dict(zip(fields, map(_getter, range(count)), strict=True))
            made = {**about, **getters, "__new__": new, "_make": classmethod(make)}
            record: Any = type(name, (tuple,), {**_SHARED, **names, **made})
            return record

    @cache
    def _getter(at: int) -> Any:
        return collections._tuplegetter(at, f"Alias for field number {at}")

    def _whole(record: Any, values: tuple[Any, ...], named: dict[str, Any]) -> list[Any] | None:
        """The values of all fields; None of what is no record of the class."""
        fields = record._fields
        given = dict(zip(fields, values, strict=False))
        whole = {**record._field_defaults, **given, **named}
        if len(given) == len(values) and len(whole) == len(fields) and named.keys().isdisjoint(given):
            try:
                return [whole[field] for field in fields]
            except KeyError:  # one is missing, and there is one of another name
                pass
        return None

    @cache
    def _of_length(count: int) -> Any:
        """A named tuple of so many fields. It takes 0.1 ms to make one; what it has serves every record of that length,
        under other names."""
        return collections.namedtuple("_Fields", [f"field_{at}" for at in range(count)])

    def _compile(record: Any) -> None:
        """Give it the function that :func:`collections.namedtuple` makes, which is faster and says what is wrong."""
        made, name = _of_length(len(record._fields)).__new__, f"{record.__name__}.__new__"
        code = made.__code__.replace(co_varnames=("_cls", *record._fields), co_qualname=name)
        record.__new__ = FunctionType(code, made.__globals__, "__new__", tuple(record._field_defaults.values()))

    def _shown(self: Any) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
        return f"{type(self).__name__}({values})"

    def _replaced(self: Any, /, **changes: Any) -> Any:
        result = self._make(map(changes.pop, self._fields, self))
        if changes:
            _of_length(0)()._replace(**changes)  # which refuses them as this Python does
        return result

    def _as_dict(self: Any) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def _plain(self: Any) -> tuple[Any, ...]:
        return tuple(self)

    _SHARED = {
        "__repr__": _shown,
        "_replace": _replaced,
        "__replace__": _replaced,
        "_asdict": _as_dict,
        "__getnewargs__": _plain,
    }

    class NamedTuple(metaclass=_Records):
        """The base of every record."""
