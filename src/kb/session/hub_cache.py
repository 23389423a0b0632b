"""A model's ``config.json`` in the local Hugging Face cache, which is never written to."""

import os
import re
from collections.abc import Mapping

_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?\Z")
MAX_CANDIDATES = 20  # revisions looked at where no branch says which is current


def is_hub_name(name: str) -> bool:
    """Whether a name can be one of the hub's: ``owner/model`` or ``model``."""
    return len(name) <= 96 and ".." not in name and _NAME.match(name) is not None


def cache_folder(environ: Mapping[str, str]) -> str:
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
    folder = os.path.join(cache_folder(environ), "models--" + name.replace("/", "--"))
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


def _newest_first(snapshots: str) -> list[str]:
    try:
        with os.scandir(snapshots) as entries:
            found = [(entry.stat().st_mtime, entry.name) for entry in entries if entry.is_dir()]
    except OSError:
        return []
    return [name for _, name in sorted(found, reverse=True)[:MAX_CANDIDATES]]
