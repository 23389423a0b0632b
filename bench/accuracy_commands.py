"""Commands that were measured (bench/gpu/trl_runs.py) beside what kb says of their files: reader and engine in one.

A row's command, config and releases are written to a folder as a project has them, and kb reads that.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from accuracy_rows import ROOT, Row

from kb.core.catalog import Catalog
from kb.memory import architecture_from_config
from kb.memory.engine.predict import record_runs
from kb.session.cli import question_of_nothing
from kb.session.estimating import estimate_file
from kb.session.prepare import file_checker
from kb.session.project import find_project


def measured_commands(catalog: Catalog) -> Iterator[tuple[Row, dict[str, int]]]:
    """Each row with kb's figures: the highest of all phases, as the row's are."""
    for path in sorted((ROOT / "rules" / "measurements").glob("*.yaml")):
        document = yaml.safe_load(path.read_text("utf-8"))
        if document["kind"] == "gpu" and "config" in document["rows"][0]:
            for number, row in enumerate(document["rows"]):
                yield _compared(document, number, row, catalog)
