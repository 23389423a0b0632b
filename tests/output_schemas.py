"""What commands print as JSON, held against the published schema of it."""

import json
from functools import cache
from typing import Any

import jsonschema

from packages import ROOT


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    """Found to be a schema once: of an estimate's that takes ten times as long as to hold an answer against it."""
    schema = json.loads((ROOT / "rules" / "schema" / "output" / f"{name}.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def answers_to(name: str, printed: Any) -> None:
    """What was printed is as ``rules/schema/output`` says of ``name``.

    Raises:
        ValidationError: it is not.
    """
    _validator(name).validate(printed)
