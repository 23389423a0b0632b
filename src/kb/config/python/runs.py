"""Which of a program's calls belong to one run: the trainer that takes its arguments, its model and its adapters."""

import ast
from collections.abc import Collection, Iterable, Mapping

from kb.config.python.calls import LOSS, TRAINER, Call, Loop
from kb.config.python.names import Names
from kb.config.python.places import ROUND, Scope
from kb.config.python.syntax import dotted_name
from kb.core.record import NamedTuple

CUTTING = ("tokenizer", "target")  # groups of the calls that cut texts
MADE = ("model", "loader", "accelerator")  # groups of what a loop of the program's own is made of
WIDTHS = ("quantization", "prepared", "lora", "adapter")  # of calls that say how wide the weights are and which train
ADAPTERS = ("lora", "adapter")
LATE = (*ADAPTERS, "model", "quantization")  # groups of calls that say nothing of a run above them
MERGED = "merged"  # the group of calls that put adapters into the weights, and take them off
PREPARED = "quantization.prepared"


class Run(NamedTuple):
    """One run: its own call, where there is one, and those that it shares with others or has for itself.

    ``certain`` are calls that happen whenever the run does; ``doubtful`` may or may not, or another may in their place.
    """

    own: Call | None
    certain: tuple[Call, ...]
    doubtful: tuple[Call, ...]

    @property
    def brought(self) -> bool:
        """Whether another module makes it."""
        return self.own is not None and self.own.home is not None


def titles_of(calls: list[Call]) -> dict[int, str]:
    """What several runs of a file are told apart by: their names, or their lines."""
    if len(calls) < 2:
        return {}
    names = [call.target for call in calls]
    return {
        call.number: call.target if call.target and names.count(call.target) == 1 else f"line {call.place.lineno}"
        for call in calls
    }


