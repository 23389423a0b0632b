"""A config's text → the units to check: its settings by canonical name, with their places and the traps in the text,
and those of the files that it names: ``deepspeed: ds.json``.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping

from kb.config.dialect.dialects import DOT, Entry, flatten, section_names, split
from kb.config.dialect.recognition import Recognition
from kb.config.dialect.settings import Extractor, Part, inherit
from kb.config.files import ConfigError, unknown_dialect
from kb.config.text.nodes import MAPPING, SEQUENCE, Node
from kb.config.text.parsing import Parsed, duplicate_events, parse
from kb.core.catalog import Dialect
from kb.core.document import NOT_COUNTED, Event, Setting, Unit, speaks_of_one_gpu, speaks_of_several_gpus
from kb.core.expression import Unknown, is_unknown
from kb.core.facts import FactType
from kb.core.finding import Span
from kb.core.typed import Any

PROCESSES = "launch.num_processes"
OF_LAUNCHERS = ("accelerate", "deepspeed")  # formats of files that other configs and commands name
MAX_COMMENT = 400  # characters of a comment that are read

Arrange = Callable[[dict[str, Entry]], dict[str, Entry]]

OF_THE_TRAINER = frozenset(("hf", "trl", "hydra", "team"))

RUN_CONFIG = "launch.run_config"
FORCED = ("trl",)  # commands whose config is of their own format, whatever it looks like
# What the config of a run may say.
IN_A_RUN = ("training.", "trl.", "data.", "lora.", "quantization.", "model.", "deepspeed.", "generation.")
OF_JSON = "deepspeed"  # accelerate reads its file with ``json.load`` (utils/deepspeed.py), a YAML file too
NOT_JSON = "deepspeed.file_not_json"
OF_ONE_MACHINE = {"launch.config_file": "launch.visible_gpus"}  # what it may say of machines and GPUs makes nothing of
PRECISION, DEEPSPEED, OF_ACCELERATE = "accelerate.mixed_precision", "training.deepspeed", "accelerate"
HALF = {"bf16": "training.bf16", "fp16": "training.fp16"}
ReadNamed = Callable[[str, str], str | None]
"""The config's own path, the path it names → the named file's text; None where there is none to read."""


class ConfigReader:
    """Reads configs of the given dialects. Make one for many files: it spells out each dialect only once."""

    def __init__(self, dialects: Mapping[str, Dialect], facts: Mapping[str, FactType]) -> None:
        self._dialects = dialects
        self._recognition = Recognition(dialects, facts)

    def read(self, text: str, path: str, *, dialect: str | None = None) -> list[Unit]:
        """The units of one file: one, or one for each section and each document in it, in their order.

        Args:
            text: the decoded text; offsets of all spans count characters in it.
            path: the file's name, for the units and to tell JSON from YAML; ``-`` where there is none.
            dialect: the id of the dialect; None to recognise it by its marks.

        Raises:
            ConfigError: the text is no YAML or JSON, is over a bound, is empty, or holds no mapping at its top.
        """
        if dialect is not None and dialect not in self._dialects:
            raise unknown_dialect(dialect, self._dialects)
        if path.endswith(".py"):
            return self.read_assigned(text, path)
        return self.read_parsed(parse(text, path), path, dialect=dialect)

    def read_assigned(self, text: str, path: str) -> list[Unit]:
        """The unit of a Python file that is a config: its names at the top are the keys; none of any other file.

        Raises:
            ConfigError: the text is no Python, or over a bound.
        """
        from kb.config.python.assigned import parse_assigned  # few configs are Python

        parsed = parse_assigned(text, self._dialects["python"].constants)
        (document,) = parsed.documents
        entries: dict[str, Entry] = {}
        if document is not None:
            flatten(document, entries)
        for dialect in self._dialects.values():
            if dialect.assigned and self._recognition.score(dialect, entries) >= dialect.recognise["least"]:
                return self.read_parsed(parsed, path, dialect=dialect.id)
        return []

    def read_parsed(
        self,
        parsed: Parsed,
        path: str,
        *,
        dialect: str | None = None,
        prefer: str | None = None,
        arrange: Arrange | None = None,
    ) -> list[Unit]:
        """The units of a text that is parsed already.

        Args:
            prefer: the dialect to take, where it is recognised at all, before any other.
            arrange: moves entries to where a dialect looks for them.

        Raises:
            ConfigError: a document is no mapping.
        """
        units: list[Unit] = []
        several = sum(document is not None for document in parsed.documents) > 1
        for number, document in enumerate(parsed.documents, 1):
            if document is None or document.value == "":
                continue
            name = f"document {number}" if several else None
            reading = _DocumentReading(parsed, document, path, name)
            if arrange is not None:
                reading.entries, reading.arranged = arrange(reading.entries), True
            units += self._read_document(reading, dialect or self._preferred(prefer, reading))
        return units

    def _preferred(self, name: str | None, reading: "_DocumentReading") -> str | None:
        dialect = self._dialects.get(name) if name is not None else None
        if dialect is None or self._recognition.score(dialect, reading.entries) < dialect.recognise["least"]:
            return None
        return dialect.id

    def _read_document(self, reading: "_DocumentReading", forced: str | None) -> list[Unit]:
        record = self._recognition.unwrapped(reading.entries) if forced is None else None
        if record is not None:
            forced, reading.entries = record[0].id, record[1]
        entries = reading.entries
        matching = [self._dialects[forced]] if forced else self._recognition.matching(entries)
        dialect = matching[0] if matching else None
        reading.may_be([each.id for each in matching])
        if dialect is not None and record is None and (dialect.interpolates or dialect.reader == "script"):
            entries = reading.filled_in()
        if dialect is None:
            return [reading.unknown(self._recognition.familiar_keys(entries))]
        extractor = Extractor(self._recognition.compiled(dialect))
        sections = section_names(dialect, entries)
        if not sections:
            return [reading.whole(dialect, extractor.extract(entries, reading.source))]
        top, parts = split(entries, sections)
        base = extractor.extract(top, reading.source)
        own = {name: extractor.extract(part, reading.source) for name, part in parts.items()}
        has_top = any(mark in top for mark in dialect.sections["top"])
        if has_top:  # what only says how answers are made beside a run is no run of its own
            own = {
                name: part
                for name, part in own.items()
                if not all(setting.startswith("generation.") for setting in part.settings)
            }
        if not own:
            return [reading.whole(dialect, base)]
        return reading.sectioned(dialect, base, own, has_top)


class _DocumentReading:
    """One document on its way to units: where it lies, and the events that belong to none of its settings."""

    def __init__(self, parsed: Parsed, document: Node, path: str, name: str | None) -> None:
        self.source = parsed.source
        if document.kind != MAPPING:
            key = "config.list-at-top" if document.kind == SEQUENCE else "config.scalar-at-top"
            raise ConfigError(key, *self.source.place(document.start))
        self._document, self._path, self._name = document, path, name
        self.entries: dict[str, Entry] = {}
        self.arranged = False
        flatten(document, self.entries)
        self._span = self.source.span(document)
        first = next(node for node in parsed.documents if node is not None)
        self._loose: list[Event] = list(parsed.events) if document is first else []
        for event in duplicate_events(parsed.duplicates, self.source):
            if self._span.start <= event.span.start < self._span.end:
                self._loose.append(event)

    def filled_in(self) -> dict[str, Entry]:
        """The entries with what the document says elsewhere in the place of ``${path}``; a tree's have it already."""
        if "${" in self.source.text and not self.arranged:
            from kb.config.text.interpolation import resolve  # few configs have such

            resolve(self._document, defaults=False)  # the environment may have another value
            self.entries = {}
            flatten(self._document, self.entries)
        return self.entries

    def may_be(self, dialects: list[str]) -> None:
        """Note that the document may be in any of several dialects; the first is taken. A name of the Trainer's means
        the same in TRL's config, which is one of the Trainer's with more, and in what a program of one's own reads."""
        if len(dialects) > 1 and not OF_THE_TRAINER.issuperset(dialects):
            first = next(iter(self.entries.values()))[1]
            values = {"taken": dialects[0], "others": ", ".join(dialects[1:])}
            self._loose.append(Event("ambiguous-dialect", self.source.span(first), values))

    def whole(self, dialect: Dialect, part: Part) -> Unit:
        """The one unit of a document without sections."""
        return self._unit(self._name, dialect, part, self._span, (*part.events, *self._loose))

    def sectioned(self, dialect: Dialect, base: Part, own: Mapping[str, Part], has_top: bool) -> list[Unit]:
        """A unit for each section, after one for the top of the document where that is a run of its own.

        Every event is told once: in the section where it lies, else with the first unit.
        """
        spans = {name: self._section_span(name) for name in own}
        starts = sorted((span.start, name) for name, span in spans.items())
        events: dict[str | None, list[Event]] = {None: []} if has_top else {}
        events |= {name: [] for name in own}
        elsewhere = events[next(iter(events))]
        told: set[tuple[str, Span]] = set()
        for event in (*base.events, *(event for part in own.values() for event in part.events), *self._loose):
            if (event.kind, event.span) in told:
                continue  # an anchor's entry, merged into several sections
            told.add((event.kind, event.span))
            _, name = starts[max(bisect_right(starts, (event.span.start, "\U0010ffff")) - 1, 0)]
            span = spans[name]
            (events[name] if span.start <= event.span.start < span.end else elsewhere).append(event)
        units = []
        for title, found in events.items():
            part = base if title is None else inherit(own[title], base)
            span = self._span if title is None else spans[title]
            units.append(self._unit(self._title(title), dialect, part, span, tuple(found)))
        return units

    def _unit(
        self,
        title: str | None,
        dialect: Dialect,
        part: Part,
        span: Span,
        events: tuple[Event, ...],
    ) -> Unit:
        settings: Mapping[str, Setting] = part.settings
        in_order = tuple(sorted(events, key=lambda event: (event.span.line, event.span.column)))
        if PROCESSES not in settings and dialect.id not in OF_LAUNCHERS and (head := self._told_in_head()) is not None:
            settings = {**settings, PROCESSES: head}
        return Unit(
            path=self._path,
            section=title,
            dialect=dialect.id,
            settings=settings,
            span=span,
            events=in_order,
            nulls=part.silenced,
            left_open=tuple(part.left_open),
            unknown_keys=tuple(part.unknown_keys),
            reader=dialect.reader,
            keys=part.keys,
            typical=not part.unknown_keys and any(name in self.entries for name in dialect.telling),
        )

    def _told_in_head(self) -> Setting | None:
        """The comment above the first key that speaks of several GPUs or of a launcher: how many, nobody can say. Else
        one that speaks of one GPU."""
        first = next((key for _, key, _ in self.entries.values()), None)
        if first is None:
            return None
        start, lines = 0, []
        for line in self.source.text[: first.start.index].splitlines(keepends=True):
            text = line.rstrip()
            if text.lstrip().startswith("#"):
                lines.append((start, text))
            start += len(line)
        several = next((each for each in lines if speaks_of_several_gpus(each[1][:MAX_COMMENT])), None)
        if several is not None:
            return self._said_in_comment(*several, Unknown(frozenset((PROCESSES,)), NOT_COUNTED))
        if speaks_of_one_gpu("\n".join(text[:MAX_COMMENT] for _, text in lines)):
            one = next((each for each in lines if speaks_of_one_gpu(each[1])), lines[0])
            return self._said_in_comment(*one, 1)
        return None

    def _said_in_comment(self, start: int, text: str, value: Any) -> Setting:
        indent = len(text) - len(text.lstrip())
        span = self.source.places().span(start + indent, start + len(text))
        return Setting(value, span, span, (text.strip()[:40],), alias=True)

    def unknown(self, familiar: tuple[str, ...]) -> Unit:
        first = next((key for _, key, _ in self.entries.values()), self._document)
        event = Event(kind="unknown-dialect", span=self.source.span(first), values={"known": familiar})
        return Unit(
            path=self._path,
            section=self._name,
            dialect=None,
            settings={},
            span=self._span,
            events=(event, *self._loose),
            known_keys=familiar,
        )

    def _title(self, section: str | None) -> str | None:
        if self._name is None or section is None:
            return section or self._name
        return f"{self._name}: {section}"

    def _section_span(self, section: str) -> Span:
        _, key, value = self.entries[section.replace(".", DOT)]
        start, end = self.source.span(key), self.source.span(value)
        if end.start < start.end:
            end = start  # behind an alias
        return Span(start.line, start.column, end.end_line, end.end_column, start.start, end.end)


