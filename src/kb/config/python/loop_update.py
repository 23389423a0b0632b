"""How a training loop of a program's own updates: its optimizer, after how many passes, when gradients are let go."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kb.config.python.calls import Said
from kb.config.python.expressions import untold
from kb.config.python.held import UnknownValueError
from kb.config.python.loop_pass import Pass
from kb.config.python.origins import Origins, Traced, first_argument
from kb.config.python.places import Where
from kb.config.python.syntax import called_name, dotted_name
from kb.core.record import NamedTuple

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

STEPS, OPTIMIZER, HELD = "training.gradient_accumulation_steps", "training.optim", "run.gradients_kept"
_KNOWN_PACKAGES = ("torch", "transformers", "bitsandbytes")  # whose optimizers leave gradients as they are
_LET_GO_OTHERWISE = ("register_step_post_hook", "register_post_accumulate_grad_hook", '"grad"', "'grad'")
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
# Calls in a loop that are given the model or its optimizer, and let no gradients go.
_LEAVES_GRADIENTS = frozenset((
    "backward", "step", "clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "unscale_", "scale", "update", "train",
    "eval", "parameters", "named_parameters", "state_dict", "save", "save_pretrained", "print", "len", "isinstance",
    "generate", "to",
))  # fmt: skip
_OTHERWISE = {"SGD": ("momentum",), "Adam": ("weight_decay", "amsgrad"), "AdamW": ("amsgrad",)}  # what takes more


class Around(NamedTuple):
    """A loop: its forward pass, its ``backward`` and where that stands, the ``for`` over batches, and what all of it
    lies in, from within."""

    forward: Pass
    backward: ast.Call
    at: Where
    batches: ast.For
    around: Sequence[ast.AST]


def updates_of(loop: Around, entry: "Expressions", origins: Origins, *, counted: bool | None) -> Iterator[Said]:
    """What a loop says of its updates.

    Args:
        entry: the module that it stands in.
        counted: Accelerate counts the passes to an update; None where it is told how many, and does not.
    """
    return _Updates(entry, origins).said(loop, counted=counted)


class _Updates:
    """Reads the updates of the loops of one module."""

    def __init__(self, entry: "Expressions", origins: Origins) -> None:
        self._entry, self._origins = entry, origins

    def said(self, loop: Around, *, counted: bool | None) -> Iterator[Said]:
        """How the loop updates: its optimizer, after how many passes, and when gradients are let go."""
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
            if not counted:
                every = list(self._accumulation(optimizer[1], loop, parted=parted))
                if counted is None and not every:
                    every = [Said(STEPS, 1, optimizer[1], ACCUMULATES)]
                by_accelerate = counted is None and getattr(every[0].value, "attr", "") == ACCUMULATES
                yield from [] if by_accelerate else every  # % accelerator.gradient_accumulation_steps: as it is told
        zeroed = [node for node, _ in self._called_in(loop.batches, "zero_grad")]
        inside = self._origins.lies_in(forward.node, loop.batches)
        begins = forward.node.lineno if inside else backward.lineno
        late = bool(zeroed) and all(begins < each.lineno < backward.lineno for each in zeroed)
        kept = any(each.arg == "set_to_none" and _is_nothing(each.value) for call in zeroed for each in call.keywords)
        texts = [each.text for each in (self._entry, *forward.owners)]
        never = not any(word in text for word in ("zero_grad", ".grad") for text in texts)
        if late or kept or (never and optimizer is not None and self._lets_none_go(optimizer[0], loop)):
            value = "late" if late else "kept" if kept else "never"
            yield Said(HELD, value, zeroed[0] if zeroed else backward, "zero_grad")

    def _lets_none_go(self, made: Traced, loop: Around) -> bool:
        """Whether an optimizer is of a known package, and the loop hands neither it nor the model to other code, which
        could let gradients go."""
        once = any(isinstance(each, ast.Break | ast.Return) for each in loop.batches.body)  # a trial of one step
        once |= ast.unparse(loop.batches.iter) == "range(1)"
        if once or self._origins.package(made.node, made.owner) not in _KNOWN_PACKAGES:
            return False
        if any(word in self._entry.text for word in _LET_GO_OTHERWISE) or _binds(loop.batches, loop.forward.node.func):
            return False
        steps = (node for node, _ in self._called_in(loop.batches, "step"))
        of_methods = (*steps, *(each.call for each in loop.forward.via))
        names = {dotted_name(each.func.value) for each in of_methods if isinstance(each.func, ast.Attribute)}
        names |= {dotted_name(loop.forward.node.func)}
        for node, _, _ in self._entry.names.calls:
            if called_name(node) in _LEAVES_GRADIENTS or not self._origins.lies_in(node, loop.batches):
                continue
            given = [*node.args, *(each.value for each in node.keywords)]
            if isinstance(node.func, ast.Attribute):
                given.append(node.func.value)
            if {dotted_name(each) for each in given} & (names - {None}):
                return False
        return True

    def _called_in(self, loop: ast.AST, name: str) -> list[tuple[ast.Call, Where]]:
        """The calls of a name that stand in a loop."""
        calls = ((node, where) for node, where, _ in self._entry.names.calls if called_name(node) == name)
        return [each for each in calls if self._origins.lies_in(each[0], loop)]

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
        if "optim_bits" in given:
            bits = getattr(given["optim_bits"], "value", None)
            known = OPTIMIZERS.get((package, f"{name}{bits}bit")) if bits == 8 else known if bits == 32 else None
            known, more = known, [] if known else ["optim_bits"]
        if known == "adamw_torch" and isinstance(fused := given.get("fused"), ast.Constant) and fused.value is True:
            known = "adamw_torch_fused"
        foreign = package not in _KNOWN_PACKAGES and any(each == name for _, each in OPTIMIZERS)
        if not self._has_all(made, forward) or name[:1].islower() or foreign:  # make_optimizer(model)
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
        return self._is_all(first_argument(made.node), made, forward)

    def _is_all(self, given: ast.expr | None, made: Traced, forward: Pass) -> bool:
        while isinstance(given, ast.Call) and called_name(given) in ("filter", "list"):
            given = given.args[-1] if given.args else None
        if isinstance(given, ast.Call) and called_name(given) in ("parameters", "named_parameters"):
            if not isinstance(given.func, ast.Attribute):
                return True
            try:
                origin = self._origins.of(given.func.value, made.at, made.owner).value
            except UnknownValueError:
                return False
            trained = self._origins.of(forward.node.func, forward.at, forward.owner).within(forward.holders)
            return trained.is_made_by(origin)
        return given is not None and self._gathers_all(given, made, forward)

    def _gathers_all(self, given: ast.expr, made: Traced, forward: Pass) -> bool:
        """Whether parameters that the program gathers are all that train: a list of one group, or one that takes them
        by a part of their name, is not."""
        if isinstance(given, ast.Name):
            try:
                given = self._origins.last(given.id, made.at, made.owner)[0].value or given
            except UnknownValueError:
                return True
        if isinstance(given, ast.ListComp | ast.GeneratorExp):
            asked = [each for part in given.generators for each in part.ifs]
            return all("requires_grad" in ast.unparse(each) for each in asked)
        if isinstance(given, ast.List) and len(given.elts) == 1 and isinstance(given.elts[0], ast.Dict):
            group = given.elts[0]
            keys = (each.value if isinstance(each, ast.Constant) else None for each in group.keys)
            named = dict(zip(keys, group.values, strict=True))
            return "params" not in named or self._is_all(named["params"], made, forward)
        return True

    def _accumulation(self, step: ast.Call, loop: Around, *, parted: bool) -> Iterator[Said]:
        """Passes to an update, by the ``if (step + 1) % 8 == 0:`` around it."""
        if parted:
            yield Said(STEPS, untold(STEPS), loop.batches.iter, ACCUMULATES)
            return
        ahead = self._turned_back(step, loop)
        if ahead is not None:
            yield ahead
            return
        for each in self._origins.around(self._entry, step):
            if each is loop.batches:
                return
            if not isinstance(each, ast.If) or self._origins.lies_in(loop.backward, each):
                continue  # or only such a pass runs backward at all
            share = _share(each.test)
            if share is not None:
                yield Said(STEPS, share, share, ACCUMULATES, loop.at)
            elif not _of_overflow(each.test):
                yield Said(STEPS, untold(STEPS), step, ACCUMULATES)
            return

    def _turned_back(self, step: ast.Call, loop: Around) -> Said | None:
        """Passes to an update, by an ``if (step + 1) % 8 != 0: continue`` between ``backward`` and it."""
        inside = self._origins.lies_in(loop.backward, loop.batches)
        function = self._origins.function_at(loop.at.scope, self._entry)
        if not inside and function is None:
            return None
        for each in ast.walk(loop.batches if inside or function is None else function):
            turns = isinstance(each, ast.If) and isinstance(each.body[-1], ast.Continue | ast.Return)
            if not turns or not loop.backward.lineno < each.lineno < step.lineno:  # type: ignore[attr-defined]
                continue
            assert isinstance(each, ast.If)
            if self._origins.lies_in(step, each) or _of_overflow(each.test):
                continue
            differs = isinstance(each.test, ast.Compare) and isinstance(each.test.ops[0], ast.NotEq)
            given = each.test.left if differs and isinstance(each.test, ast.Compare) else each.test
            share = given.right if isinstance(given, ast.BinOp) and isinstance(given.op, ast.Mod) else None
            value = untold(STEPS) if share is None else share
            return Said(STEPS, value, share or step, ACCUMULATES, None if share is None else loop.at)
        return None


def _share(test: ast.expr) -> ast.expr | None:
    """The 8 of ``(step + 1) % 8 == 0``, which holds once in so many steps; of ``or`` and ``and`` that of the one part
    that has it."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        sides = (test.left, test.comparators[0])
        return next(
            (each.right for each in sides if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mod)), None
        )
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        given = test.operand
        return given.right if isinstance(given, ast.BinOp) and isinstance(given.op, ast.Mod) else None
    if isinstance(test, ast.BoolOp):
        found = [each for part in test.values if (each := _share(part)) is not None]
        more = sum(isinstance(each, ast.Mod) for each in ast.walk(test))
        return found[0] if len(found) == 1 == more else None
    return None


def _of_overflow(test: ast.expr) -> bool:
    """Whether an ``if`` asks for a loss that is no number, as few are."""
    written = ast.unparse(test)
    return "nan" in written or "inf" in written


def _binds(loop: ast.For, called: ast.expr) -> bool:
    """Whether a loop gives what is called anew: another model has no gradients yet."""
    targets = [each for node in ast.walk(loop) if isinstance(node, ast.Assign) for each in node.targets]
    return dotted_name(called) in {dotted_name(each) for each in targets if isinstance(each, ast.Name | ast.Attribute)}


def _is_optimizer(call: ast.Call) -> bool:
    name = called_name(call)
    return any(word in name.casefold() for word in _NAMED_SO) and not name.endswith(("LR", "Scheduler"))


def _is_nothing(value: ast.expr | None) -> bool:
    """Whether an argument is left out, or is 0 or False."""
    return value is None or (isinstance(value, ast.Constant) and not value.value)
