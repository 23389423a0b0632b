"""The wheel's data: rules/ and i18n/ packed into one file, with the bundle compiled from them; the manual pages.

An editable installation gets none of it: it reads both folders from the checkout.

``KB_PROJECT_URL``, the repository's address, is the one variable that everything public is made from: the project's
URLs, the README's links as an index shows them, and the pages that findings name. Where it is empty, nobody has said
where this is published, and nothing is said of it.
"""

import datetime
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any
from urllib.parse import urlsplit

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

MANUALS = "man"
ARCHIVE = "packed.xz"  # as kb.knowledge.packed reads it
PROJECT = "rules/schema/project.json"  # each start in a project with a kb.toml reads it
SITE = "site_url"  # as kb.knowledge.locations reads it
# What only a checkout needs: what the guide is made from, and the schemas of reports (rules/schema/output).
OF_THE_CHECKOUT = (".*", "site.yaml", "glossary.yaml", "output")


PROJECT_URL = "KB_PROJECT_URL"
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def project_url() -> str:
    """The repository's address without ``/`` at the end; empty where nobody says it."""
    said = os.environ.get(PROJECT_URL, "").strip().rstrip("/")
    if said and not said.startswith("https://"):
        raise SystemExit(f"{PROJECT_URL} is the repository's address, https://…, and not {said}")
    return said


def site_of(project: str) -> str:
    """The site that the repository's workflow publishes: on GitHub its Pages; elsewhere ``KB_SITE_URL`` says it."""
    said = os.environ.get("KB_SITE_URL", "").strip()
    address = urlsplit(project)
    owner, _, name = address.path.strip("/").partition("/")
    if said or address.netloc != "github.com" or not name:
        return said
    root = f"https://{owner.lower()}.github.io/"
    return root if name == f"{owner.lower()}.github.io" else f"{root}{name}/"


def linked(readme: str, project: str, version: str, root: str) -> str:
    """The README with links that lead somewhere from an index's page too: to the files of the same release."""

    def absolute(match: re.Match[str]) -> str:
        kind = "tree" if os.path.isdir(os.path.join(root, match[1].partition("#")[0])) else "blob"
        return f"]({project}/{kind}/v{version}/{match[1]})"

    return LINK.sub(absolute, readme) if project else readme


def site_file(folder: str) -> dict[str, str]:
    """What says in the package where the rules' pages are, and its place there; nothing where no site is known."""
    site = site_of(project_url())
    if not site:
        return {}
    path = os.path.join(folder, SITE)
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(site)
    return {path: f"kb/_data/{SITE}"}


class PublicHook(MetadataHookInterface):
    """The metadata that depends on where the project is published."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        project = project_url()
        with open(os.path.join(self.root, "README.md"), encoding="utf-8") as stream:
            text = linked(stream.read(), project, metadata["version"], self.root)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        urls = {
            "Repository": project,
            "Issues": f"{project}/issues",
            "Changelog": f"{project}/blob/v{metadata['version']}/CHANGELOG.md",
            "Documentation": site_of(project),
        }
        metadata["urls"] = {name: url for name, url in urls.items() if project and url}


def stage(root: str, folder: str, day: str) -> dict[str, bytes]:
    """Put the rules and texts of a checkout into a folder, compiled, and return what a package holds packed, by name.

    The same files make the same bytes. Rules with faults end the build, each told with its place.
    """
    from kb.knowledge import KnowledgeError
    from kb.knowledge.bundle import build
    from kb.knowledge.locations import Location, files_under
    from kb.knowledge.packed import PARTS, SOURCES
    from kb.knowledge.readings import FILE, lend

    for name in ("rules", "i18n"):
        ignored = shutil.ignore_patterns(*OF_THE_CHECKOUT)
        shutil.copytree(os.path.join(root, name), os.path.join(folder, name), ignore=ignored)
    location = Location(os.path.join(folder, "rules"), os.path.join(folder, "i18n"), True)
    lend(location._replace(rules=os.path.join(root, "rules")), location)  # what was found right there
    try:
        build(location, released=day)
    except KnowledgeError as error:
        lines = (str(problem).replace(folder + os.sep, "") for problem in error.problems)
        raise SystemExit("\n".join([*lines, "the rules have faults: nothing was built"])) from None
    parts: dict[str, bytes] = {}
    for name in PARTS[:-1]:  # whys and examples, what the guide shows: a check reads none of them
        path = os.path.join(location.bundle, name)
        with open(path, "rb") as part:
            parts[name] = part.read()
        os.remove(path)
    os.remove(os.path.join(location.bundle, FILE))  # what was read of each: an installed package's do not change
    texts: dict[str, str] = {}
    for name in files_under(folder):
        with open(os.path.join(folder, name), encoding="utf-8", newline="") as stream:
            text = stream.read()
        texts[name] = bare(text) if name.endswith(".json") else text
    return {**parts, SOURCES: json.dumps(texts, ensure_ascii=False).encode()}


def bare(schema: str) -> str:
    """A schema as programs read it: without blanks, and without the descriptions that an editor shows in a checkout."""

    def kept(part: Any) -> Any:
        if isinstance(part, list):
            return [kept(each) for each in part]
        if not isinstance(part, dict):
            return part
        return {key: kept(each) for key, each in part.items() if key != "description" or not isinstance(each, str)}

    return json.dumps(kept(json.loads(schema)), ensure_ascii=False, separators=(",", ":"))


def packed(text: bytes) -> bytes:
    """xz at its strongest; bytes of text have no alignment to look for (``pb``)."""
    strongest = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0, "nice_len": 273}
    return lzma.compress(text, filters=[strongest])


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
        build_data["force_include"] |= site_file(self.staging)
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
            parts = stage(self.root, folder, day)
            sizes = " ".join(str(len(part)) for part in parts.values())
            with open(os.path.join(folder, ARCHIVE), "wb") as archive:
                archive.write(packed(b"\n".join([sizes.encode(), b"".join(parts.values())])))
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
