"""Training loops of a program's own: ``loss.backward()`` of what a model of transformers gave for a batch, and what
such a loop says of its run. Nothing is executed; what its text leaves open is unknown.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kb.config.python.calls import Call, CallTable, Home, Kind, Loop, Said, body_of
from kb.config.python.expressions import met, untold
from kb.config.python.held import Caller, UnknownValueError
from kb.config.python.loop_graphs import Graphs
from kb.config.python.loop_model import CHECKPOINTING, DTYPE, NOT_MODELLED, SMALL, OfModel
from kb.config.python.loop_pass import Pass, Passes
from kb.config.python.loop_update import STEPS, Around, updates_of
from kb.config.python.origins import HANDED_ON, Origins, Traced, first_argument
from kb.config.python.places import Where
from kb.config.python.syntax import called_name, dotted_name

if TYPE_CHECKING:
    from kb.config.python.expressions import Expressions

LOOP = "loop"  # the dialect of such a run
KIND = Kind(LOOP, "", (), (), {"run.own_loop": True})
SIGN, UPDATE = ".backward(", ".step("
PLUGINS = ("gradient_accumulation_plugin", "deepspeed_plugin")  # of Accelerate, which count by themselves
PREPARES = ("prepare", "prepare_model", "setup", "setup_module")
FABRIC = "Fabric"  # of Lightning
UNMODELLED = (  # of Accelerator's arguments
    "deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin", "parallelism_config", "cpu",
    "split_batches", "dispatch_batches", None,
)  # fmt: skip
_OF_TRACKERS = frozenset(("log_with", "logging_dir", "project_dir", "project_config"))  # of them, what takes no memory
# What a loop says against the calls that it is made of: model.half(), no accumulate(), no train().
OF_LOOP = (DTYPE, STEPS, *CHECKPOINTING)
MOST_LOOPS = 20  # of one program: a real one has one or two
BATCH = "training.per_device_train_batch_size"
FP16, BF16 = "training.fp16", "training.bf16"
_MIXED = {"16": FP16, "16-mixed": FP16, "bf16": BF16, "bf16-mixed": BF16}
_OF_PRECISION = re.compile(r"cast|amp|precision|context|ctx|half|fp16|bf16")
KEEPS, WIDENS = "run.keeps_outputs", "run.outputs_widened"
_LABELS = ("labels", "lm_labels", "masked_lm_labels", "start_positions", None)  # **batch may hold them


def loops_of(entry: "Expressions", table: CallTable) -> list[Call]:
    """The loops of a program that train a model of transformers, each as a run; none of a program without one. Where it
    has none itself, those of the functions and classes of the project's own that it calls."""
    if SIGN in entry.text:
        return _loops_in(entry, table)
    called: dict[str, Caller] = {}
    owners: dict[str, Expressions] = {}
    for node, at, _ in entry.names.calls:
        body = body_of(entry, node.func)
        if body is not None and body.owner is not entry:
            caller = Caller(entry, node, at)
            entry.shared.called(body.owner.path, body.name, caller)
            if SIGN in body.owner.text:
                called[body.owner.path] = caller
                owners[body.owner.path] = body.owner
    found: list[Call] = []
    for path, (_, node, at) in called.items():
        home = Home(owners[path], at, node)
        found += [each._replace(where=at, home=home) for each in _loops_in(owners[path], table)]
    return found


def _loops_in(entry: "Expressions", table: CallTable) -> list[Call]:
    names = entry.names
    passes = [
        each for each in names.calls if called_name(each[0]) == "backward" and isinstance(each[0].func, ast.Attribute)
    ]
    if not passes or len(passes) > MOST_LOOPS or UPDATE not in entry.text:
        return []
    reader = _Reader(entry, table)
    found: list[Call] = []
    told: dict[int, int] = {}  # the place of each loop in what is found
    for node, where, _ in passes:
        try:
            loop = reader.read(node, where)
        except (UnknownValueError, RecursionError):
            continue
        if loop is None:
            continue
        earlier = told.get(loop.place)
        if earlier is not None:  # one pass with a scaler, another without
            other = found[earlier].loop
            assert other is not None
            found[earlier] = found[earlier]._replace(loop=_of_both(other, loop))
        else:
            told[loop.place] = len(found)
            found.append(Call(len(found), "backward", KIND, node, where, None, loop=loop))
    return found


