"""Where the files of models lie: a local folder, and the hub's cache on disk. Nothing of them is read here."""

import os
import re
from collections.abc import Mapping

from kb.session.seen import Lookup, contents

_NAME = r"[\w][\w.-]*(/[\w][\w.-]*)?\Z"
MAX_CANDIDATES = 20  # revisions looked at where no branch says which is current


def is_hub_name(name: str) -> bool:
    """Whether a name can be one of the hub's: ``owner/model`` or ``model``."""
    return len(name) <= 96 and ".." not in name and re.match(_NAME, name) is not None


def hub_folder(environ: Mapping[str, str]) -> str:
    """Where huggingface_hub keeps what it fetched: HF_HUB_CACHE, else ``hub`` in HF_HOME, else in the user's cache."""
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return os.path.expanduser(named)
    home = environ.get("HF_HOME")
    if not home:
        base = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        home = os.path.join(base, "huggingface")
    return os.path.join(os.path.expanduser(home), "hub")


def cached_config(name: str, environ: Mapping[str, str]) -> str | None:
    """The path of a hub model's ``config.json`` in the cache; None where it holds none that can be read.

    The revision of ``main`` is taken; where no branch says which that is, the newest of those that are there.
    """
    if not is_hub_name(name):
        return None
    folder = os.path.join(hub_folder(environ), "models--" + name.replace("/", "--"))
    snapshots = os.path.join(folder, "snapshots")
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="ascii") as stream:
            revisions = [stream.read(200).strip()]
    except (OSError, ValueError):
        revisions = _newest_first(snapshots)
    for revision in revisions:
        path = os.path.join(snapshots, revision, "config.json")
        if revision and os.sep not in revision and ".." not in revision and os.path.isfile(path):
            return path
    return None


def folder_config(name: str) -> str | None:
    """The ``config.json`` of a model that is a local folder."""
    path = os.path.join(name, "config.json")
    return path if os.path.isfile(path) else None


def cached_config_of(name: str) -> str | None:
    """The ``config.json`` of a hub model in the Hugging Face cache."""
    return cached_config(name, os.environ)


# Where the files of models are looked up, for a stored result to be held against.
LOOKUPS: dict[str, Lookup] = {
    "folder": lambda name, _: contents(folder_config(name)),
    "hub": lambda name, _: contents(cached_config_of(name)),
}


def _newest_first(snapshots: str) -> list[str]:
    try:
        with os.scandir(snapshots) as entries:
            found = [(entry.stat().st_mtime, entry.name) for entry in entries if entry.is_dir()]
    except OSError:
        return []
    return [name for _, name in sorted(found, reverse=True)[:MAX_CANDIDATES]]
