"""Python files: the literal calls that describe a run as units, each setting with its place. Nothing is executed."""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from kb.config.dialect.dialects import DOT, CompiledDialect, Entry
from kb.config.dialect.settings import Extractor, Part
from kb.config.files import ConfigError
from kb.config.python.calls import LOSS, TRAINER, Call, CallTable, Loop, calls_of
from kb.config.python.cut_rows import length_by_hand
from kb.config.python.expressions import untold
from kb.config.python.held import CommandLine, GivenConfig, NoSources, Sources
from kb.config.python.hidden import CALLED_TRAINER, OF_MODELS, OWN, TRAINING, hidden_by, packed_out_of_sight
from kb.config.python.later import turns_on
from kb.config.python.lengths import (
    SOURCE,
    WORD,
    Around,
    cuts_out_of_sight,
    evaluated_rows,
    lengths_by_constants,
    lengths_inferred,
    rows_joined,
)
from kb.config.python.loop_model import CHECKPOINTING
from kb.config.python.names import Names
from kb.config.python.own_classes import NOT_MODELLED, as_based, as_declared, asks_again, left_to_class, of_own_model
from kb.config.python.own_loop import OF_LOOP, loops_of
from kb.config.python.refused import (
    LOADER,
    REPLACED,
    TrainerArguments,
    gone_imports,
    metric_of_nobody,
    never_had,
    takes_more,
    takes_trl_first,
    trainer_arguments,
    with_arguments,
    with_gone,
)
from kb.config.python.runs import CUTTING, MERGED, PREPARED, Run, runs_of, titles_of, trained_by
from kb.config.python.source_says import ADAPTER, evaluates_alone, goes_its_own_way, said_by_source, tuned_elsewhere
from kb.config.python.syntax import Module, called_name, dotted_name
from kb.config.python.values import Arguments, Values, given_to
from kb.config.text import guard
from kb.config.text.nodes import MAPPING
from kb.config.text.source import Source
from kb.core.catalog import Dialect
from kb.core.document import NO_SUCH_RUN, Event, Setting, Unit
from kb.core.expression import Unknown, is_unknown
from kb.core.facts import FactType
from kb.core.finding import Span
from kb.core.record import NamedTuple

DIALECT = "python"
OF_OTHERS = frozenset((  # most of their keywords are no settings
    *CUTTING, MERGED, TRAINER, "tokenized", "prepared", "checkpointing", "adapter", "peft", "format", LOSS, "pooling",
    "transformer", "processor",
))  # fmt: skip

HANDED = "quantization.handed"
OF_CONFIG = OF_MODELS[1:3]  # the widths
MAX_RUNS = 200  # each is checked and predicted by itself; a real file has one or two