class _Reader:
    """Reads the loops of one program."""

    def __init__(self, entry: "Expressions", table: CallTable) -> None:
        self._entry, self._table = entry, table
        self._origins = Origins()
        self._models = OfModel(entry, self._origins, self._loads)
        self._passes = Passes(self._origins, self._loads)
        self._graphs = Graphs(entry, self._origins, self._passes)

    def read(self, node: ast.Call, at: Where) -> Loop | None:
        """What the loop around a call of ``backward`` says; None where it trains no model that transformers loads.

        Raises:
            UnknownValueError: that cannot be told.
        """
        around, batches, inner = self._loop_around(node, at)
        if batches is None or met(at.branch, self._entry, at.made).branch is None:
            return None
        self._passes.deleted = _deleted_in(batches, node)
        loss, accelerator = self._loss_of(node, at)
        if loss is None:
            return None
        forward = self._passes.of_loss(loss, at, self._entry)
        model = self._model_of(forward)
        if model is None:
            return None
        keeps = "step" if inner and forward.keeps == "loop" else forward.keeps
        said = [Said(KEEPS, keeps, forward.node, "outputs")]
        made = [model.node]
        hidden: tuple[str, ...] = ()
        accelerator = accelerator or self._wrapped_by(model)
        prepared = any(called_name(each) in PREPARES for each in model.through)
        if prepared and called_name(accelerator or node) == "Accelerator":
            assert accelerator is not None
            made.append(accelerator)
            if not self._says_precision(accelerator):
                hidden = FP16, BF16  # what `accelerate config`, the launcher or only a run says
        said += self._started_by(accelerator, model, forward, around, at)
        said += self._models.said(model, forward, batches, (node, at))
        said += self._graphs.said(model)
        loader = self._loader(batches, at, said)
        made += [loader] if loader is not None else []
        said += updates_of(
            Around(forward, node, at, batches, around),
            self._entry,
            self._origins,
            counted=self._counted(accelerator, model),
        )
        return Loop(id(batches), tuple(made), tuple(said), hidden)

    def _says_precision(self, accelerator: ast.Call) -> bool:
        """Whether an accelerator is told a precision that can be read where it is made."""
        given = next((each.value for each in accelerator.keywords if each.arg == "mixed_precision"), None)
        at = next((where for node, where, _ in self._entry.names.calls if node.func is accelerator.func), None)
        if given is None or at is None:
            return given is not None
        try:
            self._entry.read(given, at)
        except UnknownValueError:
            return False
        return True

    def _started_by(
        self, made: ast.Call | None, model: Traced, forward: Pass, around: Sequence[ast.AST], at: Where
    ) -> Iterator[Said]:
        """What the library that a loop runs under says of its precision, and what of it has no memory model."""
        prepared = any(called_name(each) in PREPARES for each in model.through)
        engine = next((each for each in model.through if _is_engine(each)), None)
        if engine is not None:
            yield Said(NOT_MODELLED, "deepspeed.initialize(…)", engine, "initialize")
            yield from (Said(name, untold(name), engine, name.partition(".")[2]) for name in (FP16, BF16, STEPS))
            return
        yield from _of_plugins(made)
        if made is None:
            yield Said(WIDENS, False, forward.node, "autocast")
            yield from self._precision(forward, around)
        elif not prepared:  # a model that Accelerate is not given has no autocast around it
            value: Any = untold(FP16) if self._may_be_prepared(forward, around) else False
            yield from (Said(name, value, made, name.partition(".")[2]) for name in (FP16, BF16))
            yield Said(WIDENS, False, forward.node, "autocast")
        elif called_name(made) == FABRIC:
            yield from self._of_fabric(made, at)

    def _of_fabric(self, made: ast.Call, at: Where) -> Iterator[Said]:
        """The precision of Lightning's ``Fabric(precision="bf16-mixed")``, which is autocast around the pass; another
        than a mixed one changes the weights, and most strategies share them out."""
        given = {each.arg: each.value for each in made.keywords} | dict(zip(("", "strategy"), made.args, strict=False))
        strategy = getattr(given.get("strategy", ast.Constant("auto")), "value", None)
        if strategy not in ("auto", "ddp", "dp") or None in given or made.args[2:]:
            yield Said(NOT_MODELLED, "Fabric(strategy=…)" if "strategy" in given else "Fabric(**…)", made, "strategy")
        try:
            precision = str(self._entry.read(given.get("precision", ast.Constant(None)), at).data)
        except UnknownValueError:
            yield from (Said(name, untold(name), made, name.partition(".")[2]) for name in (FP16, BF16))
            return
        if precision not in _MIXED and precision not in ("None", "32", "32-true"):
            yield Said(NOT_MODELLED, f"Fabric(precision={precision!r})", made, "precision")
        elif precision in _MIXED:
            yield Said(_MIXED[precision], True, made, _MIXED[precision].partition(".")[2])

    def _loop_around(self, node: ast.Call, at: Where) -> tuple[list[ast.AST], ast.For | None, bool]:
        """What a call of ``backward`` lies in, and the loop over batches; then whether a function makes the whole step,
        which the loop calls."""
        around = self._origins.around(self._entry, node)
        found = next((each for each in around if isinstance(each, ast.For)), None)
        function = self._origins.function_at(at.scope, self._entry)
        if found is not None or function is None:
            return around, found, False
        calls = self._origins.calls_of(function, self._entry)
        if len(calls) != 1:
            return around, None, False
        around += self._origins.around(self._entry, calls[0][0])
        return around, next((each for each in around if isinstance(each, ast.For)), None), True

    def _loss_of(self, node: ast.Call, at: Where) -> tuple[ast.expr | None, ast.Call | None]:
        """What runs backward: ``loss.backward()``, ``scaler.scale(loss).backward()``, ``accelerator.backward(loss)``;
        and the call that makes the accelerator."""
        assert isinstance(node.func, ast.Attribute)
        holder = node.func.value
        if node.args:
            made = self._accelerator(holder, at)
            if made is not None:
                return node.args[0], made
            if any(map(_is_engine, self._origins.of(holder, at, self._entry).through)):
                return node.args[0], None
            return (holder, None) if called_name(holder) == "scale" else (None, None)
        if isinstance(holder, ast.Call) and called_name(holder) == "scale":
            return first_argument(holder), None
        return holder, None

    def _accelerator(self, holder: ast.expr, at: Where) -> ast.Call | None:
        """The call that makes an accelerator; None of any other object.

        Raises:
            UnknownValueError: it cannot be told.
        """
        made = self._origins.of(holder, at, self._entry).value
        if isinstance(made, ast.IfExp) and called_name(made.body) == called_name(made.orelse):
            made = made.orelse  # Accelerator(log_with=…) if … else Accelerator()
        if not isinstance(made, ast.Call) or called_name(made) not in ("Accelerator", FABRIC):
            return None
        keywords = [each for each in made.keywords if not _only_tracks(each, self._entry.text)]
        return ast.copy_location(ast.Call(made.func, made.args, keywords), made)

    def _wrapped_by(self, model: Traced) -> ast.Call | None:
        """The accelerator that a model is given to, where the loop runs a plain ``loss.backward()``."""
        for node, at, _ in self._entry.names.calls:
            if (
                node in model.through
                and called_name(node) in ("prepare", "setup")
                and isinstance(node.func, ast.Attribute)
            ):
                return self._accelerator(node.func.value, at)
        return None

    def _loads(self, origin: Traced) -> bool:
        """Whether a class of a library loads a model: what one of the project computes is not known."""
        written = dotted_name(origin.value.func) if isinstance(origin.value, ast.Call) else None
        kind = self._table.kind_of(written or "")
        if written is None or kind is None or kind.group != "model" or kind.of:
            return False
        first = written.partition(".")[0]
        names, other = origin.owner.names, origin.owner.other
        imports = [each for _, each in names.imports_of(first)]
        own = names.class_of(first) is not None or any(each.level or other(each) is not None for each in imports)
        return not own

    def _model_of(self, forward: Pass) -> Traced | None:
        """What loads the model of a pass; None where its loss is not the model's own, or it has no head for one."""
        traced = self._origins.of(forward.node.func, forward.at, forward.owner)
        assert isinstance(traced.value, ast.Call)
        traced = traced.within(forward.holders)
        loader = dotted_name(traced.node.func) or ""
        if forward.own_loss:
            return traced if any(head in loader for head in SMALL) else None
        labels = any(each.arg in _LABELS for each in forward.node.keywords)
        return traced if labels or len(forward.node.args) > 1 else None  # labels by position, in old programs

    def _may_be_prepared(self, forward: Pass, around: Sequence[ast.AST]) -> bool:
        """Whether a call of ``prepare`` that was not followed may have been given the model, or the accelerator's own
        ``autocast`` lies around the pass."""
        last = (dotted_name(forward.node.func) or "").rpartition(".")[2]
        for owner in dict.fromkeys((self._entry, *forward.owners)):
            for node, _, _ in owner.names.calls:
                if called_name(node) not in PREPARES:
                    continue
                names = {(dotted_name(each) or "").rpartition(".")[2] for each in node.args}
                if last in names or any(isinstance(each, ast.Starred) for each in node.args):
                    return True
        lies_in = (*self._within(forward), *around)
        opened = [item.context_expr for each in lies_in if isinstance(each, ast.With) for item in each.items]
        return any(called_name(each) == "autocast" for each in opened)

    def _precision(self, forward: Pass, around: Sequence[ast.AST]) -> Iterator[Said]:
        """Autocast around a forward pass, by the program itself."""
        passes = self._within(forward)
        outer = [] if forward.owner is self._entry and passes[-1:] == list(around[-1:]) else list(around)
        items = [item for each in (*passes, *outer) if isinstance(each, ast.With) for item in each.items]
        owners = (self._entry, *forward.owners)
        opened = [each.context_expr for each in items if any(self._autocasts(each.context_expr, one) for one in owners)]
        decorated = any("autocast" in ast.unparse(each) for each in self._decorators(forward))
        if not opened or decorated:
            if decorated or any(_may_be_autocast(item) for item in items):
                yield from (Said(name, untold(name), forward.node, "autocast") for name in (FP16, BF16))
            return
        call = opened[0]
        assert isinstance(call, ast.Call)
        kind = self._autocast(call, forward)
        for name, wanted in ((FP16, "float16"), (BF16, "bfloat16")):
            yield Said(name, untold(name) if kind is None else kind == wanted, call, name.partition(".")[2])

    def _within(self, forward: Pass) -> list[ast.AST]:
        """What a pass lies in, in its own function and in those that call it, from within."""
        places = ((forward.owner, forward.node), *((each.owner, each.call) for each in forward.via))
        return [outer for owner, node in places for outer in self._origins.around(owner, node)]

    def _autocasts(self, call: ast.expr, owner: "Expressions") -> bool:
        """Whether a call is ``autocast``, also under another name: ``import autocast as amp``."""
        name = called_name(call)
        imports = (each for _, each in owner.names.imports_of(name)) if name else iter(())
        return name == "autocast" or any(each.name == "autocast" for each in imports)

    def _decorators(self, forward: Pass) -> Iterator[ast.expr]:
        """What decorates the functions that a pass lies in."""
        for scope, owner in ((forward.at.scope, forward.owner), *((each.at.scope, each.owner) for each in forward.via)):
            for end in range(1, len(scope) + 1):
                function = self._origins.function_at(scope[:end], owner)
                yield from function.decorator_list if function is not None else ()

    def _autocast(self, call: ast.Call, forward: Pass) -> str | None:
        """The type of ``torch.autocast(device_type, dtype, enabled)``, ``torch.cuda.amp.autocast(enabled, dtype)``; an
        empty text where it is switched off, None where only a run can tell."""
        written = dotted_name(call.func) or ""
        imported = next((each.module for _, each in forward.owner.names.imports_of(written.partition(".")[0])), "")
        home = f"{imported}.{written}"
        if any(isinstance(each, ast.Starred) for each in call.args):
            return None
        first = call.args[0] if call.args else None
        of_cuda = first is None and not any(each.arg == "device_type" for each in call.keywords)
        of_cuda |= "cuda" in home or (isinstance(first, ast.Constant) and not isinstance(first.value, str))
        if "cpu" in home.split(".") or (isinstance(first, ast.Constant) and first.value == "cpu"):
            return ""
        if first is not None and not of_cuda and not isinstance(first, ast.Constant) and "." not in written:
            return None  # autocast(amp): a device or a switch
        places = ("enabled", "dtype") if of_cuda else ("device_type", "dtype", "enabled")
        given = dict(zip(places, call.args, strict=False)) | {each.arg or "**": each.value for each in call.keywords}
        if "**" in given:
            return None
        try:
            enabled = forward.owner.read(given["enabled"], forward.at).data if "enabled" in given else True
            dtype = str(forward.owner.read(given["dtype"], forward.at).data) if "dtype" in given else "float16"
        except UnknownValueError:
            return None
        if enabled is False:
            return ""
        return dtype if enabled is True and dtype in ("float16", "bfloat16") else None

    def _counted(self, accelerator: ast.Call | None, model: Traced) -> bool | None:
        """Whether Accelerate counts the passes to an update: it is told how many, and DeepSpeed or ``accumulate()``
        counts them. None where it is told, and nothing here counts. An engine of DeepSpeed counts by itself."""
        if any(map(_is_engine, model.through)):
            return True
        told = {each.arg for each in accelerator.keywords} if accelerator is not None else set()
        if not told & {"gradient_accumulation_steps", *PLUGINS, None}:
            return False
        return True if told & {*PLUGINS, None} or ".accumulate(" in self._entry.text else None

    def _loader(self, batches: ast.For, at: Where, said: list[Said]) -> ast.Call | None:
        """The ``DataLoader`` that gives the batches; of ``range(0, rows, batch)`` the step is said to be the batch."""
        given: ast.expr = batches.iter
        while isinstance(given, ast.Call) and called_name(given) in HANDED_ON and first_argument(given) is not None:
            given = first_argument(given) or given
        if isinstance(given, ast.Call) and called_name(given) == "range" and len(given.args) == 3:
            step: Any = given.args[2] if _slices_rows(batches, given) else untold(BATCH)
            said.append(Said(BATCH, step, given.args[2], "range", at if step is given.args[2] else None))
            return None
        try:
            origin = self._origins.of(given, self._entry.names.rounds.get(id(batches), at), self._entry).value
        except UnknownValueError:
            origin = None
        loads = isinstance(origin, ast.Call) and called_name(origin) == "DataLoader"
        if loads and isinstance(origin, ast.Call) and _says_batch(origin) and not _cut_in(batches):
            return origin
        said.append(Said(BATCH, untold(BATCH), batches.iter, "batch_size"))
        return None


