"""Where an object of a Python program comes from: the call that makes it, through names, functions and what hands it
on. Nothing is executed.

Values are told only where they are certain (``expressions``); an object keeps its identity through an optimizer's
changed learning rate, ``model.to(device)`` and a loop around, and so is followed more freely.
"""

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kb.config.python.expressions import met
from kb.config.python.held import UnknownValueError
from kb.config.python.places import END, Binding, Made, Where
from kb.config.python.syntax import called_name, dotted_name
from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

# Methods that give back what they are called on, and functions that give back what they are given first.
_SAME = frozenset(
    ("to", "cuda", "cpu", "half", "bfloat16", "float", "train", "eval", "requires_grad_", "to_bettertransformer")
)
_WRAPPED = frozenset((
    "get_peft_model", "prepare_model_for_kbit_training", "prepare_model_for_int8_training", "prepare", "compile",
    "DataParallel", "DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "fully_shard",
    "prepare_model", "prepare_data_loader", "prepare_optimizer", "setup", "setup_dataloaders",
))  # fmt: skip
_WRAPPED_BY_PLACE = ("prepare", "setup", "setup_dataloaders", "initialize")  # give back what they are given, in order
_NAMED = ("model", "optimizer")
PARALLEL = frozenset((
    "DataParallel", "DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "fully_shard",
))  # fmt: skip
_ADAPTED = "PeftModel"
# What gives the items of what it is given: a data loader goes through it on its way to the loop.
HANDED_ON = frozenset(("enumerate", "tqdm", "islice", "iter", "track", "progress_bar", "skip_first_batches", "Progbar"))
MAX_DEPTH = 30


class Traced(NamedTuple):
    """The expression that an object goes back to, where it stands, and the calls that it was handed through."""

    value: ast.expr
    at: Where
    owner: "Expressions"
    through: tuple[ast.Call, ...] = ()
    holders: tuple[ast.expr, ...] = ()  # what makes the objects that hold it alone: what is done to them is done to it

    def within(self, holders: Sequence["Traced"]) -> "Traced":
        """This as a part of objects that hold nothing else."""
        through = (call for each in holders for call in each.through)
        return self._replace(through=(*self.through, *through), holders=tuple(each.value for each in holders))

    def is_made_by(self, value: ast.expr) -> bool:
        """Whether an expression makes it, or what holds it."""
        return value is self.value or any(value is each for each in self.holders)

    @property
    def node(self) -> ast.Call:
        assert isinstance(self.value, ast.Call)
        return self.value


