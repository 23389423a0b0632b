"""Where the rules and the texts lie: beside the sources in a checkout, inside the package in an installation.

And where what is made of them is kept; and which rules `kb rules update` put in their place, for this release of kb: a
record of one line names the folder. It is replaced in one step, so that a run reads the old rules or the new ones. Each
release has its own, since rules are checked by the kb that reads them: an upgraded kb runs what it ships.
"""

import os
import sys

from kb import __version__
from kb.core.record import NamedTuple
from kb.core.text import UserError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PACKAGED = os.path.join(_PACKAGE, "_data")
_CHECKOUT = os.path.dirname(os.path.dirname(_PACKAGE))
SITE = "KB_SITE_URL"  # the site's address, as the site itself is built with it
_BUILT_WITH = "site_url"  # the same in an installed package, where its build knew one


class Overlay(NamedTuple):
    """A folder of rules that are laid over others; ``name`` is what the settings, or an installed package, call it.

    ``without`` are the files in it that are left out, sorted, by their path below ``root``.
    """

    name: str
    root: str
    without: tuple[str, ...] = ()


class Location(NamedTuple):
    """Folders of rules and texts. ``sealed``: inside an installed package, where files do not change
    and the sources are packed: :func:`opened`.

    ``overlays`` are laid over them, the later over the earlier; ``cache`` is where they are kept compiled.
    """

    rules: str
    i18n: str
    sealed: bool
    overlays: tuple[Overlay, ...] = ()
    cache: str | None = None

    @property
    def bundle(self) -> str:
        return os.path.join(self.rules, ".bundle")


def shipped() -> Location:
    """The rules that came with this kb."""
    if os.path.isdir(_PACKAGED):
        return Location(os.path.join(_PACKAGED, "rules"), os.path.join(_PACKAGED, "i18n"), True)
    return Location(os.path.join(_CHECKOUT, "rules"), os.path.join(_CHECKOUT, "i18n"), False)


def site_address() -> str:
    """Where the rules' pages are, with ``/`` at the end: as the environment says, or the build of this package did.

    Empty where neither says so: no page is promised that may not be there.
    """
    said = os.environ.get(SITE, "").strip()
    if not said:
        try:
            with open(os.path.join(_PACKAGED, _BUILT_WITH), encoding="utf-8") as stream:
                said = stream.read().strip()
        except OSError:
            return ""
    return f"{said.rstrip('/')}/" if said.startswith(("https://", "http://")) else ""


def current() -> Location:
    """The rules that count where none are named: those that came with this kb, or what replaced them by an update."""
    own = shipped()
    update = updated() if own.sealed else None  # a checkout's are worked on
    if update is None:
        return own
    return Location(os.path.join(update.folder, "rules"), os.path.join(update.folder, "i18n"), True)


def named(rules: str) -> Location:
    """A rules folder given by the user; texts come from an ``i18n`` beside it, or from the shipped ones.

    Raises:
        UserError: there is no such folder.
    """
    if not os.path.isdir(rules):
        raise UserError("rules.no_folder", path=rules)
    beside = os.path.join(os.path.dirname(os.path.abspath(rules)), "i18n")
    if not os.path.isdir(beside):
        beside = opened(shipped()).i18n
    return Location(rules, beside, False)


def cache_folder() -> str:
    """Where the platform keeps what a program can make again: ``…/kb``."""
    return os.path.join(_kept_in("XDG_CACHE_HOME", "~/.cache", on_mac="~/Library/Caches"), "kb")


def _kept_in(variable: str, usual: str, *, on_mac: str) -> str:
    """The platform's folder for one kind of a user's files; Windows has one for all of them."""
    if sys.platform == "darwin":
        return os.path.expanduser(on_mac)
    if sys.platform == "win32":
        variable, usual = "LOCALAPPDATA", r"~\AppData\Local"
    return os.environ.get(variable) or os.path.expanduser(usual)


def opened(location: Location) -> Location:
    """The place with its rules and texts as files; an installed package's are unpacked, once for all runs.

    Raises:
        UserError: they cannot be unpacked.
    """
    from kb.knowledge.packed import ARCHIVE, unpacked  # a check reads the compiled bundle, and unpacks nothing

    archive = os.path.join(os.path.dirname(location.rules), ARCHIVE)
    if not location.sealed or not os.path.isfile(archive):
        return location
    try:
        folder = unpacked(archive, cache_folder())
    except (ImportError, OSError, ValueError) as error:
        raise UserError("rules.not_unpacked", path=archive, reason=str(error)) from None
    return location._replace(rules=os.path.join(folder, "rules"), i18n=os.path.join(folder, "i18n"))


Rules = str | Location | None


def located(rules: Rules) -> Location:
    """The current rules for None, a folder by its name, or what is known already.

    Raises:
        UserError: there is no such folder.
    """
    if isinstance(rules, Location):
        return rules
    return current() if rules is None else named(rules)


def files_under(folder: str) -> list[str]:
    """Every ``.yaml`` and ``.json`` file below ``folder``, relative, with ``/``, sorted; hidden ones left out."""
    found: list[str] = []
    stack = [""]
    while stack:
        relative = stack.pop()
        with os.scandir(os.path.join(folder, relative) if relative else folder) as entries:
            for entry in entries:
                name = f"{relative}/{entry.name}" if relative else entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    stack.append(name)
                elif entry.name.endswith((".yaml", ".json")):
                    found.append(name)
    return sorted(found)


class Update(NamedTuple):
    """``folder`` holds ``rules/`` and ``i18n/``, compiled; ``release`` is the package's, ``version`` the rules'."""

    folder: str
    release: str
    version: str
    sha256: str
    source: str


def updates_folder() -> str:
    """Where the platform keeps a user's data, which no program makes again: ``…/kb/rules``."""
    data = _kept_in("XDG_DATA_HOME", "~/.local/share", on_mac="~/Library/Application Support")
    return os.path.join(data, "kb", "rules")


def record_path() -> str:
    return os.path.join(updates_folder(), f"current-{__version__}.json")


def updated() -> Update | None:
    """The update that counts for this kb; None where there is none, or none that is whole."""
    try:
        with open(record_path(), encoding="utf-8") as stream:
            import json  # few runs need it

            found = Update(**json.load(stream))
    except (OSError, ValueError, TypeError):
        return None
    folder = os.path.join(updates_folder(), os.path.basename(found.folder))
    return found._replace(folder=folder) if os.path.isdir(os.path.join(folder, "rules")) else None
