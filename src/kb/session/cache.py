"""What is kept from one run to the next: results by file, predictions, and what a check of one file said as a whole.

All of it is found by the content of what was checked and by all that decides what is said of it. A cache that fails in
any way is as good as empty. What a check looked at beside the file lies with its answer, and is looked at again.
"""

import argparse
import datetime
import os
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from kb import __version__
from kb.advice.question import Question
from kb.config.files import MAX_BYTES, read_if_any
from kb.core.catalog import Catalog
from kb.core.hardware import Machine
from kb.core.json_text import read, written
from kb.core.record import NamedTuple
from kb.core.typed import TYPE_CHECKING, Any
from kb.knowledge.locations import cache_folder, located, site_address
from kb.machine.software import installed_versions
from kb.report.terminal import choose_style
from kb.session.lookups import Row, Seen, hub_folder, still
from kb.session.project import Project

if TYPE_CHECKING:
    from kb.session.around import Checking

MOST_STORED = 256 << 20  # bytes of one kind
MAX_FILES = 256  # of a kind in one of its folders
RESULTS = "results"  # of checks, by file
PREDICTIONS = "predictions"
ANSWERS = "answers"  # to checks of one file, told again while nothing that they rest on changed
# The modules of core that the memory engine reads: what is said of a config changes more often than they do.
CORE_OF_THE_ENGINE = {
    "__init__", "expression", "facts", "hardware", "memory_report", "model", "patterns", "record", "release", "setup",
    "text", "typed", "units",
}  # fmt: skip
_SHARD = 2  # digits of a key that name the folder of its file
_SUM = 4  # bytes of the check sum before a value
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What pip or uv wrote down of this package; there is none of a checkout, whose folder lies beside no such list.
_RECORD = os.path.join(os.path.dirname(_PACKAGE), f"gpu_memory_kb-{__version__}.dist-info", "RECORD")
_MOST_RECORDED = 4 << 20
# Options that ask for more than a report of what is there, or for what no file says.
_NOT_KEPT = (
    *("no_cache", "online", "watch", "fix", "diff", "explain", "baseline", "write_baseline", "prune_baseline"),
    *("command", "model_config"),
)


class ResultCache:
    """JSON values on disk by key, each in a file of its own: a start opens the few that it needs, and no database first
    (SQLite took a twentieth of a check). Several processes may use it at once; it never raises. What has grown too
    large loses its oldest values when one is stored.

    Args:
        folder: where it lies; made when the first result is stored.
        kind: its name there.
    """

    def __init__(self, folder: str, kind: str = RESULTS) -> None:
        self._folder = os.path.join(folder, kind)

    def get(self, key: bytes) -> Any:
        """The stored value; None where there is none, or none that is whole."""
        try:
            with open(self._path(key), "rb") as stream:
                whole = stream.read()
            packed = memoryview(whole)[_SUM:]
            if int.from_bytes(whole[:_SUM], "big") != zlib.crc32(packed, zlib.crc32(key)):
                return None
            return read(zlib.decompress(packed).decode())
        except (OSError, ValueError, RecursionError, zlib.error):
            return None

    def put(self, rows: Iterable[tuple[bytes, Any]]) -> None:
        """Store values; each through a temporary file, so that nobody reads half of one."""
        for key, value in rows:
            path = self._path(key)
            temporary = f"{path}.{os.getpid()}.tmp"
            try:
                packed = zlib.compress(written(value).encode(), 1)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(temporary, "wb") as stream:
                    stream.write(zlib.crc32(packed, zlib.crc32(key)).to_bytes(_SUM, "big") + packed)
                os.replace(temporary, path)
            except RecursionError:
                continue
            except OSError:  # read-only, full, a file where the folder should be, or one that Windows holds open
                _remove(temporary)
                return
            _keep_small(os.path.dirname(path))

    def _path(self, key: bytes) -> str:
        name = key.hex()
        return os.path.join(self._folder, name[:_SHARD], name)


