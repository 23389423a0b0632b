"""The wheel's data: rules/ and i18n/ packed into one file, with the bundle compiled from them; the manual pages.

An editable installation gets none of it: it reads both folders from the checkout.
"""

import datetime
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MANUALS = "man"
ARCHIVE = "sources.json.xz"  # as kb.knowledge.packed reads it
PROJECT = "rules/schema/project.json"  # each start in a project with a kb.toml reads it
OF_THE_GUIDE = (".*", "site.yaml", "glossary.yaml")  # made from a checkout alone


def stage(root: str, folder: str, day: str) -> None:
    """Put the rules and texts of a checkout into a folder, compiled, and packed into one file.

    The same files make the same bytes. Rules with faults end the build, each told with its place.
    """
    from kb.knowledge import KnowledgeError
    from kb.knowledge.bundle import build
    from kb.knowledge.locations import Location, files_under
    from kb.knowledge.readings import FILE

    for name in ("rules", "i18n"):
        ignored = shutil.ignore_patterns(*OF_THE_GUIDE)
        shutil.copytree(os.path.join(root, name), os.path.join(folder, name), ignore=ignored)
    location = Location(os.path.join(folder, "rules"), os.path.join(folder, "i18n"), True)
    try:
        build(location, released=day)
    except KnowledgeError as error:
        lines = (str(problem).replace(folder + os.sep, "") for problem in error.problems)
        raise SystemExit("\n".join([*lines, "the rules have faults: nothing was built"])) from None
    os.remove(os.path.join(location.bundle, FILE))  # what was read of each: an installed package's do not change
    texts: dict[str, str] = {}
    for name in files_under(folder):
        with open(os.path.join(folder, name), encoding="utf-8", newline="") as stream:
            texts[name] = stream.read()
    packed = lzma.compress(json.dumps(texts, ensure_ascii=False).encode(), preset=9 | lzma.PRESET_EXTREME)
    with open(os.path.join(folder, ARCHIVE), "wb") as archive:
        archive.write(packed)


def released(root: str) -> tuple[str, str]:
    """The day and the minute of the release, UTC: those of ``SOURCE_DATE_EPOCH`` or of the last commit, else of now."""
    moment = datetime.datetime.now(datetime.UTC)
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None and os.path.exists(os.path.join(root, ".git")):
        command = ["git", "log", "-1", "--format=%ct"]
        epoch = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=60, check=False
        ).stdout.strip()
    if epoch:
        moment = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
    return moment.date().isoformat(), f"{moment:%H%M}"


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
        build_data["force_include"][os.path.join(self.staging, "rules", ".bundle")] = "kb/_data/rules/.bundle"
        for name in (PROJECT, ARCHIVE):
            build_data["force_include"][os.path.join(self.staging, name)] = f"kb/_data/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.staging:
            shutil.rmtree(self.staging, ignore_errors=True)

    def _stage(self, folder: str) -> None:
        day = released(self.root)[0]
        # The package that is being built is not installed where it is built.
        sys.path.insert(0, os.path.join(self.root, "src"))
        try:
            stage(self.root, folder, day)
            self._write_manuals(folder)
        finally:
            sys.path.remove(os.path.join(self.root, "src"))

    def _write_manuals(self, folder: str) -> None:
        from kb.commands.manual import manual_page
        from kb.knowledge import load_words_alone

        for language in ("ko", "en"):
            path = os.path.join(folder, MANUALS, language, "kb.1")
            os.makedirs(os.path.dirname(path))
            with open(path, "w", encoding="utf-8") as page:
                page.write(manual_page(load_words_alone(language)))
