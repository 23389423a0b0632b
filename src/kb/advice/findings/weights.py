"""How much a finding weighs: its certainty, the assumptions that would turn it, and the severity that these allow.

An assumption turns a finding that does not hold of the run as it would be, were the assumption false.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from kb.advice.facts.grounds import OUT_OF_MEMORY, PREDICTED, PROCESSES, as_severe, concerning, matter, own_defaults
from kb.advice.facts.unit_facts import UnitFacts
from kb.advice.findings.tables import BETWEEN
from kb.core.catalog import Rule
from kb.core.document import Unit
from kb.core.expression import compile_tree
from kb.core.facts import Certainty, certainty_of, weakest
from kb.core.finding import Because, Edit, Finding, Severity
from kb.core.lint import lowered
from kb.core.model import Model
from kb.core.naming import HANDS_ON, Names
from kb.core.setup import Assumption, TrainingSetup

SHORT_INPUT, SHORT_TARGET = 64, 16  # tokens: as short as the rows of a real data set are
MANY = 8  # GPUs of the usual larger machine


def _other_weights(setup: TrainingSetup) -> TrainingSetup:
    return setup._replace(weights="bf16" if setup.weights == "fp32" else "fp32")


def _short(setup: TrainingSetup) -> TrainingSetup:
    post = setup.post
    if post is not None:  # of a length the answer that is generated is a part
        post = post._replace(completion=min(post.completion, SHORT_TARGET))
    return setup._replace(
        post=post,
        max_source_length=min(setup.max_source_length, SHORT_INPUT),
        max_target_length=min(setup.max_target_length, SHORT_TARGET),
        generation_max_length=min(setup.generation_max_length, SHORT_TARGET),
    )


def _half(setup: TrainingSetup) -> TrainingSetup:
    """The longest row half as long as it may be; what post-training reads has other bounds beside that."""
    reads_rows = setup.post is None or setup.post.kind == "sft"
    return setup._replace(max_source_length=setup.max_source_length // 2) if reads_rows else setup


def _short_answers(setup: TrainingSetup) -> TrainingSetup:
    short = min(setup.max_target_length, SHORT_TARGET)
    return setup._replace(
        max_target_length=short,
        generation_max_length=min(setup.generation_max_length, SHORT_TARGET),
        inference_max_length=min(setup.inference_max_length, SHORT_TARGET),
    )


def _other_prompts(setup: TrainingSetup) -> TrainingSetup:
    """Short ones before answers that are generated; else all of a sample but a short answer."""
    post = setup.post
    if post is not None and post.completion:
        return setup._replace(max_source_length=min(setup.max_source_length, post.completion + SHORT_INPUT))
    return setup._replace(post=post and post._replace(scored=SHORT_TARGET))


def _sharded(setup: TrainingSetup) -> TrainingSetup:
    """Several GPUs, started by a launcher whose own file shards what training keeps: no config of the run says it."""
    spread = setup.spread._replace(deepspeed=True)
    shards = setup.method == "full" and not setup.fsdp  # an adapter's run has little to shard
    return setup._replace(world_size=MANY, zero_stage=3, spread=spread) if shards else setup


def _without_logits(setup: TrainingSetup) -> TrainingSetup:
    return setup._replace(fused_loss=True, fused_evaluation=True)


def _least_of_layers(setup: TrainingSetup) -> TrainingSetup:
    """No layer keeps more than its input, whatever computes it."""
    return setup._replace(gradient_checkpointing=True, lora_dropout=0.0)


def _least_kept(setup: TrainingSetup) -> TrainingSetup:
    """Nor does anything make whole logits: no compiled code keeps less."""
    return _without_logits(_least_of_layers(setup))


# What each assumption could be instead. One that has none here is a guess that nothing else can be put for.
OTHERWISE: Mapping[str, tuple[Callable[[TrainingSetup], TrainingSetup], ...]] = {
    "data.max_source_length": (_short,),
    "data.lengths": (_half,),
    "data.max_target_length": (_short_answers,),
    "inference.max_length": (_short_answers,),
    "model.torch_dtype": (_other_weights,),
    PROCESSES: (lambda setup: setup._replace(world_size=MANY), _sharded),
    "training.optim": (
        lambda setup: setup._replace(optim="adamw_torch"),
        lambda setup: setup._replace(optim="adamw_torch_fused"),
    ),
    "model.attn_implementation": (
        lambda setup: setup._replace(attn_implementation="sdpa"),
        lambda setup: setup._replace(attn_implementation="flash"),
        lambda setup: setup._replace(attn_implementation="eager"),
    ),
    "quantization.prepared": (
        lambda setup: setup._replace(prepare_for_kbit=True, half_tables=False, trained_type="peft"),
        lambda setup: setup._replace(prepare_for_kbit=True, half_tables=setup.bf16, trained_type="peft"),
        lambda setup: setup._replace(prepare_for_kbit=False, half_tables=False, trained_type="peft"),
    ),
    "training.gradient_checkpointing": (
        lambda setup: setup._replace(gradient_checkpointing=not setup.gradient_checkpointing),
    ),
    "training.bf16": (lambda setup: setup._replace(bf16=not setup.bf16),),
    "training.eval_strategy": (lambda setup: setup._replace(do_eval=False),),
    "embedding.columns": (lambda setup: setup._replace(post=setup.post and setup.post._replace(columns=3)),),
    "trl.max_prompt_length": (_other_prompts,),
    "training.fused_loss": (_short,),  # logits counted whole: a run of few tokens has hardly any
    "model.logits_of_answers": (_without_logits,),  # of few tokens
    "trl.loss_type": (_without_logits,),
    "training.torch_compile": (_least_kept,),
    "lora.fused_kernels": (_least_of_layers,),
}


def turned_by(
    setup: TrainingSetup,
    assumed: tuple[Assumption, ...],
    holds: Callable[[TrainingSetup], bool],
    *,
    over: bool = False,
) -> tuple[Assumption, ...]:
    """The assumptions of a prediction that would each turn a finding, were they false.

    Args:
        assumed: what the prediction assumed.
        holds: whether the finding still holds of another setup.
        over: it says that memory runs out, so that what takes less is likelier to turn it, and is asked first.
    """
    turning = []
    for each in matter(assumed):
        others = [change(setup) for change in OTHERWISE.get(each.name, ())]
        if over and each.name == PROCESSES:
            others.reverse()
        if not others or any(not holds(other) for other in others if other != setup):
            turning.append(each)
    return tuple(turning)


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
