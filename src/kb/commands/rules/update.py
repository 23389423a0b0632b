"""`kb rules update`: a newer release of the rules alone, from an index, a folder or a file; and the way back.

An index is asked by pip, with its settings, certificates and proxies, and pip holds the file against the index's hash.
"""

import argparse
import os
import sys
import tempfile
from importlib.util import find_spec
from urllib.parse import urlsplit

from kb.commands.options import Options
from kb.core.text import UserError
from kb.knowledge.bundle import load_part
from kb.knowledge.locations import Location, shipped
from kb.knowledge.rules_release import FORMAT, PACKAGE, forget, lay, read_release, sha256_of
from kb.session import cli

DAY = len("2026-01-31")  # what the version of rules that were released begins with


def add_arguments(parser: cli.Parser, options: Options) -> None:
    """Those of the action."""
    say = options.say
    source = parser.add_mutually_exclusive_group()
    source.add_argument("source", nargs="?", metavar="WHEEL|DIR", help=say("update_source"))
    source.add_argument("--index-url", metavar="URL", help=say("update_index"))
    source.add_argument("--shipped", action="store_true", help=say("update_shipped"))
    parser.add_argument("--sha256", metavar="HASH", help=say("update_sha256"))
    options.add(parser, "lang")


def update_rules(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """Put another release in place, or the shipped rules back. Where anything is wrong nothing is changed.

    Raises:
        UserError: this kb is a checkout, or no release can be had, read or written.
    """
    own = shipped()
    if not own.sealed:
        raise UserError("rules.update_checkout", path=own.rules)
    if options.shipped:
        before = forget()
        key = "rules.update_none" if before is None else "rules.update_back"
        print(cli.said(words, key, version=_version(own), before=before.version if before else ""))
        return cli.CLEAN
    with tempfile.TemporaryDirectory(prefix="kb-rules-") as folder:
        wheel = _wheel(options, folder)
        found = sha256_of(wheel)
        if options.sha256 is not None and options.sha256.lower().removeprefix("sha256:") != found:
            raise UserError("rules.update_hash", name=os.path.basename(wheel), found=found, wanted=options.sha256)
        release = read_release(wheel)
        running = _version(location)
        if options.source != wheel and release.released < running[:DAY]:
            print(cli.said(words, "rules.update_older", release=release.version, day=release.released, version=running))
            return cli.CLEAN
        update = lay(release, _told_source(options), running)
    if update is None:
        print(cli.said(words, "rules.update_same", version=running))
    else:
        print(cli.said(words, "rules.update_done", before=running, version=update.version, folder=update.folder))
    return cli.CLEAN


def _version(location: Location) -> str:
    version: str = load_part(location, "hot")["version"]
    return version


def _wheel(options: argparse.Namespace, folder: str) -> str:
    """The file of the release: the one named, or the newest of this kb's format where one is looked for.

    Raises:
        UserError: there is none.
    """
    source = options.source
    if source is not None and os.path.isfile(source):
        return str(source)
    if source is not None and not os.path.isdir(source):
        raise UserError("rules.update_no_source", path=source)
    where = ["--no-index", "--find-links", source] if source else []
    where += ["--index-url", options.index_url] if options.index_url else []
    reason = _download(f"{PACKAGE}=={FORMAT}.*", where, folder)
    if reason is not None and "from versions: none" not in reason:
        _download(PACKAGE, where, folder)  # of another format: to say which
    found = os.listdir(folder)
    if not found:
        raise UserError("rules.update_not_found", source=_told_source(options), package=PACKAGE, reason=reason)
    return os.path.join(folder, found[0])


def _download(what: str, where: list[str], folder: str) -> str | None:
    """Let pip fetch a wheel into a folder; what it says where it cannot.

    Raises:
        UserError: this Python has no pip.
    """
    import subprocess

    if find_spec("pip") is None:
        raise UserError("rules.update_no_pip", package=PACKAGE)
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, *where, "--dest", folder, what]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if run.returncode == 0:
        return None
    lines = [line.strip() for line in run.stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    warned = [line.removeprefix("WARNING: ") for line in lines if line.startswith("WARNING: ")]  # of the connection
    return " ".join([*(errors or lines[-1:]), *warned[-1:]]) or f"pip: {run.returncode}"


def _told_source(options: argparse.Namespace) -> str:
    """Where a release came from; of an address without who asks there."""
    source: str | None = options.source
    if source is not None:
        return os.path.abspath(source)
    index: str | None = options.index_url
    if index is None:
        return "pip"
    address = urlsplit(index)
    return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
