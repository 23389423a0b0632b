"""Everything that ``rules/`` holds, as one frozen object, and its rules. ``knowledge/`` reads it from disk."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property

from kb.core.document import Reader
from kb.core.expression import Tree
from kb.core.facts import FactType, MovedDefault
from kb.core.finding import Confidence, Safety, Severity
from kb.core.hardware import Gpu
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.core.text import Text
from kb.core.typed import Any, TypeVar

WRITTEN = "written."  # before a setting's name: whether a config says it

Entry = TypeVar("Entry")


class Entries(Mapping[str, Entry]):
    """Entries by id, each made of its row when it is first asked for: a start asks for few of hundreds."""

    __slots__ = ("_made", "_make", "_rows")

    def __init__(self, rows: Mapping[str, Any], make: Callable[[Any], Entry]) -> None:
        self._rows, self._make = rows, make
        self._made: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        if name not in self._made:
            self._made[name] = self._make(self._rows[name])
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:  # what is computed from entries is kept by what they say
        return repr(dict(self))


class Computed(NamedTuple):
    """A value that an expression gives, in a fix: ``{compute: host.workers_that_fit}``."""

    tree: Tree


class RuleFix(NamedTuple):
    """One way to mend it; offered unless ``when`` is known false."""

    when: Tree | None
    safety: Safety
    title: Text
    set: Mapping[str, Any]  # canonical name → value, or Computed
    remove: tuple[str, ...] = ()
    rename: Mapping[str, str] = {}  # canonical name → the new key's own last part


class Wording(NamedTuple):
    """What a rule says where it fires, and how that is mended."""

    title: Text
    message: Text
    fixes: tuple[RuleFix, ...] = ()


class Rule(NamedTuple):
    """Fires when ``when`` is true of the facts, or once for each event of kind ``on`` that the reader met."""

    id: str
    version: int
    since: str
    severity: Severity
    confidence: Confidence
    area: str
    when: Tree | None
    on: str | None
    at: tuple[str, ...]
    wording: Callable[[], Wording]  # few rules of hundreds fire
    why: Text
    names: bool = False  # it is about names that a library takes
    # read only where the whole catalogue is wanted: empty on the way of a check
    source: str = ""  # `when` as written
    heard: Text = Text("", "")  # what the event `on` is
    sources: tuple[str, ...] = ()
    examples: tuple[Mapping[str, Any], ...] = ()
    deprecated: str | None = None
    replaced_by: str | None = None

    @property
    def title(self) -> Text:
        """Its name, in a few words."""
        return self.wording().title

    @property
    def message(self) -> Text:
        """What it says where it fires."""
        return self.wording().message

    @property
    def fixes(self) -> tuple[RuleFix, ...]:
        """The ways to mend it."""
        return self.wording().fixes


class Vocabulary(Mapping[str, FactType]):
    """The facts by name, of each setting also whether it is written; each is made when it is first asked for.

    Args:
        rows: the facts without what is written, by name.
        make: makes one of its name.
        settings: reads which of them a config can say.
    """

    def __init__(
        self, rows: Mapping[str, Any], make: Callable[[str], FactType], settings: Callable[[], Collection[str]]
    ) -> None:
        self._rows, self._make, self._read_settings = rows, make, settings
        self._made: dict[str, FactType] = {}

    @cached_property
    def settings(self) -> Collection[str]:
        return self._read_settings()

    def __getitem__(self, name: str) -> FactType:
        found = self._made.get(name)
        if found is None:
            if name not in self._rows and name not in self:
                raise KeyError(name)
            found = self._made[name] = self._make(name)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._rows or (
            isinstance(name, str) and name.startswith(WRITTEN) and name[len(WRITTEN) :] in self.settings
        )

    def __iter__(self) -> Iterator[str]:
        for name in self._rows:
            yield name
            if name in self.settings:
                yield WRITTEN + name

    def __len__(self) -> int:
        return len(self._rows) + len(self.settings)


class FactTypes(Mapping[str, str]):
    """The type of each fact; whether a setting is written is known to be true or false without a look at the fact."""

    __slots__ = ("_facts",)

    def __init__(self, facts: Mapping[str, FactType]) -> None:
        self._facts = facts

    def __getitem__(self, name: str) -> str:
        if name.startswith(WRITTEN) and name in self._facts:
            return "bool"
        return self._facts[name].type

    def __contains__(self, name: object) -> bool:
        return name in self._facts

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)


def settings_of(facts: Mapping[str, FactType]) -> Collection[str]:
    """The facts that a config can say."""
    if isinstance(facts, Vocabulary):
        return facts.settings
    return {name: None for name, fact in facts.items() if fact.setting}


class Outline(NamedTuple):
    """What a rule is sorted by before it is read. Each may be empty."""

    area: str
    on: str  # the kind of event that it waits for
    needed: Sequence[str]  # settings, or whether they are written: where all of them are false, it does not hold
    deprecated: str


class Rules(Entries[Rule]):
    """The rules by id, each read when it is first asked for; ``outlines`` reads what all of them are sorted by."""

    __slots__ = ("_read_outlines",)

    def __init__(
        self, rows: Mapping[str, Any], make: Callable[[Any], Rule], outlines: Callable[[], Mapping[str, Outline]]
    ) -> None:
        super().__init__(rows, make)
        self._read_outlines = outlines

    def outlines(self) -> Mapping[str, Outline]:
        return self._read_outlines()


def outlines_of(rules: Mapping[str, Rule]) -> Mapping[str, Outline]:
    """What rules are sorted by."""
    if isinstance(rules, Rules):
        return rules.outlines()
    return {
        name: Outline(rule.area, rule.on or "", needed_by(rule.when), rule.deprecated or "")
        for name, rule in rules.items()
    }


def needed_by(when: Tree | None) -> tuple[str, ...]:
    """Whether settings are written, one of which must be for a condition to hold; empty where none need be."""
    if when is None:
        return ()
    if when[0] == "fact":
        return (when[1],) if when[1].startswith(WRITTEN) else ()
    found = [needed_by(each) for each in when[1:]] if when[0] in ("and", "or") else []
    if when[0] == "or":
        return tuple(dict.fromkeys(name for names in found for name in names)) if all(found) else ()
    return min(filter(None, found), key=len, default=())


class Dialect(NamedTuple):
    """A config format: how to recognise it and which key means which setting. See ``rules/schema/dialect.json``."""

    id: str
    reader: Reader  # "library", "script" or "record"
    layout: str  # "flat", "grouped", "sections", "command" or "python"
    recognise: Mapping[str, Any]
    sections: Mapping[str, Any]
    names: Callable[[], Mapping[str, Any]]  # keys, known, calls, classes: thousands, for few files
    own: Callable[[], Mapping[str, Any]] = dict  # the rest of what a file of the format needs
    priority: int = 0
    named_by: tuple[str, ...] = ()  # settings of other formats that name a file of this one
    wrapped: Mapping[str, Any] = {}  # `in` which key of an entry its value stands, and what may stand `beside` it

    @property
    def keys(self) -> Mapping[str, Any]:
        """Paths of the file → the settings that they mean."""
        found: Mapping[str, Any] = self.names()["keys"]
        return found

    @property
    def known(self) -> Mapping[str, Any]:
        """Releases → their arguments that mean no setting."""
        found: Mapping[str, Any] = self.names().get("known", {})
        return found

    @property
    def calls(self) -> Mapping[str, Mapping[str, Any]]:
        """Of layout "python": called names, and what such a call is."""
        found: Mapping[str, Any] = self.names().get("calls", {})
        return found

    @property
    def classes(self) -> Mapping[str, Mapping[str, Any]]:
        """Of layout "python": classes of arguments, each with every name that any release of it takes."""
        found: Mapping[str, Any] = self.names().get("classes", {})
        return found

    @property
    def ignore(self) -> Sequence[str]:
        """Names that mean nothing to a run, ``name.*`` for all below one."""
        return self._list("ignore")

    @property
    def values(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings whose values have names of the format's own."""
        return self._mapping("values")

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Settings whose default differs from the vocabulary's; None: not known."""
        return self._mapping("defaults")

    @property
    def moved(self) -> Mapping[str, tuple[MovedDefault, ...]]:
        """What those defaults were before a release of a library."""
        return self._mapping("moved")

    @property
    def by_loader(self) -> Mapping[str, Mapping[str, Any]]:
        """Further such defaults, by the library that loads the model and puts classes of its own in the place of this
        format's."""
        return self._mapping("by_loader")

    @property
    def fallbacks(self) -> Mapping[str, str]:
        """Settings that are another's where the config does not give them."""
        return self._mapping("fallbacks")

    @property
    def closed(self) -> Sequence[str]:
        """Groups of which every name is known, `*` for the top."""
        return self._list("closed")

    @property
    def extended(self) -> Mapping[str, Sequence[str]]:
        """Keys that name extensions, and those of its own, which are known."""
        return self._mapping("extended")

    @property
    def exempt(self) -> Sequence[str]:
        """Rules, by id or area, that do not hold of this format."""
        return self._list("exempt")

    @property
    def converts(self) -> bool:
        """Whether its parser turns a text at the top into the argument's type."""
        return bool(self.own().get("converts"))

    @property
    def assigned(self) -> bool:
        """Whether configs are Python files, whose names at the top are the keys."""
        return bool(self.own().get("assigned"))

    @property
    def interpolates(self) -> bool:
        """Whether ${path} stands for the value at that path."""
        return bool(self.own().get("interpolates"))

    @property
    def telling(self) -> Sequence[str]:
        """Names that hardly any program but the library's has."""
        return self._list("telling")

    @property
    def programs(self) -> Mapping[str, Mapping[str, Any]]:
        """Commands and modules whose settings these are."""
        return self._mapping("programs")

    @property
    def unmodelled(self) -> Sequence[Mapping[str, Any]]:
        """Of the vocabulary: keys that change what a run takes."""
        found: Sequence[Mapping[str, Any]] = self.own().get("unmodelled", ())
        return found

    @property
    def constants(self) -> Mapping[str, str]:
        """Of layout "python": dotted names in values, and what they stand for."""
        return self._mapping("constants")

    def _mapping(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.own().get(name, {})
        return found

    def _list(self, name: str) -> Sequence[str]:
        found: Sequence[str] = self.own().get(name, ())
        return found


def no_table(name: str) -> Mapping[str, Any]:
    """There are no tables."""
    return {"keys": {}, "rows": [], "values": {}, "pairs": {}, "names": [], "filled": {}}


class Catalog(NamedTuple):
    """``version`` is the rules' own; ``laid`` are the rules that an overlay holds, of which the site has no page;
    ``sources`` and ``constants`` are plain data by id;
    ``called`` maps every name of a model, in small letters, to its id;
    ``events`` maps a kind to its values' types; ``triggers`` maps a format to what a row of its tables begins with, and
    ``table`` reads those rows."""

    version: str
    facts: Mapping[str, FactType]
    events: Mapping[str, Mapping[str, str]]
    rules: Mapping[str, Rule]
    gpus: Mapping[str, Gpu]
    models: Mapping[str, Model]
    dialects: Mapping[str, Dialect]
    constants: Mapping[str, Any]
    sources: Mapping[str, Any]
    triggers: Mapping[str, tuple[str, ...]] = {}
    table: Callable[[str], Mapping[str, Any]] = no_table
    laid: frozenset[str] = frozenset()
    called: Mapping[str, str] = {}
    serving: Callable[[], Mapping[str, Any]] = dict  # inference engines by id, read when first needed

    def fact_types(self) -> Mapping[str, str]:
        """The type of each fact."""
        return FactTypes(self.facts)
