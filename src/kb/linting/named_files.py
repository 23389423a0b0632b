"""The files that configs name, on disk: looked for beside the config, then in each folder above it."""

import os

from kb.config.files import read_if_any
from kb.config.text.encoding import decode
from kb.config.text.guard import MAX_BYTES

SUFFIXES = (".json", ".yaml", ".yml")
MAX_FOLDERS = 8  # how far up a project's top may lie; runs are started there, and paths are relative to it


def read_named(path: str, named: str) -> str | None:
    """The text of the file that the config at ``path`` names; None where there is none, or none that can be read."""
    if not named.endswith(SUFFIXES):
        return None
    named = os.path.expanduser(named)
    folder = os.path.dirname(os.path.abspath(path))
    for _ in range(MAX_FOLDERS):
        text = _text(os.path.join(folder, named))
        parent = os.path.dirname(folder)
        if text is not None or parent == folder or os.path.isabs(named):
            return text
        folder = parent
    return None


def _text(path: str) -> str | None:
    raw = read_if_any(path, MAX_BYTES)
    return None if raw is None else decode(raw).text
