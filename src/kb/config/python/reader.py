"""Python files: the literal calls that describe a run as units, each setting with its place. Nothing is executed."""

from collections.abc import Mapping
from typing import Any

from kb.config.dialect.dialects import DOT, CompiledDialect, Entry
from kb.config.dialect.settings import Extractor, Part
from kb.config.files import ConfigError
from kb.config.python.calls import CUTTING, Call, CallTable, Run, runs_of
from kb.config.python.declared import LOSS_ONLY, asks_for_metrics, keeps_no_logits
from kb.config.python.held import Sources
from kb.config.python.names import Names
from kb.config.python.syntax import Module
from kb.config.python.values import SOURCE, Values, alike, lengths_by_constants
from kb.config.text import guard
from kb.config.text.nodes import MAPPING, Node
from kb.config.text.source import Source
from kb.core.catalog import Dialect
from kb.core.document import NO_SUCH_RUN, Event, Setting, Unit
from kb.core.expression import Unknown
from kb.core.facts import FactType
from kb.core.finding import Span
from kb.core.record import NamedTuple

DIALECT = "python"
OF_OTHERS = frozenset((*CUTTING, "trainer", "tokenized", "prepared", "adapter", "peft", "format"))  # most of their
# keywords are no settings
TRAINING = "hf"  # whose defaults hold where a file has no training call
TRAINER = "script.trainer"  # the class that is called says it, whatever its keywords hint at


OWN = ("training.", "trl.")  # settings that are keywords of a training call itself
MAX_RUNS = 200  # each is checked and predicted by itself; a real file has one or two


class Given(NamedTuple):
    """One keyword of a call: its path (the call's number, its name, names within), its key and its value."""

    path: tuple[str, ...]
    key: Node
    value: Node


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

    def analyse(self, module: Module, path: str = "", sources: Sources | None = None) -> "Analysis":
        """The recognised calls of a module and what each says."""
        names = Names(module.tree)
        values = Values(module, names, self._constants, path, sources)
        calls = self._table.find(names)
        given = {call.number: _given(call, module, values) for call in calls}
        return Analysis(module, calls, given, values, names)

    def compiled(self, name: str) -> CompiledDialect:
        if name not in self._compiled:
            self._compiled[name] = CompiledDialect(self._dialects[name], self._facts)
        return self._compiled[name]

    def units(self, analysis: "Analysis", path: str) -> list[Unit]:
        """A unit for each run; named by its variable, or its line, where there are several."""
        runs = [run for run in runs_of(analysis.calls) if analysis.says_something(run)]
        if len(runs) > MAX_RUNS:
            raise ConfigError("config.python-too-many", calls=len(runs), limit=MAX_RUNS)
        titles = _titles([run.own for run in runs if run.own is not None])
        told: set[Span] = set()
        return [self._unit(run, analysis, path, titles.get(run.own.number) if run.own else None, told) for run in runs]

    def _unit(self, run: Run, analysis: "Analysis", path: str, title: str | None, told: set[Span]) -> Unit:
        dialect = (run.own.kind.dialect if run.own is not None else None) or TRAINING
        settings: dict[str, Setting] = {}
        events: list[Event] = []
        nulls: dict[str, Span] = {}
        unknown_keys: list[str] = []
        left_open: list[str] = []
        keys: Mapping[str, Setting] = {}
        cuts = [call for call in run.doubtful if call.kind.group in CUTTING and not call.where.branch]
        agreed = {call.number for group in CUTTING for call in self._agreeing(group, cuts, run, analysis)}
        for call in (run.own, *run.certain, *run.doubtful):
            if call is None:
                continue
            part = self._part(call, analysis)
            found = part.settings
            keys = part.keys if call is run.own else keys
            if run.own is None:  # no training stands here: whoever calls this gives it its values
                found = {name: _told(each, name) for name, each in found.items()}
            if call in run.doubtful and call.number not in agreed:
                found = {name: each._replace(value=_unknown(name)) for name, each in found.items()}
            settings = {**found, **settings}
            nulls |= {name: span for name, span in part.silenced.items() if name not in settings}
            unknown_keys += part.unknown_keys
            left_open += part.left_open
            events += [_as_python(event) for event in part.events if event.span not in told]
            told.update(event.span for event in part.events)
        if not any(name in settings for name in (SOURCE, "trl.max_length", "trl.max_seq_length")):
            settings |= lengths_by_constants(analysis.module, analysis.names, analysis.values)
        asked = {name: each.value for name, each in settings.items()}
        if run.own is not None and LOSS_ONLY not in settings and not asks_for_metrics(asked):
            settings |= _loss_only(analysis, run.own)
        hides = run.own is not None and analysis.given[run.own.number].hides
        place = run.own or (*run.certain, *run.doubtful)[0]
        return Unit(
            path=path,
            section=title,
            dialect=dialect,
            settings=settings,
            span=analysis.span(place),
            events=tuple(sorted(events, key=lambda event: (event.span.line, event.span.column))),
            nulls={name: span for name, span in nulls.items() if name not in settings},
            left_open=tuple(left_open),
            unknown_keys=tuple(unknown_keys),
            hidden=OWN if hides else (),
            keys=keys,
        )

    def _agreeing(self, group: str, cuts: list[Call], run: Run, analysis: "Analysis") -> list[Call]:
        """The tokenizer's calls of one kind, where all that may count cut to one length."""
        own = [call for call in cuts if call.kind.group == group]
        every = [call for call in run.doubtful if call.kind.group == group]
        given = [self._part(call, analysis).settings for call in own]
        return own if len(own) == len(every) and alike(given) else []

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
        part = Extractor(compiled, parsed=False).extract(entries, analysis.module.source)
        loose = {path for path, _, value in entries.values() if id(value) in analysis.values.by_default}
        part.settings |= {
            name: setting._replace(by_default=True) for name, setting in part.settings.items() if setting.path in loose
        }
        kept = {name for word, names in call.kind.unless.items() if word in analysis.module.text for name in names}
        for name, value in call.kind.sets.items():
            if name in kept:
                continue
            if name == TRAINER or (name not in part.settings and name not in part.silenced):
                span = analysis.name_span(call)
                path = (call.name,) if name == TRAINER else (str(call.number),)
                part.settings[name] = Setting(value, span, span, path, alias=True)
        for name in call.kind.unknown:
            span = analysis.name_span(call)
            part.settings[name] = Setting(
                Unknown(frozenset((name,)), NO_SUCH_RUN), span, span, (call.name,), alias=True
            )
        return part