class Joiner:
    """Joins units to the files that they name; a dialect says which settings name one of its files.

    Args:
        given: what the project says of its runs; it may name such a file, as ``launch.config_file``.
    """

    def __init__(
        self,
        reader: ConfigReader,
        dialects: Mapping[str, Dialect],
        read: ReadNamed,
        given: Mapping[str, Any] = {},
    ) -> None:
        self._reader, self._read, self._given = reader, read, given
        self._named_by = {name: dialect.id for dialect in dialects.values() for name in dialect.named_by}

    def join(self, unit: Unit) -> Unit:
        """The unit with the settings of the files that it names.

        A finding about one of them is shown where the file is named. What the config says itself wins; a file that
        is not there, or cannot be read, is listed as ``unread``.
        """
        return self.join_named(self._with_run_config(unit))

    def join_named(self, unit: Unit) -> Unit:
        """The unit with the files of launchers that it names and that it is not joined to yet: a command's program may
        name one too, ``TrainingArguments(deepspeed="ds.json")``."""
        unit, comment = without_comments_count(unit)
        for name, dialect in self._named_by.items():
            setting = unit.settings.get(name) or self._named_by_project(name, unit)
            looked = name in unit.joined or name in unit.unread
            if setting is not None and isinstance(setting.value, str) and setting.value and not looked:
                unit = self._with(unit, name, setting, setting.value, dialect)
        if comment is not None and PROCESSES not in unit.settings:
            unit = unit._replace(settings={**unit.settings, PROCESSES: comment})
        return in_its_launchers_precision(unit)

    def _with_run_config(self, unit: Unit) -> Unit:
        """A command with the config that its run reads, in the format of that; flags win over what it says.

        Where the file is not there nothing that it may say is known. One of no known format is none of ours.
        """
        setting = unit.settings.get(RUN_CONFIG)
        if setting is not None and is_unknown(setting.value):
            return unit._replace(hidden=(*unit.hidden, *IN_A_RUN))
        if setting is None or not isinstance(setting.value, str):
            return unit
        text = self._read(unit.path, setting.value)
        try:
            forced = unit.dialect if unit.dialect in FORCED else None
            read = [] if text is None else self._reader.read(text, setting.value, dialect=forced)
            file = next(iter(read), None)
        except ConfigError:
            text = file = None
        if text is None:
            return unit._replace(unread=(*unit.unread, RUN_CONFIG), hidden=(*unit.hidden, *IN_A_RUN))
        if file is None or file.dialect is None:
            return unit
        brought = {
            each: setting._replace(value=found.value, path=found.path, comment="", joined=setting.value)
            for each, found in file.settings.items()
        }
        return unit._replace(
            dialect=file.dialect,
            settings={**brought, **unit.settings},
            left_open=(*unit.left_open, *(name for name in file.left_open if name not in unit.settings)),
            joined=(*unit.joined, RUN_CONFIG),
        )

    def _named_by_project(self, name: str, unit: Unit) -> Setting | None:
        """The file that the project names for its runs, placed where the unit begins; other files are not runs."""
        if name not in self._given or not any(each.startswith("training.") for each in unit.settings):
            return None
        place = unit.span.beginning()
        return Setting(self._given[name], place, place, (name,))

    def _with(self, unit: Unit, name: str, naming: Setting, named: str, dialect: str) -> Unit:
        text = self._read(unit.path, named)
        begins = (text or "").lstrip("\ufeff \t\r\n")[:1]
        if dialect == OF_JSON and begins and begins not in "{[":
            said = {NOT_JSON: naming._replace(value=True, comment="", joined=named)}
            return unit._replace(settings={**said, **unit.settings}, unread=(*unit.unread, name))
        try:
            file = None if text is None else next(iter(self._reader.read(text, named, dialect=dialect)), None)
        except ConfigError:
            file = None
        if file is None:
            left = {each: held for each, held in unit.settings.items() if each != OF_ONE_MACHINE.get(name)}
            return unit._replace(settings=left, unread=(*unit.unread, name))
        brought = {
            each: naming._replace(value=setting.value, comment="", joined=named)
            for each, setting in file.settings.items()
        }
        return unit._replace(
            settings={**brought, **unit.settings},
            left_open=(*unit.left_open, *file.left_open),
            joined=(*unit.joined, name),
        )


