"""Objects of a program's own classes: what an attribute of one goes back to."""

import ast
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kb.config.python.arithmetic import UnknownValueError
from kb.config.python.forms import field_default
from kb.config.python.held import Caller, Found, Instance, Loaded
from kb.config.python.names import Names
from kb.config.python.places import END, MAX_STEPS, Where

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions
    from kb.config.python.references import References

_MAKES = ("__post_init__", "__getattr", "__setattr__", "__new__")  # methods that give an object other values


class Objects:
    """The part of :class:`References` that follows the attributes of objects."""

    _own: "Expressions"
    _names: Names

    follow: Callable[..., Found]  # of References, as is the next
    _class: "Callable[[str, Where], tuple[References, str] | None]"

    def attribute_of(self, instance: Instance, attribute: str, depth: int) -> Found:
        """What an object has under a name: what its call was given, or its class says."""
        known = self._class(instance.name, instance.at)
        if known is None:
            raise UnknownValueError
        home, name = known
        call = instance.call
        if self._own.shared.is_stored(attribute) or home._names.has_method(name, _MAKES):
            raise UnknownValueError
        if call is not None:
            started = home._names.has_method(name, ("__init__",))
            if call.args and not started:
                raise UnknownValueError
            given = next((each.value for each in call.keywords if each.arg == attribute), None)
            for more in (each.value for each in call.keywords if each.arg is None):  # Config(**loaded["training"])
                if given is not None or not home._has_fields(name):
                    raise UnknownValueError
                found = instance.owner.references._held_in(more, attribute, instance.at, depth)
                if found is not None:
                    return found
            if given is not None and home._has_fields(name):
                return self.follow(given, instance.at, depth + 1)
            if given is not None and not started:
                raise UnknownValueError
            if started and home is not self:
                instance.owner.shared.called(home._own.path, name, Caller(instance.owner, call, instance.at))
        return home._field(name, attribute, depth + 1)

    def _held_in(self, mapping: ast.expr, key: str, at: Where, depth: int) -> Found | None:
        """``mapping[key]`` of something that a file says; None where it has no such key."""
        held = self.follow(mapping, at, depth + 1)
        if not isinstance(held, Loaded) or not isinstance(held.data, Mapping) or self._own.shared.is_stored(key):
            raise UnknownValueError
        return held.entry(key) if held.has(key) else None

    def _has_fields(self, name: str) -> bool:
        """Whether the arguments of a class's call are its fields, by itself or by a class that it is built on."""
        return self._names.is_dataclass(name) or any(
            known is not None and known[0]._names.is_dataclass(known[1])
            for known in (self._class(base, END) for base in self._names.bases(name))
        )

    def _field(self, class_name: str, attribute: str, depth: int) -> Found:
        """What a class, or the one that it is built on, says of an attribute."""
        names = self._names
        bases = names.bases(class_name)
        if depth > MAX_STEPS or len(bases) > 1 or names.is_changed(class_name, attribute):
            raise UnknownValueError
        if names.is_stored(attribute) or names.has_method(class_name, _MAKES):
            raise UnknownValueError
        own, binding = names.set_on_self(class_name, attribute), names.field(class_name, attribute)
        based = self._class(bases[0], END) if bases else None
        if based is not None and based[0]._sets(based[1], attribute):
            raise UnknownValueError
        if own:
            binding = own[0] if len(own) == 1 and binding is None else None
        elif binding is None and based is not None:
            return based[0]._field(based[1], attribute, depth + 1)
        if binding is None or binding.value is None:
            raise UnknownValueError
        return self.follow(field_default(binding.value), binding.where, depth + 1)

    def _sets(self, class_name: str, attribute: str) -> bool:
        """Whether methods of a class give its objects the attribute."""
        return bool(self._names.set_on_self(class_name, attribute)) or self._names.has_method(class_name, _MAKES)
