"""Rules laid over others: each overlay compiled on top of those below it, and its entries put in or in their place.

The shipped bundle stays as it is; what the overlays add is compiled apart, and kept in the user's cache by the names,
sizes and times of their files.
"""

import os
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from kb import __version__
from kb.core.record import NamedTuple
from kb.core.text import LANGUAGES
from kb.knowledge.bundle import load_part, read_data, write_data
from kb.knowledge.catalog import names_of
from kb.knowledge.locations import Location, Overlay, opened
from kb.knowledge.overlay_files import FOLDERS, MANIFEST, TEXTS, files_of, read_overlay, relaxed
from kb.knowledge.overlay_fill import digest_of, fill_in, own_source, read_texts, with_sources
from kb.knowledge.problems import KnowledgeError, Problem
from kb.knowledge.schema import KINDS, SchemaSet
from kb.knowledge.source import Located, read_source

Layer = dict[str, Any]  # part → its entries by kind
HOT = {"checks": "rules", "hardware": "gpus", "models": "models", "dialects": "dialects"}  # folder → name in the bundle


class OverlayError(KnowledgeError):
    """An overlay has faults; ``overlays`` are those that have."""

    def __init__(self, problems: list[Problem], overlays: tuple[Overlay, ...]) -> None:
        super().__init__(problems)
        self.overlays = overlays


class Laid(NamedTuple):
    """One entry of an overlay."""

    kind: str
    id: str
    overlay: str
    path: str


def overlaid(location: Location, part: str) -> Any:
    """A part of the bundle with the overlays' entries.

    Raises:
        OverlayError: with every fault found in them, each at file:line:column.
    """
    base = load_part(location._replace(overlays=()), part)
    layer = layer_of(location)
    if part == "hot":
        merged = {**base, "version": f"{base['version']}+{layer['digest']}", "laid": [*layer["hot"]["rules"]]}
        for name in (*HOT.values(), "outlines", "wordings", "formats", "names"):
            merged[name] = {**base[name], **layer["hot"][name]}
        merged["called"] = names_of(merged["models"])
        return merged | {name: dict(sorted(merged[name].items())) for name in ("rules", "outlines")}
    if part in ("cold", "guide"):
        return {**base, **{name: {**base[name], **rows} for name, rows in layer[part].items()}}
    return {**base, **layer[part]} if part in LANGUAGES else base


def laid_entries(location: Location) -> list[Laid]:
    """What the overlays hold, in their order. Raises: OverlayError: they have faults."""
    return [Laid(*row) for row in layer_of(location)["entries"]] if location.overlays else []


def healthy_part(overlay: Overlay, problems: Iterable[Problem]) -> Overlay | None:
    """The overlay without its files that have faults; None where none of it is to be read, or nothing names a file."""
    start = overlay.root.rstrip(os.sep) + os.sep
    paths = (problem.path for problem in problems if problem.path.startswith(start))
    mine = {path.removeprefix(start).replace(os.sep, "/") for path in paths}
    if not mine or MANIFEST in mine or not mine.isdisjoint(overlay.without):
        return None
    return overlay._replace(without=tuple(sorted({*overlay.without, *mine})))


def layer_of(location: Location) -> Layer:
    """What the overlays add, from the cache or compiled. Raises: OverlayError: they have faults."""
    stamp = state_of(location)
    path = os.path.join(location.cache, f"overlay-{_crc(repr(location.overlays))}.json") if location.cache else None
    if path is not None:
        try:
            stored: Layer = read_data(path)
            if stored["stamp"] == stamp:
                return stored
        except (OSError, ValueError, KeyError, TypeError):
            pass
    layer = {**_compiled(location), "stamp": stamp}
    if path is not None:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_data(path, layer)
        except OSError:
            pass  # a read-only folder: compiled again at each start, which is slower and still right
    return layer