def _is_engine(call: ast.Call) -> bool:
    """Whether a call makes an engine: ``deepspeed.initialize(model=model, config=…)``."""
    return dotted_name(call.func) == "deepspeed.initialize"


def _only_tracks(given: ast.keyword, text: str) -> bool:
    """Whether ``**more`` of an accelerator is a dict that only says where it logs."""
    if given.arg is not None or not isinstance(given.value, ast.Name):
        return False
    name = rf"\b{given.value.id}\b"
    keys = re.findall(rf"{name}\[['\"](\w+)['\"]\] *=(?!=)", text)
    made = re.findall(rf"{name} *= *(?:\{{\}}|dict\(\))[ \t]*$", text, re.M)
    return bool(made) and _OF_TRACKERS.issuperset(keys) and len(re.findall(name, text)) == len(keys) + len(made) + 1


def _of_plugins(accelerator: ast.Call | None) -> list[Said]:
    """What of an accelerator has no memory model: it shards, or keeps to the CPU, or holds what is not seen."""
    given = [each for each in accelerator.keywords if each.arg in UNMODELLED] if accelerator is not None else []
    named = ("Accelerator(**…)" if each.arg is None else f"Accelerator({each.arg}=…)" for each in given)
    return [Said(NOT_MODELLED, name, each.value, str(each.arg)) for name, each in zip(named, given[:1], strict=False)]


