"""A model from a ``config.json`` on disk: ``--model-config``, or a config whose model is a folder."""

import json
import os
from collections.abc import Mapping
from typing import Any

from kb.advice.weights import weight_type
from kb.config.files import read_at_most
from kb.core.model import Model, ModelIdentity
from kb.core.text import UserError
from kb.memory import UnsupportedArchitectureError, architecture_from_config, parameter_count
from kb.session.seen import cached_config_of, folder_config

MAX_BYTES = 1 << 20


def read_model_config(path: str) -> Model:
    """The model that a ``config.json``, or the folder that holds one, describes.

    Raises:
        UserError: the file is missing, is no JSON, or describes an architecture without a closed form.
    """
    return model_of_config(read_config(path), path)


def model_of_config(data: Mapping[str, Any], path: str) -> Model:
    """The model that the contents of a ``config.json`` describe; ``path`` names it.

    Raises:
        UserError: its architecture has no closed form, or a field cannot be used.
    """
    try:
        architecture = architecture_from_config(data)
    except UnsupportedArchitectureError as error:
        key = f"model_config.{error.fault or 'unsupported'}"
        raise UserError(key, path=config_file(path), reason=str(error), **error.values) from None
    return Model(
        id=path,
        name=path,
        architecture=architecture,
        parameters=parameter_count(architecture),
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