def _keep_small(shard: str) -> None:
    """Remove the oldest files of one folder of a cache where it holds more than its share, down to half of that. The
    newest stays, whatever its size; so does what cannot be removed."""
    try:
        with os.scandir(shard) as entries:
            files = sorted((info.st_mtime_ns, info.st_size, entry.path) for entry in entries if (info := entry.stat()))
    except OSError:  # another process is at the same
        return
    kept, left, share = sum(size for _, size, _ in files), len(files), MOST_STORED >> 4 * _SHARD
    if kept <= share and left <= MAX_FILES:
        return
    for _, size, path in files[:-1]:
        if kept <= share // 2 and left <= MAX_FILES // 2:
            return
        if _remove(path):
            kept, left = kept - size, left - 1


def _remove(path: str) -> bool:
    """Whether a file is gone now that was there."""
    try:
        os.remove(path)
    except OSError:
        return False
    return True


class Predictions:
    """What the memory engine has found, by what it was asked and by its code; ``folder`` as of :class:`ResultCache`."""

    def __init__(self, folder: str) -> None:
        self._cache = ResultCache(folder, PREDICTIONS)

    def get(self, question: str) -> Any:
        """The stored value; None where there is none."""
        return self._cache.get(_digest(self._code, question))

    def put(self, question: str, value: Any) -> None:
        """Store a value."""
        self._cache.put([(_digest(self._code, question), value)])

    @cached_property
    def _code(self) -> bytes:
        """A digest of the engine."""
        rows = _stamps(os.path.join(_PACKAGE, "core"))
        core = [row for row in rows if row[1:].partition(".py\0")[0] in CORE_OF_THE_ENGINE]
        return context_of({"python": sys.version, "core": core}, [os.path.join(_PACKAGE, "memory")])


def _blake2b(data: bytes, key: bytes = b"") -> Any:
    """Its hash of 16 bytes. ``hashlib`` has the same, and loads OpenSSL first: a tenth of a check's time."""
    try:
        from _blake2 import blake2b
    except ImportError:  # another Python's
        from hashlib import blake2b
    return blake2b(data, digest_size=16, key=key)


def _digest(code: bytes, question: str) -> bytes:
    return bytes(_blake2b(question.encode("utf-8", "surrogatepass"), code).digest())


def context_of(asked: Mapping[str, Any], folders: Sequence[str]) -> bytes:
    """A digest of all that decides a result beside the file: what was asked for, kb's own code, and the rules.

    Args:
        asked: by name, values whose ``repr`` tells them apart.
        folders: everything below them counts, by its place there, size and time. A copy of them is the same. Of an
            installed package the list counts that the installer wrote, which has a hash of every file.
    """
    digest = _blake2b(b"")
    digest.update(repr(sorted(asked.items())).encode("utf-8", "surrogatepass"))
    written = read_if_any(_RECORD, _MOST_RECORDED)
    if written is not None:
        digest.update(written)
        folders = [folder for folder in folders if not f"{folder}{os.sep}".startswith(f"{_PACKAGE}{os.sep}")]
    for folder in folders:
        for row in _stamps(folder):
            digest.update(row.encode("utf-8", "surrogatepass"))
    return bytes(digest.digest())


def _stamps(folder: str) -> list[str]:
    rows, pending = [], [folder]
    while pending:
        top = pending.pop()
        try:
            with os.scandir(top) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if not entry.name.startswith((".", "__pycache__")):
                            pending.append(entry.path)
                    elif entry.name.endswith((".py", ".yaml", ".json")):
                        info = entry.stat()
                        rows.append(f"{entry.path[len(folder) :]}\0{info.st_size}\0{info.st_mtime_ns}\n")
        except OSError:
            continue
    return sorted(rows)


def installs(raw: bytes) -> bool:
    """Whether a text may install libraries by itself: from a list, say, that is not there yet. What such a list says is
    not among what is looked at again, so that nothing is kept of the text.
    """
    return b"install" in raw or b"conda" in raw


