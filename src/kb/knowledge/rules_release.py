"""A release of the rules by themselves: a wheel that holds them as they are written, read, compiled and put in place.

The rules are compiled by the kb that will read them, so that a fault, or a name that this kb asks for and they lack, is
found before anything is changed.
"""

import base64
import hashlib
import json
import lzma
import os
import re
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import yaml

from kb import __version__
from kb.core.record import NamedTuple
from kb.core.text import LANGUAGES, UserError
from kb.knowledge.bundle import load_part, write_part, write_text
from kb.knowledge.catalog import load_words_alone
from kb.knowledge.compile import compile_knowledge
from kb.knowledge.locations import Location, Update, record_path, shipped, updated, updates_folder
from kb.knowledge.packed import write_texts
from kb.knowledge.problems import KnowledgeError
from kb.knowledge.readings import FILE

# What this kb can read of rules/. Raised where rules say something that an older kb would take for something else, or
# would pass over: the first number of a release is its format.
FORMAT = 1
PACKAGE = "gpu-memory-kb-rules"
FOLDER = PACKAGE.replace("-", "_")  # in the wheel
ARCHIVE = "sources.json.xz"
MANIFEST = "release.json"
LARGEST_BYTES = 64 << 20  # of all texts: today 5 MB
SPARED_SECONDS = 24 * 3600  # a run that began before may still read what nothing names any more

# The texts of both languages are read and written ten times faster so.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_NO_PART = re.compile(r"[\\:\x00]")  # of a path: a folder, or a drive, under Windows
# What a damaged archive can end in, whichever of its bytes it is.
_DAMAGE = (
    OSError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, ValueError, LookupError, TypeError, RuntimeError,
)  # fmt: skip


class Release(NamedTuple):
    """``texts`` by path (``rules/…``, ``i18n/…``); ``released`` is the day, ISO 8601."""

    version: str
    released: str
    texts: Mapping[str, str]
    sha256: str


def sha256_of(path: str) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_release(path: str) -> Release:
    """The release in a wheel, each file of it held against the wheel's own list of hashes.

    Raises:
        UserError: it is no such wheel, is damaged, or is of another format than this kb reads.
    """
    name = os.path.basename(path)
    try:
        with zipfile.ZipFile(path) as wheel:
            hashes = _hashes(wheel)
            manifest = json.loads(_member(wheel, hashes, MANIFEST))
            if manifest["format"] != FORMAT:
                key = "rules.update_newer" if manifest["format"] > FORMAT else "rules.update_older_format"
                values = {"name": name, "format": manifest["format"], "own": FORMAT}
                raise UserError(key, **values, kb=__version__, package=PACKAGE)
            texts = _texts(_member(wheel, hashes, ARCHIVE))
        return Release(str(manifest["version"]), str(manifest["released"]), texts, sha256_of(path))
    except _DAMAGE as error:
        if isinstance(error, UserError):
            raise
        raise UserError("rules.update_damaged", name=name, reason=str(error) or type(error).__name__) from None


def _hashes(wheel: zipfile.ZipFile) -> dict[str, str]:
    names = (name for name in wheel.namelist() if name.endswith(".dist-info/RECORD") and name.count("/") == 1)
    record = next(names, None)
    if record is None:
        raise ValueError("there is no RECORD in it")
    rows = (line.split(",") for line in wheel.read(record).decode().splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 3}


def _member(wheel: zipfile.ZipFile, hashes: Mapping[str, str], name: str) -> bytes:
    path = f"{FOLDER}/{name}"
    if path not in hashes:
        raise ValueError(f"there is no {path} in it")
    if wheel.getinfo(path).file_size > LARGEST_BYTES:
        raise ValueError(f"{path} is longer than {LARGEST_BYTES} bytes")
    data = wheel.read(path)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    if hashes[path] != f"sha256={digest}":
        raise ValueError(f"{path} has not the hash that the wheel's RECORD gives")
    return data


def _texts(packed: bytes) -> dict[str, str]:
    reader = lzma.LZMADecompressor()
    data = reader.decompress(packed, LARGEST_BYTES)
    if not reader.eof:
        raise ValueError(f"{ARCHIVE} is cut off, or longer than {LARGEST_BYTES} bytes")
    texts: dict[str, str] = json.loads(data)
    if not isinstance(texts, dict) or not all(isinstance(each, str) for each in texts.values()):
        raise ValueError(f"{ARCHIVE} does not hold texts by name")
    for name in texts:
        parts = name.split("/")
        astray = any(part in ("", ".", "..") or _NO_PART.search(part) for part in parts)
        if parts[0] not in ("rules", "i18n") or astray:
            raise ValueError(f"{name!r} does not lie in rules/ or i18n/")
    return texts


