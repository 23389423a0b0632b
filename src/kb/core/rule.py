"""A lint rule, as ``rules/checks/<area>/<id>.yaml`` gives it."""

from collections.abc import Mapping
from typing import Any

from kb.core.expression import Tree
from kb.core.finding import Confidence, Safety, Severity
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
