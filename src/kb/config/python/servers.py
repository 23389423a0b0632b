"""Inference servers that a Python program starts as commands: lists of words, and texts for a shell. Nothing is run.

A list counts where it is written out with a flag, or is handed to what runs commands; a text only where it is handed
to that, since help texts hold such lines too.
"""

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property

from kb.config.python.expressions import MAX_DEPTH, met
from kb.config.python.held import Sources, UnknownValueError
from kb.config.python.names import Names
from kb.config.python.places import END, Binding, Where
from kb.config.python.syntax import Module, called_name
from kb.config.python.values import Values
from kb.config.shell.arguments import Argument
from kb.config.shell.command import CommandReader, unit_of
from kb.config.shell.expand import Environment
from kb.config.shell.flags import read_flags
from kb.config.shell.launch import server_launch, untold_flags
from kb.config.shell.nested import commands_of_text, text_of_shell
from kb.config.shell.serving import read_server
from kb.config.text.source import Source
from kb.core.document import Unit
from kb.core.expression import Unknown
from kb.core.record import NamedTuple

NAMES_ONE = r"vllm|sglang|llama-server|text-generation-|llama\.cpp:"
RUNS = frozenset((
    "Popen", "call", "check_call", "check_output", "create_subprocess_shell", "getoutput", "getstatusoutput", "popen",
    "run", "system",
))  # fmt: skip
"""Calls whose first argument is a command."""
_GROWS, _CHANGES = ("append", "extend"), ("clear", "insert", "pop", "remove", "reverse")
_NAMED = r"--?[A-Za-z][\w-]*="
_UNTOLD = "${_}"  # what stands in a shell's text for a part that nobody knows
MOST_STEPS = 20_000  # in which the lists of a module are read: a program with servers takes hundreds
_ABOUT = ("-h", "--help", "-v", "--version")
_WORDS = ("args", "cmd", "command")  # keywords of such calls


class Words(NamedTuple):
    """The words of a command; ``maybe``: flags of which only the run can tell whether they are given."""

    known: tuple[Argument, ...] = ()
    maybe: frozenset[str] = frozenset()

    def with_more(self, more: "Words", *, certain: bool = True) -> "Words":
        """These, and what a branch may add behind them."""
        if certain:
            return Words((*self.known, *more.known), self.maybe | more.maybe)
        flags = (flag.name for flag in read_flags(more.known, ""))
        untold = tuple(word._replace(options=True) for word in untold_flags(more.known))  # `[f"--{key}", value]`
        return Words((*self.known, *untold), self.maybe | more.maybe | frozenset(flags))


def servers_started(
    text: str, path: str, reader: CommandReader, constants: Mapping[str, str], sources: Sources | None = None
) -> list[Unit]:
    """A unit for each server that the program starts, each named after its line where there are several.

    Args:
        constants: dotted names, and the texts they stand for.
        sources: the project's files around it.

    Raises:
        ConfigError: it is no Python, or over a bound.
    """
    if re.search(NAMES_ONE, text) is None:
        return []
    module = Module(Source(text))
    commands = _Commands(module, Values(module, Names(module.tree), constants, path, sources))
    found = {}
    for place, words in commands.within_budget():
        started = read_server(words.known)
        if started is None:
            continue
        launch = server_launch(started, text)
        flags = tuple(flag for flag in launch.flags if flag.name not in words.maybe)
        found[module.extent(place)] = launch._replace(flags=flags, maybe=words.maybe)
    units = []
    for (start, end), launch in sorted(found.items()):
        span = module.source.between(module.place(start), module.place(end))
        section = f"{launch.script}:{span.line}" if len(found) > 1 else None
        units.append(unit_of(launch, reader.speller(launch), path, section, module.source.places(), span))
    return units


class _TooMuchError(Exception):
    """More steps than a module of commands takes."""


