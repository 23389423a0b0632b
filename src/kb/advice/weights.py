"""How much a finding weighs: its certainty, the assumptions that would turn it, and the severity that these allow."""

from collections.abc import Iterable, Iterator, Mapping

from kb.advice.facts import UnitFacts
from kb.advice.grounds import OUT_OF_MEMORY, PREDICTED, as_severe, concerning, own_defaults
from kb.advice.other_setups import turned_by
from kb.advice.tables import BETWEEN
from kb.core.catalog import Rule
from kb.core.document import Unit
from kb.core.expression import compile_tree
from kb.core.facts import Certainty, certainty_of, weakest
from kb.core.finding import Because, Edit, Finding, Severity
from kb.core.lint import lowered
from kb.core.model import Model
from kb.core.naming import HANDS_ON, Names
from kb.core.setup import Assumption, TrainingSetup


def _instead(unit: Unit, edit: Edit) -> Edit | None:
    """An edit as a command can make it: a switch that is on in its program is not there to be removed, and is turned
    off; None of a number or a name that the program brings, which nothing turns off."""
    setting = unit.settings.get(edit.name)
    of_program = setting is not None and bool(unit.program) and setting.joined == unit.program
    if setting is None or not of_program or edit.op != "remove":
        return edit
    return Edit("set", edit.name, False) if isinstance(setting.value, bool) else None


def _is_out_of_memory(each: Because) -> bool:
    """Whether this is the verdict that memory runs out, which even the low end of the prediction says."""
    return each.name.startswith("memory.") and each.value == OUT_OF_MEMORY


def _barred(unit: Unit, finding: Finding) -> Finding:
    """The finding with those of its fixes marked that the file's form bars."""
    if not any(unit.bars(fix) for fix in finding.fixes):
        return finding
    fixes = []
    for fix in finding.fixes:
        edits = [_instead(unit, edit) for edit in fix.edits]
        made = tuple(edit for edit in edits if edit is not None)
        if len(made) == len(edits):
            fixes.append(fix._replace(barred=unit.bars(fix), edits=made))
    return finding._replace(fixes=tuple(fixes))


# What a guessed model's dimensions decide: a finding that uses such a fact is as unsure as the guess.
_OF_MODEL = ("model.", "memory.", "fit.", "throughput.")


def _resting(finding: Finding, model: Model | None) -> Finding:
    """The finding, of low confidence where it rests on a model that is only guessed."""
    if model is None or not model.guessed_from:
        return finding
    rests = any(name.startswith(_OF_MODEL) and name != "model.name" for name in finding.facts)
    return finding._replace(confidence="low") if rests else finding


OF_RANKS = ("serving.tensor_parallel_size", "serving.pipeline_parallel_size")


def _rested_on(unit: Unit, names: Iterable[str]) -> Iterator[str]:
    """The facts, and the settings that those which a command's model or server has are found from."""
    for name in names:
        yield name
        if unit.script is None or name in unit.settings or name == "serving.engine":
            continue
        if name == "serving.ranks":
            yield from OF_RANKS
        elif name.startswith(("model.", "serving.")):
            yield "model.name"
            yield from (each for each in unit.settings if name[:8] == each[:8] == "serving.")


def _as_started(finding: Finding, unit: Unit) -> Finding:
    """The finding, at most likely where it rests on a program's own default, which a command line can change, or on
    that of a variable of a command."""
    resting = own_defaults(unit, _rested_on(unit, (each.name for each in finding.because)))
    if not resting or any(each.name == resting[0].name for each in finding.if_so):
        return finding
    return lowered(finding, weakest((finding.certainty, "likely")))._replace(if_so=(*finding.if_so, *resting))


# What the config of accelerate may ask for as well: DeepSpeed, FSDP, and autocast where the arguments ask for none.
SHARDED, AUTOCAST = ("launch.use_deepspeed", "launch.use_fsdp"), ("training.bf16", "training.fp16")
PLAIN = ("python", "torchrun", "deepspeed")  # what starts a program without such a config


def _as_launched(finding: Finding, prepared: UnitFacts, types: Mapping[str, str]) -> Finding:
    """The finding, at most likely where it rests on what an accelerate config may say, and one may start the run."""
    unit = prepared.unit
    unsaid = {each.name for each in finding.because if each.value is False}
    autocast = unsaid.issuperset(AUTOCAST)
    if not (autocast or unsaid.intersection(SHARDED)) or unit.dialect == "team" or unit.path.endswith(".ipynb"):
        return finding
    get = prepared.facts(types).get
    sharding_told = get("launch.multi_gpu") is True or get("written.accelerate.distributed_type") is True
    if get("launch.launcher") in PLAIN or (sharding_told and not autocast):
        return finding
    plain = Assumption("launch.launcher", "python", "launcher_unknown")
    return lowered(finding, weakest((finding.certainty, "likely")))._replace(if_so=(*finding.if_so, plain))


def _as_judged(finding: Finding) -> Finding:
    """The finding, at most likely where it rests on a verdict that is: the low end of the prediction still fits."""
    if finding.severity != "error" or not finding.as_likely:
        return finding
    return lowered(finding, weakest((finding.certainty, "likely")))


def worded(finding: Finding) -> Finding:
    """The finding by the name of the rule that words it, which of a table's row is not the row's own."""
    return finding._replace(rule=finding.rule.partition(BETWEEN)[0]) if BETWEEN in finding.rule else finding


