"""What a name, an attribute or an entry of a Python program goes back to: through its classes, its functions, its
command line, the project's own modules and the files that it loads. Nothing is executed.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kb.config.python.held import Caller, Flags, Found, FromOutsideError, Held, Instance, Loaded, UnknownValueError
from kb.config.python.names import Names
from kb.config.python.outside import is_command_line, is_fired, loaded, of_flag, of_launcher
from kb.config.python.places import END, MAX_STEPS, Argument, Imported, Made, Scope, Where
from kb.config.python.syntax import called_name, dotted_name, inside_self

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions


_MAKES = ("__post_init__", "__getattr", "__setattr__", "__new__")  # methods that give an object other values
_FIELDS = ("field", "Field")  # of dataclasses, of pydantic
_PARSES = ("parse_args", "parse_known_args", "parse_args_into_dataclasses", "parse_yaml_file", "parse_json_file")
_PARSED = ("parse_args", "parse_args_into_dataclasses")
_LOADS = frozenset((
    "yaml.safe_load", "yaml.load", "yaml.full_load", "json.load", "json.loads", "OmegaConf.load", "tomllib.load",
    "toml.load", "safe_load",
))  # fmt: skip
# The same, as another class, or the folder that a model was downloaded to.
_HANDS_BACK = ("OmegaConf.to_container", "OmegaConf.to_object", "OmegaConf.create", "snapshot_download")
_FROM_ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")
_FILLS = ("from_", "load", "parse", "read")  # beginnings of methods that make an object from a file


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
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            return self._entry(self.follow(node.value, at, depth + 1), self._key(node, at, depth), None, at, depth)
        if isinstance(node, ast.Call):
            return self._call(node, at, depth)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and len(node.values) == 2:
            first = self.follow(node.values[0], at, depth + 1)  # yaml.safe_load(file) or {}, config or Config()
            if isinstance(first, Instance) or (isinstance(first, Loaded) and first.data):
                return first
            if isinstance(first, Held) and _is_none(first.value):
                return self.follow(node.values[1], at, depth + 1)
        return Held(self._own, node, at)

    def _key(self, node: ast.Subscript, at: Where, depth: int) -> Any:
        """What stands in the brackets: a text, a number, or what is known to be one: ``MODELS[args.model]``."""
        if isinstance(node.slice, ast.Constant):
            return node.slice.value
        key = self._own.read(node.slice, at, depth + 1).data
        if type(key) not in (str, int):
            raise UnknownValueError
        return key

    def top(self, name: str, depth: int) -> Found:
        """What a name at the top of this module goes back to, for another module that imports it."""
        if self._names.is_class(name) or self._names.returned(name):
            return Held(self._own, ast.Name(name, ast.Load()), Where((), (), 0))
        return self._name(name, END, depth + 1)

    def _name(self, name: str, at: Where, depth: int) -> Found:
        scope = self._names.scope_of(name, at)
        if scope is None:
            raise UnknownValueError
        argument = self._names.arguments.get((scope, name))
        if name == "self":
            return self._object(scope)
        if argument is not None:
            bound = self._own.bound(name, at)
            if bound is not None and bound.where == argument.where:
                return self._argument(name, argument, scope, at, depth)
            if bound is None:
                return self._renewed(name, scope, argument)
        imported = self._names.imported.get((scope, name))
        if imported is not None and imported.name is not None and len(self._names.bindings(name, scope)) == 1:
            home = self._own.brought(imported)
            if home is None:
                raise UnknownValueError
            return home[0].references.top(home[1], depth + 1)
        unpacked = self._names.unpacked.get((scope, name))
        if unpacked is not None and isinstance(unpacked.value, ast.Call) and called_name(unpacked.value) in _PARSES:
            return self._flags(unpacked.value, unpacked.where.told(at), depth)
        if unpacked is not None and unpacked.value is not None and len(self._names.bindings(name, scope)) == 1:
            return self._part(unpacked.value, self._names.unpacked_at[scope, name], unpacked.where.told(at), depth)
        binding = self._own.bound(name, at)
        if binding is None or binding.value is None:
            raise UnknownValueError
        return self.follow(binding.value, binding.where.told(at), depth + 1)

    def _part(self, call: ast.expr, number: int, at: Where, depth: int) -> Found:
        """One of the results of ``model, lora, data = make(…)``."""
        found = self.follow(call, at, depth + 1)
        if not isinstance(found, Held) or not isinstance(found.value, ast.Tuple) or number >= len(found.value.elts):
            raise UnknownValueError
        return found.owner.references.follow(found.value.elts[number], found.at, depth + 1)

    def _object(self, scope: Scope) -> Instance:
        """The object whose method this is, where the program makes one of its class."""
        kind = self._names.class_around(scope)
        made = self.calls_of(kind) if kind is not None else []
        if len(made) != 1 or not isinstance(made[0].node.func, ast.Name):
            raise UnknownValueError
        return Instance(made[0].owner, made[0].node.func.id, made[0].node, made[0].at)

    def calls_of(self, function: str) -> list[Caller]:
        """The calls of what this module defines, by itself and by the modules of the program that bring it in.

        Raises:
            UnknownValueError: code holds it but to call it, or it is defined more than once.
        """
        if not self._names.is_called_alone(function):
            raise UnknownValueError
        made = [*self._names.calls_of.get(function, ()), *self._names.handed_on.get(function, ())]
        own = [Caller(self._own, node, at) for node, at in made]
        return [*own, *self._own.shared.callers.get((self._own.path, function), ())]

    def _module(self, imported: Imported) -> "References | None":
        """The module that an ``import`` brings in as such: ``import config``, ``from src import config``."""
        if imported.name is not None:
            dots = "." if imported.module else ""
            imported = Imported(f"{imported.module}{dots}{imported.name}", imported.level, None)
        other = self._own.other(imported)
        return None if other is None else other.references

    def _argument(self, name: str, argument: Argument, scope: Scope, at: Where, depth: int) -> Found:
        """What the one call of a function gives; without a call in sight its default, or any object of its type."""
        if self._own.shared.command is not None and is_fired(self._own, argument.function):
            return of_flag(self._own, Flags(self._own), name)
        by_this = at.made is not None and at.made.scope == scope
        calls = [Caller(*at.made[1:])] if by_this and at.made is not None else self.calls_of(argument.function)
        given = [self.given(name, argument, call.node) for call in calls]
        if given and given[0] is not None and self._agree(calls, given, depth):
            return calls[0].owner.references.follow(given[0], calls[0].at, depth + 1)
        if any(each is not None for each in given):
            raise UnknownValueError
        if argument.default is not None and (calls or not _is_none(argument.default)):
            self._own.shared.by_default |= not calls
            return self.follow(argument.default, argument.where, depth + 1)
        if calls:
            raise UnknownValueError
        kind = _class_named(argument.annotation)
        if kind:
            return self._any_of(kind, argument.where)
        raise FromOutsideError

    def _agree(self, calls: Sequence[Caller], given: Sequence[ast.expr | None], depth: int) -> bool:
        """Whether all calls of a function give an argument the same value: one for the rows that train, one for those
        that evaluate."""
        if len(given) == 1:
            return True
        values = [
            call.owner.read(each, call.at, depth + 1).data
            for call, each in zip(calls, given, strict=True)
            if each is not None
        ]
        return len(values) == len(calls) and all(type(x) is type(values[0]) and x == values[0] for x in values)

    def _renewed(self, name: str, scope: Scope, argument: Argument) -> Instance:
        """An argument that is bound anew where it is none: ``config = config or Config()``."""
        kind = _class_named(argument.annotation)
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

    def given(self, name: str, argument: Argument, call: ast.Call) -> ast.expr | None:
        """What a call gives for an argument; None where it leaves it out."""
        if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
            raise UnknownValueError
        if argument.position is not None and argument.position < len(call.args):
            return call.args[argument.position]
        return next((each.value for each in call.keywords if each.arg == name), None)

    def _attribute(self, node: ast.Attribute, at: Where, depth: int) -> Found:
        holder = node.value
        if isinstance(holder, ast.Name) and holder.id != "self":  # what methods give it, its class knows
            if self._names.is_changed(holder.id, node.attr):
                raise UnknownValueError
            scope = self._names.scope_of(holder.id, at)
            imported = self._names.imported.get((scope, holder.id)) if scope is not None else None
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

    def attribute_of(self, instance: Instance, attribute: str, depth: int) -> Found:
        """What an object has under a name: what its call was given, or its class says."""
        known = self._class(instance.name, instance.at)
        if known is None:
            raise UnknownValueError
        home, name = known
        call = instance.call
        changed = inside_self(attribute) in home._names.changed
        if changed or self._own.shared.is_stored(attribute) or home._names.has_method(name, _MAKES):
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
        """``mapping[key]`` of something that a file or the command line says; None where it has no such key."""
        held = self.follow(mapping, at, depth + 1)
        if isinstance(held, Flags):  # Config(**vars(parser.parse_args()))
            return self._entry(held, key, None, at, depth)
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
        own, binding = names.members.get((class_name, attribute), ()), names.field(class_name, attribute)
        based = self._class(bases[0], END) if bases else None
        if based is not None and based[0]._sets(based[1], attribute):
            raise UnknownValueError
        if own:
            binding = own[0] if len(own) == 1 and binding is None else None
        elif binding is None and based is not None:
            return based[0]._field(based[1], attribute, depth + 1)
        if binding is None or binding.value is None:
            raise UnknownValueError
        return self.follow(_field_default(binding.value), binding.where, depth + 1)

    def _sets(self, class_name: str, attribute: str) -> bool:
        """Whether methods of a class give its objects the attribute."""
        return (class_name, attribute) in self._names.members or self._names.has_method(class_name, _MAKES)

    def _class(self, name: str, at: Where) -> "tuple[References, str] | None":
        """The module and the name of a class of the project's own."""
        if self._names.is_class(name):
            return self, name
        home = self._brought(name, at)
        return (home[0].references, home[1]) if home is not None and home[0].names.is_class(home[1]) else None

    def _brought(self, name: str, at: Where) -> "tuple[Expressions, str] | None":
        """The project's own module that a name is imported from, and its name there."""
        scope = self._names.scope_of(name, at)
        return self._own.brought(self._names.imported.get((scope, name))) if scope is not None else None

    def _entry(self, held: Found, key: Any, default: ast.expr | None, at: Where, depth: int) -> Found:
        """``held[key]``, or ``held.get(key, default)``."""
        shared = self._own.shared
        if isinstance(held, Flags) and "vars(" not in self._own.text:  # config["batch"] = 8 sets no flag
            set_anew = self._names.is_set_on_any(str(key)) or any(str(key) in x for x in shared.attributes_set.values())
        else:
            set_anew = self._names.is_stored(key) or shared.is_stored(key)
        if set_anew:
            raise UnknownValueError
        if isinstance(held, Flags):  # by a number, one of the objects that hold them
            return held if isinstance(key, int) else of_flag(self._own, held, str(key))
        if isinstance(held, Loaded):
            if held.has(key):
                return held.entry(key)
            if isinstance(held.data, list) and isinstance(key, int) and -len(held.data) <= key < len(held.data):
                return Loaded(held.data[key])
            if isinstance(held.data, Mapping) and default is not None:
                return self.follow(default, at, depth + 1)
            held.miss()
            raise UnknownValueError
        if isinstance(held, Instance):
            raise UnknownValueError
        for name, value in _pairs_of(held.value):
            if name == key:
                return held.owner.references.follow(value, held.at, depth + 1)
        if default is not None and isinstance(held.value, ast.Dict):
            return self.follow(default, at, depth + 1)
        raise UnknownValueError

    def _call(self, node: ast.Call, at: Where, depth: int) -> Found:
        name = dotted_name(node.func) or ""
        if name in _FROM_ENVIRONMENT:
            return self._from_environment(node, at, depth)
        if called_name(node) in _PARSED and not node.keywords and all(map(is_command_line, node.args)):
            return self._flags(node, at, depth)
        if name == "vars" and len(node.args) == 1:
            held = self.follow(node.args[0], at, depth + 1)
            return held if isinstance(held, Flags) else Held(self._own, node, at)
        if name in _LOADS or name.endswith(".OmegaConf.load"):
            return loaded(self._own, self._names, node, at)
        if name.endswith(_HANDS_BACK) and node.args:
            return self.follow(node.args[0], at, depth + 1)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            key, default = node.args[0], node.args[1] if len(node.args) > 1 else ast.Constant(None)
            if isinstance(key, ast.Constant):
                return self._entry(self.follow(node.func.value, at, depth + 1), key.value, default, at, depth)
        if isinstance(node.func, ast.Name):
            if self._class(node.func.id, at) is not None:
                return Instance(self._own, node.func.id, node, at)
            return self._result(node.func.id, node, at, depth)
        return Held(self._own, node, at)

    def _flags(self, call: ast.Call, at: Where, depth: int) -> Flags | Instance:
        """What parses the command line: the parser of this module, or a function of the project's own, which may make
        an object of what it parsed."""
        own = isinstance(call.func, ast.Name)
        found = self._result(call.func.id, call, at, depth + 1) if isinstance(call.func, ast.Name) else None
        if own and not isinstance(found, Flags | Instance):
            raise UnknownValueError
        return found if isinstance(found, Flags | Instance) else Flags(self._own)

    def _from_environment(self, node: ast.Call, at: Where, depth: int) -> Found:
        """What the launcher sets in the environment; else the default, which an environment may change."""
        name = (*node.args, None)[0]
        if not isinstance(name, ast.Constant) or self._names.is_stored(name.value):
            raise UnknownValueError
        said = of_launcher(self._own, str(name.value))
        if said is None and len(node.args) != 2:
            raise UnknownValueError
        return said or self.follow(node.args[1], at, depth + 1)

    def _result(self, function: str, node: ast.Call, at: Where, depth: int) -> Found:
        """What a function of the project's own returns, where it says so once."""
        home, returned = self, self._names.returned(function)
        if returned is None:
            brought = self._brought(function, at)
            if brought is not None:
                home, returned = brought[0].references, brought[0].names.returned(brought[1])
        if returned is None or returned.value is None:
            return Held(self._own, node, at)
        where = returned.where._replace(made=Made(returned.where.scope, self._own, node, at))
        return home.follow(returned.value, where, depth + 1)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _class_named(annotation: ast.expr | None) -> str:
    """The class of ``Config``, ``"Config"``, ``Optional[Config]`` and ``Config | None``; empty of any other."""
    if isinstance(annotation, ast.Name):
        return annotation.id
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    if isinstance(annotation, ast.Subscript) and (dotted_name(annotation.value) or "").endswith("Optional"):
        return _class_named(annotation.slice)
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr) and _is_none(annotation.right):
        return _class_named(annotation.left)
    return ""