class _Commands:
    """The commands of one module."""

    def __init__(self, module: Module, values: Values) -> None:
        self._module, self._values = module, values
        self._expressions, self._names = values.expressions, values.expressions.names
        self._left = MOST_STEPS
        self._changes: dict[ast.AST | None, dict[str, list[ast.AugAssign | ast.Subscript]]] = {}

    def within_budget(self) -> list[tuple[ast.expr, Words]]:
        """Each command; where lists are made of one another without end, or nearly so, those before these."""
        found: list[tuple[ast.expr, Words]] = []
        with contextlib.suppress(RecursionError, _TooMuchError):
            found.extend(self.all())  # what came before the error stays
        return found

    def all(self) -> Iterator[tuple[ast.expr, Words]]:
        """Each command with the node that it stands in."""
        for name, binding in self._names.every_binding():
            if binding.value is not None and _is_list(binding.value) and not self._goes_on(name, binding):
                words = self._grown(name, binding, END._replace(scope=binding.where.scope))
                yield from ((binding.value, words),) if words is not None and _has_flag(words) else ()
        for call, at, _ in self._names.calls:
            given = [*call.args, *(each.value for each in call.keywords if each.arg != "choices")]
            runs, parses = called_name(call) in RUNS, called_name(call).startswith("parse")
            for node in given if called_name(call) not in _GROWS and not parses else ():
                if _is_list(node):
                    yield from ((node, words) for words in self._of_list(node, at) if runs or _has_flag(words))
            if runs:
                handed = [*call.args[:1], *(each.value for each in call.keywords if each.arg in _WORDS)]
                yield from ((node, words) for node in handed for words in self._of_text(node, at))

    def _goes_on(self, name: str, binding: Binding) -> bool:
        """Whether the name is given this and more later, as by ``words = words + more``: then it is no command yet."""
        given = self._names.bindings(name, binding.where.scope)
        later = (each.value for each in given if each.value is not None and each.where.order > binding.where.order)
        return any(isinstance(part, ast.Name) and part.id == name for value in later for part in ast.walk(value))

    def _of_list(self, node: ast.expr, at: Where) -> Iterable[Words]:
        """The command of a list; of ``["bash", "-c", text]`` those of the text."""
        words = self._list(node, at)
        if words is None:
            return []
        place = text_of_shell([word.text for word in words.known])
        if place is not None and isinstance(node, ast.List):
            return self._of_text(node.elts[place], at) if len(node.elts) > place else []
        return [words]

    def _grown(self, name: str, binding: Binding, until: Where) -> Words | None:
        """A list as it is after what is added to it before ``until``; None where it is changed otherwise."""
        assert binding.value is not None
        words, made = self._list(binding.value, binding.where), binding.where
        added = self._additions(name, made)
        if words is None or added is None:
            return None
        orders = {where.order for where, _ in added}
        others = (each.where.order for each in self._names.bindings(name, made.scope) if each is not binding)
        end = min((each for each in others if each > made.order and each not in orders), default=until.order)
        for where, value in added:
            if not made.order < where.order < min(end, until.order) or where.excludes(made):
                continue
            left = met(where.branch, self._expressions, None)
            if left.branch is None and not left.by_default:
                continue
            more = self._list(value, where) or Words((Argument(None, *self._module.extent(value), options=True),))
            sure = left.branch is not None and not left.by_default and where._replace(branch=left.branch).holds_at(made)
            words = words.with_more(more, certain=sure)
        return words

    def _additions(self, name: str, made: Where) -> list[tuple[Where, ast.expr]] | None:
        """What a list is given afterwards in the function that makes it, in order; None where more is done to it."""
        found: list[tuple[Where, ast.expr]] = []
        if (made.scope, name) in self._grown_elsewhere:
            return None
        for call, where in self._calls_on.get((made.scope, name), ()):
            self._spend(1)
            if called_name(call) in _CHANGES:
                return None
            if called_name(call) in _GROWS:
                one = called_name(call) == "append"
                given = call.args[0]
                value = _alone(given) if one else given
                found.append((where, value))
        around = self._names.definitions.get(made.scope[-1]) if made.scope else self._names.tree
        for node in self._parts(around, name):
            self._spend(1)
            if isinstance(node, ast.Subscript):
                return None
            where_added = self._names.rounds.get(id(node))
            found += [(where_added, node.value)] if where_added is not None else []
        return sorted(found, key=lambda each: each[0].order)

    @cached_property
    def _calls_on(self) -> Mapping[tuple[object, str], Sequence[tuple[ast.Call, Where]]]:
        """The calls of a name's own methods that are given something, by where they stand and the name."""
        found: dict[tuple[object, str], list[tuple[ast.Call, Where]]] = {}
        for call, where, _ in self._names.calls:
            held = call.func.value if isinstance(call.func, ast.Attribute) else None
            if isinstance(held, ast.Name) and call.args:
                found.setdefault((where.scope, held.id), []).append((call, where))
        return found

    @cached_property
    def _grown_elsewhere(self) -> frozenset[tuple[object, str]]:
        """Lists that have another name too, or that a function is given which adds to what it is given."""
        changing = _functions_that_change(self._names.tree)
        bound = ((binding.where.scope, binding.value) for _, binding in self._names.every_binding())
        given = ((at.scope, arg) for call, at, _ in self._names.calls if called_name(call) in changing
                 for arg in _given(call))  # fmt: skip
        return frozenset((scope, node.id) for scope, node in (*bound, *given) if isinstance(node, ast.Name))

    def _parts(self, around: ast.AST | None, name: str) -> Sequence[ast.AugAssign | ast.Subscript]:
        """What adds to a name, or changes a part of what it holds, in a function or the module."""
        if around not in self._changes:
            found: dict[str, list[ast.AugAssign | ast.Subscript]] = {}
            for node in ast.walk(around) if around is not None else ():
                if isinstance(node, ast.AugAssign):
                    found.setdefault(getattr(node.target, "id", ""), []).append(node)
                elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                    found.setdefault(getattr(node.value, "id", ""), []).append(node)
            self._changes[around] = found
        return self._changes[around].get(name, ())

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _TooMuchError

    def _list(self, node: ast.expr, at: Where, depth: int = 0) -> Words | None:
        """The words of a list; None of what is none, or cannot be told."""
        self._spend(1 + len(getattr(node, "elts", ())))
        if depth > MAX_DEPTH:
            return None
        if isinstance(node, ast.List | ast.Tuple):
            words = Words()
            for each in node.elts:
                words = words.with_more(self._item(each, at, depth + 1))
            return words
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            sides = [self._list(side, at, depth + 1) for side in (node.left, node.right)]
            if not any(sides):
                return None
            nodes = (node.left, node.right)
            left, right = (each or self._untold(of) for each, of in zip(sides, nodes, strict=True))
            return left.with_more(right)
        if isinstance(node, ast.IfExp):
            return self._choice(node, at, depth)
        if isinstance(node, ast.Name):
            scope, every = self._names.every(node.id, at)
            # in `words = words + more` what is meant is what the name had before
            earlier = (each for each in reversed(every) if scope != at.scope or each.where.order < at.order)
            binding = next((each for each in earlier if each.value is not None), None)
            if binding is None or binding.where.scope not in (at.scope, ()) or not binding.where.holds_at(at):
                return None
            return self._grown(node.id, binding, at)
        if isinstance(node, ast.Call):
            return self._called(node, at, depth)
        return None

    def _called(self, node: ast.Call, at: Where, depth: int) -> Words | None:
        """``text.split()``, ``shlex.split(text)``, ``list(words)``."""
        name = called_name(node)
        if name in ("list", "tuple") and len(node.args) == 1:
            return self._list(node.args[0], at, depth + 1)
        if name != "split" or not isinstance(node.func, ast.Attribute) or len(node.args) > 1:
            return None
        held = node.func.value
        if (getattr(held, "id", "") == "shlex") != bool(node.args):  # `text.split(",")` makes no words
            return None
        return next(iter(self._of_text(node.args[0] if node.args else held, at)), None)

    def _item(self, node: ast.expr, at: Where, depth: int) -> Words:
        """One element of a list: a word, or several of ``*more``."""
        if isinstance(node, ast.Starred):
            return self._list(node.value, at, depth) or self._untold(node)
        if isinstance(node, ast.IfExp):
            found = self._choice(ast.IfExp(node.test, _alone(node.body), _alone(node.orelse)), at, depth)
            return found or self._untold(node)
        start, end = self._module.extent(node)
        shared = self._expressions.shared
        shared.by_default = False
        try:
            data = self._expressions.read(node, at).data
        except (UnknownValueError, RecursionError):
            data = None
        if isinstance(data, Unknown) or not isinstance(data, str | int | float):
            head = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else None
            named = re.match(_NAMED, str(head.value)) if isinstance(head, ast.Constant) else None
            return Words((Argument(None, start, end, begins=named[0] if named else ""),))
        text = str(data)
        if self._module.text[start + 1 : end - 1] == text:  # within its quotes
            start, end = start + 1, end - 1
        other = not isinstance(node, ast.Constant)
        return Words((Argument(text, start, end, from_variable=other, by_default=shared.by_default),))

    def _untold(self, node: ast.expr) -> Words:
        return Words((Argument(None, *self._module.extent(node), options=True),))

    def _choice(self, node: ast.IfExp, at: Where, depth: int) -> Words | None:
        """The arm that is taken; where only the run can tell, what either may say."""
        shared = self._expressions.shared
        shared.by_default = False
        try:
            test = self._expressions.read(node.test, at).data
        except (UnknownValueError, RecursionError):
            test = Unknown(frozenset(), "")
        if not isinstance(test, Unknown) and not shared.by_default:
            return self._list(node.body if test else node.orelse, at, depth + 1)
        arms = [self._list(each, at, depth + 1) for each in (node.body, node.orelse)]
        words = Words()
        for each in arms:
            if each is None or any(word.text is None or not word.text.startswith("-") for word in each.known[:1]):
                return None  # `["a"] if x else ["b"]`: a word of one of them stands there
            words = words.with_more(each, certain=False)
        return words

    def _of_text(self, node: ast.expr, at: Where) -> Iterable[Words]:
        """The commands of a text that a shell is given."""
        found = self._text(node, at, 0)
        if found is None:
            return []
        text, places = found
        return [Words(words) for words in commands_of_text(text, places, Environment())]

    def _text(self, node: ast.expr, at: Where, depth: int) -> tuple[str, Sequence[int]] | None:
        """A text and where each character of it stands; a part that nobody knows is a shell's variable there."""
        start, end = self._module.extent(node)
        if depth > MAX_DEPTH:
            return None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            whole, text = self._module.text[start:end], node.value
            quotes = whole.find(text) if text else 0
            exact = 0 < quotes <= 4 and len(whole) - len(text) - quotes in (1, 3)
            return text, range(start + quotes, start + quotes + len(text)) if exact else [start] * len(text)
        if isinstance(node, ast.JoinedStr):
            text = "".join(self._part(each, at) for each in node.values)
            return text, [start] * len(text)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = (self._text(side, at, depth + 1) for side in (node.left, node.right))
            return None if left is None or right is None else (left[0] + right[0], [*left[1], *right[1]])
        if isinstance(node, ast.Name):
            binding = self._expressions.bound(node.id, at)
            value = binding.value if binding is not None else None
            return self._text(value, binding.where, depth + 1) if binding is not None and value is not None else None
        if called_name(node) in ("strip", "dedent") and isinstance(node, ast.Call):
            held = node.args[0] if node.args else getattr(node.func, "value", None)
            return self._text(held, at, depth + 1) if isinstance(held, ast.expr) else None
        return None

    def _part(self, node: ast.expr, at: Where) -> str:
        """What stands for one part of an f-string in a shell's text."""
        if isinstance(node, ast.Constant):
            return str(node.value)
        if not isinstance(node, ast.FormattedValue) or node.conversion != -1 or node.format_spec is not None:
            return _UNTOLD
        data = self._values.scalar_of(node.value, at)
        return str(data) if isinstance(data, str | int | float) else _UNTOLD


