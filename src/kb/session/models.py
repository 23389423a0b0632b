"""Models that a user names: a config.json by path, in a folder, in the hub's cache, or asked of the hub."""

import os
from collections.abc import Mapping

from kb import memory
from kb.advice.run.named_model import ModelIndex, unknown_model
from kb.advice.run.run_kind import weight_type
from kb.config.files import read_at_most
from kb.core.catalog import Catalog
from kb.core.model import Model, ModelIdentity
from kb.core.text import UserError
from kb.core.typed import Any
from kb.session.lookups import cached_config_of, folder_config, is_hub_name

TIMEOUT_SECONDS = 10.0
MAX_BYTES = 1 << 20


def fetch_config(name: str) -> str:
    """The path of the fetched file, in the Hugging Face cache.

    Raises:
        UserError: huggingface_hub is not installed, the hub cannot be reached or does not answer in time, or it has no
            such model, or not for this user.
    """
    if not is_hub_name(name):
        raise UserError("hub.not_a_name", name=name[:100])
    import logging

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
        packed=_packed(data.get("quantization_config")),
    )


def _packed(quantization: Any) -> str | None:
    """How a checkpoint is packed otherwise than bitsandbytes does, by its ``quantization_config``."""
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    return method if isinstance(method, str) and method not in ("", "bitsandbytes") else None


def read_config(path: str) -> dict[str, Any]:
    """What a ``config.json``, or that of a folder, says.

    Raises:
        UserError: the file is missing, or is no JSON object.
    """
    file = config_file(path)
    try:
        import json  # few runs need it

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
    return None if folder_config(name) is None else read_model_config(name)


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
        path = cached_config_of(name)
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
