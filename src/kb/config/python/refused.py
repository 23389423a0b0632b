"""What releases of a library refuse, some or all: imports, keywords of argument classes, what trainers are given; and a
metric that no trainer computes."""

import ast
import re
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from typing import Any

from kb.config.dialect.settings import placed
from kb.config.marks import describes_run
from kb.config.python.calls import TRAINER, Call
from kb.config.python.held import Sources
from kb.config.python.names import Names
from kb.config.python.places import Imported
from kb.config.python.syntax import Module, dotted_name, root_name
from kb.config.python.values import Arguments
from kb.core.document import Event, Setting, Unit, nth_call
from kb.core.record import NamedTuple

GROUP = "imports."
"""What such facts begin with: ``imports.transformers.adamw``, the library and the name, in small letters."""
LIBRARIES = frozenset(("transformers", "trl", "peft", "datasets"))
_OF_SYS = ("path", "modules")  # what changes where an import finds its module
_APART = "experimental"  # of TRL: there the names live on


def gone_imports(module: Module, path: str, sources: Sources, known: Container[str]) -> dict[str, Setting]:
    """The names that a module imports at its top and that some release of their library lacks.

    What stands in a ``try`` or under a condition is not looked at: the program is prepared for its absence. Nor is what
    comes after the program may have put the name back, looks elsewhere for modules, or has asked for a release.

    Args:
        known: the facts of such names.
    """
    found: dict[str, Setting] = {}
    of_libraries: set[str] = set()
    for node in module.tree.body:
        if _prepares(node, of_libraries):
            break
        of_libraries.update(_from_libraries(node))
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        library, *below = node.module.split(".")
        if _APART in below or sources.module(path, Imported(node.module, 0, None)) is not None:
            continue
        names = [(alias.name, alias) for alias in node.names] + [(part, node) for part in below[:1]]
        for name, place in names:
            fact = f"{GROUP}{library}.{name.lower()}"
            if fact in known and fact not in found:
                span = module.span(place)
                found[fact] = Setting(True, span, span, (name,), alias=True)
    return found