class PythonReader:
    """Reads Python texts. Make one for many: it spells out the dialects only once."""

    def __init__(self, dialects: Mapping[str, Dialect], facts: Mapping[str, FactType]) -> None:
        self._dialects, self._facts = dialects, facts
        self._compiled: dict[str, CompiledDialect] = {}
        self._table = CallTable(dialects[DIALECT].calls)
        self._constants = dialects[DIALECT].constants

    def read(self, text: str, path: str, sources: Sources | None = None) -> list[Unit]:
        """The runs that a text describes, in their order; none where it makes no call that kb knows.

        Args:
            sources: the project's files around it.

        Raises:
            ConfigError: it is no Python, or over a bound.
        """
        guard.check_size(text)
        return self.units(self.analyse(Module(Source(text)), path, sources), path)

    def as_read(
        self, program: Module, path: str, sources: Sources, given: GivenConfig | CommandLine, source: Source
    ) -> list[Unit]:
        """The runs of a program that is started with a config or with flags, as units of their file; none where it does
        not read them.

        Args:
            program: the program, which lies at ``path``.
            source: the text of the config, or of the command's file.
        """
        analysis = self.analyse(program, path, sources, given)._replace(source=source)
        units = self.units(analysis, given.path) if any(call.kind.dialect for call in analysis.calls) else []
        return [] if given.missed else [unit._replace(read_by=path) for unit in units]

    def analyse(
        self,
        module: Module,
        path: str = "",
        sources: Sources | None = None,
        started: GivenConfig | CommandLine | None = None,
    ) -> "Analysis":
        """The recognised calls of a module and what each says."""
        names = Names(module.tree)
        values = Values(module, names, self._constants, path, sources, started)
        calls, by_default = calls_of(values.expressions, self._table, loops_of)
        around = sources or NoSources()
        based = (as_based(call, module, names, path, around, self._table) for call in calls)
        calls = [of_own_model(call, module, names, path, around) for call in based if call is not None]
        trainers = [call for call in calls if call.kind.group == TRAINER]
        given = {
            call.number: given_to(
                call, module, values, names, self.compiled(call.kind.dialect or DIALECT).targets, trainers
            )
            for call in calls
        }
        found = Analysis(module, calls, given, values, names, by_default, module.source)
        if started is not None:  # what is wrong with the program is told of it alone
            return found
        classes = self._dialects[DIALECT].classes
        return found._replace(
            takes_more="trl" in module.text and takes_more(calls, module, names, path, around),
            odd=never_had(calls, module, names, path, around, classes),
            gone=gone_imports(module, path, around, self._facts),
            to_trainers=trainer_arguments(calls, given, module, names, path, around, classes),
        )

    def compiled(self, name: str) -> CompiledDialect:
        if name not in self._compiled:
            self._compiled[name] = CompiledDialect(self._dialects[name], self._facts)
        return self._compiled[name]

    def units(self, analysis: "Analysis", path: str) -> list[Unit]:
        """A unit for each run; named by its variable, or its line, where there are several."""
        runs = [run for run in runs_of(analysis.calls) if analysis.says_something(run)]
        if len(runs) > MAX_RUNS:
            raise ConfigError("config.python-too-many", calls=len(runs), limit=MAX_RUNS)
        titles = titles_of([run.own for run in runs if run.own is not None])
        told: set[Span] = set()
        units = [self._unit(run, analysis, path, titles.get(run.own.number) if run.own else None, told) for run in runs]
        units = [
            unit  # a run that another module makes is told if its model is: a part of it would be noise
            for run, unit in zip(runs, units, strict=True)
            if not run.brought or ("model.name" in unit.settings and not is_unknown(unit.settings["model.name"].value))
        ]
        units = with_gone(units, analysis.gone, path, analysis.module, TRAINING)
        return with_arguments(units, analysis.to_trainers, path, TRAINING)

    def _unit(self, run: Run, analysis: "Analysis", path: str, title: str | None, told: set[Span]) -> Unit:
        dialect = (run.own.kind.dialect if run.own is not None else None) or TRAINING
        settings: dict[str, Setting] = {}
        events: list[Event] = []
        nulls: dict[str, Span] = {}
        unknown_keys: list[str] = []
        left_open: list[str] = []
        keys: Mapping[str, Setting] = {}
        cuts = [call for call in run.doubtful if call.kind.group in CUTTING and _may_cut_rows(call, run, analysis)]
        agreed = {call.number for group in CUTTING for call in self._agreeing(group, cuts, run, analysis)}
        calls = [call for call in (run.own, *run.certain, *run.doubtful) if call is not None]
        for call in calls:
            part = self._part(call, analysis)
            found = part.settings
            keys = part.keys if call is run.own else keys
            if run.own is None:  # no training stands here: whoever calls this gives it its values
                found = {name: _told(each, name) for name, each in found.items()}
            if analysis.by_default and call is not run.own:
                found = {name: each._replace(by_default=True) for name, each in found.items()}
            if call in run.doubtful and call.number not in agreed:
                found = {name: each._replace(value=untold(name)) for name, each in found.items()}
            settings = {**found, **settings, **_switched_on(call, found, settings, calls, analysis)}
            nulls |= {name: span for name, span in part.silenced.items() if name not in settings}
            left_open += part.left_open
            if call.home is not None:  # what is wrong in another module is told of that
                continue
            unknown_keys += part.unknown_keys
            heard = [*part.events, *analysis.never_had(call, [event.span for event in part.events])]
            events += [_as_python(event) for event in heard if event.span not in told]
            told.update(event.span for event in heard)
        settings = _without_undone(settings, calls, analysis) | _handed(run, analysis)
        if run.own is not None and run.own.loop is not None:
            by_loop = self._of_loop(run.own, run.own.loop, analysis)
            settings = by_loop | settings | {name: each for name, each in by_loop.items() if name in OF_LOOP}
        if not any(name in settings for name in (SOURCE, "trl.max_length", "trl.max_seq_length")):
            settings |= _lengths_of_rows(run, dialect, analysis)
        for call in calls:
            if call.kind.group == TRAINER and run.own is not None:
                settings = evaluated_rows(call, analysis.values.expressions, analysis.name_span(call)) | settings
        if run.own is not None and not run.own.kind.module:  # a server trains nothing
            settings |= self._by_source(run.own, calls, settings, analysis)
            around = analysis.values.expressions.shared.sources
            at = analysis.values.expressions.path
            events += metric_of_nobody(settings, analysis.calls, analysis.module, analysis.names, at, around)
        hidden = self._hidden_of(run, calls, analysis)
        if run.own is not None and "model.name" not in settings:  # where the model comes from is not seen
            hidden += OF_MODELS
        return Unit(
            path=path,
            section=title,
            dialect=dialect,
            settings=settings,
            span=analysis.span(run.own or (*run.certain, *run.doubtful)[0]),
            events=tuple(sorted(events, key=lambda event: (event.span.line, event.span.column))),
            nulls={name: span for name, span in nulls.items() if name not in settings},
            left_open=tuple(left_open),
            unknown_keys=tuple(unknown_keys),
            hidden=tuple(dict.fromkeys(hidden)),
            keys=keys,
        )

    def _by_source(
        self, own: Call, calls: Sequence[Call], settings: Mapping[str, Setting], analysis: "Analysis"
    ) -> dict[str, Setting]:
        """What the source says beside its calls, and what another module may do to the model that the trainer is
        given, where no adapter is known."""
        span = analysis.name_span(own)
        found = said_by_source(analysis.text if own.home is not None else analysis.module.text, settings, span)
        if own.kind.dialect == "trl" and not settings.keys() & {LOADER, "model.name"} and analysis.takes_more:
            found |= {LOADER: Setting(untold(LOADER), span, span, (LOADER,), alias=True)}
        if own.kind.dialect == "trl" and takes_trl_first(analysis.module.text):
            found |= {REPLACED: Setting(False, span, span, (REPLACED,), alias=True)}
        trainer = next((call for call in calls if call.kind.group == TRAINER), None)
        if trainer is not None and trainer.home is None:
            found |= evaluates_alone(trainer, analysis.names, analysis.module.text, span)
        given = trainer.argument("model") if trainer is not None else None
        model = dotted_name(given) if given is not None else None
        around = analysis.values.expressions
        own_class = asks_again(given, analysis.module, analysis.names, around.path, around.shared.sources)
        found |= {NOT_MODELLED: Setting(own_class, span, span, (own_class,), alias=True)} if own_class else {}
        found |= rows_joined(analysis.around.trees, span) if "collat" in analysis.text else {}
        if model is None or any(name == ADAPTER or name.startswith("lora.") for name in (*settings, *found)):
            return found
        return found | tuned_elsewhere(model, around, span)

    def _hidden_of(self, run: Run, calls: Sequence[Call], analysis: "Analysis") -> list[str]:
        """The settings of a run that code out of sight may say."""
        hidden = [name for call in calls for name in hidden_by(call, run, analysis)]
        hidden += packed_out_of_sight(calls, analysis)
        if run.own is not None:
            hidden += run.own.loop.hidden if run.own.loop is not None else ()
            return [*hidden, *left_to_class(run.own, self.compiled(run.own.kind.dialect or TRAINING).targets)]
        trainers = [call for call in calls if call.kind.group == TRAINER]
        elsewhere = not trainers or any(call.argument("args") for call in trainers)
        return [*hidden, *OWN] if elsewhere or goes_its_own_way(analysis.module.text) else hidden

    def _of_loop(self, call: Call, loop: Loop, analysis: "Analysis") -> dict[str, Setting]:
        """What a training loop of the program's own says beside its calls."""
        found = lengths_inferred(analysis.around, analysis.name_span(call))
        values = analysis.values if call.home is None else analysis.values.of(call.home.owner)
        for name, value, node, word, at in loop.said:
            span = analysis.name_span(call) if call.home is not None else analysis.place_of(node)
            data = value if at is None else values.scalar_of(value, at)
            data = untold(name) if isinstance(data, Unknown) else data
            found[name] = Setting(data, span, span.beginning(), (word,), alias=True)
        return found

    def _agreeing(self, group: str, cuts: list[Call], run: Run, analysis: "Analysis") -> list[Call]:
        """The tokenizer's calls of one kind, where all that may count cut to one length."""
        own = [call for call in cuts if call.kind.group == group]
        every = [call for call in run.doubtful if call.kind.group == group]
        given = [self._part(call, analysis).settings for call in own]
        return own if len(own) == len(every) and _agree(given) else []

    def _part(self, call: Call, analysis: "Analysis") -> Part:
        """What one call says; what it sets by itself stands where it is called."""
        prefix = "" if call.kind.dialect is not None else call.kind.group + "."
        entries: dict[str, Entry] = {}
        for given in analysis.given[call.number].known:
            steps = [step.replace(".", DOT) for step in given.path[1:]]
            entries[prefix + ".".join(steps)] = (given.path, given.key, given.value)
        compiled = self.compiled(call.kind.dialect or DIALECT)
        if call.kind.group in OF_OTHERS:
            entries = {path: entry for path, entry in entries.items() if path in compiled.targets}
        part = Extractor(compiled, parsed=False).extract(entries, analysis.source)
        loose = {path for path, _, value in entries.values() if id(value) in analysis.values.by_default}
        part.settings |= {
            name: setting._replace(by_default=True) for name, setting in part.settings.items() if setting.path in loose
        }
        refused = {(str(call.number), keyword.arg) for keyword, _ in analysis.odd.get(call.number, ())}
        if refused:  # the call stops over such a name, whatever others mean by it
            left = (item for item in part.settings.items() if tuple(map(str, item[1].path[:2])) not in refused)
            part.settings = dict(left)
        text = analysis.module.text if call.home is None else call.home.owner.text
        kept = {name for word, names in call.kind.unless.items() if word in text for name in names}
        for name, value in call.kind.sets.items():
            if name in kept:
                continue
            if name == CALLED_TRAINER or (name not in part.settings and name not in part.silenced):
                span = analysis.name_span(call)
                path = (call.name,) if name == CALLED_TRAINER else (str(call.number),)
                part.settings[name] = Setting(value, span, span, path, alias=True)
        for name in call.kind.unknown:
            span = analysis.name_span(call)
            part.settings[name] = Setting(
                Unknown(frozenset((name,)), NO_SUCH_RUN), span, span, (call.name,), alias=True
            )
        return as_declared(part, call)


