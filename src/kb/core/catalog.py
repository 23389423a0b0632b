"""Everything that ``rules/`` holds, as one frozen object, and its rules. ``knowledge/`` reads it from disk."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from kb.core.document import Reader
from kb.core.expression import Tree
from kb.core.facts import FactType, MovedDefault
from kb.core.finding import Confidence, Safety, Severity
from kb.core.hardware import Gpu
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.core.text import Text

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


class Dialect(NamedTuple):
    """A config format: how to recognise it and which key means which setting. See ``rules/schema/dialect.json``."""

    id: str
    reader: Reader  # "library", "script" or "record"
    layout: str  # "flat", "grouped", "sections", "command" or "python"
    recognise: Mapping[str, Any]
    sections: Mapping[str, Any]
    names: Callable[[], Mapping[str, Any]]  # keys, known, calls, classes: thousands, for few files
    ignore: tuple[str, ...]
    values: Mapping[str, Mapping[str, Any]]
    priority: int = 0
    defaults: Mapping[str, Any] = {}  # settings whose default differs from the vocabulary's; None: not known
    moved: Mapping[str, tuple[MovedDefault, ...]] = {}  # what those defaults were before a release of a library
    named_by: tuple[str, ...] = ()  # settings of other formats that name a file of this one
    fallbacks: Mapping[str, str] = {}  # settings that are another's where the config does not give them
    closed: tuple[str, ...] = ()  # groups of which every name is known, `*` for the top
    extended: Mapping[str, Sequence[str]] = {}  # keys that name extensions, and those of its own, which are known
    exempt: tuple[str, ...] = ()  # rules, by id or area, that do not hold of this format
    converts: bool = False  # its parser turns a text at the top into the argument's type
    assigned: bool = False  # configs are Python files, whose names at the top are the keys
    interpolates: bool = False  # ${path} stands for the value at that path
    wrapped: Mapping[str, Any] = {}  # `in` which key of an entry its value stands, and what may stand `beside` it
    telling: tuple[str, ...] = ()  # names that hardly any program but the library's has
    programs: Mapping[str, Mapping[str, Any]] = {}  # commands and modules whose settings these are
    unmodelled: tuple[Mapping[str, Any], ...] = ()  # of the vocabulary: keys that change what a run takes
    constants: Mapping[str, str] = {}  # of layout "python": dotted names in values, and what they stand for

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
        found: Mapping[str, Mapping[str, Any]] = self.names().get("calls", {})
        return found

    @property
    def classes(self) -> Mapping[str, Mapping[str, Any]]:
        """Of layout "python": classes of arguments, each with every name that any release of it takes."""
        found: Mapping[str, Mapping[str, Any]] = self.names().get("classes", {})
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
        return Entries({name: name for name in self.facts}, lambda name: self.facts[name].type)