class Arguments(NamedTuple):
    """What a call is given: what is written out, and whether there is a ``**more`` that cannot be told."""

    known: tuple[Given, ...]
    hides: bool


class Analysis(NamedTuple):
    """The recognised calls of one module."""

    module: Module
    calls: list[Call]
    given: Mapping[int, Arguments]
    values: Values
    names: Names

    def says_something(self, run: Run) -> bool:
        """Whether at least one keyword is literal: a call with nothing but other code's values describes no run."""
        calls = [call for call in (run.own,) if call is not None] or [*run.certain, *run.doubtful]
        found = (given.value for call in calls for given in self.given[call.number].known)
        return any(node.kind == MAPPING or not isinstance(node.data, Unknown) for node in found)

    def span(self, call: Call) -> Span:
        start, end = self.module.extent(call.node)
        return self.module.source.between(self.module.place(start), self.module.place(end))

    def name_span(self, call: Call) -> Span:
        """The called name."""
        start, end = self.module.extent(call.node.func)
        return self.module.source.between(self.module.place(start), self.module.place(end))


def _given(call: Call, module: Module, values: Values) -> Arguments:
    known: dict[tuple[str, ...], Given] = {}
    hides = False
    first = str(call.number)
    for keyword, name, expression in call.keywords():
        if name is None:
            pairs = values.pairs(expression, call.where)
            if pairs is None:
                hides = True
                continue
            for key, inner, value in pairs[0]:
                node = values.node(value, pairs[2])
                node.alias = node.alias or pairs[1]
                start, end = module.extent(key)
                _add(known, Given((first, inner), values.key((start, end), inner, _quote(key, module)), node))
            continue
        node = values.node(expression, call.where)
        if name in call.kind.literal and isinstance(node.data, Unknown):
            continue
        start, _ = module.extent(keyword or expression)
        key_node = values.key((start, start + len(name)) if keyword else module.extent(expression), name)
        if keyword is not None and (first, name) in known:
            raise ConfigError(
                "config.python-syntax", *module.at_offset(start), reason=f"keyword argument repeated: {name}"
            )
        _add(known, Given((first, name), key_node, node))
    return Arguments(tuple(known.values()), hides)


def _quote(key: Any, module: Module) -> str:
    start, end = module.extent(key)
    return module.text[start] if module.text[start : start + 1] in ("'", '"') and end > start else ""


def _add(known: dict[tuple[str, ...], Given], given: Given) -> None:
    known[given.path] = given
    if given.value.kind == MAPPING:
        for key, value in given.value.value:
            _add(known, Given((*given.path, key.value), key, value))


def _titles(calls: list[Call]) -> dict[int, str]:
    if len(calls) < 2:
        return {}
    names = [call.target for call in calls]
    return {
        call.number: call.target if call.target and names.count(call.target) == 1 else f"line {call.node.lineno}"
        for call in calls
    }


def _loss_only(analysis: Analysis, call: Call) -> dict[str, Setting]:
    """That evaluation keeps no logits, where a trainer is made here and nothing speaks of a metric function.

    Source: transformers, trainer.py, ``evaluate``: ``prediction_loss_only`` where ``compute_metrics`` is None.
    """
    if not keeps_no_logits(analysis.module.text):
        return {}
    span = analysis.name_span(call)
    return {LOSS_ONLY: Setting(True, span, span, ("compute_metrics",), alias=True)}


def _told(setting: Setting, name: str) -> Setting:
    return setting._replace(value=_unknown(name), by_default=False) if setting.by_default else setting


def _unknown(name: str) -> Unknown:
    return Unknown(frozenset((name,)), "known only when the program runs")


def _as_python(event: Event) -> Event:
    """The event with its mended text as Python writes it."""
    words = {"true": "True", "false": "False", "null": "None"}
    edits = tuple(edit._replace(value=words.get(edit.value, edit.value)) for edit in event.edits)
    return event._replace(edits=edits)
