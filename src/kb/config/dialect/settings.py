"""The entries of one part of a config → settings by canonical name, with the events their text gives rise to."""

from typing import Any

from kb.config.dialect.dialects import CompiledDialect, Entries, Entry, Target
from kb.config.dialect.traps import event_of, interpret
from kb.config.text.nodes import SCALAR
from kb.config.text.source import Source
from kb.core.document import Event, Setting
from kb.core.finding import Edit, Span

MAX_UNKNOWN = 200  # unknown keys of a document that are compared with the known ones; real configs have some 30


class Part:
    """What a section, or the top of a document, says itself.

    ``silenced`` are the settings that it gives as null, with their places: the library's default holds, whatever
    another part says.
    """

    __slots__ = ("events", "left_open", "settings", "silenced", "unknown_keys")

    def __init__(self) -> None:
        self.settings: dict[str, Setting] = {}
        self.silenced: dict[str, Span] = {}
        self.events: list[Event] = []
        self.left_open: list[str] = []
        self.unknown_keys: list[str] = []


class Extractor:
    """Takes settings out of the entries of one document by one dialect."""

    def __init__(self, dialect: CompiledDialect) -> None:
        self._dialect = dialect
        self._unknown_left = MAX_UNKNOWN

    def extract(self, entries: Entries, source: Source) -> Part:
        part = Part()
        targets, parents = self._dialect.targets, self._dialect.parents
        meant: dict[str, list[tuple[Target, Entry]]] = {}
        for path, entry in entries.items():
            known = targets.get(path)
            if known is not None:
                for target in known:
                    meant.setdefault(target.fact.name, []).append((target, entry))
            elif path not in parents:
                self._look_beside(path, entry, entries, part, source)
        for name, candidates in meant.items():
            if len(candidates) > 1:
                candidates.sort(key=_rank)
            self._take(name, candidates, part, source)
        self._follow_renames(part)
        return part

    def _take(self, name: str, candidates: list[tuple[Target, Entry]], part: Part, source: Source) -> None:
        """The first candidate that gives a value; an unknown one (``auto``) ends the search too."""
        for target, (path, key, node) in candidates:
            translated = node.kind == SCALAR and node.value in target.values
            if translated:
                value: Any = target.values[node.value]
                if value is None:
                    part.left_open.append(name)
                    return
            else:
                value, trap = interpret(node, target.fact.type, name)
                if value is None:
                    continue
                if trap is not None:
                    part.events.append(event_of(trap, key, node, name, source))
            span = source.span(node)
            comment = source.comment_after(span.end) if node.flow else ""
            key_span = source.between(key.start, key.end or key.start)
            part.settings[name] = Setting(value, span, key_span, path, comment, alias=node.alias)
            return
        part.silenced[name] = source.span(candidates[0][1][1])

    def _follow_renames(self, part: Part) -> None:
        """A value under an old name counts under the new one too, unless that is written itself."""
        for old, new in self._dialect.renames:
            if old in part.settings and new not in part.settings:
                part.settings[new] = part.settings[old]
                part.silenced.pop(new, None)

    def _look_beside(self, path: str, entry: Entry, entries: Entries, part: Part, source: Source) -> None:
        """An event where an unknown key lies beside a known one that it may have been meant as."""
        parent, _, _ = path.rpartition(".")
        siblings = self._dialect.parents.get(parent)
        if siblings is None or self._unknown_left <= 0 or self._dialect.ignores(path):
            return
        self._unknown_left -= 1
        key = entry[1]
        group = self._dialect.group_of(parent)
        if group:
            part.unknown_keys.append(f"{group}.{key.value}")
        meant = self._dialect.neighbours(parent).meant_by(key.value)
        if meant is None:
            return
        meant_path = f"{parent}.{meant}" if parent else meant
        known = self._dialect.targets.get(meant_path)
        if known is None and entry[2].kind == SCALAR:
            return  # a group's name, but this is no group
        span = source.between(key.start, key.end or key.start)
        name = known[0].fact.name if known else ""
        # Beside the right key the wrong one cannot take its name: that would write it twice.
        edits = () if meant_path in entries else (Edit("replace", name, key.style[:1] + meant + key.style[:1], span),)
        part.events.append(Event(kind="unknown-key", span=span, values={"key": key.value, "meant": meant}, edits=edits))


def _rank(candidate: tuple[Target, Entry]) -> int:
    return candidate[0].rank


def inherit(own: Part, base: Part) -> dict[str, Setting]:
    """A section's settings: its own, and those of the top that it neither gives nor silences."""
    merged = dict(own.settings)
    for name, setting in base.settings.items():
        if name not in merged and name not in own.silenced:
            merged[name] = setting._replace(inherited=True)
    return merged