def _lengths_of_rows(run: Run, dialect: str, analysis: "Analysis") -> dict[str, Setting]:
    """How long rows are where no call says it: by constants of the module; where a Trainer trains, which cuts nothing,
    by what the program cuts to itself."""
    found = lengths_by_constants(analysis.module, analysis.names, analysis.values)
    if run.own is not None and dialect == TRAINING and SOURCE not in found:
        by_hand = length_by_hand(analysis.around.trees, analysis.names, analysis.values, analysis.place_of)
        found |= {SOURCE: by_hand} if by_hand is not None else {}
        if SOURCE not in found and cuts_out_of_sight(analysis.around.trees):
            span = analysis.name_span(run.own)
            found[SOURCE] = Setting(untold(SOURCE), span, span, WORD, alias=True)
    return found


class Analysis(NamedTuple):
    """The recognised calls of one module."""

    module: Module
    calls: list[Call]
    given: Mapping[int, Arguments]
    values: Values
    names: Names
    by_default: bool  # which calls are made rests on what a command line may give otherwise
    source: Source  # the text whose places the values have: the module's, or that of a config that it is given
    odd: Mapping[int, list[tuple[ast.keyword, Mapping[str, Any]]]] = {}  # keywords that no release of a class has
    gone: Mapping[str, Setting] = {}  # imports of names that some release lacks
    to_trainers: TrainerArguments = TrainerArguments()
    takes_more: bool = False  # whether other classes may stand in the place of TRL's

    @property
    def around(self) -> Around:
        """What the module and those of the project that it takes something from say."""
        others = (each for each in self.values.expressions.shared.modules.values() if each is not None)
        trees = (self.module.tree, *(each.names.tree for each in others))
        return Around(trees, self.says("truncation=True"), self.values.flags)

    @property
    def text(self) -> str:
        """The text of the module and of those of the project that it takes something from."""
        others = (each for each in self.values.expressions.shared.modules.values() if each is not None)
        return "\n".join((self.module.text, *(each.text for each in others)))

    def says(self, words: str) -> bool:
        """Whether the module, or one of the project that it takes something from, has these words."""
        return words in self.text

    def never_had(self, call: Call, told: list[Span]) -> list[Event]:
        """What is said of a call's keywords that its class never had; not of a slip, of which that is told."""
        events = []
        for keyword, values in self.odd.get(call.number, ()):
            start, _ = self.module.extent(keyword)
            end = start + len(values["key"])
            span = self.module.source.between(self.module.place(start), self.module.place(end))
            events += [Event("name-in-no-release", span, values)] if span not in told else []
        return events

    def says_something(self, run: Run) -> bool:
        """Whether at least one keyword is literal: a call with nothing but other code's values describes no run."""
        if run.own is not None and run.own.loop is not None:
            return True
        if run.brought and not trained_by(run, self.names):
            return False
        calls = [call for call in (run.own,) if call is not None] or [*run.certain, *run.doubtful]
        if any(self.given[call.number].changed for call in calls):
            return True
        found = (given.value for call in calls for given in self.given[call.number].known)
        return any(node.kind == MAPPING or not isinstance(node.data, Unknown) for node in found)

    def span(self, call: Call) -> Span:
        return self._span(call.place)

    def place_of(self, node: ast.expr) -> Span:
        """The text of a node; of one in another module the beginning."""
        return self._span(node) if id(node) in self.names.nodes else Span(1, 1, 1, 1, 0, 0)

    def name_span(self, call: Call) -> Span:
        """The called name."""
        return self._span(call.place.func)

    def _span(self, node: ast.expr) -> Span:
        if self.source is not self.module.source:
            return Span(1, 1, 1, 1, 0, 0)
        return self.module.span(node)


