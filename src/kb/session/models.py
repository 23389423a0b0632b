"""Models that a user names: a config.json by path, in a folder, in the hub's cache, or asked of the hub."""

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from kb import memory
from kb.advice.models import ModelIndex, unknown_model
from kb.advice.run_kind import weight_type
from kb.config.files import read_at_most
from kb.core.catalog import Catalog
from kb.core.model import Model, ModelIdentity
from kb.core.text import UserError
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


TIMEOUT_SECONDS = 10.0


def fetch_config(name: str) -> str:
    """The path of the fetched file, in the Hugging Face cache.

    Raises:
        UserError: huggingface_hub is not installed, the hub cannot be reached or does not answer in time, or it has no
            such model, or not for this user.
    """
    if not is_hub_name(name):
        raise UserError("hub.not_a_name", name=name[:100])
    import logging
    import os

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read when it is imported
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors

    except ImportError:
        raise UserError("hub.not_installed") from None
    if constants.HF_HUB_OFFLINE:
        raise UserError("hub.switched_off", name=name)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if not _answers(constants.ENDPOINT):
        raise UserError("hub.unreachable", name=name, endpoint=constants.ENDPOINT)
    try:
        return str(huggingface_hub.hf_hub_download(name, "config.json", etag_timeout=TIMEOUT_SECONDS))
    except errors.GatedRepoError:
        raise UserError("hub.gated", name=name) from None
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError) as error:
        # the last is raised too where the hub cannot be asked and the cache has nothing
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise UserError("hub.unreachable", name=name, endpoint=constants.ENDPOINT) from None
        raise UserError("hub.no_such_model", name=name, endpoint=constants.ENDPOINT) from None
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise UserError("hub.failed", name=name, endpoint=constants.ENDPOINT, reason=reason) from None


def _answers(endpoint: str) -> bool:
    """Whether anything answers there: huggingface_hub itself would try six times, for half a minute."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(endpoint, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False


MAX_BYTES = 1 << 20


def read_model_config(path: str) -> Model:
    """The model that a ``config.json``, or the folder that holds one, describes.

    Raises:
        UserError: the file is missing, is no JSON, or describes an architecture that kb does not know.
    """
    return model_of_config(read_config(path), path)


def model_of_config(data: Mapping[str, Any], path: str) -> Model:
    """The model that the contents of a ``config.json`` describe; ``path`` names it.

    Raises:
        UserError: its architecture is not known, or a field cannot be used.
    """
    try:
        architecture = memory.architecture_from_config(data)
    except memory.UnsupportedArchitectureError as error:
        key = f"model_config.{error.fault or 'unsupported'}"
        raise UserError(key, path=config_file(path), reason=str(error), **error.values) from None
    return Model(
        id=path,
        name=path,
        architecture=architecture,
        parameters=memory.parameter_count(architecture),
        weights_dtype=weight_type(data.get("dtype") or data.get("torch_dtype")),
    )


def read_config(path: str) -> dict[str, Any]:
    """What a ``config.json``, or that of a folder, says.

    Raises:
        UserError: the file is missing, or is no JSON object.
    """
    file = config_file(path)
    try:
        data = json.loads(read_at_most(file, MAX_BYTES).decode("utf-8"))
    except OSError as error:
        raise UserError("model_config.unreadable", path=file, reason=error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        raise UserError("model_config.not_json", path=file, reason=str(error)) from None
    if not isinstance(data, dict):
        raise UserError("model_config.not_json", path=file, reason="{…}")
    return data


def config_file(path: str) -> str:
    """The file itself, of a file or of the folder that holds it."""
    return os.path.join(path, "config.json") if os.path.isdir(path) else path


def model_in_folder(name: str) -> Model | None:
    """The model of a local folder that a config names; None where there is no such folder.

    Raises:
        UserError: its ``config.json`` cannot be used.
    """
    return read_model_config(name) if os.path.isfile(os.path.join(name, "config.json")) else None


def identity_of_config(data: Mapping[str, Any]) -> ModelIdentity | None:
    """What the contents of a ``config.json`` say of any model; None where they name no type."""
    model_type, kind, size = (data.get(name) for name in ("model_type", "is_encoder_decoder", "vocab_size"))
    if not isinstance(model_type, str) or not model_type:
        return None
    return ModelIdentity(
        model_type=model_type[:100],
        is_encoder_decoder=kind if isinstance(kind, bool) else None,
        vocabulary_size=size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None,
    )


def identity_on_disk(name: str) -> ModelIdentity | None:
    """What the ``config.json`` of a local folder, or of a hub model in the Hugging Face cache, says of the model."""
    path = folder_config(name) or cached_config_of(name)
    try:
        return identity_of_config(read_config(path)) if path is not None else None
    except UserError:
        return None  # why it cannot be read is said where the model is looked up


class HubModels:
    """Looks each name up once.

    ``online``: ask the hub for what neither catalogue nor cache has. ``faults``: why it could not be had, by name.
    """

    def __init__(self, *, online: bool = False) -> None:
        self._online = online
        self._known: dict[str, Model | None] = {}
        self.faults: dict[str, UserError] = {}

    def __call__(self, name: str) -> Model | None:
        """The model of that name; None where there is none to be had, or its architecture is not known."""
        if name not in self._known:
            self._known[name] = self._look_up(name)
        return self._known[name]

    def _look_up(self, name: str) -> Model | None:

        path = cached_config(name, os.environ)
        try:
            if path is None and self._online:
                path = fetch_config(name)
            return None if path is None else read_model_config(path)._replace(id=name, name=name)
        except UserError as fault:
            # a damaged cache is as good as none; what the user asked the hub for is said
            if self._online:
                self.faults[name] = fault
            return None


def named_model(name: str, catalog: Catalog) -> Model:
    """The catalogued model, that of a local folder, or that of the local Hugging Face cache. Nothing is guessed.

    Raises:
        UserError: there is none of the name; the nearest are suggested.
    """
    model = model_in_folder(name) or ModelIndex(catalog.models, catalog.called).resolve(name) or HubModels()(name)
    if model is not None:
        return model
    raise unknown_model(name, catalog)
