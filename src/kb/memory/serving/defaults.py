"""An engine's options where nobody sets them: by release, GPU and entry point. The rows are ``rules/serving``."""

from collections.abc import Mapping
from typing import Any

from kb.core.release import parse_version
from kb.core.units import parse_bytes
from kb.memory.serving.setup import ServingSetup


def default_of(engine: Mapping[str, Any], option: str, setup: ServingSetup) -> Any:
    """The value of the first row that holds for this release, GPU and entry point; None where no row does."""
    rows = engine["options"].get(option, {}).get("defaults", ())
    return next((row["value"] for row in rows if _holds(row, setup)), None)


def _holds(row: Mapping[str, Any], setup: ServingSetup) -> bool:
    if "from" in row and setup.release < parse_version(row["from"]):
        return False
    if "below" in row and setup.release >= parse_version(row["below"]):
        return False
    if "memory_from" in row and setup.gpu_bytes < parse_bytes(row["memory_from"]):
        return False
    if "memory_below" in row and setup.gpu_bytes >= parse_bytes(row["memory_below"]):
        return False
    if any(setup.gpu_id.startswith(begin) for begin in row.get("except_gpus", ())):
        return False
    return "called" not in row or row["called"] == ("python" if setup.python else "server")