def _may_cut_rows(call: Call, run: Run, analysis: Analysis) -> bool:
    """Whether a call cuts the rows of the training, for all that is seen: under no condition, or in a loop before the
    training that hands nothing to a model, which one over prompts or test rows does."""
    loops = set(call.where.certainly)
    if not loops or not call.where.but_for_loops:
        return not loops
    training = next((each for each in run.certain if each.kind.group == TRAINER), run.own)
    if training is not None and call.number > training.number:
        return False
    inside = (node for node, where, _ in analysis.names.calls if not loops.isdisjoint(where.branch))
    return not any(
        called_name(node) == "generate"
        or called_name(node).endswith("model")
        or any(each.arg is None for each in node.keywords)  # model(**ids), by whatever name
        for node in inside
        if node is not call.node
    )


def _switched_on(
    call: Call, found: Mapping[str, Setting], settings: Mapping[str, Setting], calls: Sequence[Call], analysis: Analysis
) -> dict[str, Setting]:
    """The switches of checkpointing that a call turns on where the Trainer's argument leaves them off."""
    if any(name in found and found[name].value is False for name in CHECKPOINTING):
        return {}  # prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    off = [name for name in CHECKPOINTING if name in found and name in settings and settings[name].value is False]
    sure = turns_on(call, calls, analysis.names, analysis.module.text) if off else False
    if sure is False:
        return {}
    return {name: found[name] if sure else found[name]._replace(value=untold(name)) for name in off}