def _from_libraries(node: ast.stmt) -> Iterator[str]:
    """The names under which a statement brings in one of the libraries, or something of it."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.partition(".")[0] in LIBRARIES:
                yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in LIBRARIES:
        yield from (alias.asname or alias.name for alias in node.names)


def _prepares(node: ast.stmt, of_libraries: Container[str]) -> bool:
    """Whether an import after this statement may find more than the library has, or is not come to.

    Args:
        of_libraries: the names under which the libraries were brought in before.
    """
    if isinstance(node, ast.If | ast.Assert) and _has(node.test, ("version",)):
        return True
    return any(_changes(each, of_libraries) for each in ast.walk(node))


def _changes(node: ast.AST, of_libraries: Container[str]) -> bool:
    """Whether a part of a statement gives one of the libraries a name, or changes where modules are found."""
    if isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node.ctx, ast.Store | ast.Del) and root_name(node) in of_libraries:
            return True
        of_sys = isinstance(node, ast.Attribute) and node.attr in _OF_SYS
        return of_sys and (dotted_name(node.value) or "").rpartition(".")[2] == "sys"
    if isinstance(node, ast.ImportFrom):
        return node.module == "sys" and any(alias.name in (*_OF_SYS, "*") for alias in node.names)
    if isinstance(node, ast.Import):
        return any(alias.name == "sys" and alias.asname for alias in node.names)
    if isinstance(node, ast.Call) and dotted_name(node.func) == "setattr":
        return any(root_name(given) in of_libraries for given in node.args[:1])
    return False


def _names_in(test: ast.expr) -> Iterator[str]:
    """Every name in an expression, after a dot too."""
    for each in ast.walk(test):
        if isinstance(each, ast.Name | ast.Attribute):
            yield each.id if isinstance(each, ast.Name) else each.attr


EVERYTHING = ("training.", "trl.", "data.", "lora.", "quantization.", "model.", "generation.", "inference.", "run.")


def of_few_words(path: str, dialect: str, settings: Mapping[str, Setting], keys: Mapping[str, Setting]) -> Unit:
    """A unit of which nothing else is known, at the place of the first."""
    span = next(iter((settings or keys).values())).span
    return Unit(
        path=path,
        section=None,
        dialect=dialect,
        settings=settings,
        span=span,
        hidden=EVERYTHING,
        keys=keys,
        sets_up_nothing=True,
    )


def with_gone(
    units: Sequence[Unit], gone: Mapping[str, Setting], path: str, module: Module, dialect: str
) -> list[Unit]:
    """The units of a module with its imports in the first; of one that sets up no training, a unit of the imports
    alone, of which nothing else is known. What a file says that would not be read but for its imports counts; what it
    leaves out does not, as it may be no run at all."""
    if not gone:
        return list(units)
    if not units:
        return [of_few_words(path, dialect, gone, {})]
    first_unit = units[0]._replace(settings={**units[0].settings, **gone})
    every = [first_unit, *units[1:]]
    if describes_run(module.text.encode("utf-8", "surrogatepass")):
        return every
    return [unit._replace(hidden=tuple(dict.fromkeys((*unit.hidden, *EVERYTHING)))) for unit in every]


LOADER, REPLACED = "model.loader", "trl.replaced"
_TAKES_MORE = "unsloth"  # puts classes of its own in the place of TRL's, which take any name
# A class put in the place of a library's, or its arguments changed: `transformers.Trainer = A`, `Trainer.__init__ = a`
_PUTS = (
    r"\.(?:[A-Z]\w{0,60})?(?:Trainer|Arguments|Config)[ \t]*=(?!=)|\.__init__[ \t]*=(?!=)"
    r"|patch\([\"'](?:trl|transformers)\."
)


def never_had(
    calls: Collection[Call], module: Module, names: Names, path: str, sources: Sources, classes: Mapping[str, Any]
) -> dict[int, list[tuple[ast.keyword, Mapping[str, Any]]]]:
    """The keywords, by the number of their call, that no release of its class has, each with what is said of it.

    Only of the library's own class, as the module imports it: not of one that the project defines or changes.

    Args:
        classes: classes of arguments, each with its library and every name that any release of it takes.
    """
    known = [call for call in calls if call.home is None and call.name in classes]
    if not known or takes_more(calls, module, names, path, sources):
        return {}
    found: dict[int, list[tuple[ast.keyword, Mapping[str, Any]]]] = {}
    for call in known:
        row = classes[call.name]
        takes = {*row["names"], *classes.get(row.get("base", ""), {"names": ()})["names"]}
        odd = [each for each in call.node.keywords if each.arg is not None and each.arg not in takes]
        written = dotted_name(call.node.func) or ""
        if odd and is_librarys_own(written, names, row["package"], path, sources) and not _is_tried(call, module.tree):
            said = {"class": call.name, "library": row["package"], "newest": row["newest"]}
            found[call.number] = [(each, {"key": str(each.arg), **said}) for each in odd]
    return found


def is_librarys_own(written: str, names: Names, package: str, path: str, sources: Sources) -> bool:
    """Whether a name as it is called can be nothing but the library's class."""
    first, last = written.partition(".")[0], written.rpartition(".")[2]
    brought = [found for _, found in names.imports_of(first)]
    if not brought or not names.is_imported_alone(first) or first in names.changed:
        return False
    if names.stored & {"__init__", last}:
        return False
    if any(each.level or each.module.partition(".")[0] != package for each in brought):
        return False
    whole = all(each.name in (None, last) for each in brought)  # `import TrainingArguments`, not of another name
    return whole and sources.module(path, Imported(package, 0, None)) is None