def _slices_rows(batches: ast.For, steps: ast.Call) -> bool:
    """Whether a loop takes so many of a list's rows at once: ``for i in range(0, len(rows), 8): rows[i : i + 8]``."""
    target, (_, end, step) = batches.target, steps.args
    if not isinstance(target, ast.Name) or called_name(end) != "len" or isinstance(step, ast.UnaryOp):
        return False
    return any(
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
        and isinstance(node.slice.lower, ast.Name) and node.slice.lower.id == target.id
        for each in batches.body for node in ast.walk(each)
    )  # fmt: skip


def _of_both(one: Loop, other: Loop) -> Loop:
    """One loop that two passes are read of: open is what they say otherwise."""
    values = [{each.name: each for each in loop.said} for loop in (one, other)]
    said: list[Said] = []
    for name in dict.fromkeys((*values[0], *values[1])):
        here, there = values[0].get(name), values[1].get(name)
        known = here or there
        assert known is not None
        same = here is not None and there is not None and _written(here) == _written(there)
        same |= name == NOT_MODELLED
        said.append(known if same else known._replace(value=untold(name), at=None))
    return one._replace(said=tuple(said), hidden=tuple(dict.fromkeys((*one.hidden, *other.hidden))))


def _written(said: Said) -> str:
    return ast.dump(said.value) if isinstance(said.value, ast.AST) else repr(said.value)