def asked_of(name: str, names: Names) -> list[str]:
    """The attributes that a module asks of what a name stands for."""
    return [
        node.attr
        for node in ast.walk(names.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    ]


def trained_by(run: Run, names: Names) -> bool:
    """Whether the trainer of a run that another module makes is told to train, there or by the program itself, with
    the arguments that it was made with."""
    trainers = [call for call in (*run.certain, *run.doubtful) if call.kind.group == TRAINER]
    asked = [word for call in trainers for word in asked_of(call.target or "", names)]
    if "args" in asked:  # they may be set anew
        return False
    asked += [word for call in trainers if call.home for word in asked_of(call.home.name or "", call.home.owner.names)]
    return "train" in asked or "hyperparameter_search" in asked


def runs_of(calls: list[Call]) -> list[Run]:
    """The runs of a module: one for each training call; where there is none, one for all the others together. A server
    is a run by itself.
    """
    servers = [Run(call, (), ()) for call in calls if call.kind.module]
    calls = [call for call in calls if not call.kind.module]
    found = (*servers, *_training_runs(calls))
    return sorted(found, key=lambda run: (run.own or (*run.certain, *run.doubtful)[0]).number)


def _training_runs(calls: list[Call]) -> list[Run]:
    own = [call for call in calls if call.kind.dialect is not None]
    own = [call for call in own if call.target != "_"] or own  # made for what making it does: TrainingArguments(".")
    others = [call for call in calls if call.kind.dialect is None]
    if not own:
        others = [call for call in others if not call.kind.of]
        telling = any(call.kind.group in ("model", "lora", "quantization") for call in others)
        return [_run(None, others)] if telling else []
    return [_run(call, [each for each in others if _may_be_of(each, call, own)]) for call in own]


def _may_be_of(call: Call, run: Call, runs: list[Call]) -> bool:
    """Whether a call may say something of a run: it is of its format, and stands in no function where another run is
    made and this one is not (a file of tests, of trials)."""
    scope = call.where.scope
    here = _within(run, scope) or not any(_within(each, scope) for each in runs)
    return here and call.kind.of in ("", run.kind.dialect)


def _within(call: Call, scope: Scope) -> bool:
    return call.where.scope[: len(scope)] == scope


def _run(own: Call | None, others: list[Call]) -> Run:
    groups: dict[str, list[Call]] = {}
    for call in others if own is None or own.loop is None else _of_loop(own.loop, others):
        if own is None or not call.where.excludes(own.where):
            groups.setdefault(call.kind.group, []).append(call)
    trainers = groups.pop(TRAINER, [])
    trainer = _trainer_of(own, trainers)
    merged = _merged_for(trainer, groups.pop(MERGED, []))
    if trainer is not None and merged is not None:
        groups |= {name: _left_after(merged, groups[name], trainer, groups) for name in ADAPTERS if name in groups}
    if trainer is not None:
        adapters = [each for each in groups.get("lora", ()) if not _is_of_another(each, trainer, trainers, groups)]
        groups = {name: adapters if name == "lora" else alike for name, alike in groups.items()}
    anchor = trainer or own
    if trainer is not None:  # what is loaded below the training is another model's
        late = {each.number for name in LATE for each in groups.get(name, ()) if _comes_after(each, trainer)}
        late |= {each.number for each in groups.get("model", ()) if _is_replaced(each, trainer)}
        groups = {name: [each for each in alike if each.number not in late] for name, alike in groups.items()}
        groups = {name: alike for name, alike in groups.items() if alike}
    certain: list[Call] = [trainer] if trainer is not None else []
    if merged is not None and not any(groups.get(name) for name in ADAPTERS):
        certain.append(merged)  # PEFT leaves the weights frozen: whether anything trains, nobody knows
    doubtful: list[Call] = []
    for group, alike in groups.items():
        candidates = [call for call in alike if call.home is None] or alike
        its = [call for call in candidates if group == LOSS and _is_given(call, trainer)]
        each = group in CUTTING or (group == LOSS and not its)  # each counts, so that none stands for the others
        chosen = _before(candidates, anchor) if each else _chosen(its or candidates, anchor, _linked_names(trainer))
        for call in chosen:
            sure = len(chosen) == 1 and _is_met(call, anchor)
            sure |= own is not None and own.loop is not None and group in MADE  # the loop's own, followed there
            sure &= group not in ADAPTERS or merged is None or _is_met(merged, anchor)
            (certain if sure else doubtful).append(call)
    if anchor is not None and _loads_whole(certain, anchor):
        certain, doubtful = (  # without the quantization of another function's model
            [each for each in calls if each.kind.group != "quantization" or _within(anchor, each.where.scope)]
            for calls in (certain, doubtful)
        )
    certain.sort(key=lambda call: PREPARED in call.kind.sets)  # what PEFT turns on besides, other calls say better
    return Run(own, tuple(certain), tuple(doubtful))


def _of_loop(loop: Loop, others: list[Call]) -> Iterable[Call]:
    """The calls without those that make another model, other batches or another accelerator than the loop's."""
    own = {id(each.func): each for each in loop.made_by}
    of_loop = (call for call in others if call.kind.group not in MADE or id(call.node.func) in own)
    return (call._replace(node=own.get(id(call.node.func), call.node)) for call in of_loop)


def _loads_whole(certain: Iterable[Call], anchor: Call) -> bool:
    """Whether the run's own function loads its model, and hands no quantization on."""
    beside = [each for each in certain if each.kind.group == "model" and each.where.scope == anchor.where.scope]
    spread = any(keyword.arg is None for each in beside for keyword in each.node.keywords)
    return bool(beside) and not spread and all(each.argument("quantization_config") is None for each in beside)


def _apart(call: Call, anchor: Call) -> bool:
    """A call in a function of its own, without conditions there: it is taken for one that the run makes."""
    return call.where.scope != anchor.where.scope[: len(call.where.scope)] and not call.where.certainly


def _trainer_of(own: Call | None, trainers: list[Call]) -> Call | None:
    """The trainer that is given the run's arguments."""
    if own is None:
        return trainers[0] if len(trainers) == 1 else None
    for trainer in trainers:
        given = trainer.argument("args")
        if given is own.node:
            return trainer
        if given is not None and own.target is not None and dotted_name(given) == own.target:
            after = trainer.number > own.number or trainer.where.scope != own.where.scope
            if after:
                return trainer
    alone = trainers[0] if len(trainers) == 1 else None
    if alone is None or own.target is None or alone.home is not None:
        return alone
    return alone if any(each.arg is None for each in alone.node.keywords) else None  # by Trainer(**arguments)


def _is_of_another(
    adapter: Call, trainer: Call, trainers: Iterable[Call], groups: Mapping[str, Collection[Call]]
) -> bool:
    """Whether an adapter's config is another trainer's alone: that is given it, with another model, and this trainer
    is given none, with a model that is loaded anew.
    """
    theirs = [each for each in trainers if _takes(each, adapter)]
    model = _name_given(trainer, "model")
    loaded = model is not None and any(each.target == model for each in groups.get("model", ()))
    open_ended = any(each.arg in (None, "peft_config") for each in trainer.node.keywords)
    if (
        not theirs
        or not loaded
        or open_ended
        or trainer in theirs
        or any(_takes(each, adapter) for each in groups.get("adapter", ()))
    ):
        return False
    return all(_name_given(each, "model") not in (None, model) for each in theirs)


def _merged_for(trainer: Call | None, merged: Iterable[Call]) -> Call | None:
    """The last call before a trainer whose result it trains, and that puts a model's adapters into its weights."""
    if trainer is None:
        return None
    model, name = trainer.argument("model"), _name_given(trainer, "model")
    before = [
        each for each in merged if each.node is model or (name and each.target == name and each.number < trainer.number)
    ]
    return before[-1] if before else None


def _left_after(
    merged: Call, adapters: Iterable[Call], trainer: Call, groups: Mapping[str, Collection[Call]]
) -> list[Call]:
    """The adapters of a trainer whose model had some that lie in its weights by then: those that come after, and a
    config that is used after."""
    within = {id(each) for each in ast.walk(merged.node)}

    def after(call: Call) -> bool:
        return call.number > merged.number and id(call.node) not in within

    used = [trainer, *filter(after, groups.get("adapter", ()))]
    return [each for each in adapters if after(each) or any(_takes(call, each) for call in used)]


def _takes(call: Call, made: Call) -> bool:
    """Whether a call is given what another makes."""
    given = (*call.node.args, *(each.value for each in call.node.keywords))
    return any(each is made.node or (made.target or "") == dotted_name(each) for each in given)


def _name_given(call: Call, name: str) -> str | None:
    given = call.argument(name)
    return None if given is None else dotted_name(given)


def _linked_names(trainer: Call | None) -> set[str]:
    """The names that a trainer is given its model and adapter by."""
    given = [_name_given(trainer, name) for name in ("model", "peft_config")] if trainer is not None else []
    return {each for each in given if each is not None}


def _is_met(call: Call, anchor: Call | None) -> bool:
    """Whether a call happens wherever the run does; without a run, what says a width happens under no condition."""
    if anchor is None:
        return call.kind.group not in WIDTHS or call.where.but_for_loops
    return call.where.holds_at(anchor.where) or _apart(call, anchor)


def _is_given(loss: Call, trainer: Call | None) -> bool:
    given = trainer.argument(LOSS) if trainer is not None else None
    return given is not None and (loss.node is given or (loss.target or "") == dotted_name(given))


def _chosen(candidates: list[Call], anchor: Call | None, linked: set[str]) -> list[Call]:
    """Of several calls of one kind the one that the run uses; more than one where that cannot be told."""
    if len(candidates) <= 1:
        return candidates
    if anchor is not None:
        candidates = [each for each in candidates if not _comes_after(each, anchor)] or candidates
        near = [each for each in candidates if each.where.scope == anchor.where.scope[: len(each.where.scope)]]
        candidates = near or candidates
        before = [each for each in candidates if each.number < anchor.number]
        candidates = before or candidates
    named = [each for each in candidates if each.target in linked]
    beside = ("ref", "reward", "teacher", "value")  # of names of models that are not the one that is trained
    candidates = named or [each for each in candidates if not (each.target or "").startswith(beside)] or candidates
    last = candidates[-1].where
    instead = any(each.where.excludes(last) for each in candidates[:-1])
    return candidates[-1:] if anchor is not None and last.holds_at(anchor.where) and not instead else candidates


def _comes_after(call: Call, anchor: Call) -> bool:
    """Whether a call stands behind the run's statement in the same function, and no loop comes by again."""
    again = any(arm == ROUND for _, arm in anchor.where.branch)
    return call.where.scope == anchor.where.scope and call.where.order > anchor.where.order and not again


def _is_replaced(load: Call, trainer: Call) -> bool:
    """Whether the name that a trainer is given its model by held another model first."""
    alike = load.where.scope == trainer.where.scope and load.target in _linked_names(trainer)
    return alike and load.gone is not None and load.gone < trainer.where.order


def _before(candidates: list[Call], anchor: Call | None) -> list[Call]:
    """The calls that come before the run in the text; all where none does."""
    return [each for each in candidates if anchor is None or each.number < anchor.number] or candidates
