"""Results of earlier checks, by the content of what was checked; a cache that fails in any way is as good as empty."""

import json
import os
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kb import __version__
from kb.config.files import read_if_any

MAX_BYTES = 256 << 20  # of one kind
MAX_FILES = 256  # of a kind in one of its folders
RESULTS = "results"  # of checks, by file
PREDICTIONS = "predictions"
# The modules of core that the memory engine reads: what is said of a config changes more often than they do.
CORE_OF_THE_ENGINE = {
    "expression", "facts", "hardware", "memory_report", "model", "patterns", "record", "release", "setup", "text",
    "units",
}  # fmt: skip
_SHARD = 2  # digits of a key that name the folder of its file
_SUM = 4  # bytes of the check sum before a value
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What pip or uv wrote down of this package; there is none of a checkout, whose folder lies beside no such list.
_RECORD = os.path.join(os.path.dirname(_PACKAGE), f"gpu_memory_kb-{__version__}.dist-info", "RECORD")
_MOST_RECORDED = 4 << 20


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
            return json.loads(zlib.decompress(packed))
        except (OSError, ValueError, RecursionError, zlib.error):
            return None

    def put(self, rows: Iterable[tuple[bytes, Any]]) -> None:
        """Store values; each through a temporary file, so that nobody reads half of one."""
        for key, value in rows:
            path = self._path(key)
            temporary = f"{path}.{os.getpid()}.tmp"
            try:
                packed = zlib.compress(json.dumps(value).encode(), 1)
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
    kept, left, share = sum(size for _, size, _ in files), len(files), MAX_BYTES >> 4 * _SHARD
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
    """What the memory engine has found, by what it was asked and by its code.

    Args:
        folder: as of :class:`ResultCache`.
    """

    def __init__(self, folder: str) -> None:
        self._cache = ResultCache(folder, PREDICTIONS)
        self._of: bytes | None = None

    def get(self, question: str) -> Any:
        """The stored value; None where there is none."""
        return self._cache.get(_digest(self._code(), question))

    def put(self, question: str, value: Any) -> None:
        """Store a value."""
        self._cache.put([(_digest(self._code(), question), value)])

    def _code(self) -> bytes:
        """A digest of the engine."""
        if self._of is None:
            rows = _stamps(os.path.join(_PACKAGE, "core"))
            core = [row for row in rows if row[1:].partition(".py\0")[0] in CORE_OF_THE_ENGINE]
            self._of = context_of({"python": sys.version, "core": core}, [os.path.join(_PACKAGE, "memory")])
        return self._of


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
