"""The calls of a program that say something of a run, its own and those that it brings in; and which belong to one."""

import ast
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kb.config.python.expressions import met, tested
from kb.config.python.held import Caller
from kb.config.python.names import Names
from kb.config.python.places import Made, Scope, Where, reached
from kb.config.python.syntax import dotted_name, holder_of
from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

_ANSWERS = ("labels", "label", "targets", "target", "decoder_inputs")  # ends of names that answers are given

LOSS = "loss"  # the group of what a trainer is given under this name
TRAINER = "trainer"  # the group of what is given the arguments
# Libraries with a PPOConfig, an SFTConfig or a TrainingArguments of their own.
NAMESAKES = frozenset((
    "trlx", "ray", "torchrl", "tianshou", "verl", "openrlhf", "setfit", "paddlenlp", "mindformers", "predibase",
))  # fmt: skip

_RENAMED_OF = ("transformers", "trl", "peft", "unsloth", "sentence_transformers")


class Kind(NamedTuple):
    """What a called name means. ``dialect`` is set of a call that is a run, ``group`` of any other."""

    dialect: str | None
    group: str
    positional: tuple[str, ...]
    literal: tuple[str, ...]
    sets: Mapping[str, Any]
    unknown: tuple[str, ...] = ()  # settings of which no value is right
    unless: Mapping[str, tuple[str, ...]] = {}  # a word in the file → what of ``sets`` it keeps away
    module: str = ""  # the package that a file must import for the name to be this one
    of: str = ""  # the format of the runs that a call of a group belongs to, where not to any
    only: Mapping[str, bool] = {}  # the keywords that count, where others do not; True: the value holds more of them


class Home(NamedTuple):
    """Where a call stands that another module makes for the program.

    ``at`` is its place in the flow of the module ``owner``, ``name`` what its result is called there; ``place`` is the
    call of the program that leads to it.
    """

    owner: "Expressions"
    at: Where
    place: ast.Call
    name: str | None = None


class Said(NamedTuple):
    """A setting that code says otherwise than by an argument: its value, or the expression of it."""

    name: str
    value: Any
    node: ast.expr
    word: str  # that says it there
    at: Where | None = None  # of a value that is an expression: where it is read


class Loop(NamedTuple):
    """A training loop of a program's own, and what it says by itself."""

    place: int  # the ``for`` over its batches, by the id of its node
    made_by: tuple[ast.Call, ...]  # its model, its batches and its accelerator
    said: tuple[Said, ...]
    hidden: tuple[str, ...] = ()  # what it leaves to its launcher


class Call(NamedTuple):
    """One recognised call; ``number`` counts them in the order of the text.

    ``home`` is set of one that another module makes; ``where`` is then the place that leads to it. From ``gone`` on, in
    the order of its scope, its name holds another model, which was made without this one."""

    number: int
    name: str
    kind: Kind
    node: ast.Call
    where: Where
    target: str | None
    home: Home | None = None
    declared: frozenset[str] = frozenset()  # fields of the class that the project itself declares
    loop: Loop | None = None  # set of a loop, which is a run
    gone: int | None = None

    @property
    def place(self) -> ast.Call:
        """What the program itself calls."""
        return self.node if self.home is None else self.home.place

    def keywords(self) -> Iterable[tuple[ast.keyword | None, str | None, ast.expr]]:
        """Keyword, its name and the value; of what is given by position no keyword, of ``**more`` no name.

        A position whose name is given by keyword too is another argument: the order is not alike in every class.
        """
        named = {keyword.arg for keyword in self.node.keywords}
        for name, value in zip(self.kind.positional, self.node.args, strict=False):
            if isinstance(value, ast.Starred):
                break
            if name not in named:
                yield None, name, value
        only = self.kind.only
        for keyword in self.node.keywords:
            if not only or keyword.arg in only:
                yield keyword, None if only.get(keyword.arg or "") else keyword.arg, keyword.value

    def argument(self, name: str) -> ast.expr | None:
        """What is given for a keyword."""
        return next((value for _, each, value in self.keywords() if each == name), None)


