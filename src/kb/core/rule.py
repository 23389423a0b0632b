"""A lint rule, as ``rules/checks/<area>/<id>.yaml`` gives it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kb.core.expression import Tree
from kb.core.finding import Confidence, Safety, Severity
from kb.core.text import Text


@dataclass(frozen=True, slots=True)
class Computed:
    """A value that an expression gives, in a fix: ``{compute: host.workers_that_fit}``."""

    tree: Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFix:
    """One way to mend it; offered unless ``when`` is known false."""

    when: Tree | None
    safety: Safety
    title: Text
    set: Mapping[str, Any]  # canonical name → value, or Computed
    remove: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)  # canonical name → the new key's own last part


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
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
    # read only where the whole catalogue is wanted: empty on the way of a check
    source: str = ""  # `when` as written
    why: Text
    sources: tuple[str, ...] = ()
    examples: tuple[Mapping[str, Any], ...] = ()
    deprecated: str | None = None
    replaced_by: str | None = None
