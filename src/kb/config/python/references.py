"""What a name, an attribute or an entry of a Python program goes back to: through its classes, its functions, its
command line, the project's own modules and the files that it loads. Nothing is executed.
"""

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kb.config.python.arithmetic import UnknownValueError
from kb.config.python.declared import declared
from kb.config.python.forms import class_named, field_default, flag_value, is_called, is_none, pairs_of
from kb.config.python.held import Flags, Found, Held, Instance, Loaded
from kb.config.python.loads import loaded
from kb.config.python.names import Names
from kb.config.python.places import Argument, Imported, Scope, Where
from kb.config.python.syntax import dotted_name

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

MAX_STEPS = 24  # from one name to the next
_PARSES = ("parse_args", "parse_known_args", "parse_args_into_dataclasses", "parse_yaml_file", "parse_json_file")
_PARSED = ("parse_args",)
_LOADS = frozenset((
    "yaml.safe_load", "yaml.load", "yaml.full_load", "json.load", "json.loads", "OmegaConf.load", "tomllib.load",
    "toml.load", "safe_load",
))  # fmt: skip
_FROM_ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")
_FILLS = ("from_", "load", "parse", "read")  # beginnings of methods that make an object from a file
_MAKES = ("__post_init__", "__getattr", "__setattr__", "__new__")  # methods that give an object other values
_SETS_FLAGS = ("set_defaults", "namespace=", "dest=", "def parse_args(self")  # what gives a flag another value or name


END = Where((), (), 1 << 30)  # of a module, once all of it has run


