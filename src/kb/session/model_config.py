"""A model from a ``config.json`` on disk: ``--model-config``, or a config whose model is a folder."""

import json
import os
from typing import Any

from kb.advice.weights import weight_type
from kb.config.files import read_at_most
from kb.core.model import Model
from kb.core.text import UserError
from kb.memory import UnsupportedArchitectureError, architecture_from_config, parameter_count

MAX_BYTES = 1 << 20


def read_model_config(path: str) -> Model:
    """The model that a ``config.json``, or the folder that holds one, describes.

    Raises:
        UserError: the file is missing, is no JSON, or describes an architecture without a closed form.
    """
    data = read_config(path)
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
