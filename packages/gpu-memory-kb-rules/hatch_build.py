"""A release of the rules alone: what kb's own build stages, as it is written, with the format that it has.

Its version is the format, the day and the minute of the commit: `1.20261122.930`.
"""

import json
import os
import shutil
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "src"))  # kb is not installed where this is built

from kb.knowledge.packed import SOURCES  # noqa: E402
from kb.knowledge.rules_release import ARCHIVE, FOLDER, FORMAT, MANIFEST  # noqa: E402

_spec = spec_from_file_location("kb_hatch_build", os.path.join(ROOT, "hatch_build.py"))
assert _spec is not None and _spec.loader is not None
whole = module_from_spec(_spec)
_spec.loader.exec_module(whole)

DAY, MINUTE = whole.released(ROOT)
VERSION = f"{FORMAT}.{DAY.replace('-', '')}.{int(MINUTE)}"


class RulesHook(BuildHookInterface):
    """Rules with faults are never released."""

    PLUGIN_NAME = "custom"
    staging: str | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.staging = tempfile.mkdtemp(prefix="kb-rules-")
        try:
            texts = whole.stage(ROOT, self.staging, DAY)[SOURCES]
            with open(os.path.join(self.staging, ARCHIVE), "wb") as archive:
                archive.write(whole.packed(texts))
            with open(os.path.join(self.staging, MANIFEST), "w", encoding="utf-8") as stream:
                json.dump({"format": FORMAT, "version": VERSION, "released": DAY}, stream)
        except BaseException:
            self.finalize(version, build_data, "")
            raise
        for name in (ARCHIVE, MANIFEST):
            build_data["force_include"][os.path.join(self.staging, name)] = f"{FOLDER}/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.staging:
            shutil.rmtree(self.staging, ignore_errors=True)