class Origins:
    """Traces the objects of one program."""

    def __init__(self) -> None:
        self._parents: dict[int, dict[int, ast.AST]] = {}  # of each module's tree, by the ids of nodes
        self._inside: dict[int, frozenset[int]] = {}  # of each node that was asked for, the ids of what lies in it

    def of(self, node: ast.expr, at: Where, owner: "Expressions", depth: int = 0) -> Traced:
        """What an expression goes back to.

        Raises:
            UnknownValueError: it cannot be told.
        """
        owner.count()
        if depth > MAX_DEPTH:
            raise UnknownValueError
        if isinstance(node, ast.Name):
            return self._name(node.id, at, owner, depth + 1)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, at, owner, depth + 1)
        if isinstance(node, ast.Call):
            return self._call(node, at, owner, depth + 1)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self._entry(node, node.slice.value, at, owner, depth + 1)
        if isinstance(node, ast.IfExp):  # model.module if distributed else model
            arms = [self.of(arm, at, owner, depth + 1) for arm in (node.body, node.orelse)]
            if arms[0].value is arms[1].value:
                more = [each for each in arms[0].through if called_name(each) not in PARALLEL]
                return arms[1]._replace(through=tuple(dict.fromkeys((*more, *arms[1].through))))
        return Traced(node, at, owner)

    def _entry(self, node: ast.Subscript, key: Any, at: Where, owner: "Expressions", depth: int) -> Traced:
        """``loaders["train"]`` of a dictionary that the program writes, or makes of one expression for every key."""
        held = self.of(node.value, at, owner, depth)
        name = dotted_name(node.value) or ""
        if not isinstance(held.value, ast.Dict | ast.DictComp) or owner.names.is_changed_anywhere(name):
            return Traced(node, at, owner)
        if isinstance(held.value, ast.DictComp):
            return self.of(held.value.value, held.at, held.owner, depth)
        named = {
            getattr(each, "value", None): value for each, value in zip(held.value.keys, held.value.values, strict=True)
        }
        told = key in named and None not in named  # `**others`, or a key that is worked out, may be this one
        return self.of(named[key], held.at, held.owner, depth) if told else Traced(node, at, owner)

    def last(self, name: str, at: Where, owner: "Expressions") -> tuple[Binding, int | None]:
        """The binding that a name has at a place, the text gone through once from above; of one of several results of
        a call, which one.

        Raises:
            UnknownValueError: it may have another.
        """
        scope, found = owner.names.every(name, at)
        if scope == at.scope:
            before = [each for each in found if each.where.order < at.order]
        else:
            before = self._before_calls(name, scope, found, at, owner)
        binding = self._one_of([each for each in before if not each.where.excludes(at)], name, at, owner)
        if binding.value is not None:
            return binding, None
        part = owner.names.parts.get((name, binding.where.order))
        if part is None:
            return binding, None
        return Binding(part[0], binding.where), part[1]

    def _before_calls(
        self, name: str, scope: tuple[int, ...], found: list[Binding], at: Where, owner: "Expressions"
    ) -> list[Binding]:
        """The bindings of an outer name that a function may meet: those before its calls, where these are seen.

        Raises:
            UnknownValueError: the name gets another value between two calls.
        """
        function = self.function_at(at.scope[: len(scope) + 1], owner)
        calls = self.calls_of(function, owner) if function is not None else []
        places = [where.order for _, where in calls if where.scope == scope]
        if not places or len(places) < len(calls):
            return found
        if any(min(places) < each.where.order < max(places) and not _of_itself(each, name) for each in found):
            raise UnknownValueError
        return [each for each in found if each.where.order < max(places)] or found

    def _one_of(self, bindings: list[Binding], name: str, at: Where, owner: "Expressions") -> Binding:
        """The last of several bindings, where none that is met otherwise gives another object. One that changes the
        object in its place (``model = model.to(device)``) gives the same.

        Raises:
            UnknownValueError: there is none, or it depends on a condition that only a run can tell.
        """
        asked = {id(each): met(each.where.branch, owner, at.made) for each in bindings}
        told = {name: each.branch for name, each in asked.items()}
        reached = [each for each in bindings if told[id(each)] is not None]
        if reached and all(called_name(each.value or ast.Pass()) == "from_config" for each in reached):
            reached = [each for each in bindings if each in reached or asked[id(each)].by_default]  # no model is named
        bindings = reached
        last = _latest(bindings, at)
        here = met(at.branch, owner, at.made).branch
        rivals: list[Binding] = []
        for each in sorted(bindings, key=lambda each: each.where.order, reverse=True):
            constant = isinstance(each.value, ast.Constant)
            made = called_name(each.value or ast.Pass())
            copies = made in PARALLEL or (made == "from_config" and each is not last)  # as large, with random weights
            if each.where.order > last.where.order or constant or copies or _of_itself(each, name):
                continue
            rivals.append(each)
            reduced = each.where._replace(branch=told[id(each)] or ())
            if each.where.holds_at(at) or reduced.holds_at(at._replace(branch=here or ())):
                break
        if any(not _alike(rivals[0], each) for each in rivals[1:]):
            raise UnknownValueError
        return last

    def _name(self, name: str, at: Where, owner: "Expressions", depth: int) -> Traced:
        binding, number = self.last(name, at, owner)
        scope = binding.where.scope
        argument = owner.names.arguments.get((scope_of_argument(owner, name, at), name))
        if argument is not None and binding.where == argument.where and binding.value is None:
            return self._argument(name, at, owner, depth)
        if binding.value is None:
            opened = owner.names.opened.get((scope, name))
            given = self._given_inside(name, at, owner)
            if given is not None:
                return self.of(*given, depth)
            if opened is not None and opened.value is not None and called_name(opened.value) in HANDED_ON:
                return self.of(opened.value, binding.where.told(at), owner, depth)  # with tqdm(loader) as bar:
            return self._imported(name, scope, owner, depth)
        found = binding.where.told(at)
        if number is None:
            return self.of(binding.value, found, owner, depth)
        return self._part(binding.value, number, found, owner, depth)

    def _part(self, call: ast.expr, number: int, found: Where, owner: "Expressions", depth: int) -> Traced:
        """One of several results of a call: ``model, loader = accelerator.prepare(model, loader)``."""
        if not isinstance(call, ast.Call):  # first, second = pair
            raise UnknownValueError
        if called_name(call) in _WRAPPED_BY_PLACE:
            named = {each.arg: each.value for each in call.keywords}  # deepspeed.initialize(model=model, …)
            given = named.get(_NAMED[number]) if number < len(_NAMED) else None
            if given is None and number < len(call.args):
                given = call.args[number]
            if given is not None:
                traced = self.of(given, found, owner, depth)
                return traced._replace(through=(*traced.through, call))
        inner = self.into(call, found, owner, depth)
        if inner is None or not isinstance(inner.value, ast.Tuple) or number >= len(inner.value.elts):
            raise UnknownValueError
        return self.of(inner.value.elts[number], inner.at, inner.owner, depth)

    def _argument(self, name: str, at: Where, owner: "Expressions", depth: int) -> Traced:
        """What the one call of a function gives for an argument."""
        scope = scope_of_argument(owner, name, at)
        argument = owner.names.arguments.get((scope, name))
        assert argument is not None
        calls = [at.made] if at.made is not None and at.made.scope == scope else [
            Made(scope, each.owner, each.node, each.at) for each in owner.references.calls_of(argument.function)
        ]  # fmt: skip
        given = [(owner.references.given(name, argument, each.node), each) for each in calls]
        if not given or any(node is None for node, _ in given):
            raise UnknownValueError
        found = [self.of(node, each.at, each.owner, depth) for node, each in given if node is not None]
        if any(each.value is not found[0].value for each in found):
            raise UnknownValueError
        return found[0]

    def _imported(self, name: str, scope: tuple[int, ...], owner: "Expressions", depth: int) -> Traced:
        home = owner.brought(owner.names.imported.get((scope, name)))
        if home is None:
            raise UnknownValueError
        return self._name(home[1], END, home[0], depth)

    def _attribute(self, node: ast.Attribute, at: Where, owner: "Expressions", depth: int) -> Traced:
        """``self.model`` that a method of the class sets; ``model.module`` is the model."""
        if node.attr in ("module", "forward"):
            return self.of(node.value, at, owner, depth)
        holder = owner.names.class_around(at.scope)
        if not isinstance(node.value, ast.Name) or node.value.id != "self" or holder is None:
            raise UnknownValueError
        parts = owner.names.parts_of_self.get((holder, node.attr), ())
        every = [*owner.names.members.get((holder, node.attr), ()), *(each for each, _ in parts)]
        found = [each for each in every if each.where.scope != at.scope or each.where.order < at.order]
        begun = [each for each in found if getattr(self.function_at(each.where.scope, owner), "name", "") == "__init__"]
        first = [each for each in found if each in begun or each.where.scope == at.scope] if begun else []
        binding = self._one_of(first or found, f"self.{node.attr}", at, owner)
        if binding.value is None:
            raise UnknownValueError
        number = next((number for each, number in parts if each is binding), None)
        if number is not None:
            return self._part(binding.value, number, binding.where, owner, depth)
        return self.of(binding.value, binding.where, owner, depth)

    def _call(self, node: ast.Call, at: Where, owner: "Expressions", depth: int) -> Traced:
        name = called_name(node)
        inner: ast.expr | None = None
        if name in _SAME and isinstance(node.func, ast.Attribute):
            inner = node.func.value
        elif name in _WRAPPED or name in HANDED_ON or _adds_adapter(node):
            inner = first_argument(node)
        if inner is not None:
            traced = self.of(inner, at, owner, depth)
            return traced._replace(through=(*traced.through, node))
        returned = self.into(node, at, owner, depth)
        if returned is None:
            return Traced(node, at, owner)
        return self.of(returned.value, returned.at, returned.owner, depth)

    def into(self, call: ast.Call, at: Where, owner: "Expressions", depth: int = 0) -> Traced | None:
        """What a function or a method of the program's own returns, where it says so once; None of any other call."""
        home, returned = owner, None
        if isinstance(call.func, ast.Name):
            home, returned = self._function(call.func.id, at, owner)
        if returned is None:
            name = call.func.attr if isinstance(call.func, ast.Attribute) else "forward"
            known = self._class_of_method(call, at, owner, depth)
            if known is not None:
                home, returned = known[0], known[0].names.returned_by(known[1], name)
        if returned is None or returned.value is None:
            return None
        scope = returned.where.scope
        return Traced(returned.value, Where(scope, (), END.order, Made(scope, owner, call, at)), home)

    def _function(self, name: str, at: Where, owner: "Expressions") -> tuple["Expressions", Binding | None]:
        """What a function outside classes returns, and its module."""
        returned = owner.names.returned(name, at)
        if returned is not None:
            return owner, returned
        home = self._home_of(name, at, owner)
        return (owner, None) if home is None else (home[0], home[0].names.returned(home[1]))

    def _home_of(self, name: str, at: Where, owner: "Expressions") -> tuple["Expressions", str] | None:
        """The module of the project that a name is imported from, and what it is called there."""
        _, found = owner.names.every(name, at)
        return owner.brought(owner.names.imported.get((found[0].where.scope, name))) if len(found) == 1 else None

    def _class_of_method(
        self, call: ast.Call, at: Where, owner: "Expressions", depth: int
    ) -> tuple["Expressions", str] | None:
        """The class of the program's own whose method is called, and its module: of ``self`` that around the call."""
        if _is_self(_holder(call)):
            kind, method = owner.names.class_around(at.scope), getattr(call.func, "attr", "forward")
            return None if kind is None or owner.names.is_overridden(kind, method) else (owner, kind)
        known = self.instance(call, at, owner, depth)
        return None if known is None else known[1:]

    def instance(
        self, call: ast.Call, at: Where, owner: "Expressions", depth: int = 0
    ) -> tuple[Traced, "Expressions", str] | None:
        """The object of one of the program's own classes that is called, or whose method is: what makes it, the module
        and the name of its class."""
        held = _holder(call)
        if _is_self(held):
            return None
        try:
            made = self.of(held, at, owner, depth + 1)
        except UnknownValueError:
            return None
        if not isinstance(made.value, ast.Call) or not isinstance(made.value.func, ast.Name):
            return None
        name, home = made.value.func.id, made.owner
        if home.names.class_of(name) is None:
            known = self._home_of(name, made.at, home)
            if known is None or known[0].names.class_of(known[1]) is None:
                return None
            home, name = known
        return made, home, name

    def _given_inside(self, name: str, at: Where, owner: "Expressions") -> tuple[ast.expr, Where, "Expressions"] | None:
        """What is given for an argument of a method, or of a function in a function, by the call that leads to it, else
        by its only one in the module, ``self.train_epoch(loader)``; None of what is no such argument."""
        function, method = self.function_at(at.scope, owner), owner.names.is_method(at.scope)
        if function is None or not (method or at.scope[1:]):
            return None
        places = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][int(method) :]
        calls = [(node, where, owner) for node, where in self.calls_of(function, owner)]
        if at.made is not None and at.made.scope == at.scope:
            calls = [(at.made.node, at.made.at, at.made.owner)]
        if name not in places or len(calls) != 1:
            return None
        node, where, home = calls[0]
        number = places.index(name)
        if number < len(node.args):
            return node.args[number], where, home
        named = next((each.value for each in node.keywords if each.arg == name), None)
        return None if named is None else (named, where, home)

    def function_at(self, scope: tuple[int, ...], owner: "Expressions") -> ast.FunctionDef | None:
        """The function or method that has a scope."""
        found = owner.names.definitions.get(scope[-1]) if scope else None
        return found if isinstance(found, ast.FunctionDef) else None

    def calls_of(self, function: ast.FunctionDef, owner: "Expressions") -> list[tuple[ast.Call, Where]]:
        """The calls of a function by its name in its own module; of a method by that of its object, ``self`` first."""
        name = function.name
        found = [(node, at, dotted_name(node.func)) for node, at, _ in owner.names.calls if called_name(node) == name]
        for wanted in (name, f"self.{name}"):
            own = [(node, at) for node, at, written in found if written == wanted]
            if own:
                return own
        return [(node, at) for node, at, written in found if written and written.count(".") == 1]

    def around(self, owner: "Expressions", node: ast.AST) -> list[ast.AST]:
        """What a node lies in, from within, as far as the function that it stands in."""
        parents = self._parents_in(owner)
        found: list[ast.AST] = []
        above = parents.get(id(node))
        while above is not None and not isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            found.append(above)
            above = parents.get(id(above))
        return found

    def lies_in(self, node: ast.AST, outer: ast.AST) -> bool:
        """Whether a node lies in another one, in no function in it."""
        if id(outer) not in self._inside:
            self._inside[id(outer)] = frozenset(map(id, _within(outer)))
        return id(node) in self._inside[id(outer)]

    def told_of(self, called: ast.expr, owner: "Expressions") -> Iterator[ast.Call]:
        """The statements that change a model in its place: ``model.half()``, by the name that is called."""
        name = dotted_name(called)
        for node, _, _ in owner.names.calls:
            func = node.func
            if isinstance(func, ast.Attribute) and name is not None and dotted_name(func.value) == name:
                yield node

    def package(self, call: ast.Call, owner: "Expressions") -> str:
        """The package that the class of a call comes from, by its import; empty where none is in sight."""
        first = (dotted_name(call.func) or "").partition(".")[0]
        found = next((each for _, each in owner.names.imports_of(first)), None)
        if found is not None and not found.level:
            return found.module.partition(".")[0]
        return first if first == "torch" else ""

    def _parents_in(self, owner: "Expressions") -> dict[int, ast.AST]:
        tree = owner.names.tree
        if id(tree) not in self._parents:
            self._parents[id(tree)] = {
                id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
            }
        return self._parents[id(tree)]


