"""Results of earlier checks, by the content of what was checked; a cache that fails in any way is as good as empty."""

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kb import __version__
from kb.config.files import read_if_any

MAX_BYTES = 256 << 20
_SCHEMA = "CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, value BLOB, check_sum INTEGER) WITHOUT ROWID"
FILE = "results-1.sqlite"  # of checks
PREDICTIONS = "predictions-1.sqlite"
TIMEOUT_SECONDS = 1.0
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What pip or uv wrote down of this package; there is none of a checkout, whose folder lies beside no such list.
_RECORD = os.path.join(os.path.dirname(_PACKAGE), f"gpu_memory_kb-{__version__}.dist-info", "RECORD")
_MOST_RECORDED = 4 << 20


class ResultCache:
    """A table on disk from keys to JSON values. Several processes may use it at once; it never raises. One that has
    grown too large is begun anew when it is opened.

    Args:
        folder: where it lies; made when the first result is stored.
        file: its name there.
    """

    def __init__(self, folder: str, file: str = FILE) -> None:
        self._path = os.path.join(folder, file)
        self._table: Any = None
        self._broken = False

    def get(self, key: bytes) -> Any:
        """The stored value; None where there is none, or none that is whole."""
        import sqlite3
        import zlib

        if not self._open(create=False):
            return None
        try:
            row = self._table.execute("SELECT value, check_sum FROM results WHERE key = ?", (key,)).fetchone()
            if row is None or not isinstance(row[0], bytes) or zlib.crc32(row[0], zlib.crc32(key)) != row[1]:
                return None
            return json.loads(zlib.decompress(row[0]))
        except sqlite3.DatabaseError as error:
            self._fail(error)
        except (ValueError, zlib.error):
            pass
        return None

    def put(self, rows: Iterable[tuple[bytes, Any]]) -> None:
        """Store values, all in one go."""
        import sqlite3
        import zlib

        packed = [(key, zlib.compress(json.dumps(value).encode(), 1)) for key, value in rows]
        if not packed or not self._open(create=True):
            return
        try:
            with self._table:
                self._table.executemany(
                    "INSERT OR REPLACE INTO results VALUES (?, ?, ?)",
                    [(key, value, zlib.crc32(value, zlib.crc32(key))) for key, value in packed],
                )
        except sqlite3.DatabaseError as error:
            self._fail(error)

    def close(self) -> None:
        """Let go of the file."""
        if self._table is not None:
            self._table.close()
            self._table = None

    def _open(self, *, create: bool) -> bool:
        import sqlite3

        if self._table is not None or self._broken:
            return self._table is not None
        try:
            if not os.path.exists(self._path):
                if not create:
                    return False
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
            elif os.path.getsize(self._path) > MAX_BYTES:
                os.remove(self._path)
            self._table = sqlite3.connect(self._path, timeout=TIMEOUT_SECONDS)
            self._table.execute("PRAGMA synchronous = OFF")  # what a power cut loses is computed again
            self._table.execute(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            self._fail(error)
        return self._table is not None

    def _fail(self, error: Exception) -> None:
        """Go on without; what is no database is removed, so that the next run starts afresh."""
        import sqlite3

        self._broken = True
        if self._table is not None:
            self._table.close()
            self._table = None
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            with contextlib.suppress(OSError):
                os.remove(self._path)


class Predictions:
    """What the memory engine has found, by what it was asked and by its code; opened when it is first asked for.

    Args:
        folder: as of :class:`ResultCache`.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._opened: tuple[int, bytes, ResultCache | None] | None = None

    def get(self, question: str) -> Any:
        """The stored value; None where there is none."""
        code, table = self._open()
        return None if table is None else table.get(_digest(code, question))

    def put(self, question: str, value: Any) -> None:
        """Store a value."""
        code, table = self._open()
        if table is not None:
            table.put([(_digest(code, question), value)])

    def _open(self) -> tuple[bytes, ResultCache | None]:
        """A digest of the engine, and the table: none where Python has no SQLite. A process that was forked opens it
        anew."""
        if self._opened is None or self._opened[0] != os.getpid():
            package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
            code = context_of({"python": sys.version}, [os.path.join(package, room) for room in ("core", "memory")])
            try:
                import sqlite3  # noqa: F401 (which a browser's Python lacks)
            except ImportError:
                self._opened = os.getpid(), code, None
            else:
                self._opened = os.getpid(), code, ResultCache(self._folder, PREDICTIONS)
        return self._opened[1:]


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
