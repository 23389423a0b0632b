"""A model by its hub name: from the Hugging Face cache on this machine, or, where asked for, from the hub."""

import os

from kb.core.model import Model
from kb.core.text import UserError
from kb.session.model_config import read_model_config


class HubModels:
    """Looks each name up once.

    ``online``: ask the hub for what neither catalogue nor cache has. ``faults``: why it could not be had, by name.
    """

    def __init__(self, *, online: bool = False) -> None:
        self._online = online
        self._known: dict[str, Model | None] = {}
        self.faults: dict[str, UserError] = {}

    def __call__(self, name: str) -> Model | None:
        """The model of that name; None where there is none to be had, or its architecture has no closed form."""
        if name not in self._known:
            self._known[name] = self._look_up(name)
        return self._known[name]

    def _look_up(self, name: str) -> Model | None:
        from kb.session.hub_cache import cached_config

        path = cached_config(name, os.environ)
        try:
            if path is None and self._online:
                from kb.session.hub_online import fetch_config

                path = fetch_config(name)
            return None if path is None else read_model_config(path)._replace(id=name, name=name)
        except UserError as fault:
            # a damaged cache is as good as none; what the user asked the hub for is said
            if self._online:
                self.faults[name] = fault
            return None
