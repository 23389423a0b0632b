"""The sources of an installed kb: one compressed file in the package, unpacked where an entry is read as it is written.

Most commands read the bundle alone; eight hundred small files would be a third of the wheel.
"""

import json
import os
import time
from collections.abc import Mapping
from functools import cache

ARCHIVE = "sources.json.xz"  # in the folder that holds rules/ and i18n/ elsewhere
MARKED_SECONDS, UNUSED_SECONDS = 24 * 3600, 30 * 24 * 3600


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
    import lzma
    import shutil
    import tempfile

    with open(archive, "rb") as stream:
        packed = stream.read()
    kept = os.path.join(cache, f"sources-{hashlib.sha256(packed).hexdigest()[:16]}")
    if os.path.isdir(kept):
        _mark_used(kept)
        return kept
    try:
        texts = json.loads(lzma.decompress(packed))
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(str(error)) from None
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
