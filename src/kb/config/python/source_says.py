"""What the source of a program says beside its calls and flags: how its model is loaded and spread over GPUs, adapters
and losses of its own, positions, kept logits. Nothing is run; a value that comes from flags is not told here.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from itertools import permutations
from typing import Any

from kb.config.python.calls import Call, body_of
from kb.config.python.declared import is_of_flags, nodes_of
from kb.config.python.expressions import Expressions, untold
from kb.config.python.names import Names
from kb.config.python.places import MAX_STEPS, Where
from kb.config.python.runs import asked_of
from kb.config.python.syntax import called_name, dotted_name, entries_of, parsed, words_of
from kb.core.document import NO_SUCH_RUN, Setting
from kb.core.expression import Unknown
from kb.core.finding import Span
from kb.core.program import freezes, has_own_loss

ADAPTER, LORA, FUSED = "run.adapter", "lora.enabled", "model.fused_loss"
_LIBRARIES = ("accelerate", "peft", "transformers", "trl", "unsloth")
OWN_LAYER = r"(?im)^class (\w*(?:lora|adapter)\w*)\((?:\w+\.)*(?:Module|Linear\w*)\b"
LOSS, COLUMNS = "embedding.loss", "embedding.columns"
# The columns of a data set of triplets by the names that Sentence Transformers' own have, or a sample of three texts.
TRIPLETS = (
    r"""(?s)["']anchor["'].{0,300}?["']positive["'].{0,300}?["'](negative)(?:_1)?["']"""
    r"""|\b(InputExample)\(\s*texts\s*=\s*\[[^\[\],]+,[^\[\],]+,[^\[\],]+\]|["'](triplet)["']\s*[,)]"""
)
MORE_NEGATIVES = r"""["'](?:negative_[2-9]|hard_negatives?)\b"""
HARD_NEGATIVES = r"""(?i)["'][^"'\s]*hard[_-]?neg[^"'\s]*["']"""  # a file or a column of them: of a sample any number
# Beside functions a list of rewards may name a model, which is loaded beside the one that is trained.
REWARD_MODEL = r"""\breward_funcs\s*=\s*\[[^\]\n]*["']([\w.-]+/[\w./-]+)["']"""
NOT_MODELLED = "run.not_modelled"
OWN_TRAINER = "def compute_loss("  # of a trainer that takes the loss from the logits by itself


def said_by_source(text: str, settings: Mapping[str, Setting], span: Span) -> dict[str, Setting]:
    """The settings that the text of a run says, at the place of its own call.

    Args:
        settings: what its calls say.
    """
    found = {} if any(name.startswith("lora.") for name in settings) else _own_adapter(text, span)
    fused = settings.get(FUSED)
    if has_own_loss(text) if fused is None else OWN_TRAINER in text:
        found[FUSED] = Setting(untold(FUSED), span, span, ("forward" if fused is None else "compute_loss",), alias=True)
    if resizes_positions(text):
        found[POSITIONS] = Setting(untold(POSITIONS), span, span, ("max_position_embeddings",), alias=True)
    rewards = re.search(REWARD_MODEL, text) if NOT_MODELLED not in settings else None
    if rewards is not None:
        found[NOT_MODELLED] = Setting(f"a reward model ({rewards[1]})", span, span, ("reward_funcs",), alias=True)
    triplets = re.search(TRIPLETS, text) if LOSS in settings and COLUMNS not in settings else None
    if triplets is not None and re.search(MORE_NEGATIVES, text) is None:
        found[COLUMNS] = Setting(3, span, span, (triplets[triplets.lastindex or 0],), alias=True)
    elif LOSS in settings and COLUMNS not in settings and re.search(HARD_NEGATIVES, text) is not None:
        found[COLUMNS] = Setting(untold(COLUMNS), span, span, (COLUMNS,), alias=True)
    asked = {name: each.value for name, each in (*settings.items(), *found.items())}
    if LOSS_ONLY not in settings and not asks_for_metrics(asked) and keeps_no_logits(text):
        # transformers, trainer.py, ``evaluate``: ``prediction_loss_only`` where ``compute_metrics`` is None
        found[LOSS_ONLY] = Setting(True, span, span, ("compute_metrics",), alias=True)
    return found


def _own_adapter(text: str, span: Span) -> dict[str, Setting]:
    """The adapters that a program makes by a layer of its own, ``class LoRALinear(nn.Module)``; and that it lets a part
    of the weights not train, ``parameter.requires_grad = False``: then the run is no full fine-tuning.
    """
    named = re.search(OWN_LAYER, text)
    if named is not None:
        return {ADAPTER: Setting(named[1], span, span, (named[1],), alias=True)}
    if not freezes(text):
        return {}
    unknown = Unknown(frozenset((LORA,)), NO_SUCH_RUN)
    return {LORA: Setting(unknown, span, span, ("requires_grad",), alias=True)}


OWN_TUNING = frozenset((  # words of functions that put adapters into a model, or choose which weights train
    "lora", "adapter", "adapters", "freeze", "unfreeze", "inject", "peft", "trainable", "surgery",
))  # fmt: skip
TELLS = frozenset((  # of functions that change nothing
    "print", "count", "get", "show", "log", "num", "report", "summary", "save", "merge",
))  # fmt: skip


def tuned_elsewhere(model: str, entry: Expressions, span: Span) -> dict[str, Setting]:
    """That a function of another module is given the model, and may choose there which of its weights train: its text
    says so, or, where it is not found, its name (``inject_adapter(model)``).

    Args:
        model: the name that the trainer is given its model by.
    """
    for node, _, _ in entry.names.calls:
        given = (*node.args, *(keyword.value for keyword in node.keywords))
        if not any(dotted_name(each) == model for each in given):
            continue
        name, body = called_name(node), body_of(entry, node.func)
        function = body.owner.names.definitions.get(body.scope[-1]) if body is not None and body.scope else None
        words = words_of(name)
        tunes = bool(words & OWN_TUNING) and not words & TELLS
        if function is not None:
            text = ast.unparse(function)
            tunes |= freezes(text) or re.search(OWN_LAYER, text) is not None
        elif tunes:
            tunes = not _is_of_library(name, entry.names)
        if tunes:
            unknown = Unknown(frozenset((LORA,)), NO_SUCH_RUN)
            return {LORA: Setting(unknown, span, span, (name,), alias=True)}
    return {}


def _is_of_library(name: str, names: Names) -> bool:
    """Whether a library of Hugging Face's, or none, has the function: then its calls are known here."""
    found = [imported for _, imported in names.imports_of(name)]
    return not found or any(each.module.partition(".")[0] in _LIBRARIES for each in found if not each.level)


DTYPE, ATTENTION, CHECKPOINTING = "model.torch_dtype", "model.attn_implementation", "training.gradient_checkpointing"
_KEYWORDS = {"torch_dtype": DTYPE, "dtype": DTYPE, "attn_implementation": ATTENTION}
_NAMED = "pretrained_model_name_or_path"
_NO_MODEL = re.compile(r"Tokenizer|Processor|Extractor|Peft|GenerationConfig|Scheduler")
_ENABLES = ("gradient_checkpointing_enable", "activation_checkpointing_enable")  # the newer name: transformers 5.23
_SWITCH = "checkpointing"  # in a test: the program asks its flag


@lru_cache(64)
def loaded(text: str) -> Mapping[str, str | bool | None]:
    """The settings of a model that a program gives by itself, whatever its flags are, by the name of the setting.

    None where it does and the value cannot be told: it depends on something else, or two calls say different things.
    """
    if ".from_pretrained(" not in text and not any(each in text for each in _ENABLES):
        return {}
    found: dict[str, set[str | bool | None]] = {}
    nodes = nodes_of(text)
    conditional = {id(inner): node.test for node in nodes if isinstance(node, ast.If) for inner in ast.walk(node)}
    ways: list[tuple[ast.Call, dict[str, str | None]]] = []
    meant = _Meant(text)
    trains = not has_own_loop(text) or ".train()" in text  # in eval mode, as it is loaded, a model checkpoints nothing
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        if _loads_model(node):
            ways.append((node, dict(_of_model(node, meant))))
            for name, value in ways[-1][1].items():
                found.setdefault(name, set()).add(value)
        if called_name(node) in _ENABLES:
            test = conditional.get(id(node))
            if test is None or _SWITCH not in ast.unparse(test):
                found.setdefault(CHECKPOINTING, set()).add(True if test is None and trains else None)
    for name in _only_in_one_arm(ways, nodes):
        found[name].add(None)
    return {name: next(iter(values)) if len(values) == 1 else None for name, values in found.items()}


@lru_cache(64)
def loaded_elsewhere(text: str, imported: str) -> Collection[str]:
    """The settings of the model that a trainer is given which are said where it is made: by functions of the project's
    modules (``model = load_model(name)``), whose calls are not followed."""
    nodes = nodes_of(text) if ".from_pretrained(" not in text and ".from_pretrained(" in imported else []
    calls = [node for node in nodes if isinstance(node, ast.Call) and called_name(node).endswith("Trainer")]
    given = [[each.value for each in call.keywords if each.arg == "model"] or call.args[:1] for call in calls]
    made = [each for values in given for each in values]
    names = {each.id for each in made if isinstance(each, ast.Name)}
    made += [
        node.value for node in nodes if isinstance(node, ast.Assign)
        and any(isinstance(each, ast.Name) and each.id in names for target in node.targets for each in ast.walk(target))
    ]  # fmt: skip
    makers = {called_name(each) for value in made for each in ast.walk(value)} - {""}
    functions = (each for each in nodes_of(imported) if isinstance(each, ast.FunctionDef) and each.name in makers)
    return loaded("\n".join(map(ast.unparse, functions))).keys() if makers else ()


@lru_cache(64)
def flag_of_model(text: str) -> str | None:
    """The flag that names the model which a program loads, whatever it is called: ``from_pretrained(args.plm)``; None
    where that is no flag, or several are."""
    if ".from_pretrained(" not in text:
        return None
    found: set[str | None] = set()
    meant = _Meant(text)
    for node in nodes_of(text):
        if (
            isinstance(node, ast.Call)
            and called_name(node) == "from_pretrained"
            and isinstance(node.func, ast.Attribute)
        ):
            given = [*node.args[:1], *(each.value for each in node.keywords if each.arg == _NAMED)]
            if _NO_MODEL.search(ast.unparse(node.func.value)) or not given:
                continue
            found.add(_flag(meant.by(given[0], meant.places.get(id(node)))))
    return next(iter(found)) if len(found) == 1 else None


def _flag(value: ast.expr) -> str | None:
    """The flag that an attribute of what a parser has read is."""
    of_flags = isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and is_of_flags(value.value.id)
    return value.attr if of_flags and isinstance(value, ast.Attribute) else None


def _only_in_one_arm(ways: list[tuple[ast.Call, dict[str, str | None]]], nodes: list[ast.AST]) -> Iterator[str]:
    """What one arm of an ``if`` gives the model that it loads, and the other, which loads it too, does not."""
    if len(ways) < 2:
        return
    arms: dict[int, dict[int, str]] = {}  # of each call, by the id of an `if` that it lies in
    for node in nodes:
        if isinstance(node, ast.If):
            for arm, body in (("body", node.body), ("orelse", node.orelse)):
                for inner in (each for statement in body for each in ast.walk(statement)):
                    arms.setdefault(id(inner), {})[id(node)] = arm
    for (one, given), (other, not_given) in permutations(ways, 2):
        here, there = arms.get(id(one), {}), arms.get(id(other), {})
        if any(there.get(test, arm) != arm for test, arm in here.items()):
            yield from (name for name in given if name not in not_given)


def _loads_model(call: ast.Call) -> bool:
    """Whether a call loads a model: a loader of adapters, and of what is no model, does not."""
    if called_name(call) != "from_pretrained" or not isinstance(call.func, ast.Attribute):
        return False
    loader = ast.unparse(call.func.value).rpartition(".")[2]
    return "Peft" not in loader and ("Model" in loader or "For" in loader)


class _Meant:
    """What the names of a text stand for where they are used."""

    def __init__(self, text: str) -> None:
        tree = parsed(text)
        self._names = Expressions(Names(tree), {}, text) if tree is not None else None
        calls = self._names.names.calls if self._names is not None else ()
        self.places = {id(call): where for call, where, _ in calls}

    def by(self, value: ast.expr, at: Where | None) -> ast.expr:
        """The expression that a name stands for at a place; the name itself where that is not certain."""
        for _ in range(MAX_STEPS):
            if not isinstance(value, ast.Name) or at is None or self._names is None:
                break
            binding = self._names.bound(value.id, at)
            if binding is None or binding.value is None:
                break
            value, at = binding.value, binding.where
        return value


def _of_model(call: ast.Call, meant: _Meant) -> Iterator[tuple[str, str | None]]:
    """What a call that loads a model says of it, by its own words or by a dictionary: ``**model_kwargs``."""
    at = meant.places.get(id(call))
    for keyword in call.keywords:
        whole = entries_of(meant.by(keyword.value, at)) or () if keyword.arg is None else ()
        for key, value in ((keyword.arg, keyword.value), *((key, value) for _, key, value in whole)):
            name = _KEYWORDS.get(key or "")
            told = meant.by(value, at)
            said = _literal(told)
            if name is not None and (said is not None or (name == DTYPE and not _of_flags(told))):
                yield name, said


def _of_flags(value: ast.expr) -> bool:
    """Whether a value is, or may be, what flags of these names say; or nobody here knows whose it is."""
    if isinstance(value, ast.Name | ast.Attribute):
        return True
    named = (getattr(each, "attr", getattr(each, "id", "")) for each in ast.walk(value))
    return any(each in _KEYWORDS for each in named)


def _literal(value: ast.expr) -> str | None:
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, str) else None
    of_torch = isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "torch"
    return value.attr if of_torch and isinstance(value, ast.Attribute) else None


_SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")
_AFTERWARDS = re.compile(r"merge|generat|eval|infer|predict|test|export", re.I)


@lru_cache(64)
def device_map_of(text: str) -> str | None:
    """The way in which a program spreads its model over GPUs, where its source says so: ``device_map="auto"``.

    Of a model that is loaded once training is over, in a function of that name or as ``AutoPeftModel``, nothing.
    """
    if "device_map" not in text:
        return None
    nodes = nodes_of(text)
    afterwards = {
        id(inner) for node in nodes if isinstance(node, ast.FunctionDef) and _AFTERWARDS.search(node.name)
        for inner in ast.walk(node)
    }  # fmt: skip
    for node in nodes:
        if id(node) in afterwards:
            continue
        found: ast.expr | None = None
        if (
            isinstance(node, ast.Call)
            and called_name(node) == "from_pretrained"
            and "Peft" not in ast.unparse(node.func)
        ):
            found = next((each.value for each in node.keywords if each.arg == "device_map"), None)
        elif isinstance(node, ast.Assign) and any(getattr(each, "id", "") == "device_map" for each in node.targets):
            found = node.value
        if isinstance(found, ast.Constant) and found.value in _SPREADS:
            return str(found.value)
    return None


LOSS_ONLY = "training.prediction_loss_only"
OF_METRICS = ("training.predict_with_generate", "training.metric_for_best_model")
_TRAINER = r"Trainer\s*[(\[)]|(?m:^[ \t]*(?:from|import)\b[^\n]*Trainer\b)|(?m:^[ \t]+\w*Trainer,?[ \t]*$)"
_BOUND_TRAINER = r"(?m)=[ \t]*(?:\w+\.)*\w*Trainer[ \t]*(?:if\b[^\n]*)?$"  # `trainer_cls = Trainer if … else …`
_NO_METRIC = ("eval_loss", "loss", False, None)


