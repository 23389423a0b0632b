"""The forward pass that the loss of a training loop comes from: through names, a loss made of the logits, and the
functions and methods of the program's own.
"""

import ast
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kb.config.python.held import UnknownValueError
from kb.config.python.origins import Origins, Traced
from kb.config.python.places import END, Scope, Where
from kb.config.python.syntax import called_name, dotted_name
from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

MAX_STEPS = 20  # from a loss to the forward pass
MOST_SPENT = 5_000
_SHAPES = frozenset(
    ("view", "reshape", "squeeze", "unsqueeze", "float", "contiguous", "to", "transpose", "permute", "flatten")
)
_MODULES = ("Module", "LightningModule")  # classes whose objects hold weights
_NO_MODULES = ("object", "ABC")
# What a module may be made of beside the model and have no weights of its own.
_NO_WEIGHTS = ("Loss", "Dropout", "Tokenizer", "Processor", "Config", "Extractor", "Identity", "ReLU", "GELU", "Tanh",
               "Sigmoid", "Softmax", "Accuracy", "Path")  # fmt: skip


class Via(NamedTuple):
    """A call of a function or a method of the program's own on the way to a pass: where it stands, and the function."""

    call: ast.Call
    at: Where
    owner: "Expressions"
    scope: Scope
    home: "Expressions"


class Pass(NamedTuple):
    """One forward pass: the call of the model, where it stands, and what of its outputs outlives it.

    ``via``: the calls that lead to it, the innermost first; ``holders``: objects of the program's own classes that have
    the model as their only weights.
    """

    node: ast.Call
    at: Where
    owner: "Expressions"
    keeps: str
    own_loss: bool
    via: tuple[Via, ...] = ()
    holders: tuple[Traced, ...] = ()

    @property
    def owners(self) -> tuple["Expressions", ...]:
        """The modules that a round of the loop goes through, that of the pass first."""
        return tuple(dict.fromkeys((self.owner, *(each.owner for each in self.via))))


