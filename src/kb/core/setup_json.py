"""A setup as JSON holds it, in trials, jobs of the simulator and measured rows: the fields that differ from the
defaults, tuples as lists."""

from collections.abc import Mapping
from typing import Any

from kb.core.setup import Images, TrainingSetup

# Fields that say nothing of what is run.
UNTOLD = ("assumed", "unmodelled", "unresolved", "spread")


def setup_json(setup: TrainingSetup) -> dict[str, Any]:
    """The settings that differ from the defaults."""
    plain = TrainingSetup()._asdict()
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in setup._asdict().items()
        if name not in UNTOLD and value != plain[name]
    }


def setup_from(given: Mapping[str, Any]) -> TrainingSetup:
    """The setup of these fields, the rest at its defaults.

    Raises:
        ValueError: a name is no field's.
    """
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    if fields.get("images"):
        fields["images"] = Images(*fields["images"])
    setup: TrainingSetup = TrainingSetup()._replace(**fields)
    return setup
