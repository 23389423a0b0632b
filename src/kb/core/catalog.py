"""Everything that ``rules/`` holds, as one frozen object, and its rules. ``knowledge/`` reads it from disk."""

from collections.abc import Callable, Mapping
from typing import Any

from kb.core.document import Reader
from kb.core.expression import Tree
from kb.core.facts import FactType, MovedDefault
from kb.core.finding import Confidence, Safety, Severity
from kb.core.hardware import Gpu
from kb.core.model import Model
from kb.core.record import NamedTuple
from kb.core.text import Text


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
    title: Text
    message: Text
    fixes: tuple[RuleFix, ...]
    why: Text
    names: bool = False  # it is about names that a library takes
    # read only where the whole catalogue is wanted: empty on the way of a check
    source: str = ""  # `when` as written
    sources: tuple[str, ...] = ()
    examples: tuple[Mapping[str, Any], ...] = ()
    deprecated: str | None = None
    replaced_by: str | None = None


class Dialect(NamedTuple):
    """A config format: how to recognise it and which key means which setting. See ``rules/schema/dialect.json``."""

    id: str
    reader: Reader  # "library", "script" or "record"
    layout: str  # "flat", "grouped", "sections", "command" or "python"
    recognise: Mapping[str, Any]
    sections: Mapping[str, Any]
    keys: Mapping[str, Any]
    ignore: tuple[str, ...]
    values: Mapping[str, Mapping[str, Any]]
    priority: int = 0
    defaults: Mapping[str, Any] = {}  # settings whose default differs from the vocabulary's; None: not known
    moved: Mapping[str, tuple[MovedDefault, ...]] = {}  # what those defaults were before a release of a library
    named_by: tuple[str, ...] = ()  # settings of other formats that name a file of this one
    fallbacks: Mapping[str, str] = {}  # settings that are another's where the config does not give them
    known: Mapping[str, Any] = {}  # releases → their arguments that mean no setting
    closed: tuple[str, ...] = ()  # groups of which every name is known, `*` for the top
    exempt: tuple[str, ...] = ()  # rules, by id or area, that do not hold of this format
    converts: bool = False  # its parser turns a text at the top into the argument's type
    assigned: bool = False  # configs are Python files, whose names at the top are the keys
    interpolates: bool = False  # ${path} stands for the value at that path
    wrapped: Mapping[str, Any] = {}  # `in` which key of an entry its value stands, and what may stand `beside` it
    telling: tuple[str, ...] = ()  # names that hardly any program but the library's has
    programs: Mapping[str, Mapping[str, Any]] = {}  # commands and modules whose settings these are
    calls: Mapping[str, Mapping[str, Any]] = {}  # of layout "python": called names, and what such a call is
    unmodelled: tuple[Mapping[str, Any], ...] = ()  # of the vocabulary: keys that change what a run takes
    constants: Mapping[str, str] = {}  # of layout "python": dotted names in values, and what they stand for


def no_table(name: str) -> Mapping[str, Any]:
    """There are no tables."""
    return {"keys": {}, "rows": [], "values": {}, "pairs": {}, "names": [], "filled": {}}


class Catalog(NamedTuple):
    """``version`` is the rules' own; ``laid`` are the rules that an overlay holds, of which the site has no page;
    ``sources`` and ``constants`` are plain data by id;
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
    serving: Callable[[], Mapping[str, Any]] = dict  # inference engines by id, read when first needed

    def fact_types(self) -> dict[str, str]:
        return {name: fact.type for name, fact in self.facts.items()}