def _handed(run: Run, analysis: Analysis) -> dict[str, Setting]:
    """Whether the run's model is handed the quantization config that is made there, in the call itself and under no
    condition: transformers looks at such a config even where it turns on neither width."""
    made = [call for call in run.certain if call.kind.group == "quantization"]
    if len(made) != 1:
        return {}
    config, span = made[0], analysis.name_span(made[0])
    models = [call for call in run.certain if call.kind.sets.get("model.loader") == "transformers"]
    given = _config_of(models[0], analysis) if len(models) == 1 else None
    taken = given is not None and (given is config.node or dotted_name(given) == (config.target or ""))
    found = {HANDED: Setting(True if taken else untold(HANDED), span, span, (config.name,), alias=True)}
    changed = config.target is not None and (
        config.target in analysis.names.changed
        or any(name.startswith("load_in_") for name, _ in analysis.names.attributes.get(config.target, ()))
    )
    if changed:  # `packed.load_in_8bit = True`: what it asks for by then is not followed
        found |= {name: Setting(untold(name), span, span, (config.name,), alias=True) for name in OF_CONFIG}
    return found


def _config_of(model: Call, analysis: Analysis) -> ast.expr | None:
    """The quantization config that a model is given, in the call itself or in its ``**more``."""
    given = model.argument("quantization_config")
    tables = [value for _, name, value in model.keywords() if name is None]
    if given is not None or len(tables) != 1:
        return given
    values = analysis.values if model.home is None else analysis.values.of(model.home.owner)
    found = values.pairs(tables[0], model.where)
    if found is None:
        return None
    return next((value for _, key, value in found[0] if key == "quantization_config"), None)