def _within(outer: ast.AST) -> Iterator[ast.AST]:
    """What lies in a node, without what lies in functions in it."""
    left = list(ast.iter_child_nodes(outer))
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            left += ast.iter_child_nodes(node)


def scope_of_argument(owner: "Expressions", name: str, at: Where) -> tuple[int, ...]:
    """The scope whose argument a name is at a place; that of the place where it is none."""
    scope: tuple[int, ...] | None = at.scope
    while scope:
        if (scope, name) in owner.names.arguments:
            return scope
        scope = scope[:-1]
    return at.scope


def _adds_adapter(call: ast.Call) -> bool:
    """Whether a call is ``PeftModel.from_pretrained(model, …)``."""
    return called_name(call) == "from_pretrained" and _ADAPTED in (dotted_name(call.func) or "")


def _latest(bindings: list[Binding], at: Where) -> Binding:
    """The last of several bindings; copies of a model on several GPUs that are made under a condition do not count: on
    one GPU there are none.

    Raises:
        UnknownValueError: there is none.
    """
    kept = [
        each for each in bindings if each.where.holds_at(at) or called_name(each.value or ast.Pass()) not in PARALLEL
    ]
    if not kept:
        raise UnknownValueError
    found = max(kept, key=lambda each: each.where.order)
    if called_name(found.value or ast.Pass()) == "from_config":  # else a model with random weights is made, as large
        loads = (each for each in kept if called_name(each.value or ast.Pass()) == "from_pretrained")
        found = next((each for each in loads if each.where.excludes(found.where)), found)
    return found