def _has_flag(words: Words) -> bool:
    """Whether a flag is among them that says how to serve: two words may as well be names, or a test's."""
    texts = [word.text or word.begins for word in words.known]
    return any(text.startswith("-") and text not in _ABOUT for text in texts) or any(
        word.options for word in words.known
    )


def _functions_that_change(tree: ast.AST) -> Set[str]:
    """The functions that add to a list which they are given, or hand it on to one that does."""
    made = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    hands: dict[str, set[str]] = {}  # by the name of a function those that hand it what they are given
    changing = []
    for each in made:
        given = {arg.arg for arg in (*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs)}
        for node in ast.walk(each):
            if isinstance(node, ast.AugAssign) and getattr(node.target, "id", "") in given:
                changing.append(each.name)
            elif isinstance(node, ast.Call):
                held = node.func.value if isinstance(node.func, ast.Attribute) else None
                if getattr(held, "id", "") in given and called_name(node) in (*_GROWS, *_CHANGES):
                    changing.append(each.name)
                if any(getattr(arg, "id", "") in given for arg in _given(node)):
                    hands.setdefault(called_name(node), set()).add(each.name)
    found: set[str] = set()
    while changing:
        name = changing.pop()
        if name not in found:
            found.add(name)
            changing += hands.get(name, ())
    return found


def _given(call: ast.Call) -> Iterable[ast.expr]:
    return (*call.args, *(each.value for each in call.keywords))


def _alone(node: ast.expr) -> ast.expr:
    """A list of this alone, at its place."""
    return ast.copy_location(ast.List([node], ast.Load()), node)


def _is_list(node: ast.expr) -> bool:
    """Whether this may be the words of a command: a list of several, written out at least in part, or a split text."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _is_list(node.left) or _is_list(node.right)
    split = isinstance(node, ast.Call) and called_name(node) == "split"
    return split or (isinstance(node, ast.List | ast.Tuple) and bool(node.elts))
