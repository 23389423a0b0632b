"""The compiled bundle on disk: built when the sources changed, read in a few milliseconds when they did not.

Staleness is decided by the size and time of every source, the code that compiles included; where those differ, by a
hash of the contents, so that a fresh clone or a touched file does not rebuild. Inside a wheel nothing is looked at.
"""

import os
import zlib
from collections.abc import Callable, Iterator, Mapping

from kb.core.json_text import scan
from kb.core.typed import TYPE_CHECKING, Any
from kb.knowledge.locations import Location, files_under

if TYPE_CHECKING:
    from kb.knowledge.compile import Files

FORMAT = 10
TEXTS = "texts"  # of a language: its sentences


def _first_word(key: str) -> str:
    return key.partition(".")[0]


def _whole(name: str) -> str:
    return name


# part → kinds of which a start needs few entries, or none → how an entry's name gives that of the line which holds it
LINED: dict[str, dict[str, Callable[[str], str]]] = {
    "hot": {
        **dict.fromkeys(("facts", "events", "rules", "wordings", "gpus", "models"), _whole),
        **dict.fromkeys(("formats", "names", "tables", "lists"), _whole),
        **dict.fromkeys(("outlines", "dialects"), lambda name: ""),  # all together
        "called": lambda name: name[:1],
    },
    "guide": dict.fromkeys(  # each whole: a command reads a few of these
        ("arguments", "errata", "exports", "hardware", "measurements", "models", "remedies"), lambda name: ""
    ),
    "ko": {TEXTS: _first_word},
    "en": {TEXTS: _first_word},
}
# kind → the names of its lines, each with the place where it begins behind the first: one text, which is parted faster
# than a list is read
LINES = "lines"
STAMP = "stamp.json"
_SUM = 8  # digits of the checksum in front of a line


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
            return read_data(os.path.join(location.bundle, f"{part}.json"), part, lambda: build(location)[part])
        except (OSError, ValueError, KeyError):
            pass  # missing, damaged or of another form: build it again
    return build(location)[part]


def build(location: Location, files: "Files | None" = None, *, released: str | None = None) -> dict[str, Any]:
    """Compile the sources (``files``, where they have been read) and store the bundle, where the folder can be written.

    Args:
        released: the day of its release, for a package that is built; the rules of a checkout have none.

    Raises:
        KnowledgeError: the sources have faults.
    """
    from kb.knowledge.compile import compile_knowledge  # where rules have changed

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


# The folders whose code decides what a bundle holds: of this room and those below. A test holds that it uses no other.
COMPILING = ("core", "knowledge", "memory", "memory/architecture", "memory/parameters")


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


def read_data(path: str, part: str = "", again: Callable[[], Any] | None = None) -> Any:
    """Data from disk.

    Args:
        part: which part of the bundle it is, whose entries are read when they are asked for.
        again: makes the part anew, for entries that are found damaged then.

    Raises:
        OSError: there is none.
        ValueError: it is damaged.
    """
    try:
        with open(path, "rb") as stream:  # as bytes: reading a megabyte as text takes longer than parsing it
            whole = stream.read()
    except FileNotFoundError:
        whole = _unpacked(path)
    end = whole.find(b"\n")
    data = _decoded(whole[:end])
    if part not in LINED:
        return data
    stored = _Stored(path, whole, end + 1, again)
    for kind, places in data.pop(LINES).items():
        lines = _Lines(stored, kind, LINED[part][kind], places)
        data[kind] = lines if lines.name_of is _whole else _Grouped(lines)
    return data.get(TEXTS, data)


def _decoded(line: bytes) -> Any:
    """What a line holds.

    Raises:
        ValueError: it is damaged.
    """
    if line[:_SUM] != b"%08x" % zlib.crc32(line[_SUM:]):
        raise ValueError("damaged")
    return scan(line[_SUM:].decode(), 0)[0]


