"""The wheel's data: rules/ and i18n/ inside the package, with the bundle compiled from them; the manual pages.

An editable installation gets none of it: it reads both folders from the checkout.
"""

import datetime
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MANUALS = "man"


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
        pages = os.path.join(self.staging, MANUALS)
        for path, place in (("ko/kb.1", "share/man/ko/man1/kb.1"), ("en/kb.1", "share/man/man1/kb.1")):
            build_data["shared_data"][os.path.join(pages, path)] = place
        for name in ("rules", "i18n"):
            build_data["force_include"][os.path.join(self.staging, name)] = f"kb/_data/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.staging:
            shutil.rmtree(self.staging, ignore_errors=True)

    def _stage(self, folder: str) -> None:
        for name in ("rules", "i18n"):
            source, target = os.path.join(self.root, name), os.path.join(folder, name)
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*"))
        # The package that is being built is not installed where it is built.
        sys.path.insert(0, os.path.join(self.root, "src"))
        try:
            self._compile(folder)
            self._write_manuals(folder)
        finally:
            sys.path.remove(os.path.join(self.root, "src"))

    def _compile(self, folder: str) -> None:
        from kb.knowledge import KnowledgeError
        from kb.knowledge.bundle import STAMP, build
        from kb.knowledge.locations import Location
        from kb.knowledge.readings import FILE

        location = Location(os.path.join(folder, "rules"), os.path.join(folder, "i18n"), True)
        try:
            build(location, released=self._day())
        except KnowledgeError as error:
            lines = (str(problem).replace(folder + os.sep, "") for problem in error.problems)
            raise SystemExit("\n".join([*lines, "the rules have faults: nothing was built"])) from None
        # They say whether sources on disk changed since, and what was read of each; an installed package's do not.
        for name in (STAMP, FILE):
            os.remove(os.path.join(location.bundle, name))

    def _day(self) -> str:
        """The day of the release: that of ``SOURCE_DATE_EPOCH`` or of the last commit, else today."""
        day = datetime.datetime.now(datetime.UTC).date()
        if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
            day = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).date()
        elif os.path.exists(os.path.join(self.root, ".git")):
            command = ["git", "log", "-1", "--format=%cs"]
            run = subprocess.run(command, cwd=self.root, capture_output=True, text=True, timeout=60, check=False)
            return run.stdout.strip() or day.isoformat()
        return day.isoformat()

    def _write_manuals(self, folder: str) -> None:
        from kb.commands.manual import manual_page
        from kb.knowledge import load_words_alone

        for language in ("ko", "en"):
            path = os.path.join(folder, MANUALS, language, "kb.1")
            os.makedirs(os.path.dirname(path))
            with open(path, "w", encoding="utf-8") as page:
                page.write(manual_page(load_words_alone(language)))
