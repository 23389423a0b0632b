"""How a training loop of a program's own updates: its optimizer, after how many passes, when gradients are let go."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kb.config.python.calls import Said
from kb.config.python.expressions import COMPUTED
from kb.config.python.held import UnknownValueError
from kb.config.python.origins import Origins, Traced, first_argument
from kb.config.python.places import Where
from kb.config.python.syntax import called_name
from kb.core.expression import Unknown
from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

STEPS, OPTIMIZER, HELD = "training.gradient_accumulation_steps", "training.optim", "run.gradients_kept"
ACCUMULATES = "gradient_accumulation_steps"
_NAMED_SO = (
    "adam", "sgd", "lion", "adafactor", "lamb", "rmsprop", "adagrad", "adadelta", "muon", "lars", "sophia", "optim",
)  # fmt: skip
# Optimizers by the package that they are imported from, and the Trainer's names of what they do.
OPTIMIZERS = {
    ("torch", "AdamW"): "adamw_torch",
    ("torch", "Adam"): "adamw_torch",
    ("torch", "SGD"): "sgd",
    ("transformers", "AdamW"): "adamw_hf",
    ("transformers", "Adafactor"): "adafactor",
    ("bitsandbytes", "AdamW8bit"): "adamw_bnb_8bit",
    ("bitsandbytes", "Adam8bit"): "adamw_bnb_8bit",
    ("bitsandbytes", "PagedAdamW8bit"): "paged_adamw_8bit",
    ("bitsandbytes", "PagedAdam8bit"): "paged_adamw_8bit",
    ("bitsandbytes", "PagedAdamW32bit"): "paged_adamw_32bit",
    ("bitsandbytes", "PagedAdamW"): "paged_adamw_32bit",
    ("bitsandbytes", "Lion"): "lion_32bit",
    ("bitsandbytes", "Lion8bit"): "lion_8bit",
    ("bitsandbytes", "PagedLion8bit"): "paged_lion_8bit",
}
OF_OPTIMIZERS = {"lr": "training.learning_rate", "eps": "training.adam_epsilon"}
_OTHERWISE = {"SGD": ("momentum",), "Adam": ("weight_decay", "amsgrad"), "AdamW": ("amsgrad",)}  # what takes more


class Pass(NamedTuple):
    """One forward pass: the call of the model, where it stands, and what of its outputs outlives it."""

    node: ast.Call
    at: Where
    owner: "Expressions"
    keeps: str
    own_loss: bool


class Around(NamedTuple):
    """A loop: its forward pass, its ``backward`` and where that stands, the ``for`` over batches, and what all of it
    lies in, from within."""

    forward: Pass
    backward: ast.Call
    at: Where
    batches: ast.For
    around: Sequence[ast.AST]


def updates_of(loop: Around, entry: "Expressions", origins: Origins, *, accelerated: bool) -> Iterator[Said]:
    """What a loop says of its updates.

    Args:
        entry: the module that it stands in.
        accelerated: Accelerate counts the passes to an update.
    """
    return _Updates(entry, origins).said(loop, accelerated=accelerated)


class _Updates:
    """Reads the updates of the loops of one module."""

    def __init__(self, entry: "Expressions", origins: Origins) -> None:
        self._entry, self._origins = entry, origins

    def said(self, loop: Around, *, accelerated: bool) -> Iterator[Said]:
        """How the loop updates: its optimizer, after how many passes, and when gradients are let go.

        Args:
            accelerated: Accelerate counts the passes to an update.
        """
        forward, backward = loop.forward, loop.backward
        loops = [each for each in loop.around if isinstance(each, ast.For | ast.While)]
        optimizer = self._optimizer(self._called_in(loop.batches, "step"))
        parted = optimizer is None and len(loops) > 1  # an inner loop over parts of a batch
        if parted:
            optimizer = self._optimizer(self._called_in(loops[1], "step"))
        if optimizer is None:
            yield Said(OPTIMIZER, untold(OPTIMIZER), backward, "optimizer")
        else:
            yield from self._named_optimizer(optimizer[0], forward)
            if not accelerated:
                yield from self._accumulation(optimizer[1], loop, parted=parted)
        zeroed = [node for node, _ in self._called_in(loop.batches, "zero_grad")]
        inside = self._origins.lies_in(forward.node, loop.batches, self._entry)
        begins = forward.node.lineno if inside else backward.lineno
        late = bool(zeroed) and all(begins < each.lineno < backward.lineno for each in zeroed)
        kept = any(each.arg == "set_to_none" and _is_nothing(each.value) for call in zeroed for each in call.keywords)
        never = "zero_grad" not in self._entry.text and ".grad" not in self._entry.text
        if late or kept or (never and optimizer is not None):
            value = "late" if late else "kept" if kept else "never"
            yield Said(HELD, value, zeroed[0] if zeroed else backward, "zero_grad")

    def _called_in(self, loop: ast.AST, name: str) -> list[tuple[ast.Call, Where]]:
        """The calls of a name that stand in a loop."""
        calls = ((node, where) for node, where, _ in self._entry.names.calls if called_name(node) == name)
        return [each for each in calls if self._origins.lies_in(each[0], loop, self._entry)]

    def _optimizer(self, steps: Iterable[tuple[ast.Call, Where]]) -> tuple[Traced, ast.Call] | None:
        """What makes the optimizer among what the loop calls ``step`` of, and that call."""
        for node, where in steps:
            held = (
                first_argument(node) if node.args else node.func.value if isinstance(node.func, ast.Attribute) else None
            )
            if held is None:
                continue
            try:
                origin = self._origins.of(held, where, self._entry)
            except UnknownValueError:
                continue
            if isinstance(origin.value, ast.Call) and _is_optimizer(origin.value):
                return origin, node
        return None

    def _named_optimizer(self, made: Traced, forward: Pass) -> Iterator[Said]:
        """The settings that an optimizer says: its class, which goes by its own name where the Trainer has none for it,
        and what it is given by name."""
        call = made.node
        name = called_name(call)
        package = self._origins.package(call, made.owner)
        known = OPTIMIZERS.get((package, name))
        given = {each.arg: each.value for each in call.keywords}
        more = [each for each in _OTHERWISE.get(name, ()) if not _is_nothing(given.get(each))]
        if known == "adamw_torch" and isinstance(fused := given.get("fused"), ast.Constant) and fused.value is True:
            known = "adamw_torch_fused"
        if not self._has_all(made, forward):
            yield Said(OPTIMIZER, untold(OPTIMIZER), call, name)
        elif known is None or more:
            yield Said(OPTIMIZER, f"{name} with {more[0]}" if more else name, call, "optim")
        else:
            yield Said(OPTIMIZER, known, call, "optim")
        for word, setting in OF_OPTIMIZERS.items():
            if word in given and made.owner is self._entry:
                yield Said(setting, given[word], given[word], word, made.at)

    def _has_all(self, made: Traced, forward: Pass) -> bool:
        """Whether an optimizer is given what trains of the model, not ``model.classifier.parameters()``."""
        given = first_argument(made.node)
        while isinstance(given, ast.Call) and called_name(given) in ("filter", "list"):
            given = given.args[-1] if given.args else None
        if not isinstance(given, ast.Call) or called_name(given) not in ("parameters", "named_parameters"):
            return given is not None  # groups of parameters, made by the program
        assert isinstance(given.func, ast.Attribute)
        try:
            origin = self._origins.of(given.func.value, made.at, made.owner).value
        except UnknownValueError:
            return False
        return origin is self._origins.of(forward.node.func, forward.at, forward.owner).value

    def _accumulation(self, step: ast.Call, loop: Around, *, parted: bool) -> Iterator[Said]:
        """Passes to an update, by the ``if (step + 1) % 8 == 0:`` around it."""
        if parted:
            yield Said(STEPS, untold(STEPS), loop.batches.iter, ACCUMULATES)
            return
        for each in self._origins.around(self._entry, step):
            if each is loop.batches:
                return
            if not isinstance(each, ast.If) or self._origins.lies_in(loop.backward, each, self._entry):
                continue  # or only such a pass runs backward at all
            shares = [
                node for node in ast.walk(each.test) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
            ]
            if shares:
                yield Said(STEPS, shares[0].right, shares[0].right, ACCUMULATES, loop.at)
            elif "nan" not in ast.unparse(each.test) and "inf" not in ast.unparse(each.test):
                yield Said(STEPS, untold(STEPS), step, ACCUMULATES)
            return


def untold(name: str) -> Unknown:
    return Unknown(frozenset((name,)), COMPUTED)


def _is_optimizer(call: ast.Call) -> bool:
    name = called_name(call)
    return any(word in name.casefold() for word in _NAMED_SO) and not name.endswith(("LR", "Scheduler"))


def _is_nothing(value: ast.expr | None) -> bool:
    """Whether an argument is left out, or is 0 or False."""
    return value is None or (isinstance(value, ast.Constant) and not value.value)