class CallTable:
    """The called names of a dialect, ready to be asked."""

    def __init__(self, calls: Mapping[str, Mapping[str, Any]]) -> None:
        self._rows = [
            (re.compile(re.escape(name).replace(r"\*", ".*")), "." in name, _kind(row)) for name, row in calls.items()
        ]
        self._known: dict[str, Kind | None] = {}

    def kind_of(self, name: str) -> Kind | None:
        if name not in self._known:
            last = name.split(".")
            short, long = last[-1], ".".join(last[-2:])
            found = (kind for pattern, dotted, kind in self._rows if pattern.fullmatch(long if dotted else short))
            self._known[name] = next(found, None)
        return self._known[name]

    def find(self, names: Names) -> list[Call]:
        """The recognised calls of a module, in their order in the text."""
        found: list[Call] = []
        ordered = sorted(names.calls, key=lambda each: (each[0].lineno, each[0].col_offset))
        for node, where, target in ordered:
            name = dotted_name(node.func)
            kind = self.kind_of(name) if name else None
            if name and kind is None:
                name = _in_its_library(name, names)
                kind = self.kind_of(name) if name else None
            if name and kind is not None and (kind.group != "tokenizer" or _truncates(node)):
                answers = any(first <= node.lineno <= last for first, last in names.answers)
                kind = _of_target(kind, node, target, answers=answers) if kind.group == "tokenizer" else kind
                untold = kind.only and any(keyword.arg is None for keyword in node.keywords)
                if untold or (kind.dialect and _is_of_others(name, kind, names)):
                    continue
                if kind.group == LOSS and target and names.holds_more_than_calls(target, where.scope):
                    continue  # loss = {"pairs": loss, …}
                found.append(Call(len(found), name.rpartition(".")[2], kind, node, where, target))
        loads = any(
            call.kind.group == "model" and not call.kind.of for call in found
        )  # else another module may take it from here
        idle = ("quantization", "lora") if any(call.kind.dialect for call in found) else ("quantization",)
        kept = [
            call for call in found if not (loads and call.kind.group in idle and _is_handed_to_nothing(call, names))
        ]
        return [call._replace(number=number, gone=_gone(call, names)) for number, call in enumerate(kept)]


def _is_of_others(name: str, kind: Kind, names: Names) -> bool:
    """Whether a class comes from a library that has its own of a name that TRL or transformers have too; of a kind with
    a package, whether it does not come from there.
    """
    imports = names.imports_of(name.partition(".")[0])
    packages = ["" if found.level else found.module.partition(".")[0] for _, found in imports]
    if kind.module:
        return kind.module not in packages if packages else not names.imports(kind.module)
    return not NAMESAKES.isdisjoint(packages)


def _in_its_library(name: str, names: Names) -> str | None:
    """What a library calls that which a module imports under a name of its own: ``from trl import SFTConfig as Own``;
    None of anything else."""
    first, dot, rest = name.partition(".")
    imports = [found for _, found in names.imports_of(first)]
    for found in imports if len({(each.module, each.name) for each in imports}) == 1 else ():
        of_library = not found.level and found.module.partition(".")[0] in _RENAMED_OF
        if of_library and found.name not in (None, first) and names.is_imported_alone(first):
            return f"{found.name}{dot}{rest}"
    return None


def _gone(call: Call, names: Names) -> int | None:
    """Where the name of a loaded model gets what a call makes without it, nor of anything that was made of it."""
    if call.kind.group != "model" or not call.target or "." in call.target:
        return None
    for bound in names.bindings(call.target, call.where.scope):
        made = bound.value
        if bound.where.order < call.where.order or not isinstance(made, ast.Call) or call.node in ast.walk(made):
            continue
        words = _words_of(made)
        for word in sorted(words):
            words |= {
                each for one in names.bindings(word, call.where.scope) if one.value for each in _words_of(one.value)
            }
        if call.target not in words and bound.where.certainly == call.where.certainly:
            return bound.where.order
    return None


def _words_of(value: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}


def _is_handed_to_nothing(call: Call, names: Names) -> bool:
    """Whether what a call makes is never used."""
    return call.target is not None and "." not in call.target and call.target not in names.uses


