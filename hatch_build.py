"""The wheel's data: rules/ and i18n/ inside the package, with the bundle compiled from them.

An editable installation gets none of it: it reads both folders from the checkout.
"""

import os
import shutil
import sys
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KnowledgeHook(BuildHookInterface):
    """Compiles at build time, so that an installed kb compiles nothing and rules with faults are never shipped."""

    PLUGIN_NAME = "custom"
    staging: str | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self.staging = tempfile.mkdtemp(prefix="kb-data-")
        try:
            self._stage(self.staging)
        except BaseException:
            self.finalize(version, build_data, "")
            raise
        build_data["force_include"][self.staging] = "kb/_data"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.staging:
            shutil.rmtree(self.staging, ignore_errors=True)

    def _stage(self, folder: str) -> None:
        for name in ("rules", "i18n"):
            source, target = os.path.join(self.root, name), os.path.join(folder, name)
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*"))
        self._compile(folder)

    def _compile(self, folder: str) -> None:
        # The package that is being built is not installed where it is built.
        sys.path.insert(0, os.path.join(self.root, "src"))
        try:
            from kb.knowledge import KnowledgeError
            from kb.knowledge.bundle import STAMP, build
            from kb.knowledge.locations import Location

            location = Location(os.path.join(folder, "rules"), os.path.join(folder, "i18n"), True)
            try:
                build(location)
            except KnowledgeError as error:
                lines = (str(problem).replace(folder + os.sep, "") for problem in error.problems)
                raise SystemExit("\n".join([*lines, "the rules have faults: nothing was built"])) from None
            # It says whether sources on disk changed since; an installed package's do not, and its times differ.
            os.remove(os.path.join(location.bundle, STAMP))
        finally:
            sys.path.remove(os.path.join(self.root, "src"))