def _is_tried(call: Call, tree: ast.Module) -> bool:
    """Whether another call of the class waits for this one to fail."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(each is call.node for part in node.body for each in ast.walk(part)):
            handled = [each for handler in node.handlers for each in ast.walk(handler) if isinstance(each, ast.Call)]
            if any((dotted_name(each.func) or "").rpartition(".")[2] == call.name for each in handled):
                return True
    return False


def takes_more(calls: Collection[Call], module: Module, names: Names, path: str, sources: Sources) -> bool:
    """Whether classes that take any name may stand in the place of the library's: another module of the program may
    have brought Unsloth in by then, where this one is given its model."""
    if any(_TAKES_MORE in text or re.search(_PUTS, text) for text in _texts(module, names, path, sources)):
        return True
    return not any(LOADER in call.kind.sets for call in calls) and sources.any_imports(path, _TAKES_MORE)


def takes_trl_first(text: str) -> bool:
    """Whether a module takes TRL's names before it imports Unsloth, which puts its own classes under them."""
    words = (r"from[ \t]+trl", rf"(?:from|import)[ \t]+{_TAKES_MORE}")
    first, own = (re.search(rf"(?m)^[ \t]*{each}\b", text) for each in words)
    return first is not None and own is not None and first.start() < own.start()


def _texts(module: Module, names: Names, path: str, sources: Sources) -> Iterator[str]:
    """The module's own text, and those of the project's modules that it imports."""
    yield module.text
    for imported in names.imported.values():
        found = sources.module(path, imported)
        if found is not None:
            yield found[1]


_OF_RELEASES = ("version", "signature")  # in names by which a program looks which release it has
_ASKS = (*_OF_RELEASES, "hasattr", "available")
_JUDGED_IN = ("hf", "trl")  # formats whose tables have such arguments


class TrainerArguments(NamedTuple):
    """What the calls of a module give to trainers; ``judged``: whether some release does not take one of them."""

    keys: Mapping[str, Setting] = {}
    judged: bool = False


def trainer_arguments(
    calls: Sequence[Call],
    given: Mapping[int, Arguments],
    module: Module,
    names: Names,
    path: str,
    sources: Sources,
    classes: Mapping[str, Any],
) -> TrainerArguments:
    """What is given by name to the library's own trainers, each once; a class that is called is a key too.

    Not where the program may be prepared for several releases: a call in a ``try``, one of several calls that differ.

    Args:
        classes: called classes, each with its library and, of a trainer, the arguments that some release does not take.
    """
    called = [(call, name) for call in calls if (name := _trainer(call, names, path, sources, classes))]
    if not called or takes_more(calls, module, names, path, sources) or _looks_at_release(module.tree):
        return TrainerArguments()
    guarded = _guarded(module.tree)
    keys: dict[str, Setting] = {}
    for name in dict.fromkeys(name for _, name in called):
        own = [call for call, each in called if each == name]
        by_all = _given_by_all(classes[name], own, module.tree)
        for number, call in enumerate(own, 1):
            for each in given[call.number].known if id(call.node) not in guarded else ():
                if len(each.path) == 2 and each.path[1] in by_all:
                    entry = (each.path, each.key, each.value)
                    made = placed(each.value.plain(), entry, module.source, borrowed=False)
                    keys.setdefault(name, made)
                    keys[nth_call(f"{name}.{each.path[1]}", number)] = made
    return TrainerArguments(keys, len(keys) > len({name for _, name in called} & keys.keys()))