def _kind(row: Mapping[str, Any]) -> Kind:
    return Kind(
        dialect=row.get("as"),
        group=row.get("group", ""),
        positional=tuple(row.get("positional", ())),
        literal=tuple(row.get("literal", ())),
        sets=row.get("sets", {}),
        unknown=tuple(row.get("unknown", ())),
        unless={word: tuple(names) for word, names in row.get("unless", {}).items()},
        module=row.get("module", ""),
        of=row.get("with", ""),
        only=row.get("only", {}),
    )


def _truncates(node: ast.Call) -> bool:
    """Whether ``max_length`` of a tokenizer's call holds: only where it is told to cut, or pads by the old name."""
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    cuts = given.get("truncation", given.get("pad_to_max_length"))
    return "max_length" in given and cuts is not None and not (isinstance(cuts, ast.Constant) and cuts.value is False)


def _of_target(kind: Kind, node: ast.Call, target: str | None, *, answers: bool) -> Kind:
    """A tokenizer's call for the answers: by ``text_target``, by where it stands, or by the name its result gets."""
    answers = answers or any(keyword.arg == "text_target" for keyword in node.keywords)
    return kind._replace(group="target") if answers or (target or "").endswith(_ANSWERS) else kind


MAX_BODIES = 200  # functions and classes that are gone through for one program
MAX_STEPS = 8  # from one call to the next


class _Body(NamedTuple):
    """A function or class that a program calls, and the module that it stands in."""

    owner: "Expressions"
    name: str
    scope: Scope


def calls_of(
    entry: "Expressions", table: CallTable, loops: Callable[["Expressions", CallTable], list[Call]]
) -> tuple[list[Call], bool]:
    """The calls that a program comes to, its own and those that it brings in, in the order of its text.

    A module without a training call, nor a loop that ``loops`` finds, brings in none: it may be anything; but one that
    is started by itself, and comes to one training call of other modules. What stands in an arm that is not taken is
    left out; then whether that rests on what a command line may give otherwise.
    """
    own: list[Call] = []
    by_default = False
    found_here = table.find(entry.names)
    if not any(call.kind.dialect is not None for call in found_here):
        found_here += loops(entry, table)
    of_runs = (call.where.branch for call in found_here if call.kind.dialect is not None)
    given = {tested(condition, entry) for branch in of_runs for condition, _ in branch} - {""}
    for call in found_here:
        left = met(call.where.branch, entry, None, given)
        by_default |= left.by_default
        sure = met(call.where.branch, entry, None)
        if left.branch is not None and (sure.branch is not None or sure.by_default):
            own.append(call._replace(where=call.where._replace(branch=left.branch)))
    starts = any(call.kind.dialect is not None for call in own)
    if not starts and not entry.names.is_program:
        return [call._replace(number=number) for number, call in enumerate(own)], by_default
    found = _Found(entry, table, given, runs=not starts)
    for node, where, target in sorted(entry.names.calls, key=lambda each: _place(each[0])):
        left = met(where.branch, entry, None, given)
        if left.branch is not None:
            at = where._replace(branch=left.branch)
            found.follow(entry, node, at, Home(entry, at, node), target, 0)
    if not starts and sum(call.kind.dialect is not None for call in found.calls) != 1:
        return [call._replace(number=number) for number, call in enumerate(own)], by_default
    placed = [(_place(call.place), call) for call in (*own, *found.calls)]
    ordered = sorted(placed, key=lambda each: each[0])  # a stable order: of one place, as they are met
    calls = [call._replace(number=number) for number, (_, call) in enumerate(ordered)]
    return calls, by_default or found.by_default


def _place(node: ast.Call) -> tuple[int, int]:
    return node.lineno, node.col_offset


