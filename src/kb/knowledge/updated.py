"""Which rules `kb rules update` put in the place of the shipped ones, for this release of kb.

A record of one line names the folder: it is replaced in one step, so that a run reads the old rules or the new ones.
Each release of kb has its own, since rules are checked by the kb that reads them: an upgraded kb runs what it ships.
"""

import json
import os
import sys

from kb import __version__
from kb.core.record import NamedTuple


class Update(NamedTuple):
    """``folder`` holds ``rules/`` and ``i18n/``, compiled; ``release`` is the package's, ``version`` the rules'."""

    folder: str
    release: str
    version: str
    sha256: str
    source: str


def updates_folder() -> str:
    """Where the platform keeps a user's data, which no program makes again: ``…/kb/rules``."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser(r"~\AppData\Local")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Application Support")
    else:
        base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.path.join(base, "kb", "rules")


def record_path() -> str:
    return os.path.join(updates_folder(), f"current-{__version__}.json")


def updated() -> Update | None:
    """The update that counts for this kb; None where there is none, or none that is whole."""
    try:
        with open(record_path(), encoding="utf-8") as stream:
            found = Update(**json.load(stream))
    except (OSError, ValueError, TypeError):
        return None
    folder = os.path.join(updates_folder(), os.path.basename(found.folder))
    return found._replace(folder=folder) if os.path.isdir(os.path.join(folder, "rules")) else None