class References:
    """Follows the references of one module.

    Args:
        expressions: those of the module; its ``shared`` record says what was taken for granted on the way.
        names: its names.
    """

    def __init__(self, expressions: "Expressions", names: Names) -> None:
        self._own, self._names = expressions, names

    def follow(self, node: ast.expr, at: Where, depth: int = 0) -> Found:
        """What an expression goes back to; the expression itself where it is no reference.

        Raises:
            UnknownValueError: it cannot be told.
        """
        self._own.count()
        if depth > MAX_STEPS:
            raise UnknownValueError
        if isinstance(node, ast.Name):
            return self._name(node.id, at, depth)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, at, depth)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self._entry(self.follow(node.value, at, depth + 1), node.slice.value, None, at, depth)
        if isinstance(node, ast.Call):
            return self._call(node, at, depth)
        return Held(self._own, node, at)

    def top(self, name: str, depth: int) -> Found:
        """What a name at the top of this module goes back to, for another module that imports it."""
        if self._names.is_class(name) or self._names.returned(name):
            return Held(self._own, ast.Name(name, ast.Load()), Where((), (), 0))
        return self._name(name, END, depth + 1)

    def _name(self, name: str, at: Where, depth: int) -> Found:
        scope = self._names.scope_of(name, at)
        if scope is None:
            raise UnknownValueError
        argument = self._names.argument(name, scope)
        if argument is not None:
            if len(self._names.bindings(name, scope)) == 1:
                return self._argument(name, argument, depth)
            return self._renewed(name, scope, argument)
        imported = self._names.imported(name, scope)
        if imported is not None and imported.name is not None:
            return self._other(imported).top(imported.name, depth + 1)
        unpacked = self._names.unpacked(name, scope)
        if unpacked is not None and isinstance(unpacked.value, ast.Call) and is_called(unpacked.value, _PARSES):
            return Flags(self._own)
        binding = self._names.look_up(name, at)
        if binding is None or binding.value is None:
            raise UnknownValueError
        return self.follow(binding.value, binding.where, depth + 1)

    def _other(self, imported: Imported) -> "References":
        other = self._own.other(imported)
        if other is None:
            raise UnknownValueError
        return other.references

    def _module(self, imported: Imported) -> "References | None":
        """The module that an ``import`` brings in as such: ``import config``, ``from src import config``."""
        if imported.name is not None:
            dots = "." if imported.module else ""
            imported = Imported(f"{imported.module}{dots}{imported.name}", imported.level, None)
        other = self._own.other(imported)
        return None if other is None else other.references

    def _argument(self, name: str, argument: Argument, depth: int) -> Found:
        """What the one call of a function gives; without a call in sight its default, or any object of its type."""
        if not self._names.is_called_alone(argument.function):
            raise UnknownValueError
        given = [self._given(name, argument, call) for call, _ in self._names.calls_of(argument.function)]
        if len(given) == 1 and given[0] is not None:
            ((_, at),) = self._names.calls_of(argument.function)
            return self.follow(given[0], at, depth + 1)
        if any(each is not None for each in given):
            raise UnknownValueError
        if argument.default is not None and not is_none(argument.default):
            self._own.shared.by_default = True
            return self.follow(argument.default, argument.where, depth + 1)
        kind = class_named(argument.annotation)
        if kind:
            return self._any_of(kind, argument.where)
        raise UnknownValueError

    def _renewed(self, name: str, scope: Scope, argument: Argument) -> Instance:
        """An argument that is bound anew where it is none: ``config = config or Config()``."""
        kind = class_named(argument.annotation)
        made = [binding.value for binding in self._names.bindings(name, scope)[1:]]
        calls = [each.values[-1] if isinstance(each, ast.BoolOp) else each for each in made]
        if not kind or not all(isinstance(each, ast.Call) and dotted_name(each.func) == kind for each in calls):
            raise UnknownValueError
        return self._any_of(kind, argument.where)

    def _any_of(self, kind: str, at: Where) -> Instance:
        """An object of a class as its defaults make it; of one that is filled from a file, nothing is known."""
        known = self._class(kind, at)
        if known is None or known[0]._names.has_method(known[1], _FILLS):
            raise UnknownValueError
        self._own.shared.by_default = True
        return Instance(self._own, kind, None, at)

    def _given(self, name: str, argument: Argument, call: ast.Call) -> ast.expr | None:
        """What a call gives for an argument; None where it leaves it out."""
        if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
            raise UnknownValueError
        if argument.position is not None and argument.position < len(call.args):
            return call.args[argument.position]
        return next((each.value for each in call.keywords if each.arg == name), None)

    def _attribute(self, node: ast.Attribute, at: Where, depth: int) -> Found:
        holder = node.value
        if isinstance(holder, ast.Name):
            if self._names.is_changed(holder.id, node.attr):
                raise UnknownValueError
            scope = self._names.scope_of(holder.id, at)
            imported = self._names.imported(holder.id, scope) if scope is not None else None
            module = self._module(imported) if imported is not None else None
            if module is not None:
                return module.top(node.attr, depth + 1)
            if self._names.is_class(holder.id) and not self._names.is_stored(node.attr):
                return self._field(holder.id, node.attr, depth)
        found = self.follow(holder, at, depth + 1)
        if isinstance(found, Loaded | Flags):
            return self._entry(found, node.attr, None, at, depth)
        if isinstance(found, Instance):
            return found.owner.references.attribute_of(found, node.attr, depth + 1)
        if isinstance(found.value, ast.Name) and found.owner.references._names.is_class(found.value.id):
            return found.owner.references._field(found.value.id, node.attr, depth + 1)
        raise UnknownValueError

    def _class(self, name: str, at: Where) -> "tuple[References, str] | None":
        """The module and the name of a class of the project's own."""
        if self._names.is_class(name):
            return self, name
        scope = self._names.scope_of(name, at)
        imported = self._names.imported(name, scope) if scope is not None else None
        other = self._own.other(imported) if imported is not None and imported.name is not None else None
        if other is None or imported is None or imported.name is None:
            return None
        return (other.references, imported.name) if other.references._names.is_class(imported.name) else None

    def attribute_of(self, instance: Instance, attribute: str, depth: int) -> Found:
        """What an object has under a name: what its call was given, or its class says."""
        known = self._class(instance.name, instance.at)
        if known is None:
            raise UnknownValueError
        home, name = known
        call = instance.call
        if self._names.is_stored(attribute) or home._names.has_method(name, _MAKES):
            raise UnknownValueError
        if call is not None:
            if call.args or any(each.arg is None for each in call.keywords):
                raise UnknownValueError
            given = next((each.value for each in call.keywords if each.arg == attribute), None)
            if given is not None and home._has_fields(name):
                return self.follow(given, instance.at, depth + 1)
            if given is not None and not home._names.has_method(name, ("__init__",)):
                raise UnknownValueError
        return home._field(name, attribute, depth + 1)

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

    def _entry(self, held: Found, key: Any, default: ast.expr | None, at: Where, depth: int) -> Found:
        """``held[key]``, or ``held.get(key, default)``."""
        if self._names.is_stored(key):
            raise UnknownValueError
        if isinstance(held, Flags):
            return Loaded(self._flag(held, str(key)))
        if isinstance(held, Loaded):
            if isinstance(held.data, Mapping) and key in held.data:
                return Loaded(held.data[key])
            if isinstance(held.data, list) and isinstance(key, int) and -len(held.data) <= key < len(held.data):
                return Loaded(held.data[key])
            if isinstance(held.data, Mapping) and default is not None:
                return self.follow(default, at, depth + 1)
            raise UnknownValueError
        if isinstance(held, Instance):
            raise UnknownValueError
        for name, value in pairs_of(held.value):
            if name == key:
                return held.owner.references.follow(value, held.at, depth + 1)
        if default is not None and isinstance(held.value, ast.Dict):
            return self.follow(default, at, depth + 1)
        raise UnknownValueError

    def _flag(self, flags: Flags, name: str) -> Any:
        """What a flag is where the command line does not give it."""
        text = flags.owner.text
        known = declared(text).get(name)
        if known is None or not known.can_be_told or any(each in text for each in _SETS_FLAGS):
            raise UnknownValueError
        self._own.shared.by_default = True
        return flag_value(known.text)

    def _call(self, node: ast.Call, at: Where, depth: int) -> Found:
        name = dotted_name(node.func) or ""
        if name in _FROM_ENVIRONMENT:
            self._own.shared.by_default = True
            name_of = node.args[0] if len(node.args) == 2 else None
            if not isinstance(name_of, ast.Constant) or self._names.is_stored(name_of.value):
                raise UnknownValueError
            return self.follow(node.args[1], at, depth + 1)
        if is_called(node, _PARSED) and not node.args and not node.keywords:
            return Flags(self._own)
        if name in _LOADS or name.endswith(".OmegaConf.load"):
            return Loaded(loaded(self._own, self._names, node, at))
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            key, default = node.args[0], node.args[1] if len(node.args) > 1 else ast.Constant(None)
            if isinstance(key, ast.Constant):
                return self._entry(self.follow(node.func.value, at, depth + 1), key.value, default, at, depth)
        if isinstance(node.func, ast.Name):
            if self._class(node.func.id, at) is not None:
                return Instance(self._own, node.func.id, node, at)
            return self._result(node.func.id, node, at, depth)
        return Held(self._own, node, at)

    def _result(self, function: str, node: ast.Call, at: Where, depth: int) -> Found:
        """What a function of the project's own returns, where it says so once."""
        returned = self._names.returned(function)
        if returned is not None and returned.value is not None:
            return self.follow(returned.value, returned.where, depth + 1)
        scope = self._names.scope_of(function, at)
        imported = self._names.imported(function, scope) if scope is not None else None
        if imported is not None and imported.name is not None:
            other = self._own.other(imported)
            if other is not None and not node.args and not node.keywords:
                return other.references._result(imported.name, node, END, depth + 1)
        return Held(self._own, node, at)