def asks_for_metrics(settings: Mapping[str, Any]) -> bool:
    """Whether settings, by name, ask for metrics of evaluation, whatever the source shows: the loss is none."""
    return any(settings.get(name) not in _NO_METRIC for name in OF_METRICS)


def keeps_no_logits(text: str) -> bool:
    """Whether evaluation keeps no logits: no metric function is given to the trainer (``Trainer.evaluate``), or one
    with a function that makes less of the logits of each step (``preprocess_logits_for_metrics``).
    """
    if "#" in text:  # a metric function in a comment is given to nobody
        text = re.sub(r"(?m)^[ \t]*#.*$", "", text)
    kept = "compute_metrics" in text and "preprocess_logits_for_metrics=" not in text
    trains = "Trainer(" in text or re.search(_BOUND_TRAINER, text) is not None
    return trains and not kept and ".predict(" not in text and "Trainer(**" not in text


_TRAINS_NOTHING = frozenset((
    "evaluate", "predict", "state", "args", "eval_dataset", "compute_metrics", "add_callback", "remove_callback",
    "save_model", "save_state", "save_metrics", "log", "log_metrics", "metrics_format", "push_to_hub",
    "get_eval_dataloader", "get_test_dataloader", "is_world_process_zero", "tokenizer", "processing_class",
))  # fmt: skip