def _field_default(value: ast.expr) -> ast.expr:
    """The default of ``field(default=…)``, ``field(default_factory=lambda: …)`` and pydantic's ``Field(…)``."""
    if not isinstance(value, ast.Call) or called_name(value) not in _FIELDS:
        return value
    given = {each.arg: each.value for each in value.keywords}
    factory = given.get("default_factory")
    found = given.get("default") or (factory.body if isinstance(factory, ast.Lambda) else None)
    found = found or (value.args[0] if value.args and not factory else None)
    if found is None or (isinstance(found, ast.Constant) and found.value is ...):
        raise UnknownValueError
    return found


def _pairs_of(node: ast.expr) -> list[tuple[Any, ast.expr]]:
    """The entries of a dictionary that is written out, the last first.

    Raises:
        UnknownValueError: one of its keys, or all it holds, cannot be told.
    """
    if isinstance(node, ast.Dict):
        if not all(isinstance(key, ast.Constant) for key in node.keys):
            raise UnknownValueError
        rows = [
            (key.value, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        ]
        return rows[::-1]
    is_dict = isinstance(node, ast.Call) and dotted_name(node.func) == "dict" and not node.args
    if is_dict and isinstance(node, ast.Call) and all(each.arg for each in node.keywords):
        return [(each.arg, each.value) for each in node.keywords]
    raise UnknownValueError