TEXT_OF_NUMBER = "number-as-text"  # the event
MARK = "byte-order-mark"  # the event


class Weights:
    """Weighs the findings of one run.

    Args:
        types: of facts, by name.
        notes: notes will be told, so that what they rest on is worth finding out.
        strict: keep each rule's own severity, however certain the facts are.
    """

    def __init__(self, types: Mapping[str, str], *, notes: bool, strict: bool) -> None:
        self._types = types
        self._notes, self._strict = notes, strict

    def _severity(self, finding: Finding) -> Severity:
        return finding.severity if self._strict else as_severe(finding.severity, finding.certainty, finding.because)

    def weighed(self, finding: Finding, rule: Rule, prepared: UnitFacts) -> Finding:
        """The finding at the severity that its certainty allows, with the assumptions that would turn it."""
        finding = _resting(_barred(prepared.unit, finding), prepared.model)
        told = self._notes or finding.severity != "info"
        if told and any(each.origin == "assumed" for each in finding.because):
            finding = self._with_assumptions(finding, rule, prepared)
        finding = _as_judged(_as_launched(_as_started(finding, prepared.unit), prepared, self._types))
        return finding._replace(severity=self._severity(finding))

    def _holds(self, finding: Finding, rule: Rule, prepared: UnitFacts, setup: TrainingSetup) -> bool:
        """Whether the finding holds of another setup, and is as sure there that memory runs out."""
        if rule.when is None:
            return True
        get = prepared.supposing(setup).facts(self._types).get
        sure = [each.name for each in finding.because if _is_out_of_memory(each)]
        return compile_tree(rule.when)(get) is True and all(get(name) == OUT_OF_MEMORY for name in sure)

    def as_named(self, finding: Finding, rule: Rule, names: Names) -> Finding | None:
        """The finding as certain as the name that it is about is a library's; None where nothing says that it is."""
        finding = names.with_known_flags(finding)
        if rule.on is None:
            finding = names.with_sure_removals(finding)
        if rule.on == MARK and names.reads_past_mark:
            return None
        if rule.on == TEXT_OF_NUMBER:
            return self._as_loaded(finding, names.text_of_numbers(str(finding.facts.get("key", ""))))
        certainty = names.of(finding, rule.at) if rule.names else "certain"
        if names.fills_in(finding):
            return None
        if certainty is not None and names.may_be_set_there(finding):
            certainty = weakest((certainty, "assumed"))
        if certainty == "certain" and names.is_passed_over(rule.at):
            certainty = "likely"
        if certainty is None or certainty == "certain":
            return finding if certainty else None
        finding = lowered(finding, weakest((finding.certainty, certainty)))
        finding = finding._replace(if_so=(*finding.if_so, Assumption(HANDS_ON, True, "names_handed_on")))
        return finding._replace(severity=self._severity(finding))

    def _as_loaded(self, finding: Finding, certainty: Certainty | None) -> Finding | None:
        """A number that YAML reads as text, as certain as it is that PyYAML reads the file."""
        if certainty is None or certainty == "certain":
            return finding if certainty else None
        fixes = finding.fixes  # the number is right for whatever reads it
        finding = lowered(finding, weakest((finding.certainty, certainty)))._replace(fixes=fixes)
        finding = finding._replace(if_so=(*finding.if_so, Assumption("loader.package", "PyYAML", "loader_not_found")))
        return finding._replace(severity=self._severity(finding))

    def _with_assumptions(self, finding: Finding, rule: Rule, prepared: UnitFacts) -> Finding:
        """The finding with the assumptions that decide it; one that holds whatever is assumed is certain."""
        when = rule.when
        predicted = tuple(each.name for each in finding.because if each.name.startswith(PREDICTED))
        turning: tuple[Assumption, ...] = ()
        if predicted and when is not None:

            def holds(setup: TrainingSetup) -> bool:
                return self._holds(finding, rule, prepared, setup)

            over = any(_is_out_of_memory(each) for each in finding.because)
            rested = concerning(predicted, prepared.assumed, prepared.unit)
            turning = turned_by(prepared.setup, rested, holds, over=over)
        others = [each for each in finding.because if not each.name.startswith(PREDICTED)]
        named = {each.name for each in others if each.origin == "assumed"}
        if {"batch.effective", "gpu.count", "run.steps"} & named:
            named.add("launch.num_processes")
        turning += tuple(each for each in prepared.assumed if each.name in named and each not in turning)
        grounds = [certainty_of(each.origin) for each in others]
        certainty: Certainty = weakest((*grounds, "assumed" if turning else "certain"))
        if finding.on_releases:
            certainty = weakest((certainty, "likely"))
        if certainty == "certain":  # the fixes were lowered with it; their own facts decide again
            return self._anew(finding, rule)._replace(if_so=())
        return lowered(finding._replace(if_so=turning), certainty)

    def _anew(self, finding: Finding, rule: Rule) -> Finding:
        """The finding as certain, its fixes as safe as the rule says they are."""
        safeties = {fix.title: fix.safety for fix in rule.fixes}
        fixes = tuple(fix._replace(safety=safeties.get(fix.title, fix.safety)) for fix in finding.fixes)
        return finding._replace(certainty="certain", fixes=fixes)