def _given_by_all(row: Mapping[str, Any], calls: Sequence[Call], tree: ast.Module) -> set[str]:
    """The arguments that some release does not take and that all calls of a class are given by name. Of one that the
    program gives in one call and not in another, or whose newer name it has somewhere, it may choose itself.
    """
    given = set.intersection(*({keyword.arg or "" for keyword in call.node.keywords} for call in calls))
    judged: Mapping[str, str | None] = row["judged"]
    nodes = list(ast.walk(tree))
    said = {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    said |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {key for key, newer in judged.items() if key in given and newer not in said}


def _trainer(call: Call, names: Names, path: str, sources: Sources, classes: Mapping[str, Any]) -> str | None:
    """The library's trainer whose arguments a call takes: it is called, or a class built on it that adds none."""
    if call.kind.group != TRAINER or call.home is not None:
        return None
    written = dotted_name(call.node.func) or ""
    if names.is_class(written):
        bases = names.bases(written)
        if len(bases) != 1 or names.has_method(written, ("__init__", "__new__")):
            return None
        written = bases[0]
    name = written.rpartition(".")[2]
    row = classes.get(name, {})
    return name if "judged" in row and is_librarys_own(written, names, row["package"], path, sources) else None


def _guarded(tree: ast.Module) -> set[int]:
    """The calls that a program makes only where it has looked whether they can be made, or waits for them to fail."""
    found: set[int] = set()
    left: list[tuple[ast.AST, bool]] = [(tree, False)]
    while left:
        node, inside = left.pop()
        if inside and isinstance(node, ast.Call):
            found.add(id(node))
        inside = inside or isinstance(node, ast.Try | ast.TryStar | ast.Match)
        opened = node.items if isinstance(node, ast.With | ast.AsyncWith) else ()
        inside = inside or any(_has(each.context_expr, ("suppress", "raises")) for each in opened)
        inside = inside or (isinstance(node, ast.If | ast.IfExp) and _has(node.test, _ASKS))
        left += [(each, inside) for each in ast.iter_child_nodes(node)]
    return found


def _looks_at_release(tree: ast.Module) -> bool:
    """Whether a program chooses by a release, or by what a signature has: what it then gives is its own matter."""
    nodes = list(ast.walk(tree))
    told = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign | ast.NamedExpr) and _has(node.value, _OF_RELEASES)
        for target in (node.targets if isinstance(node, ast.Assign) else (node.target,))
        if isinstance(target, ast.Name)
    }
    tests = [node.test for node in nodes if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert)]
    return any(_has(test, _OF_RELEASES) or not told.isdisjoint(_names_in(test)) for test in tests)


def _has(expression: ast.expr, words: Sequence[str]) -> bool:
    """Whether a name in an expression has one of the words in it."""
    return any(word in name.lower() for name in _names_in(expression) for word in words)


def with_arguments(units: Sequence[Unit], found: TrainerArguments, path: str, dialect: str) -> list[Unit]:
    """The units of a module with what its calls give to trainers as keys of the first training; of one that sets up
    none, a unit of these alone.
    """
    if not found.keys:
        return list(units)
    at = next((number for number, unit in enumerate(units) if unit.dialect in _JUDGED_IN), None)
    if at is None:
        return [*units, of_few_words(path, dialect, {}, found.keys)] if found.judged else list(units)
    own = units[at]._replace(keys={**found.keys, **units[at].keys})
    return [*units[:at], own, *units[at + 1 :]]


OF_LIBRARIES = ("Trainer", "Seq2SeqTrainer", "SFTTrainer")
PACKAGES = ("transformers", "trl")
METRIC, STRATEGY, SAVES = "training.metric_for_best_model", "training.eval_strategy", "training.save_strategy"
# What an evaluation says of itself (``speed_metrics``, ``TrainerMemoryTracker``), beside each data set's name.
_ALWAYS = r"(?:loss|runtime|samples_per_second|steps_per_second|_time)\Z|(?:\A|_)mem_"
_OF_SFT = r"token|entropy"  # ``SFTTrainer.log`` puts its own into the same table; their names are not in every release
_EVALUATES = r"(?:_?evaluate|evaluation_loop|prediction_loop|log|_maybe_log_save_evaluate|_determine_best_metric)"
# Where else a source may bring metrics: a function that is set later, an evaluation or a callback of its own, and what
# may change a trainer out of sight. A function ``compute_metrics`` that is only defined brings none.
_ELSEWHERE = (
    r"(?<!def )\bcompute_metrics\b"
    rf"|\bdef (?:{_EVALUATES}|on_\w+)\(|\.{_EVALUATES}\s*=(?!=)"
    r"|\bsetattr\(|\bpatch|\badd_callback\b|\bcallback_handler\b|__dict__|__class__|\bexec\("
    r"|\.metric_for_best_model\s*=(?!=)"
)
METRICS_AT = 7  # the place of ``compute_metrics`` among what a trainer is given