class _Found:
    """What a program's calls lead to."""

    def __init__(self, entry: "Expressions", table: CallTable, given: Collection[str], *, runs: bool) -> None:
        self._entry, self._table, self._given, self._runs = entry, table, given, runs
        self._seen: set[tuple[str, Scope, ast.Call]] = set()
        self._calls: dict[str, list[Call]] = {}
        self.calls: list[Call] = []
        self.by_default = False

    def follow(
        self, owner: "Expressions", node: ast.Call, at: Where, home: Home, target: str | None, depth: int
    ) -> None:
        """What the function that is called here calls; and the functions that it is given to call.

        Args:
            owner: the module in which the call stands, at ``at`` of its flow.
            home: where the program itself comes to it: its place there, and the conditions it is met under.
            target: the name that the program gives the result.
        """
        body = body_of(owner, node.func)
        if body is not None:
            _changed_by(body, owner, node)
        if body is not None and body.owner is not self._entry:  # whose calls are all gone through
            if body.owner is not owner:
                body.owner.shared.called(body.owner.path, body.name, Caller(owner, node, at))
            self._go_through(body, Made(body.scope, owner, node, at), home, target, depth)
        for name, given in (*((None, each) for each in node.args), *((each.arg, each.value) for each in node.keywords)):
            handed = body_of(owner, given) if isinstance(given, ast.Name | ast.Attribute) else None
            if handed is not None:  # model_init=load_model is called without anything; what else is given, who knows
                unknown = ast.Call(given, [ast.Starred(given, ast.Load())], [])
                made = None if name == "model_init" else Made(handed.scope, owner, unknown, at)
                self._go_through(handed, made, home, None, depth)

    def _go_through(self, body: _Body, made: Made | None, home: Home, target: str | None, depth: int) -> None:
        visit = (body.owner.path, body.scope, home.place)
        if depth > MAX_STEPS or visit in self._seen or len(self._seen) > MAX_BODIES:
            return
        self._seen.add(visit)
        for call in self._known(body.owner):
            place = self._place_of(call.where, body, made, home)
            if place is not None and (call.kind.dialect is None or (self._runs and not call.kind.module)):
                own = Home(body.owner, call.where._replace(made=made), home.place, call.target)
                self.calls.append(call._replace(where=place, target=target, home=own))
        for node, at, _ in body.owner.names.calls_in.get(body.scope, ()):
            place = self._place_of(at, body, made, home)
            if place is not None:
                self.follow(body.owner, node, at._replace(made=made), home._replace(at=place), target, depth + 1)

    def _place_of(self, at: Where, body: _Body, made: Made | None, home: Home) -> Where | None:
        """Where the program itself meets a place of a body; None of one outside it, or that is not reached."""
        if at.scope[: len(body.scope)] != body.scope:
            return None
        left = met(at.branch, body.owner, made, self._given)
        self.by_default |= left.by_default
        return None if left.branch is None else home.at._replace(branch=(*home.at.branch, *left.branch))

    def _known(self, owner: "Expressions") -> list[Call]:
        if owner.path not in self._calls:
            self._calls[owner.path] = self._table.find(owner.names)
        return self._calls[owner.path]


def body_of(owner: "Expressions", called: ast.expr) -> _Body | None:
    """The function or class of the project's own that a name stands for: this module's, or one that it imports."""
    name = dotted_name(called)
    if name is None:
        return None
    first, _, rest = name.partition(".")
    names = owner.names
    scope = names.body_of(name)
    if scope is not None:
        return _Body(owner, name, scope)
    imported = next((found for (_, bound), found in names.imports_of(first) if bound == first), None)
    if imported is None or "." in rest:
        return None
    home = owner.brought(reached(name, imported))  # models.load(…) of ``import models``, ``from src import models``
    if home is not None and home[0].names.body_of(home[1]) is None:  # a package's ``__init__`` brings it in from below
        home = home[0].brought(home[0].names.imported.get(((), home[1])))
    scope = home[0].names.body_of(home[1]) if home is not None else None
    return _Body(*home, scope) if home is not None and scope is not None else None


def _changed_by(body: _Body, owner: "Expressions", node: ast.Call) -> None:
    """What a function changes in place of what it is given is changed for the one who gives it."""
    names = body.owner.names
    given = [(names.parameter(body.scope, number), each) for number, each in enumerate(node.args)]
    given += [(each.arg, each.value) for each in node.keywords]
    for name, each in given:
        held = holder_of(each)
        if name is not None and held is not None and name in names.changed:
            owner.names.change(held)