def lay(release: Release, source: str, running: str) -> Update | None:
    """Compile a release and let it count from the next start on. Until the last step everything is as it was.

    Args:
        source: where it came from, as it is told.
        running: the version of the rules that count; where the release holds the same, nothing changes: None.

    Raises:
        UserError: its rules cannot be used by this kb, or nothing can be written.
    """
    name = f"{release.sha256[:16]}-{__version__}"
    before = updated()
    try:
        os.makedirs(updates_folder(), exist_ok=True)
        folder = os.path.join(updates_folder(), name)
        version = _version_of(folder) or _made(release, folder)
        if version == running:
            return None
        update = Update(name, release.version, version, release.sha256, source)
        write_text(record_path(), json.dumps(update._asdict(), ensure_ascii=False))
        if before is not None and os.path.basename(before.folder) != name:
            os.utime(before.folder)  # from now on it is spared for a while
        _tidy()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError("rules.update_unwritable", path=updates_folder(), reason=reason) from None
    return update._replace(folder=folder)


def forget() -> Update | None:
    """Let the shipped rules count again; what counted until now.

    Raises:
        UserError: the record cannot be removed.
    """
    before = updated()
    try:
        if before is not None:
            os.utime(before.folder)
        os.remove(record_path())
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError("rules.update_unwritable", path=record_path(), reason=error.strerror) from None
    return before


def _version_of(folder: str) -> str | None:
    """The version of rules that lie there already, whole."""
    if not os.path.isdir(folder):
        return None
    version: str = load_part(Location(os.path.join(folder, "rules"), os.path.join(folder, "i18n"), True), "hot")[
        "version"
    ]
    return version


def _made(release: Release, folder: str) -> str:
    staging = tempfile.mkdtemp(prefix=".new-", dir=updates_folder())
    try:
        version = _compiled(release, staging)
        os.chmod(staging, 0o755)
        os.rename(staging, folder)  # whole or not at all
        return version
    except OSError:
        made = _version_of(folder)  # another run was faster
        if made is None:
            raise
        return made
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _compiled(release: Release, folder: str) -> str:
    write_texts(release.texts, folder)
    location = Location(os.path.join(folder, "rules"), os.path.join(folder, "i18n"), True)
    for language in LANGUAGES:  # the program's own sentences go with its code; what the rules need beside them is added
        path = os.path.join(location.i18n, f"{language}.yaml")
        with open(path, encoding="utf-8") as stream:
            texts = {**yaml.load(stream, _LOADER), **load_words_alone(language)}
        with open(path, "w", encoding="utf-8") as stream:
            yaml.dump(texts, stream, _DUMPER, allow_unicode=True, width=1 << 20)
    try:
        parts = compile_knowledge(location, released=release.released)
    except KnowledgeError as error:
        first = str(error.problems[0]).replace(folder + os.sep, "")
        raise UserError(
            "rules.update_faulty", release=release.version, count=len(error.problems), first=first
        ) from None
    _refuse_lost(release, parts)
    os.makedirs(location.bundle, exist_ok=True)
    for name, data in parts.items():
        write_part(location, name, data)
    kept = os.path.join(location.bundle, FILE)
    if os.path.exists(kept):
        os.remove(kept)  # what was read of each: these files do not change
    version: str = parts["hot"]["version"]
    return version


def _refuse_lost(release: Release, parts: Mapping[str, Any]) -> None:
    """The code asks for facts and figures by name: of those that came with it none may be missing."""
    own, found = load_part(shipped(), "hot"), parts["hot"]
    lost = [name for kind in ("facts", "constants", "events") for name in own[kind] if name not in found[kind]]
    if lost:
        raise UserError("rules.update_lacks", release=release.version, names=lost[:5], kb=__version__)


def _tidy() -> None:
    """Remove what no record names and no run can be reading: earlier updates, and what an interrupted one left."""
    named = set()
    with os.scandir(updates_folder()) as entries:
        found = list(entries)
    for entry in found:
        if entry.name.startswith("current-") and entry.name.endswith(".json"):
            try:
                with open(entry.path, encoding="utf-8") as stream:
                    named.add(json.load(stream)["folder"])
            except (OSError, ValueError, LookupError, TypeError):
                return  # what it names is not known: nothing is removed
    for entry in found:
        if entry.is_dir() and entry.name not in named and time.time() - entry.stat().st_mtime > SPARED_SECONDS:
            shutil.rmtree(entry.path, ignore_errors=True)
