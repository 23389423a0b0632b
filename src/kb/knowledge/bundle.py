"""The compiled bundle on disk: built when the sources changed, read in a few milliseconds when they did not.

Staleness is decided by the size and time of every source, the code that compiles included; where those differ, by a
hash of the contents, so that a fresh clone or a touched file does not rebuild. Inside a wheel nothing is looked at.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kb.core.catalog import Entries
from kb.knowledge.locations import Location, files_under

if TYPE_CHECKING:
    from kb.knowledge.compile import Files

FORMAT = 8
TEXTS = "texts"  # of a language: its sentences by the first word of their keys
# part → kinds of which a start needs few entries: each a line of its own
LINED = {"hot": ("wordings", "gpus", "models", "names"), "ko": (TEXTS,), "en": (TEXTS,)}
LINES = "lines"  # kind → the ids of its entries → where its line begins, counted from the first line of all
STAMP = "stamp.json"


def load_part(location: Location, part: str, *, beside: bool = False) -> Any:
    """One part of the bundle, with what is laid over it; built first where it is missing, stale or damaged.

    Args:
        beside: it goes with a part that has just been read, so that nothing is looked at again.

    Raises:
        KnowledgeError: the sources, or an overlay, have faults.
    """
    if location.overlays and not beside:
        from kb.knowledge.overlay import overlaid  # most projects have none

        return overlaid(location, part)
    if location.sealed or beside or _is_fresh(location):
        try:
            return read_data(os.path.join(location.bundle, f"{part}.json"))
        except (OSError, ValueError):
            pass  # missing or damaged: build it again
    return build(location)[part]


def build(location: Location, files: "Files | None" = None, *, released: str | None = None) -> dict[str, Any]:
    """Compile the sources (``files``, where they have been read) and store the bundle, where the folder can be written.

    Args:
        released: the day of its release, for a package that is built; the rules of a checkout have none.

    Raises:
        KnowledgeError: the sources have faults.
    """
    from kb.knowledge.compile import compile_knowledge

    parts = compile_knowledge(location, files, released=released)
    try:
        os.makedirs(location.bundle, exist_ok=True)
        for name, data in parts.items():
            write_part(location, name, data)
        if not location.sealed:  # whose sources do not change
            stamp = {"format": FORMAT, "files": _stat(location), "content": _content(location)}
            write_data(os.path.join(location.bundle, STAMP), stamp)
    except OSError:
        pass  # a read-only folder: compiled again at each start, which is slower and still right
    return parts


def _is_fresh(location: Location) -> bool:
    path = os.path.join(location.bundle, STAMP)
    try:
        stamp = read_data(path)
        if stamp["format"] != FORMAT:
            return False
        now = _stat(location)
        if stamp["files"] == now:
            return True
        if stamp["content"] != _content(location):
            return False
        write_data(path, {**stamp, "files": now})
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


# The rooms whose code decides what a bundle holds: this one and those below it. A test holds that it uses no other.
COMPILING = ("core", "knowledge", "memory")


def _code() -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every module of the rooms that compile, by its name."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for room in COMPILING:
        with os.scandir(os.path.join(package, room)) as entries:
            found = sorted((entry.name, entry) for entry in entries if entry.name.endswith(".py"))
        yield from ((f"{room}/{name}", entry) for name, entry in found)


def _data(location: Location) -> Iterator[tuple[str, str]]:
    """Every file of rules/ and the texts, by its name and with its path."""
    yield from ((f"rules/{name}", os.path.join(location.rules, name)) for name in files_under(location.rules))
    yield from ((f"i18n/{name}", os.path.join(location.i18n, name)) for name in ("ko.yaml", "en.yaml"))


def _stat(location: Location) -> str:
    """A fingerprint of names, sizes and times."""
    lines = [location.i18n, os.path.abspath(__file__)]
    for name, entry in _code():
        info = entry.stat()
        lines.append(f"{name}\0{info.st_size}\0{info.st_mtime_ns}")
    for name, path in _data(location):
        info = os.stat(path)
        lines.append(f"{name}\0{info.st_size}\0{info.st_mtime_ns}")
    return f"{zlib.crc32(chr(10).join(lines).encode()):08x}-{len(lines)}"


def _content(location: Location) -> str:
    """A digest of what all of them hold."""
    import hashlib

    digest = hashlib.sha256()
    for name, path in (*((name, entry.path) for name, entry in _code()), *_data(location)):
        with open(path, "rb") as stream:
            digest.update(name.encode() + b"\0" + stream.read() + b"\0")
    return digest.hexdigest()


def read_data(path: str) -> Any:
    """A part from disk.

    Raises:
        OSError: there is none.
        ValueError: it is damaged.
    """
    try:
        with open(path, "rb") as stream:  # as bytes: reading a megabyte as text takes longer than parsing it
            whole = stream.read()
    except FileNotFoundError:
        whole = _unpacked(path)
    begin = whole.find(b"\n") + 1
    body = memoryview(whole)[begin:]  # without a copy: most of it may not be needed
    if whole[: begin - 1].decode("ascii", "replace") != f"{zlib.crc32(body):08x}":
        raise ValueError(f"{path} is damaged")
    end = whole.find(b"\n", begin)
    if end < 0:
        return json.loads(whole[begin:].decode())
    data = json.loads(whole[begin:end].decode())

    def line(at: int) -> Any:
        start = end + 1 + at
        return json.loads(whole[start : whole.index(b"\n", start)].decode())

    for kind, places in data.pop(LINES).items():
        data[kind] = Entries(places, line)
    return _Texts(data[TEXTS]) if TEXTS in data else data


class _Texts(Mapping[str, str]):
    """The sentences of one language by key."""

    __slots__ = ("_groups",)

    def __init__(self, groups: Mapping[str, Mapping[str, str]]) -> None:
        self._groups = groups

    def __getitem__(self, key: str) -> str:
        return self._groups[_group(key)][key]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._groups.get(_group(key), ())

    def __iter__(self) -> Iterator[str]:
        return (key for group in self._groups.values() for key in group)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))


def _group(key: str) -> str:
    return key.partition(".")[0]


def _unpacked(path: str) -> bytes:
    """What a package holds packed: a part that few commands read.

    Raises:
        OSError: there is none, or this Python has no lzma.
        ValueError: it is damaged.
    """
    from kb.knowledge.packed import ARCHIVE, PARTS, part_of

    folder, name = os.path.split(path)
    archive = os.path.join(os.path.dirname(os.path.dirname(folder)), ARCHIVE)
    if name not in PARTS:
        raise FileNotFoundError(path)
    with open(archive, "rb") as stream:
        packed = stream.read()
    try:
        return part_of(packed, name)
    except ImportError as error:
        raise OSError(str(error)) from None
    except ValueError as error:
        raise ValueError(f"{archive}: {error}") from None


def write_part(location: Location, part: str, data: Any) -> None:
    """A part to the bundle of a place."""
    kinds = LINED.get(part, ())
    if TEXTS in kinds:
        grouped: dict[str, dict[str, str]] = {}
        for key, text in data.items():
            grouped.setdefault(_group(key), {})[key] = text
        data = {TEXTS: grouped}
    write_text(os.path.join(location.bundle, f"{part}.json"), encoded(data, kinds))


def write_data(path: str, data: Any) -> None:
    """Data to a file of its own."""
    write_text(path, encoded(data))


def write_text(path: str, text: str) -> None:
    """Through a temporary file, so that two starts at once never read half a bundle."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(temporary, path)


def encoded(data: Any, lined: Sequence[str] = ()) -> str:
    """A part as it lies on disk: a checksum, then JSON; behind it a line for each entry of the kinds in ``lined``."""
    body = _in_lines(data, lined) if lined else _json(data)
    return f"{zlib.crc32(body.encode()):08x}\n{body}"


def _in_lines(data: Mapping[str, Any], lined: Sequence[str]) -> str:
    places: dict[str, dict[str, int]] = {kind: {} for kind in lined}
    rows: list[str] = []
    size = 0
    for kind in lined:
        for name, row in data[kind].items():
            rows.append(_json(row) + "\n")
            places[kind][name] = size
            size += len(rows[-1].encode())
    head = {kind: entries for kind, entries in data.items() if kind not in lined}
    return "".join((_json({**head, LINES: places}), "\n", *rows))


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=dict)  # entries are a mapping
