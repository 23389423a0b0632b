"""The sources of an installed kb: one compressed file in the package, unpacked where an entry is read as it is written.

Most commands read the bundle alone; eight hundred small files would be a third of the wheel.
"""

import json
import os
from collections.abc import Mapping
from functools import cache

ARCHIVE = "sources.json.xz"  # in the folder that holds rules/ and i18n/ elsewhere


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
        return kept
    try:
        texts = json.loads(lzma.decompress(packed))
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(str(error)) from None
    made = ""
    try:
        os.makedirs(cache, exist_ok=True)
        made = tempfile.mkdtemp(prefix="sources-", suffix=".tmp", dir=cache)
        _write(texts, made)
        os.rename(made, kept)  # whole or not at all
        return kept
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
    if os.path.isdir(kept):  # another run was faster
        return kept
    folder = tempfile.mkdtemp(prefix="kb-sources-")  # no cache can be written
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _write(texts, folder)
    return folder


def _write(texts: Mapping[str, str], folder: str) -> None:
    for name, text in texts.items():
        path = os.path.join(folder, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
