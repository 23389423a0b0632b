"""What the model of a training loop is by the time of its forward pass: the type that it is cast to, a compiler, copies
on several GPUs, weights that code changes, and the models that run beside it.
"""

import ast
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kb.config.python.calls import Said
from kb.config.python.expressions import met
from kb.config.python.held import UnknownValueError
from kb.config.python.loop_pass import Pass
from kb.config.python.origins import PARALLEL, Origins, Traced
from kb.config.python.places import Made, Where
from kb.config.python.source_says import OWN_TUNING, TELLS
from kb.config.python.syntax import called_name, dotted_name, words_of
from kb.core.document import NO_SUCH_RUN
from kb.core.expression import Unknown

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

DTYPE, NOT_MODELLED, LORA, COMPILED = "model.torch_dtype", "run.not_modelled", "lora.enabled", "training.torch_compile"
CHECKPOINTING = ("training.gradient_checkpointing", "training.activation_checkpointing")  # one switch of two names
SMALL = ("SequenceClassification", "ImageClassification", "AudioClassification", "MultipleChoice")  # heads: few logits
_HALF = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}  # methods that cast
_TYPES = {"float16": "float16", "half": "float16", "bfloat16": "bfloat16", "float32": "float32", "float64": "float64",
          "double": "float64"}  # fmt: skip
_OPEN = "?"  # a type that only a run can tell
_OF_TYPE = ("dtype", "precision", "type")
# Lines that change the type of weights otherwise: by default, or one by one (p.data = p.data.half()).
_ELSEWISE = re.compile(r"set_default_dtype\(|set_default_tensor_type\(|\.data\s*=\s*[\w.]+\.data\.(?:half|bfloat16)\(")
_AFTER_TRAINING = re.compile(r"infer|eval|test|predict|generat|export|save|convert|demo|chat")
# Words of functions that change which weights train, or what they are.
_CHANGING = OWN_TUNING | {"quantize", "prune", "replace", "patch", "apply", "tune", "requires"}
_CHOOSES = re.compile(
    r"(?m)^[^#\n]*(?:\.requires_grad\s*=(?!=)(?!\s*True\b)|\.requires_grad_\(\s*(?!True\b|\))"
    r"|\.(?:train_adapter|add_adapter|freeze_\w+)\()"
)
# Calls that switch checkpointing on, and what may put a model in training mode beside `.train()`.
_CHECKPOINTS = re.compile(r"checkpointing_enable\(|prepare_model_for_\w+_training\(|use_gradient_checkpointing")
_TRAINS_OTHERWISE = re.compile(r"\bunsloth\b|\.training\s*=(?!=)|[\"']train(?:ing)?[\"']\s*,\s*True\b")
_OWN_TRAIN = re.compile(r"(?m)^[ \t]+(?:async )?def train\(\s*self\b(?!\s*,\s*mode\b)")  # of a trainer, not of a module
_KNOWN = ("get_peft_model", "prepare_model_for_kbit_training")
_NO_PART = frozenset(("config", "generation_config", "tokenizer", "name", "device", "optimizer", "hf_device_map"))
_AVERAGE = re.compile(r"EMA$|^EMA|ExponentialMovingAverage|^AveragedModel$|^Lookahead$")
_HEADS = frozenset(("classifier", "score", "head", "fc", "dropout", "out_proj", "pooler"))