def key_of(context: bytes, path: str, named: bool, raw: bytes) -> bytes:
    """The key of one file's result."""
    head = f"{path}\0{int(named)}\0".encode("utf-8", "surrogatepass")
    return bytes(_blake2b(head + raw, context).digest())


class CheckRequest(NamedTuple):
    """What a check is asked: the command line, the project's settings, and what follows from both."""

    options: argparse.Namespace
    project: Project
    question: Question
    checking: "Checking"


class Answer(NamedTuple):
    """What a check wrote to standard output, and its exit code."""

    text: str
    code: int


class KeptAnswer:
    """The place of one answer among those that are kept. It never raises: what cannot be read is not there.

    Args:
        path: the file that is checked.
        raw: its bytes.
        key: all that decides the answer but what is looked up beside the file.
        lookups: what a check looks up beside it, by kind.
        machine: what the answer is for, found for the key.
    """

    def __init__(self, path: str, raw: bytes, key: bytes, lookups: Mapping[str, Any], machine: Machine) -> None:
        self._path, self._raw = path, raw
        self._key, self._lookups, self.machine = key, dict(lookups), machine
        self._cache = ResultCache(cache_folder(), ANSWERS)

    def get(self) -> Answer | None:
        """The answer, where there is one and all that was looked at beside the file is as it was."""
        try:
            text, code, seen = self._cache.get(self._key)
            return Answer(str(text), int(code)) if still(seen, self._lookups) else None
        except (TypeError, ValueError):  # none, or not whole
            return None

    def put(self, answer: Answer, seen: Sequence[Row]) -> None:
        """Keep an answer, with what was looked at beside the file; not where that was saved meanwhile."""
        if read_if_any(self._path, MAX_BYTES) == self._raw:
            self._cache.put([(self._key, [*answer, seen])])


def kept_answer(request: CheckRequest, catalog: Catalog) -> KeptAnswer | None:
    """Where the answer to this check is kept; None where it is no check of one file, or no answer of such is kept.

    Raises:
        UserError: the machine, or a version, cannot be used.
    """
    # not for a command that opens the rules and reads no project
    from kb.session.around import beside_files, lookups_of, named_machine

    options, project, question, checking = request
    if any(getattr(options, name) for name in _NOT_KEPT) or project.baseline or len(options.paths) != 1:
        return None
    (path,) = options.paths
    raw = read_if_any(path, MAX_BYTES)
    if raw is None or installs(raw):
        return None
    machine = named_machine(catalog, project, question.machine)
    # what of host memory is in use changes with every look, and JSON alone shows it
    shown = machine if options.format == "json" else machine._replace(host_memory_used_bytes=None)
    style = repr(choose_style(sys.stdout, options.color))
    decided = decided_by(options, project, shown, catalog, style) | {"fail on": options.fail_on}
    lookups = lookups_of(*beside_files(project, question, checking, Seen()))
    key = key_of(context_of(decided, code_folders(options)), path, True, raw)
    return KeptAnswer(path, raw, key, lookups, machine)


def decided_by(
    options: argparse.Namespace, project: Project, machine: Machine, catalog: Catalog, style: str
) -> dict[str, Any]:
    """All that decides what is said of a file, but for the file and what lies beside it."""
    ignored = ("paths", "jobs", "no_cache", "watch", "fail_on", "color")
    return {
        **{f"option {name}": value for name, value in vars(options).items() if name not in ignored},
        "project": project,
        "machine": machine,
        "style": style,
        "versions": sorted(installed_versions().items()),
        "environment": (sys.prefix, os.environ.get("VIRTUAL_ENV"), os.environ.get("CONDA_PREFIX")),
        "python": sys.version,
        "kb": __version__,
        "rules": catalog.version,  # with what is laid over them
        "day": datetime.date.today(),
        "folder": os.getcwd(),
        "language": options.spoken,
        "hub": hub_folder(os.environ),
        "site": site_address(),
        "in": code_folders(options),
    }


def code_folders(options: argparse.Namespace) -> list[str]:
    """kb's own code, and the rules and texts."""
    place = located(options.rules)
    return [_PACKAGE, place.rules, place.i18n]