def without_comments_count(unit: Unit) -> tuple[Unit, Setting | None]:
    """The unit without what a comment in the head of its config says of its GPUs, and that: what starts the run may
    say how many."""
    said = unit.settings.get(PROCESSES)
    if said is None or not said.path or not str(said.path[0]).startswith("#"):
        return unit, None
    return unit._replace(settings={each: held for each, held in unit.settings.items() if each != PROCESSES}), said


def in_its_launchers_precision(unit: Unit) -> Unit:
    """The unit of a run that Accelerate starts, in the half precision that it is started in.

    It is handed on as ACCELERATE_MIXED_PRECISION, which the Trainer takes where its arguments ask for neither fp16 nor
    bf16 (transformers 4.30 to 5.23, training_args.py); with ``deepspeed`` among those DeepSpeed's file goes by them.
    """
    said = unit.settings.get(PRECISION)
    asked = [unit.settings[name].value for name in HALF.values() if name in unit.settings]
    if (
        said is None
        or said.value not in HALF
        or unit.dialect == OF_ACCELERATE
        or any(each is not False for each in asked)
    ):
        return unit
    if said.value == "fp16" and unit.dialect in FORCED and not asked:  # there bf16 is on by default
        return unit
    if DEEPSPEED in unit.settings or not any(name.startswith("training.") for name in unit.settings):
        return unit
    named = said._replace(value=True, alias=True, joined=said.joined or "accelerate launch")
    return unit._replace(settings={**unit.settings, HALF[said.value]: named})