class _Stored:
    """A file of lines."""

    def __init__(self, path: str, whole: bytes, begin: int, again: Callable[[], Any] | None) -> None:
        self._path, self._whole, self._begin, self._again = path, whole, begin, again

    def row(self, at: str) -> Any:
        """What the line holds that begins there. Raises: ValueError: it is damaged, or is not there."""
        start = self._begin + int(at)
        return _decoded(self._whole[start : self._whole.index(b"\n", start)])

    def made_again(self, kind: str) -> Mapping[str, Any]:
        """All entries of a kind, of a file of which a line is damaged.

        Raises:
            ValueError: nobody can make it again.
        """
        if self._again is None:
            raise ValueError(f"{self._path} is damaged")
        part = self._again()
        found: Mapping[str, Any] = part if kind == TEXTS else part[kind]
        return found


class _Lines(Mapping[str, Any]):
    """The lines of one kind by name, each decoded when it is first asked for."""

    __slots__ = ("_kind", "_places", "_read", "_stored", "_text", "name_of")

    def __init__(self, stored: _Stored, kind: str, name_of: Callable[[str], str], places: str) -> None:
        self._stored, self._kind, self._text, self.name_of = stored, kind, places, name_of
        self._places: dict[str, str] = {}
        self._read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._read:
            at = self._at()[name]
            try:
                self._read[name] = self._stored.row(at)
            except ValueError:
                self._read = dict(_grouped(self._stored.made_again(self._kind), self.name_of))
        return self._read[name]

    def _at(self) -> Mapping[str, str]:
        if not self._places and self._text:
            parts = self._text.split(" ")
            self._places = dict(zip(parts[::2], parts[1::2], strict=True))
        return self._places

    def __contains__(self, name: object) -> bool:
        return name in self._at()

    def __iter__(self) -> Iterator[str]:
        return iter(self._at())

    def __len__(self) -> int:
        return len(self._at())


class _Grouped(Mapping[str, Any]):
    """Entries of which a line holds several."""

    __slots__ = ("_lines",)

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines

    def __getitem__(self, name: str) -> Any:
        return self._lines[self._lines.name_of(name)][name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._lines.get(self._lines.name_of(name), ())

    def __iter__(self) -> Iterator[str]:
        return (name for group in self._lines.values() for name in group)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __bool__(self) -> bool:  # without a look at all of them
        return len(self._lines) > 0


def _unpacked(path: str) -> bytes:
    """What a package holds packed: a part that few commands read.

    Raises:
        OSError: there is none, or this Python has no lzma.
        ValueError: it is damaged.
    """
    from kb.knowledge.packed import ARCHIVE, PARTS, part_of  # of an installed kb whose rules lie packed

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
    write_text(os.path.join(location.bundle, f"{part}.json"), encoded(data, part))


def write_data(path: str, data: Any) -> None:
    """Data to a file of its own."""
    write_text(path, encoded(data))


def write_text(path: str, text: str) -> None:
    """Through a temporary file, so that two starts at once never read half a bundle."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(temporary, path)


def encoded(data: Any, part: str = "") -> str:
    """Data as it lies on disk: a line of JSON behind its checksum; of a part whose entries are seldom all asked for,
    more such lines with these behind it."""
    kinds = LINED.get(part)
    if kinds is None:
        return _line(data)
    data = {TEXTS: data} if TEXTS in kinds else data
    kinds = {kind: name_of for kind, name_of in kinds.items() if kind in data}  # the playground has few of the guide's
    places: dict[str, str] = {}
    rows: list[str] = []
    size = 0
    for kind, name_of in kinds.items():
        at: list[str] = []
        for name, row in _grouped(data[kind], name_of).items():
            at += (name, str(size))
            rows.append(_line(row))
            size += len(rows[-1].encode())
        places[kind] = " ".join(at)
    head = {kind: entries for kind, entries in data.items() if kind not in kinds}
    return "".join((_line({**head, LINES: places}), *rows))


def _grouped(entries: Mapping[str, Any], name_of: Callable[[str], str]) -> Mapping[str, Any]:
    """Entries by the names of the lines that hold them."""
    if name_of is _whole:
        return entries
    groups: dict[str, dict[str, Any]] = {}
    for name, entry in entries.items():
        groups.setdefault(name_of(name), {})[name] = entry
    return groups


def _line(data: Any) -> str:
    import json  # a check reads what is compiled

    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=dict)  # entries are a mapping
    return f"{zlib.crc32(text.encode()):08x}{text}\n"