def _of_itself(binding: Binding, name: str) -> bool:
    """Whether a binding changes what the name had: ``model = model.to(device)``, ``loss = loss / steps``."""
    return binding.value is not None and any(dotted_name(each) == name for each in ast.walk(binding.value)
                                             if isinstance(each, ast.Name | ast.Attribute))  # fmt: skip


# Arguments that leave an object as large as it is.
_OF_NO_SIZE = frozenset((
    "config", "cache_dir", "from_tf", "num_labels", "id2label", "label2id", "ignore_mismatched_sizes", "token",
    "use_auth_token", "revision", "state_dict", "local_files_only", "return_dict", "lr", "eps", "betas",
))  # fmt: skip


def _alike(one: Binding, other: Binding) -> bool:
    """Whether two calls make objects of one kind and size: batches of one size, models of one name, optimizers of one
    class."""
    a, b = one.value, other.value
    if not (isinstance(a, ast.Call) and isinstance(b, ast.Call) and ast.dump(a.func) == ast.dump(b.func)):
        return False
    if called_name(a) == "DataLoader":
        return _batch_of(a) == _batch_of(b)
    given = [
        {each.arg: ast.dump(each.value) for each in call.keywords if each.arg not in _OF_NO_SIZE} for call in (a, b)
    ]
    return given[0] == given[1] and [ast.dump(each) for each in a.args] == [ast.dump(each) for each in b.args]


def _batch_of(loader: ast.Call) -> str:
    given = next((each.value for each in loader.keywords if each.arg in ("batch_size", "batch_sampler")), None)
    given = given or (loader.args[1] if len(loader.args) > 1 else None)
    return "" if given is None else ast.dump(given)


def _holder(call: ast.Call) -> ast.expr:
    """What a method is called of; what is called itself where it is no method."""
    return call.func.value if isinstance(call.func, ast.Attribute) else call.func


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def first_argument(call: ast.Call) -> ast.expr | None:
    """What a call is given first; by position or, of a model, by its name."""
    if call.args and not isinstance(call.args[0], ast.Starred):
        return call.args[0]
    return next(
        (each.value for each in call.keywords if each.arg in ("model", "iterable", "optimizer", "params")), None
    )