def _deleted_in(batches: ast.For, backward: ast.Call) -> dict[str, str]:
    """The names that every round of a loop deletes: before ``backward`` nothing of them is held, behind it up to the
    step's end."""
    blocks = [batches.body, *(each.body for each in batches.body if isinstance(each, ast.With))]
    found: dict[str, str] = {}
    for each in (each for block in blocks for each in block if isinstance(each, ast.Delete)):
        outlives = "no" if each.lineno < backward.lineno else "step"
        found |= {name.id: outlives for name in each.targets if isinstance(name, ast.Name)}
    return found


def _says_batch(loader: ast.Call) -> bool:
    """Whether a DataLoader makes batches by itself, of a size that it is given or of one row."""
    given = {each.arg: each.value for each in loader.keywords}
    size = given.get("batch_size", loader.args[1] if len(loader.args) > 1 else None)
    nothing = isinstance(size, ast.Constant) and size.value is None
    return not nothing and "batch_sampler" not in given


def _cut_in(batches: ast.For) -> bool:
    """Whether a loop trains on a part of its batches: ``batch = {k: v[:2] for …}``."""
    names = {each.id for each in ast.walk(batches.target) if isinstance(each, ast.Name)}
    return any(
        isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Slice)
        for each in ast.walk(batches) if isinstance(each, ast.Assign)
        if any(isinstance(target, ast.Name) and target.id in names for target in each.targets)
        for part in ast.walk(each.value)
    )  # fmt: skip


def _may_be_autocast(item: ast.withitem) -> bool:
    """Whether a ``with`` opens what only the program knows: ``with context:``, ``with amp_context(): …``, ``with
    nullcontext() if … else …:``."""
    name = called_name(item.context_expr)
    unnamed = name in ("", "nullcontext") or _OF_PRECISION.search(name.casefold()) is not None
    return unnamed and "no_grad" not in ast.unparse(item.context_expr)