def evaluates_alone(trainer: Call, names: Names, text: str, span: Span) -> dict[str, Setting]:
    """That a run trains nothing: all that its program asks of the library's own trainer is to evaluate or to predict,
    and no other code, of this module or of one that imports it, is handed it."""
    name, made_of = trainer.target, (dotted_name(trainer.node.func) or "").partition(".")[0]
    origins = {"" if each.level else each.module.partition(".")[0] for _, each in names.imports_of(made_of)}
    if not (name and origins) or not origins.issubset(_LIBRARIES):
        return {}
    asked = asked_of(name, names)
    # another module may import what stands outside of every function, but where it predicts as it is imported
    at_once = (dotted_name(node.func) for node, at, _ in names.calls if not at.scope)
    if not trainer.where.scope and {f"{name}.evaluate", f"{name}.predict"}.isdisjoint(at_once):
        return {}
    trained = re.search(rf"\b{name}\s*\.\s*train\b|\bglobal\b|\.backward\(", text)
    if trained or len(asked) < names.uses.get(name, 0) or not _TRAINS_NOTHING.issuperset(asked):
        return {}
    said = next((each for each in asked if each in ("evaluate", "predict")), None)
    found = {"training.do_train": False, "training.do_eval": True} if said else {}
    return {each: Setting(value, span, span, (str(said),), alias=True) for each, value in found.items()}


