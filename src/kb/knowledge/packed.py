"""What an installed kb seldom reads: the parts of the bundle that no check needs, and the sources. One compressed file.

A part says much of what its sources say, so that one stream holds both in little more than the sources take. It is
unpacked as far as the part that is asked for. The sources, the last, become files where an entry is read as written;
eight hundred small files would be a third of the wheel.
"""

import json
import os
import time
from collections.abc import Mapping
from functools import cache
from itertools import accumulate

ARCHIVE = "packed.xz"  # in the folder that holds rules/ and i18n/ elsewhere
PARTS = ("cold.json", "guide.json", SOURCES := "sources.json")  # in this order, behind a line with their sizes
_LINE = 200  # bytes that hold the first line
MARKED_SECONDS, UNUSED_SECONDS = 24 * 3600, 30 * 24 * 3600


def part_of(packed: bytes, name: str) -> bytes:
    """One of :data:`PARTS`.

    Raises:
        ImportError: this Python has no lzma.
        ValueError: it is damaged.
    """
    import lzma

    try:
        if name == SOURCES:
            held = lzma.decompress(packed)  # all of it, with its checksum; the other parts have their own
        else:
            reader = lzma.LZMADecompressor()
            held = reader.decompress(packed, _LINE)
            held += reader.decompress(b"", sum(map(int, held.partition(b"\n")[0].split()[: PARTS.index(name) + 1])))
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(str(error)) from None
    sizes, _, body = held.partition(b"\n")
    ends = [0, *accumulate(map(int, sizes.split()))]
    at = PARTS.index(name)
    if len(ends) <= len(PARTS) or len(body) < ends[at + 1]:
        raise ValueError("it is cut off")
    return body[ends[at] : ends[at + 1]]


@cache
def unpacked(archive: str, cache: str) -> str:
    """The folder with the files of an archive: in ``cache``, or, where that cannot be written, a temporary one.

    Raises:
        ImportError: this Python has no lzma.
        OSError: the archive cannot be read, or nothing can be written.
        ValueError: the archive is damaged.
    """
    import atexit
    import hashlib
    import shutil
    import tempfile

    with open(archive, "rb") as stream:
        packed = stream.read()
    kept = os.path.join(cache, f"sources-{hashlib.sha256(packed).hexdigest()[:16]}")
    if os.path.isdir(kept):
        _mark_used(kept)
        return kept
    texts = json.loads(part_of(packed, SOURCES))
    made = ""
    try:
        os.makedirs(cache, exist_ok=True)
        made = tempfile.mkdtemp(prefix="sources-", suffix=".tmp", dir=cache)
        write_texts(texts, made)
        os.rename(made, kept)  # whole or not at all
        _tidy(cache, kept)
        return kept
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
    if os.path.isdir(kept):  # another run was faster
        return kept
    folder = tempfile.mkdtemp(prefix="kb-sources-")  # no cache can be written
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_texts(texts, folder)
    return folder


def _mark_used(folder: str) -> None:
    """Once a day at most: by its time a folder is known to be in use."""
    try:
        if time.time() - os.stat(folder).st_mtime > MARKED_SECONDS:
            os.utime(folder)
    except OSError:
        pass  # a cache that can only be read


def _tidy(cache: str, kept: str) -> None:
    """Remove what other versions of kb unpacked and no run has used for a month, and what a run that was ended left."""
    import shutil

    now = time.time()
    with os.scandir(cache) as entries:
        for entry in entries:
            spared = MARKED_SECONDS if entry.name.endswith(".tmp") else UNUSED_SECONDS
            if entry.name.startswith("sources-") and entry.path != kept and now - entry.stat().st_mtime > spared:
                shutil.rmtree(entry.path, ignore_errors=True)


def write_texts(texts: Mapping[str, str], folder: str) -> None:
    """Each text as the file that its name says, below a folder."""
    for name, text in texts.items():
        path = os.path.join(folder, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