def _without_undone(settings: dict[str, Setting], calls: Sequence[Call], analysis: Analysis) -> dict[str, Setting]:
    """The settings without those of a preparation of which nothing stays: of a model that nothing packs, and that is
    cast to 16 bits afterwards."""
    if PREPARED not in settings or any(name in settings for name in (*OF_MODELS[1:3], "run.quantized")):
        return settings
    undone = {str(call.number) for call in calls if _cast_back(call, analysis.names)}
    return {name: each for name, each in settings.items() if not each.path or str(each.path[0]) not in undone}


def _told(setting: Setting, name: str) -> Setting:
    return setting._replace(value=untold(name), by_default=False) if setting.by_default else setting


def _as_python(event: Event) -> Event:
    """The event with its mended text as Python writes it."""
    words = {"true": "True", "false": "False", "null": "None"}
    edits = tuple(edit._replace(value=words.get(edit.value, edit.value)) for edit in event.edits)
    return event._replace(edits=edits)


def _agree(parts: Sequence[Mapping[str, Setting]]) -> bool:
    """Whether several calls, of which any may be the one that counts, give a setting alike."""
    first, *others = parts or ({},)
    return any(
        not is_unknown(each.value) and all(name in other and other[name].value == each.value for other in others)
        for name, each in first.items()
    )


def _cast_back(call: Call, names: Names) -> bool:
    """Whether this prepares a model for training in few bits, and the program casts it to 16 bits afterwards."""
    if PREPARED not in call.kind.sets or call.home is not None:
        return False
    for node, _, _ in names.calls:
        func = node.func
        if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Name):
            continue
        given = [dotted_name(each) or "" for each in (*node.args, *(each.value for each in node.keywords))]
        halves = func.attr in ("half", "bfloat16") or (func.attr == "to" and any("float16" in each for each in given))
        of_model = func.value.id == call.target or func.value.id.endswith("model")
        if halves and of_model and (node.lineno, node.col_offset) > (call.place.lineno, call.place.col_offset):
            return True
    return False