POSITIONS = "model.max_positions"


def resizes_positions(text: str) -> bool:
    """Whether a source gives a model another number of positions than its checkpoint has."""
    return re.search(r"\bmax_position_embeddings[\"']?\]?\s*=(?!=)|\bresize_position_embeddings\(", text) is not None


_HEADS = {
    "SequenceClassification": "sequence",
    "TokenClassification": "token",
    "QuestionAnswering": "span",
    "MaskedLM": "masked",
}
_CLASS = re.compile(r"\w(?:For([A-Z]\w+)|Model)\.from_(?:pretrained|config)\(")


def head_of(text: str) -> str | None:
    """The head that a source's one class of models has, by its name; None where it has several, or another."""
    classes = {each[1] for each in _CLASS.finditer(text)}
    return _HEADS.get(str(classes.pop())) if len(classes) == 1 else None


def goes_its_own_way(text: str) -> bool:
    """Whether a source trains by a loop of its own, or sets the precision of what it computes by itself: of a Trainer's
    arguments it has none, and their defaults say nothing of it."""
    return any(sign in text for sign in (".backward(", "autocast(", "MixedPrecision("))


def has_own_loop(text: str) -> bool:
    """Whether a source trains by a loop of its own: what a Trainer does with a setting need not hold there. Prose may
    speak of a Trainer; what is one is called, built on or imported.
    """
    return ".backward(" in text and re.search(_TRAINER, text) is None
