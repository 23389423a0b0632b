"""Evaluations that gather what a model gives with the graph behind it: each value keeps its batch's activations."""

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kb.config.python.calls import Said
from kb.config.python.loop_pass import Passes
from kb.config.python.origins import Origins, Traced
from kb.config.python.places import Where
from kb.config.python.syntax import called_name, dotted_name

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

MAX_CALLERS = 20  # from a forward pass to the top of the program
# Words of a program that may leave gradients off out of sight.
_NO_GRADIENTS = (
    "set_grad_enabled", "requires_grad_(False", "requires_grad = False", "requires_grad=False", "decorator",
    "__enter__", "enter_context", "no_grad()(", "inference_mode()(",
)  # fmt: skip
_HARMLESS = ("autocast", "tqdm", "open", "timer", "record_function")  # what may be opened and leaves gradients on
MOST_TRIED = 400  # calls in loops that are looked at for an evaluation
_NO_PASSES = frozenset(("append", "to", "item", "print", "len", "range", "backward", "step", "zero_grad", "update"))
# Calls that may be given a loss and run nothing backward.
_NO_BACKWARD = frozenset((
    "append", "extend", "print", "len", "float", "int", "str", "detach", "item", "cpu", "numpy", "argmax", "softmax",
    "sigmoid", "max", "mean", "sum", "update", "add_batch", "isinstance", "info", "log", "set_postfix", "write",
))  # fmt: skip
GRAPHS = "run.graphs_summed"


class Graphs:
    """Looks for them in the module of a loop."""

    def __init__(self, entry: "Expressions", origins: Origins, passes: Passes) -> None:
        self._entry, self._origins, self._passes = entry, origins, passes
        self._looked = False

    def said(self, model: Traced) -> Iterator[Said]:
        """A loop that evaluates the same model with gradients on, and gathers what it gives with the graph behind it:
        ``total += outputs.loss``, ``kept.append(outputs.logits)``. Each keeps its batch's activations."""
        entry = self._entry
        if self._looked or any(word in entry.text for word in _NO_GRADIENTS):
            return
        self._looked = True  # once for a program: its loops train one model, or are not told
        tried = 0
        for node, at, _ in entry.names.calls:
            if called_name(node) in _NO_PASSES or tried > MOST_TRIED:
                continue
            loop = next((each for each in self._origins.around(entry, node) if isinstance(each, ast.For)), None)
            tried += loop is not None
            if loop is None or not self._passes.is_model(node.func, at, entry) or self._without_graph(node, at):
                continue
            if self._origins.of(node.func, at, entry).value is not model.value or self._runs_backward(loop, at):
                continue
            for each in ast.walk(loop):
                name, value = _gathered(each)
                if (
                    name is None
                    or value is None
                    or not self._passes.has_graph(value, at, self._entry)
                    or _is_made_again(name, loop)
                ):
                    continue
                if self._is_given_back(name, at):
                    return
                yield Said(GRAPHS, name, value, name)
                return

    def _is_given_back(self, name: str, at: Where) -> bool:
        """Whether a function returns what it gathers to something that runs it backward: ``total(x).backward()``."""
        function = self._origins.function_at(at.scope, self._entry)
        if function is None:
            return False
        given = {ast.unparse(each.value) for each in ast.walk(function) if isinstance(each, ast.Return) and each.value}
        written = f"{function.name}("
        passes = [node for node, _, _ in self._entry.names.calls if called_name(node) == "backward"]
        return any(name in each for each in given) and any(written in ast.unparse(each) for each in passes)

    def _runs_backward(self, loop: ast.For, at: Where) -> bool:
        """Whether what a loop gathers may run backward: in it, by what it is given to, or behind it in the function or
        in a loop around it."""
        if any(self._may_run_backward(each, at) for each in ast.walk(loop) if isinstance(each, ast.Call)):
            return True
        around = self._origins.around(self._entry, loop)
        for node, where, _ in self._entry.names.calls:
            if called_name(node) != "backward" or where.scope != at.scope:
                continue
            loops = [each for each in self._origins.around(self._entry, node) if isinstance(each, ast.For)]
            if any(each is loop for each in loops) or not loops or any(each is loops[0] for each in around):
                return True
        return False

    def _may_run_backward(self, call: ast.Call, at: Where) -> bool:
        """Whether a call that is not known as harmless is given a loss or outputs: ``scaler(loss, optimizer)``."""
        given = [*call.args, *(each.value for each in call.keywords)]
        return called_name(call) not in _NO_BACKWARD and any(
            self._passes.has_graph(each, at, self._entry) for each in given
        )

    def _without_graph(self, node: ast.Call, at: Where, depth: int = 0) -> bool:
        """Whether a forward pass is, or may be, made without gradients: by a ``with`` around it or around a call of its
        function, by a decorator, or in a function whose calls are not seen."""
        lies_in = self._origins.around(self._entry, node)
        opened = [item.context_expr for each in lies_in if isinstance(each, ast.With) for item in each.items]
        if depth > MAX_CALLERS or any(called_name(each) not in _HARMLESS for each in opened):
            return True
        function = self._origins.function_at(at.scope, self._entry)
        if function is None:
            return bool(at.scope)  # in a class or a lambda
        calls = self._origins.calls_of(function, self._entry)
        if function.decorator_list or not calls:
            return True
        return any(self._without_graph(call, where, depth + 1) for call, where in calls)


def _gathered(node: ast.AST) -> tuple[str | None, ast.expr | None]:
    """The name that gathers a value, and the value: ``total += loss``, ``losses.append(loss)``."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return dotted_name(node.target), node.value
    if isinstance(node, ast.Call) and called_name(node) == "append" and len(node.args) == 1:
        holder = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        return dotted_name(holder), node.args[0]
    return None, None


def _is_made_again(name: str, loop: ast.For) -> bool:
    """Whether a loop gives what gathers a value anew, or lets go of graphs in it: ``total = total.detach()``."""
    nodes = list(ast.walk(loop))
    targets = [each for node in nodes if isinstance(node, ast.Assign | ast.Delete) for each in node.targets]
    targets += [node.target for node in nodes if isinstance(node, ast.AnnAssign)]
    targets += [
        node.func.value for node in nodes
        if isinstance(node, ast.Call) and called_name(node) in ("pop", "clear") and isinstance(node.func, ast.Attribute)
    ]  # fmt: skip
    held = (each.value if isinstance(each, ast.Subscript) else each for each in targets)
    return any(dotted_name(each) == name for each in held)