class OfModel:
    """Reads what becomes of the model of one loop.

    ``loads`` says whether an object goes back to a model that kb reads.
    """

    def __init__(self, entry: "Expressions", origins: Origins, loads: Callable[[Traced], bool]) -> None:
        self._entry, self._origins, self._loads = entry, origins, loads

    def said(self, model: Traced, forward: Pass, batches: ast.For, backward: tuple[ast.Call, Where]) -> Iterator[Said]:
        """All that is said of the model of a forward pass in a loop over batches."""
        yield from self._type(model, forward)
        yield from self._wrapped(model, forward)
        yield from self._changed(model, forward)
        yield from self._chosen(model, forward)
        yield from self._replaced(model, forward)
        yield from self._copied(model)
        yield from self._not_checkpointed(model, forward)
        yield from self._other_losses(*backward, batches)
        yield from self._beside(model, forward, batches)

    def _type(self, model: Traced, forward: Pass) -> Iterator[Said]:
        """The type that the model is cast to; open where a condition decides that only a run can tell."""
        told = [(each, kind) for each in model.through if (kind := self._cast(each, forward)) is not None]
        told += self._statements(model, forward)
        kinds: set[str] = set()
        for each, kind in told:
            sure = self._happens(each, model, forward)
            if sure is not None:
                kinds.add(kind if sure else _OPEN)
        if any(_ELSEWISE.search(text) is not None for text in (self._entry.text, model.owner.text)):
            kinds.add(_OPEN)
        if not kinds:
            return
        if kinds == {"float64"}:
            yield Said(NOT_MODELLED, "float64", forward.node, "double")
            return
        one = len(kinds) == 1 and not kinds & {_OPEN, "float64"}
        value: Any = kinds.pop() if one else Unknown(frozenset((DTYPE,)), "several types are named")
        yield Said(DTYPE, value, forward.node, "to")

    def _statements(self, model: Traced, forward: Pass) -> Iterator[tuple[ast.Call, str]]:
        """The statements that cast the model in its place before the pass: ``model.half()``, by whatever name."""
        for owner in dict.fromkeys((self._entry, *forward.owners, model.owner)):
            for node, at, _ in owner.names.calls:
                kind = self._cast(node, forward)
                if kind is None or node in model.through or not isinstance(node.func, ast.Attribute):
                    continue
                later = owner is forward.owner and self._comes_later(at, forward)
                if not later and self._is_of(node.func.value, at, owner, model):
                    yield node, kind

    def _cast(self, call: ast.Call, forward: Pass) -> str | None:
        """The type that a call casts the model to: ``model.half()``, ``model.to(torch.bfloat16)``; None of another."""
        name = called_name(call)
        if name in _HALF and not call.args:
            return _HALF[name]
        if name != "to":
            return None
        named = [keyword.value for keyword in call.keywords if keyword.arg == "dtype"]
        for each in (*call.args, *named):
            written = dotted_name(each) or ""
            last = written.rpartition(".")[2]
            if last in _TYPES and written != last:
                return _TYPES[last]
            try:
                read = str(forward.owner.read(each, forward.at).data)
            except (UnknownValueError, RecursionError):
                of_type = each in named or any(word in written.casefold() for word in _OF_TYPE)
                read = _OPEN if of_type else ""
            if read in (*_TYPES, _OPEN):
                return _TYPES.get(read, _OPEN)
        return None

    def _happens(self, node: ast.Call, model: Traced, forward: Pass) -> bool | None:
        """Whether a call happens before the pass: None where it does not, False where only a run can tell."""
        for owner in dict.fromkeys((self._entry, *forward.owners, model.owner)):
            at = next((where for each, where, _ in owner.names.calls if each is node), None)
            if at is None:
                continue
            left = met(at.branch, owner, forward.at.made).branch
            if left is None:
                return None
            if any(isinstance(each, ast.IfExp | ast.BoolOp) for each in self._origins.around(owner, node)):
                return False
            here = met(forward.at.branch, owner, forward.at.made).branch or ()
            if owner is forward.owner and at.scope == forward.at.scope:
                holds = at._replace(branch=left).holds_at(forward.at._replace(branch=here))
                return holds or at.holds_at(forward.at)
            seen = forward.at.scope[: len(at.scope)] == at.scope or at.scope == model.at.scope
            if not seen and node not in model.through:
                function = self._origins.function_at(at.scope, owner)
                after = function is not None and _AFTER_TRAINING.search(function.name.casefold()) is not None
                return None if after else False
            return at._replace(branch=left).but_for_loops
        return True

    def _wrapped(self, model: Traced, forward: Pass) -> Iterator[Said]:
        """A compiler, and copies on several GPUs."""
        for each in (*model.through, *self._compiled_in_place(model, forward)):
            name = called_name(each)
            if name == "compile":
                sure = self._happens(each, model, forward)
                if sure is not None:
                    yield Said(COMPILED, sure or Unknown(frozenset((COMPILED,)), NO_SUCH_RUN), each, "compile")
            elif name in PARALLEL:
                yield Said(NOT_MODELLED, name, each, name)

    def _compiled_in_place(self, model: Traced, forward: Pass) -> Iterator[ast.Call]:
        """``model.compile()``, which changes the model that it is called on."""
        for node, at, _ in self._entry.names.calls:
            if called_name(node) != "compile" or not isinstance(node.func, ast.Attribute) or node in model.through:
                continue
            if self._is_of(node.func.value, at, self._entry, model) and not self._comes_later(at, forward):
                yield node

    def _not_checkpointed(self, model: Traced, forward: Pass) -> Iterator[Said]:
        """That checkpointing is not in force though it is switched on, or may not be: ``from_pretrained`` gives a model
        in eval mode, and layers of transformers checkpoint in training mode alone (modeling_layers.py)."""
        callers = (each.owner for every in self._entry.shared.callers.values() for each in every)
        read = (each for each in self._entry.shared.modules.values() if each is not None)
        owners = list(dict.fromkeys((self._entry, *forward.owners, model.owner, *callers, *read)))
        if called_name(model.node) != "from_pretrained" or not any(_CHECKPOINTS.search(each.text) for each in owners):
            return
        modes = {self._mode(node, at, owner, model, owners) for owner in owners for node, at, _ in owner.names.calls}
        if True in modes:
            return
        is_open = _OPEN in modes or _trains_out_of_sight(owners)
        for name in CHECKPOINTING:
            value: Any = Unknown(frozenset((name,)), NO_SUCH_RUN) if is_open else False
            yield Said(name, value, forward.node, "train")

    def _mode(
        self, call: ast.Call, at: Where, owner: "Expressions", model: Traced, owners: list["Expressions"]
    ) -> bool | str:
        """Whether a call puts the model in training mode: ``model.train()``, ``net.train(True)``; open where only a run
        can tell, or where a class of the project has a ``train`` of its own, which may be what is called."""
        if called_name(call) != "train" or not isinstance(call.func, ast.Attribute):
            return False
        given = [*call.args, *(each.value for each in call.keywords)]
        if given and not (len(given) == 1 and isinstance(given[0], ast.Constant)):
            return _OPEN
        if given and isinstance(given[0], ast.Constant) and not given[0].value:
            return False  # as eval() does
        own = any(_OWN_TRAIN.search(each.text) for each in owners)
        return True if not own or self._is_of(call.func.value, at, owner, model) else _OPEN

    def _copied(self, model: Traced) -> Iterator[Said]:
        """Weights that are held twice: ``copy.deepcopy(model)``, ``ModelEMA(model)``, a best state that is copied."""
        for node, at, _ in self._entry.names.calls:
            name = called_name(node)
            given = node.args[0] if node.args else None
            if isinstance(given, ast.Call) and called_name(given) == "state_dict":
                given = given.func.value if isinstance(given.func, ast.Attribute) else None
            if given is None or not (name == "deepcopy" or _AVERAGE.search(name) is not None):
                continue
            if self._is_of(given, at, self._entry, model):
                yield Said(NOT_MODELLED, f"{name}(…)", node, name)
                return

    def _is_of(self, node: ast.expr, at: Where, owner: "Expressions", model: Traced) -> bool:
        """Whether an expression is the model, by whatever name."""
        try:
            return model.is_made_by(self._origins.of(node, at, owner).value)
        except (UnknownValueError, RecursionError):
            return False

    def _comes_later(self, at: Where, forward: Pass) -> bool:
        """Whether a place of the loop's module is met behind the pass, or behind every call of the function that
        makes it."""
        if at.scope == forward.at.scope:
            return at.order > forward.at.order
        if forward.at.scope[: len(at.scope)] != at.scope:
            return False
        function = self._origins.function_at(forward.at.scope[: len(at.scope) + 1], forward.owner)
        calls = self._origins.calls_of(function, forward.owner) if function is not None else []
        places = [where.order for _, where in calls if where.scope == at.scope]
        return bool(places) and at.order > max(places)

    def _changed(self, model: Traced, forward: Pass) -> Iterator[Said]:
        """That a function of the program's own may change which weights train: ``apply_lora(model)``."""
        name = dotted_name(forward.node.func)
        for node, at, _ in self._entry.names.calls:
            words = words_of(called_name(node))
            if not words & _CHANGING or words & TELLS or called_name(node) in _KNOWN:
                continue
            given = (*node.args, *(keyword.value for keyword in node.keywords))
            if any(dotted_name(each) == name or self._is_of(each, at, self._entry, model) for each in given):
                unknown = Unknown(frozenset((LORA,)), NO_SUCH_RUN)
                yield Said(LORA, unknown, node, called_name(node))

    def _chosen(self, model: Traced, forward: Pass) -> Iterator[Said]:
        """That code chooses which weights train: ``parameter.requires_grad = "lm_head" in name``. Under an adapter of
        PEFT only that trains, whatever was switched before it was made."""
        if any(called_name(each) == "get_peft_model" for each in model.through):
            return
        for owner in dict.fromkeys((self._entry, *forward.owners, model.owner)):
            if _CHOOSES.search(owner.text) is not None:
                yield Said(LORA, Unknown(frozenset((LORA,)), NO_SUCH_RUN), forward.node, "requires_grad")
                return

    def _replaced(self, model: Traced, forward: Pass) -> Iterator[Said]:
        """A part of the model that the program puts another in the place of: ``model.lm_head = Linear(768, 10)``. A
        head of few classes takes next to nothing, whichever it is."""
        name = dotted_name(forward.node.func)
        small = any(head in (dotted_name(model.node.func) or "") for head in SMALL)
        for owner in dict.fromkeys((self._entry, forward.owner)):
            for part, (value, _) in owner.names.attributes.get(name or "", ()):
                if not isinstance(value, ast.Call | ast.Name | ast.Lambda) or part in _NO_PART:
                    continue
                if not (small and part in _HEADS):
                    yield Said(NOT_MODELLED, f"{name}.{part}", value, part)
                    return

    def _other_losses(self, backward: ast.Call, at: Where, batches: ast.For) -> Iterator[Said]:
        """Another ``backward`` in the same round, of a network that this does not follow."""
        for node, other, _ in self._entry.names.calls:
            if called_name(node) != "backward" or node is backward or other.excludes(at):
                continue
            if not self._origins.lies_in(node, batches):
                continue
            if met(other.branch, self._entry, at.made).branch is not None:
                yield Said(NOT_MODELLED, "backward(…) + backward(…)", node, "backward")
                return

    def _beside(self, model: Traced, forward: Pass, batches: ast.For) -> Iterator[Said]:
        """Another model that runs in the same loop, as a teacher does, or a second pass of the same."""
        for node, at, owner in self._in_round(forward, batches):
            if node is forward.node:
                continue
            try:
                origin = self._origins.of(node.func, at, owner)
            except (UnknownValueError, RecursionError):
                continue
            if not self._loads(origin) or self._not_with(at, forward, owner):
                continue
            elsewhere = owner is self._entry and forward.owner is not owner
            if origin.value is model.value and (self._has_no_graph(node, owner) or elsewhere):
                continue
            yield _two_models(forward.node, node)
            return
        for node, at in self._asked_by_functions(forward, batches):
            try:
                origin = self._origins.of(node.func, at, self._entry)
            except (UnknownValueError, RecursionError):
                continue
            if self._loads(origin) and not model.is_made_by(origin.value) and self._is_on_gpu(origin, node):
                yield _two_models(forward.node, node)
                return

    def _in_round(self, forward: Pass, batches: ast.For) -> Iterator[tuple[ast.Call, Where, "Expressions"]]:
        """The calls that stand in a loop, and in the functions that lead to its pass."""
        for node, at, _ in self._entry.names.calls:
            if self._origins.lies_in(node, batches):
                yield node, at, self._entry
        for via in forward.via:
            for node, at, _ in via.home.names.calls:
                if at.scope[: len(via.scope)] == via.scope:
                    yield node, at._replace(made=Made(via.scope, via.owner, via.call, via.at)), via.home

    def _asked_by_functions(self, forward: Pass, batches: ast.For) -> Iterator[tuple[ast.Call, Where]]:
        """The calls in functions and methods of the module that a round of the loop calls, however deep."""
        names = self._entry.names
        known = {via.scope for via in forward.via}
        left = [each[:2] for each in names.calls if self._origins.lies_in(each[0], batches)]
        while left:
            node, at = left.pop()
            scope = names.called_scope(node, at)
            if scope is None or scope in known:
                continue
            known.add(scope)
            inside = [each[:2] for each in names.calls if each[1].scope[: len(scope)] == scope]
            yield from inside
            left += inside

    def _is_on_gpu(self, origin: Traced, asked: ast.Call) -> bool:
        """Whether a model is moved to a device, by the call that loads it or afterwards."""
        moved = (*origin.through, *self._origins.told_of(asked.func, self._entry))
        placed = any(each.arg == "device_map" for each in origin.node.keywords)
        return placed or any(called_name(each) in ("to", "cuda") for each in moved)

    def _not_with(self, at: Where, forward: Pass, owner: "Expressions") -> bool:
        """Whether a place is never met in a round that makes the forward pass."""
        return forward.owner is owner and (
            at.excludes(forward.at) or met(at.branch, owner, forward.at.made).branch is None
        )

    def _has_no_graph(self, node: ast.Call, owner: "Expressions") -> bool:
        """Whether a ``with`` around a call leaves gradients off."""
        opened = [each for each in self._origins.around(owner, node) if isinstance(each, ast.With)]
        written = " ".join(ast.unparse(item.context_expr) for each in opened for item in each.items)
        return "no_grad" in written or "inference_mode" in written


def _trains_out_of_sight(owners: list["Expressions"]) -> bool:
    """Whether modules put something in training mode otherwise than by ``.train()``, or import a module of the project
    that nothing has read and that calls it: what it is called of there is not followed."""
    known = {each.path for each in owners}
    for owner in owners:
        if _TRAINS_OTHERWISE.search(owner.text) is not None:
            return True
        others = (owner.shared.sources.module(owner.path, each) for each in owner.names.imported.values())
        if any(found is not None and found[0] not in known and ".train(" in found[1] for found in others):
            return True
    return False


def _two_models(one: ast.Call, other: ast.Call) -> Said:
    names = [dotted_name(each.func) or "model" for each in (one, other)]
    return Said(NOT_MODELLED, " + ".join(f"{each}(…)" for each in names), other, "forward")
