"""This repository's own YAML, read fast: `yaml.safe_load` is ten times slower, and the tests read megabytes."""

from pathlib import Path
from typing import Any

import yaml

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path | str) -> Any:
    """What one file holds."""
    return yaml.load(Path(path).read_text("utf-8"), LOADER)