def state_of(location: Location) -> str:
    """A fingerprint of the overlays' files, by name, size and time, and of what lies below them."""
    below = os.path.join(location.rules, ".bundle", "hot.json")
    lines = [__version__, location.rules, _size_and_time(below)]
    for overlay in location.overlays:
        names, problems = files_of(overlay)
        lines += [f"{overlay.name}\0{overlay.root}", *map(str, problems)]
        lines += [f"{name}\0{_size_and_time(os.path.join(overlay.root, name))}" for name in names]
    return f"{_crc(chr(10).join(lines))}-{len(lines)}"


def _size_and_time(path: str) -> str:
    try:
        info = os.stat(path)
    except OSError:
        return ""
    return f"{info.st_size}\0{info.st_mtime_ns}"


def _crc(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def _compiled(location: Location) -> Layer:
    stack = _Stack(location._replace(overlays=()))
    for overlay in location.overlays:
        stack.lay(overlay)
    if stack.problems:
        broken = tuple(overlay for overlay in location.overlays if overlay in stack.broken)
        raise OverlayError(sorted(stack.problems), broken)
    return stack.layer()


# an editor lays the same overlays over it again with each change of one
_vocabulary = lru_cache(maxsize=1)(read_source)


class _Stack:
    """The shipped rules and, above them, each overlay in its turn."""

    def __init__(self, base: Location) -> None:
        self._parts = {"hot": load_part(base, "hot")}
        self._parts |= {name: load_part(base, name, beside=True) for name in ("cold", "guide", *LANGUAGES)}
        rules = opened(base).rules
        self._schemas = SchemaSet(os.path.join(rules, "schema"), relaxed)
        path = os.path.join(rules, "vocabulary.yaml")
        with open(path, encoding="utf-8") as stream:
            self._vocabulary = _vocabulary(path, stream.read())
        guide = self._parts["guide"]
        self._sources: dict[str, Any] = dict(self._parts["cold"]["sources"])
        self._below: dict[str, dict[str, Located]] = {
            kind: {name: Located("", row, {}) for name, row in guide[kind].items()}
            for kind in ("hardware", "models", "remedies")
        }
        self._below |= {
            kind: {name: Located("", {"id": name}, {}) for name in self._parts["hot"][HOT[kind]]}
            for kind in ("checks", "dialects")
        }
        self._own: dict[str, dict[str, tuple[Overlay, Located]]] = {kind: {} for kind in FOLDERS}
        self._texts: dict[str, dict[str, str]] = {language: {} for language in LANGUAGES}
        self._kept: Layer = {"hot": {}, "cold": {}, "guide": {}}
        self.problems: list[Problem] = []
        self.broken: set[Overlay] = set()

    def lay(self, overlay: Overlay) -> None:
        """Put an overlay on top; one with faults is left out, so that those above it are still looked at."""
        files, problems = read_overlay(overlay, self._schemas)
        sources = dict(self._sources)
        for located in (*files["sources.yaml"], *files["sources"]):
            sources |= located.data["sources"]
        found: dict[str, dict[str, Located]] = {kind: {} for kind in FOLDERS}
        for kind in FOLDERS:
            for located in files[kind]:
                problem = self._collision(kind, located, found[kind])
                if problem is not None:
                    problems.append(problem)
                    continue
                fill_in(kind, located, own_source(overlay, located))
                sources |= with_sources(sources, located)
                found[kind][located.data["id"]] = located
        texts, faults = read_texts(files[TEXTS], {language: self._parts[language] for language in LANGUAGES})
        problems += faults
        parts, more = self._compile(found, sources)
        problems += more
        if problems:
            self.problems += problems
            self.broken.add(overlay)
            return
        self._sources = sources
        self._keep(parts, found)
        for kind, rows in found.items():
            self._own[kind] |= {name: (overlay, located) for name, located in rows.items()}
        for language, own in texts.items():
            self._texts[language] |= own

    def _collision(self, kind: str, located: Located, beside: Mapping[str, Located]) -> Problem | None:
        """What is wrong with the entry's name, or with what it says to replace."""
        name = located.data["id"]
        replaces = located.data.pop("replaces", None)
        if replaces is not None and replaces != name:
            return located.problem(
                ("replaces",),
                f"an entry replaces one of its own id: write `replaces: {name}`, or name this file {replaces}.yaml",
                f"같은 id의 항목만 바꿀 수 있습니다. `replaces: {name}` 값을 적거나 "
                f"파일 이름을 {replaces}.yaml로 바꾸십시오",
            )
        if name in beside:
            taken = beside[name].path
        elif name in self._own[kind]:
            taken = self._own[kind][name][1].path
        else:
            taken = "kb" if name in self._below[kind] else ""
        if replaces is None and taken:
            return located.problem(
                ("id",),
                f"{name!r} is already in {taken}; take another id, or write `replaces: {name}` to take its place",
                f"{name!r} 이름은 {taken}에 이미 있습니다. 다른 id를 쓰거나, 그 자리에 넣으려면 "
                f"`replaces: {name}` 줄을 적으십시오",
            )
        if replaces is not None and not taken:
            return located.problem(
                ("replaces",),
                f"there is no {name!r} to replace; leave `replaces` out",
                f"바꿀 {name!r} 항목이 없습니다. `replaces` 줄을 지우십시오",
            )
        return None

    def _compile(
        self, found: Mapping[str, Mapping[str, Located]], sources: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[Problem]]:
        """The parts that hold these entries, and what is wrong with them beside all that lies below."""
        from kb.knowledge.compile import compile_files  # where an overlay has changed

        files: dict[str, list[Located]] = {kind: [] for kind in KINDS}
        files["vocabulary.yaml"] = [self._vocabulary]
        files["constants.yaml"] = [Located("", {"constants": self._parts["guide"]["constants"]}, {})]
        files["sources.yaml"] = [Located("", {"sources": sources}, {})]
        below = {
            kind: {**self._below[kind], **{name: located for name, (_, located) in self._own[kind].items()}}
            for kind in FOLDERS
        }
        for kind in FOLDERS:
            files[kind] = [*found[kind].values()]
        ids = {kind: [*below[kind], *found[kind]] for kind in FOLDERS}
        named = {  # whose aliases are unique over all of them
            kind: [located for name, located in below[kind].items() if name not in found[kind]]
            for kind in ("hardware", "models")
        }
        parts, problems = compile_files(files, ids, named)
        own = {located.path for rows in found.values() for located in rows.values()}
        return parts, [problem for problem in problems if problem.path in own]

    def _keep(self, parts: Mapping[str, Any], found: Mapping[str, Mapping[str, Located]]) -> None:
        """Of what was compiled, the overlay's own entries."""

        def keep(part: str, name: str, kind: str) -> None:
            self._kept[part].setdefault(name, {}).update({each: parts[part][name][each] for each in found[kind]})

        for kind, name in HOT.items():
            keep("hot", name, kind)
        keep("hot", "outlines", "checks")
        keep("hot", "wordings", "checks")
        keep("hot", "formats", "dialects")
        keep("hot", "names", "dialects")
        keep("cold", "rules", "checks")
        for kind in ("remedies", "hardware", "models"):
            keep("guide", kind, kind)

    def layer(self) -> Layer:
        """All that the overlays add."""
        shipped = self._parts["cold"]["sources"]
        added = {name: row for name, row in self._sources.items() if shipped.get(name) != row}
        layer: Layer = {**self._kept, "cold": {**self._kept["cold"], "sources": added}, **self._texts}
        layer["digest"] = digest_of(layer)
        layer["entries"] = [
            Laid(kind, name, overlay.name, located.path)
            for kind, own in self._own.items()
            for name, (overlay, located) in own.items()
        ]
        return layer
