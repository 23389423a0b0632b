"""The model that a command line names: a row of ``rules/models``, a local folder, or one of the Hugging Face cache."""

from kb.advice.models import ModelIndex, unknown_model
from kb.core.catalog import Catalog
from kb.core.model import Model
from kb.session.hub_model import HubModels
from kb.session.model_config import model_in_folder


def named_model(name: str, catalog: Catalog) -> Model:
    """The catalogued model, that of a local folder, or that of the local Hugging Face cache. Nothing is guessed.

    Raises:
        UserError: there is none of the name; the nearest are suggested.
    """
    model = model_in_folder(name) or ModelIndex(catalog.models).resolve(name) or HubModels()(name)
    if model is not None:
        return model
    raise unknown_model(name, catalog)