class Passes:
    """Finds the passes of one program.

    Args:
        loads: whether an object goes back to a model that kb reads.
    """

    def __init__(self, origins: Origins, loads: Callable[[Traced], bool]) -> None:
        self._origins, self._loads = origins, loads
        self._spent = 0  # steps from logits to their passes, which double with every call of several values
        self.deleted: Mapping[str, str] = {}  # names that a loop deletes, and how long what they held outlives the pass

    def of_loss(self, loss: ast.expr, at: Where, owner: "Expressions") -> Pass:
        """The forward pass that a loss comes from.

        Raises:
            UnknownValueError: it cannot be told.
        """
        return self._pass(loss, at, owner, None)

    def has_graph(self, value: ast.expr, at: Where, owner: "Expressions") -> bool:
        """Whether a value is a model's loss or logits as it gave them: not ``loss.item()``, nor detached."""
        try:
            return not self._of_logits(value, at._replace(order=END.order), owner, 0).own_loss
        except (UnknownValueError, RecursionError):
            return False

    def _pass(self, loss: ast.expr, at: Where, owner: "Expressions", held: str | None, depth: int = 0) -> Pass:
        """The forward pass that a loss comes from.

        Args:
            held: what is known to outlive the pass already.

        Raises:
            UnknownValueError: it cannot be told.
        """
        if depth > MAX_STEPS:
            raise UnknownValueError
        again = depth + 1
        if isinstance(loss, ast.BinOp):  # loss / steps, 0.5 * loss + …
            if not isinstance(loss.op, ast.Div | ast.Mult):
                raise UnknownValueError
            side = loss.right if isinstance(loss.left, ast.Constant) else loss.left
            return self._pass(side, at, owner, held, again)
        if isinstance(loss, ast.Attribute) and loss.attr == "loss":
            return self._pass(loss.value, at, owner, held, again)
        if isinstance(loss, ast.Subscript) and isinstance(loss.slice, ast.Constant) and loss.slice.value in (0, "loss"):
            return self._pass(loss.value, at, owner, held, again)
        if isinstance(loss, ast.Subscript) and isinstance(loss.slice, ast.Slice):  # model(…)[:2]
            return self._pass(loss.value, at, owner, held, again)
        if isinstance(loss, ast.Name):
            return self._named(loss, at, owner, held, again)
        if isinstance(loss, ast.IfExp):  # (loss, outputs) if return_outputs else loss
            arms = [self._pass(each, at, owner, held, again) for each in (loss.body, loss.orelse)]
            if arms[0].node is not arms[1].node:
                raise UnknownValueError
            return max(arms, key=lambda each: each.keeps != "no")
        if isinstance(loss, ast.Tuple | ast.Dict):
            return self._pass(_result(loss, 0)[0], at, owner, held, again)
        if isinstance(loss, ast.Call):
            return self._called(loss, at, owner, held, again)
        raise UnknownValueError

    def _named(self, loss: ast.Name, at: Where, owner: "Expressions", held: str | None, depth: int) -> Pass:
        """What a name was given last: outputs that have a name live on under it."""
        binding, number = self._origins.last(loss.id, at, owner)
        if binding.value is None:
            raise UnknownValueError
        if number is not None and isinstance(binding.value, ast.Call):  # loss, logits = self.step(batch)
            inside = self._inside(binding.value, number, binding.where, owner, "loop", depth)
            if inside is not None:
                return inside
        if number not in (None, 0):
            raise UnknownValueError
        of_loss = isinstance(binding.value, ast.Attribute | ast.Subscript | ast.BinOp) and number is None
        outlives = self.deleted.get(loss.id, "loop")
        kept = held or (None if of_loss else outlives if number == 0 or "loss" not in loss.id.casefold() else None)
        return self._pass(binding.value, binding.where, owner, kept, depth)

    def _called(self, call: ast.Call, at: Where, owner: "Expressions", held: str | None, depth: int) -> Pass:
        """A call that gives a loss: of the model, of a function of the program, of a loss made of the logits."""
        name = called_name(call)
        if name in ("mean", "sum", "to", "float") and isinstance(call.func, ast.Attribute):
            return self._pass(call.func.value, at, owner, held, depth)
        inside = self._inside(call, 0, at, owner, held, depth)
        if inside is not None:
            return inside
        if self.is_model(call.func, at, owner):
            return Pass(call, at, owner, held or "no", own_loss=False)
        for each in call.args:  # criterion(outputs.logits, labels)
            try:
                return self._of_logits(each, at, owner, depth)._replace(own_loss=True)
            except UnknownValueError:
                continue
        raise UnknownValueError

    def _inside(
        self, call: ast.Call, number: int, at: Where, owner: "Expressions", held: str | None, depth: int
    ) -> Pass | None:
        """The pass that a function or a method of the program makes, of whose results one is the loss; None of what is
        called otherwise."""
        inner = self._origins.into(call, at, owner, depth)
        if inner is None:
            return None
        loss, others = _result(inner.value, number)
        keeps = held or "no"
        if loss is not inner.value and not any(self.has_graph(each, inner.at, inner.owner) for each in others):
            keeps = "no"  # return loss, accuracy
        found = self._pass(loss, inner.at, inner.owner, None, depth)
        via = Via(call, at, owner, inner.at.scope, inner.owner)
        holder = self._holder(call, at, owner, found)
        holders = (*found.holders, *([holder] if holder is not None else []))
        return found._replace(keeps=keeps, via=(*found.via, via), holders=holders)

    def _holder(self, call: ast.Call, at: Where, owner: "Expressions", found: Pass) -> Traced | None:
        """The object of the program's own class whose method a pass lies in, where it holds weights; None of any other.

        Raises:
            UnknownValueError: it may hold more than the model that is passed through.
        """
        known = self._origins.instance(call, at, owner)
        if known is None:
            return None
        made, home, kind = known
        bases = {each.rpartition(".")[2] for each in home.names.bases(kind)} - {*_NO_MODULES}
        if not bases:
            return None
        model = getattr(found.node.func, "attr", None) if found.owner is home else None
        for name, binding in home.names.members_of(kind):
            if name != model and not _has_no_weights(binding.value):
                raise UnknownValueError
        if not bases <= {*_MODULES} or model is None:
            raise UnknownValueError
        return made

    def _of_logits(self, logits: ast.expr, at: Where, owner: "Expressions", depth: int) -> Pass:
        """The forward pass that logits come from: ``outputs.logits``, ``outputs[0].view(-1, 2)``."""
        owner.count()
        if depth > MAX_STEPS or self._spent > MOST_SPENT:
            raise UnknownValueError
        self._spent += 1
        if isinstance(logits, ast.Attribute) and logits.attr in ("logits", "loss", "T"):
            return self._of_logits(logits.value, at, owner, depth + 1)
        if isinstance(logits, ast.Subscript):
            return self._of_logits(logits.value, at, owner, depth + 1)
        if isinstance(logits, ast.Call) and called_name(logits) in _SHAPES and isinstance(logits.func, ast.Attribute):
            return self._of_logits(logits.func.value, at, owner, depth + 1)
        if isinstance(logits, ast.Name):
            binding, _ = self._origins.last(logits.id, at, owner)
            if binding.value is None:
                raise UnknownValueError
            outlives = self.deleted.get(logits.id, "loop")
            return self._of_logits(binding.value, binding.where, owner, depth + 1)._replace(keeps=outlives)
        if isinstance(logits, ast.Call):
            return self._called(logits, at, owner, None, depth + 1)
        raise UnknownValueError

    def is_model(self, called: ast.expr, at: Where, owner: "Expressions") -> bool:
        """Whether what is called is a model that transformers loads."""
        try:
            origin = self._origins.of(called, at, owner)
        except UnknownValueError:
            return False
        return self._loads(origin)


def _result(value: ast.expr, number: int) -> tuple[ast.expr, list[ast.expr]]:
    """Of what a function returns the loss, by its place or its name, and the rest.

    Raises:
        UnknownValueError: it has no such part.
    """
    if isinstance(value, ast.Tuple) and number < len(value.elts):
        return value.elts[number], [each for each in value.elts if each is not value.elts[number]]
    if isinstance(value, ast.Dict) and not number:
        named = {getattr(key, "value", None): each for key, each in zip(value.keys, value.values, strict=True)}
        if "loss" in named:
            return named["loss"], [each for each in value.values if each is not named["loss"]]
    if number or isinstance(value, ast.Tuple | ast.Dict):
        raise UnknownValueError
    return value, []


def _has_no_weights(value: ast.expr | None) -> bool:
    """Whether what an object of a class is given beside its model is a literal, or made by a call that is known to make
    nothing with weights: a name may hold a module that was made elsewhere."""
    if isinstance(value, ast.Call):
        return any(word in (dotted_name(value.func) or "") for word in _NO_WEIGHTS)
    if isinstance(value, ast.Tuple | ast.List):
        return all(map(_has_no_weights, value.elts))
    return isinstance(value, ast.Constant) or (isinstance(value, ast.UnaryOp) and _has_no_weights(value.operand))
