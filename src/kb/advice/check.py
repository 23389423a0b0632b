"""One unit → its result: setup, prediction, facts, findings. What `kb.check`, the tests and the browser all call."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property

from kb.advice.facts.grounds import PROCESSES, concerning
from kb.advice.facts.memory_facts import PredictedFacts
from kb.advice.facts.unit_facts import RENTED, SERVERS, Known, UnitFacts, release_of_server
from kb.advice.findings.release_by_names import NamesInReleases, depending
from kb.advice.findings.tables import BETWEEN, Tables
from kb.advice.findings.weights import Weights, turned_by, worded
from kb.advice.run.left_to_program import left_to_program
from kb.advice.run.named_model import ModelIndex, packed_by_name, with_head, with_model_of_project
from kb.advice.run.no_prediction import note_of_server, why_no_prediction
from kb.advice.run.row_lengths import with_taken
from kb.advice.run.settings_reader import typed_by_unsloth
from kb.advice.run.setup import setup_of, with_width_of_config, without_vain_preparation
from kb.core.catalog import Catalog, Entries, Rule, outlines_of
from kb.core.document import EVERY_GPU, Event, Unit, locate, said_effective_batch
from kb.core.expression import Unknown
from kb.core.facts import Facts, FactType, VersionOf, settled
from kb.core.finding import Finding
from kb.core.hardware import Machine
from kb.core.lint import Linter, LintResult, Release, nothing_pinned, place_of
from kb.core.memory_report import OVER
from kb.core.model import Model, ModelIdentity
from kb.core.naming import Names
from kb.core.program import Program
from kb.core.record import NamedTuple
from kb.core.release import Versions, named_releases, parse_version
from kb.core.result import UnitResult
from kb.core.setup import Assumption, TrainingSetup
from kb.core.text import UserError
from kb.core.typed import Any

OF_SERVERS = "serving"  # the area of rules about inference servers


class Disk(NamedTuple):
    """What is looked up beside the units. The pure floor does not look at disks: by itself it finds nothing there.

    ``model_in_folder`` gives the model of a local folder that a config names, ``model_elsewhere`` that of a hub name
    that the catalogue lacks, where this machine or the hub has its ``config.json``; a UserError says why it cannot be
    had. ``identity_of`` is what the ``config.json`` of a name says of a model that is not known. ``installed``
    says of a library whether it is there, None where nobody knows. ``programs`` are the sources of what reads a unit.
    ``models`` says of names which model the project has under them (``[models]`` of ``kb.toml``).
    """

    model_in_folder: Callable[[str], Model | None] = lambda name: None
    model_elsewhere: Callable[[str], Model | None] = lambda name: None
    identity_of: Callable[[str], ModelIdentity | None] = lambda name: None
    installed: Callable[[str], bool | None] = lambda library: None
    programs: Callable[[Unit], Sequence[Program]] = lambda unit: ()
    models: Mapping[str, str] = {}


NO_DISK = Disk()


class Checker:
    """The rules and models, made ready once, for many units on one machine.

    Args:
        catalog: the knowledge.
        machine: where the runs are to happen.
        rules: the ids to apply; None is all.
        versions: a library's version, where the caller names it for every unit.
        release_of: what is known of the releases where a unit is to run; wins over ``versions``.
        model: the model to take instead of the one a config names (``--model-config``).
        given: facts that the project says of itself, by vocabulary name (``[facts]`` of ``kb.toml``).
        disk: what is looked up beside the units.
        notes: notes will be told, so that what they rest on is worth finding out.
        strict: keep each rule's own severity, however certain the facts are.
    """

    rough = False  # from models of few layers

    def __init__(
        self,
        catalog: Catalog,
        machine: Machine,
        *,
        rules: Collection[str] | None = None,
        versions: Versions | None = None,
        release_of: Callable[[Unit], Release] | None = None,
        model: Model | None = None,
        given: Mapping[str, Any] = {},
        disk: Disk = NO_DISK,
        notes: bool = True,
        strict: bool = False,
    ) -> None:
        self.catalog = catalog
        self.machine = machine
        named = named_releases(versions) if versions else nothing_pinned
        self.release_of: Callable[[Unit], Release] = release_of or (lambda unit: named)
        self.given = {name: value for name, value in given.items() if name != "model.name"}
        self._model_left_open = given.get("model.name")
        self._disk = disk
        self._model = model
        self._models = ModelIndex(catalog.models, catalog.called)
        self._types: Mapping[str, str] = catalog.fact_types()
        self._weights = Weights(self._types, notes=notes, strict=strict)
        self._types_by_dialect: dict[str, Mapping[str, FactType]] = {}
        self._outlines = outlines = outlines_of(catalog.rules)
        chosen = outlines if rules is None else rules
        self._active = [name for name in chosen if not outlines[name].deprecated]
        self.rule_ids = frozenset(self._active)
        self._linters_by_dialect: dict[str, Linter] = {}
        self._tables = Tables(catalog, self.rule_ids)
        self._names = NamesInReleases(catalog, self._active, self._tables)

    @cached_property
    def _linter(self) -> Linter:
        """Of what no format exempts; rules about servers are asked of servers alone."""
        active = [name for name in self._active if self._outlines[name].area != OF_SERVERS]
        return Linter(self.catalog.rules, active)

    def check(self, unit: Unit) -> UnitResult:
        """Everything that can be said about one unit."""
        prepared = self.prepare(unit)
        setup, model, estimator = prepared.setup, prepared.model, prepared.predicted.estimator
        note, values = (unit.dialect and (prepared.note or prepared.predicted.refusal)) or (None, {})
        return self.linted(unit, prepared)._replace(
            setup=setup,
            model=model,
            prediction=with_taken(prepared.predicted.report, setup, model, self.machine),
            note=note,
            note_values=values,
            gpu_limit_bytes=self.machine.gpu_limit_bytes,
            gpu_fits=estimator.on_gpus(setup, self.catalog.gpus) if estimator and not self.machine.gpus else (),
            if_so=self._verdict_rests_on(prepared),
        )

    def linted(self, unit: Unit, prepared: UnitFacts) -> UnitResult:
        """The findings alone: nothing is predicted but what a rule asks for."""
        facts, known, linter = prepared.facts(self._types), self.catalog.facts, self._linter_in(unit.dialect)
        result = linter.lint(facts, lambda name: locate(unit, known, name), unit.events, unit.span, prepared.release)
        result, rules = self._with_tables(result, prepared, facts)
        result, rules = self._names.added(result, rules, prepared)
        return UnitResult(
            unit=unit,
            findings=tuple(worded(each) for each in self._found(result, prepared, rules)),
            # of a file in no known format everything is open, and `unknown-dialect` says so once
            not_evaluated=result.not_evaluated if unit.dialect else (),
            by_release=tuple(rule.id.partition(BETWEEN)[0] for rule, _ in result.by_release),
        )

    def _with_tables(
        self, result: LintResult, prepared: UnitFacts, facts: Facts
    ) -> tuple[LintResult, Mapping[str, Rule]]:
        """The findings with those of tables, and the rules that made these."""
        exempt = self.catalog.dialects[prepared.unit.dialect].exempt if prepared.unit.dialect else ()
        more, rules = self._tables.lint(prepared.unit, facts, prepared.release, exempt)
        if not rules:
            return result, rules
        found = sorted((*result.findings, *more.findings), key=place_of)
        # which release serves is seldom said: a flag of today is no question then
        by_release = (*result.by_release, *(row for row in more.by_release if row[0].area != OF_SERVERS))
        # a row that cannot be decided is no rule that a reader knows: only what rows find is told
        return LintResult(tuple(found), result.not_evaluated, by_release), rules

    def _found(self, result: LintResult, prepared: UnitFacts, rules: Mapping[str, Rule]) -> list[Finding]:
        """The findings, and one that lists what depends on a release that nothing says.

        What is about a name is left out where nothing says that a library reads it. ``rules`` are those of tables.
        """
        unit, by_release = prepared.unit, result.by_release
        ruled = [(finding, rules.get(finding.rule) or self.catalog.rules[finding.rule]) for finding in result.findings]
        found = [self._weights.weighed(finding, rule, prepared) for finding, rule in ruled]
        if unit.reader != "library" or unit.read_by or any(rule.names for _, rule in ruled):
            names = Names(unit, self._disk.programs, self.given)
            named = zip(found, (rule for _, rule in ruled), strict=True)
            found = [held for each, rule in named if (held := self._weights.as_named(each, rule, names)) is not None]
            by_release = tuple(row for row in by_release if not row[0].names or names.of_rule(row[0].at) is not None)
        depends = depending(result._replace(by_release=by_release), unit, self.catalog.facts)
        heard = self._linter.hear([depends]) if depends else ()
        return [*found, *(self._weights.weighed(each, self.catalog.rules[each.rule], prepared) for each in heard)]

    def _verdict_rests_on(self, prepared: UnitFacts) -> tuple[Assumption, ...]:
        """The assumptions that would each turn the verdict, where it is a bad one."""
        report = prepared.predicted.report
        if report is None or (status := report.verdict.status) not in (*OVER, "tight"):
            return ()
        alike = OVER if status == "likely_oom" else (status,)  # what is only likely otherwise is not sure

        def holds(setup: TrainingSetup) -> bool:
            return prepared.supposing(setup).predicted.status in alike

        phase = report.verdict.phase if status in OVER else status  # what is tight, an evaluation may put over
        rested = concerning((f"memory.{phase}.",), report.assumed, prepared.unit)
        return turned_by(prepared.setup, rested, holds, over=status in OVER)

    def hear(self, events: Iterable[Event]) -> list[Finding]:
        """The findings of events that no unit holds: a file that cannot be read, a suppression comment."""
        return self._linter.hear(events)

    def facts(self, unit: Unit) -> Facts:
        """The unit's facts alone, for explaining a rule with its numbers."""
        return self.prepare(unit).facts(self._types)

    def prepare(self, unit: Unit) -> UnitFacts:
        """What is known of a unit; of a call in a program also by the names that it hands to a library's class."""
        said = release_of_server(unit, self.release_of(unit))
        prepared = self._prepared(unit, said, said)
        narrowed = self._names.narrowed(prepared)
        if not narrowed:
            return prepared
        known = [Assumption(library, each.names, "release_by_names") for library, each in narrowed.items()]
        return self._prepared(unit, lambda library: narrowed.get(library) or said(library), said, known)

    def _prepared(self, unit: Unit, release: Release, said: Release, known: Sequence[Assumption] = ()) -> UnitFacts:
        def version_of(library: str, *bounds: tuple[int, ...]) -> tuple[int, ...] | None:
            known = release(library)
            return known.within(*bounds) if known else None

        unit = left_to_program(self._on_this_gpu(unit), self._disk.programs, self.catalog.facts, self.given)
        unit = without_vain_preparation(with_width_of_config(unit, version_of))
        unit = with_model_of_project(unit, self._disk.models, self._model_left_open)
        name = unit.settings.get("model.name")
        named = name.value if name is not None and isinstance(name.value, str) else None
        model, identity, fault = self._model_named(named)
        types = self._types_in(unit, version_of)
        unit, model = with_head(unit, model)
        unit = typed_by_unsloth(unit, model, self._native_bf16)
        setup = setup_of(
            unit,
            model,
            facts=types,
            constants=self.catalog.constants,
            gpu_count=self.machine.counted_gpus,
            versions=version_of,
            given=self.given,
        )
        setup = setup._replace(assumed=(*known, *setup.assumed))
        predictable = (setup.do_train or setup.do_eval or setup.do_predict) and not setup.unresolved
        architecture = model.architecture if model is not None else None
        note = why_no_prediction(
            unit, setup, known=model is not None, architecture=architecture, fault=fault, given=self.given
        )
        if unit.dialect in SERVERS:
            note = note_of_server(unit, model, self.catalog.called, fault)
        predictable = predictable and not (note is not None and note[0] in ("engine_not_followed", "quantized_alone"))
        usable = model if predictable else None
        estimator = None
        if usable is not None:
            from kb.advice.fit.estimator import Estimator  # where nothing is predicted, the memory model is not needed

            estimator = Estimator(usable, self.machine, self.catalog.constants, rough=self.rough)
        return UnitFacts(
            unit=unit,
            model=model,
            identity=identity,
            predicted=PredictedFacts(
                setup, estimator, Machine() if RENTED in unit.settings else self.machine, said_effective_batch(unit)
            ),
            known=Known(
                self.catalog.constants, types, self.given, self._disk.installed, self.catalog.serving, self._packed
            ),
            release=release,
            said=said,
            note=note,
        )

    def _packed(self, name: str) -> tuple[Model | None, str, str | None]:
        """The model that its owner packs under this name, its own name, and how; of any other name no model."""
        base, packing = packed_by_name(name, self.catalog.called)
        return self._model_named(base)[0] if packing else None, base, packing

    def _linter_in(self, dialect: str | None) -> Linter:
        """The rules without those that do not hold of this dialect."""
        exempt = self.catalog.dialects[dialect].exempt if dialect is not None else ()
        if dialect is None or not exempt:
            return self._linter
        if dialect not in self._linters_by_dialect:
            others = () if dialect in SERVERS else (OF_SERVERS,)
            left_out = {*exempt, *others}
            kept = [name for name in self._active if left_out.isdisjoint((name, self._outlines[name].area))]
            self._linters_by_dialect[dialect] = Linter(self.catalog.rules, kept)
        return self._linters_by_dialect[dialect]

    @property
    def _native_bf16(self) -> bool | None:
        """Whether the GPUs have bf16; None where none is known, or some have it."""
        native = {gpu.native_bf16 for gpu in self.machine.gpus}
        return next(iter(native)) if len(native) == 1 else None

    def _on_this_gpu(self, unit: Unit) -> Unit:
        """The unit with what it asks of the GPUs answered, where they are known; their number only of this machine."""
        count = unit.settings.get(PROCESSES)
        here = self.machine.gpus and self.machine.gpu_source != "named"
        if here and count is not None and getattr(count.value, "reason", "") == EVERY_GPU:
            counted = count._replace(value=len(self.machine.gpus))
            unit = unit._replace(settings={**unit.settings, PROCESSES: counted})
        native = self._native_bf16
        waiting = [(name, each) for name, each in unit.settings.items() if isinstance(each.value, Unknown)]
        if native is None or not waiting:
            return unit
        answers = ((name, each, settled(each.value, native)) for name, each in waiting)
        known = {name: each._replace(value=answer) for name, each, answer in answers if answer is not None}
        return unit._replace(settings={**unit.settings, **known}) if known else unit

    def _types_in(self, unit: Unit, versions: VersionOf) -> Mapping[str, FactType]:
        """The vocabulary with the defaults that hold in the unit's dialect, of a model that this library loads."""
        if unit.dialect is None or not self.catalog.dialects[unit.dialect].defaults:
            return self.catalog.facts
        of, facts = self.catalog.dialects[unit.dialect], self.catalog.facts
        said = unit.settings.get("model.loader")
        replaced = "trl.replaced" not in unit.settings or unit.settings["trl.replaced"].value is not False
        loader = said.value if said is not None and said.value in of.by_loader and replaced else ""
        if loader:
            since = parse_version(of.by_loader[loader]["since"])
            release = versions(loader, since)
            loader = loader if release is None or release >= since else ""
        kind = f"{unit.dialect} {loader}"
        if kind not in self._types_by_dialect:
            theirs = of.by_loader[loader]["defaults"] if loader else {}
            moved = {name: () if name in theirs else of.moved.get(name, ()) for name in {**of.defaults, **theirs}}
            default = {**of.defaults, **theirs}
            own = {name: facts[name]._replace(default=default[name], moved=moved[name]) for name in moved}
            merged = Entries({name: name for name in facts}, lambda name: own.get(name) or facts[name])
            self._types_by_dialect[kind] = merged
        return self._types_by_dialect[kind]

    def _model_named(self, name: str | None) -> tuple[Model | None, ModelIdentity | None, UserError | None]:
        """The model of that name, and what its ``config.json`` says of it; of a folder that cannot be used, why."""
        fault = None
        try:
            model = self._model or (self._disk.model_in_folder(name) if name else None)
            model = model or (self._models.named_in_config(name) if name else None)
            if model is None and name:
                model = self._disk.model_elsewhere(name)
        except UserError as error:
            model, fault = self._models.resolve(name), error
        if model is not None or not name:
            return model, model.identity if model else None, fault
        identity, guessed = self._disk.identity_of(name), self._models.guess(name)
        if guessed is None:
            return None, identity, fault
        if identity is not None and identity.model_type != guessed.architecture.model_type:
            return None, identity, fault  # the file says that the name misleads
        return guessed, identity or guessed.identity, fault