def metric_of_nobody(
    settings: Mapping[str, Setting], calls: Sequence[Call], module: Module, names: Names, path: str, sources: Sources
) -> list[Event]:
    """The event of a run that takes its best checkpoint by a metric which nothing computes: the first evaluation ends
    in a KeyError (``_determine_best_metric`` of transformers/trainer.py).

    Args:
        settings: of the run.
        calls: of the module, which sets up no other run.
        module: the program, which may give the trainer a metric function; so may what it imports.
    """
    metric, strategy, saves = (settings.get(name) for name in (METRIC, STRATEGY, SAVES))
    evaluates = strategy is not None and strategy.value in ("steps", "epoch")
    keeps = saves is None or saves.value in ("steps", "epoch", "best")
    if metric is None or not isinstance(metric.value, str) or not metric.value or not (evaluates and keeps):
        return []
    trainers = [call for call in calls if call.kind.group == TRAINER]
    if len(trainers) != 1 or sum(call.kind.dialect is not None for call in calls) != 1:
        return []
    trainer, name = trainers[0], metric.value.removeprefix("eval_")
    of_sft = trainer.name.startswith("SFT") and re.search(_OF_SFT, name) is not None
    shown = metric.span.end > metric.span.start  # what a program says is no place of the config that it is given
    if of_sft or not shown or re.search(_ALWAYS, name) is not None:
        return []
    alone = _is_librarys(trainer, names, path, sources) and _computes_nothing(trainer.node, names, path, sources)
    if not alone or not _is_trained(trainer, names):
        return []
    if any(_brings_metrics(text) for text in _reached(module, path, sources)):
        return []
    return [Event("metric-of-nobody", metric.span, {"metric": metric.value, "trainer": trainer.name})]


def _is_librarys(call: Call, names: Names, path: str, sources: Sources) -> bool:
    """Whether a call makes a trainer of the library itself: not of a class that is built on it, whose evaluation may be
    its own."""
    written = dotted_name(call.node.func) or ""
    if call.home is not None or call.name not in OF_LIBRARIES or names.is_class(written):
        return False
    return any(is_librarys_own(written, names, package, path, sources) for package in PACKAGES)


def _computes_nothing(node: ast.Call, names: Names, path: str, sources: Sources) -> bool:
    """Whether nothing that a trainer is given computes metrics: no function for them, and no callback but the
    library's. A callback's ``on_evaluate`` and ``on_log`` are handed the table itself and may add to it."""
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    starred = any(isinstance(each, ast.Starred) for each in node.args)
    if None in given or starred or len(node.args) > METRICS_AT or "compute_metrics" in given:
        return False
    callbacks = given.get("callbacks")
    if callbacks is None or (isinstance(callbacks, ast.Constant) and callbacks.value is None):
        return True
    if not isinstance(callbacks, ast.List | ast.Tuple):
        return False
    made = [each.func if isinstance(each, ast.Call) else each for each in callbacks.elts]
    return all(is_librarys_own(dotted_name(each) or "", names, PACKAGES[0], path, sources) for each in made)


def _is_trained(trainer: Call, names: Names) -> bool:
    """Whether the module trains by this trainer: one that only evaluates looks for no best checkpoint."""
    started = (node.func for node, _, _ in names.calls if isinstance(node.func, ast.Attribute))
    return any(
        each.attr == "train"
        and (each.value is trainer.node or (trainer.target is not None and dotted_name(each.value) == trainer.target))
        for each in started
    )


def _brings_metrics(text: str) -> bool:
    """Whether a source may add to what an evaluation gives. A line that is a comment does nothing."""
    if _TAKES_MORE in text or re.search(_PUTS, text) is not None:
        return True
    return re.search(_ELSEWHERE, re.sub(r"(?m)^[ \t]*#.*$", "", text)) is not None


def _reached(module: Module, path: str, sources: Sources) -> Iterator[str]:
    """The module's own text, and those of the project's modules that it brings in, and these in turn."""
    yield module.text
    left, seen = [(path, module.tree)], {path}
    while left:
        at, tree = left.pop()
        own = Names(tree)
        for imported in (*own.imported.values(), *own.all_of):
            found = sources.module(at, imported)
            if found is None or found[0] in seen:
                continue
            seen.add(found[0])
            yield found[1]
            try:
                left.append((found[0], ast.parse(found[1])))
            except (SyntaxError, ValueError, RecursionError):  # what it brings in is not seen
                continue
