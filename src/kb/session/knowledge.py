"""Which rules count for a project: the shipped ones or ``--rules``, and what its settings or packages lay over them."""

import argparse
import os
import sys
from collections.abc import Callable
from functools import cache

from kb.core.catalog import Catalog
from kb.core.text import UserError
from kb.knowledge import load_catalog, load_words
from kb.knowledge.locations import Location, Overlay, Rules, cache_folder, current, located, site_address
from kb.machine.software import entry_points
from kb.memory.answers import keep_in
from kb.report.values import printable
from kb.report.words import RulePages, Words
from kb.session import cli
from kb.session.cache import Predictions
from kb.session.project import Project, find_project

PACKAGE = "pkg:"
GROUP = "kb.knowledge"  # entry points of installed packages


def open_knowledge(
    options: argparse.Namespace, project: Project, language: str, messages: cli.Words, *, whole: bool = False
) -> tuple[Catalog, Words]:
    """The rules that count, and the texts. From here on ``options.rules`` says which they are.

    Args:
        messages: the texts of the language as kb ships them.
        whole: as of :func:`kb.knowledge.load_catalog`.

    Raises:
        UserError: an overlay that is named is not there.
        KnowledgeError: the rules, or an overlay, have faults; those of overlays are told and left out where the options
            say so.
    """
    rules: Rules = getattr(options, "rules", None)
    skip = bool(getattr(options, "skip_broken_overlays", False))
    options.rules = rules = rules_of(project, rules, Teller(language, messages) if skip else None)
    catalog = load_catalog(rules, whole=whole)
    if isinstance(rules, Location):
        messages = load_words(language, rules)
    keep_in(None if getattr(options, "no_cache", False) else Predictions(cache_folder()))
    shown = located(rules).rules == current().rules  # the site has pages of no others
    return catalog, Words(language, messages, catalog.facts, RulePages(site_address() if shown else "", catalog.laid))


class Teller:
    """Says on standard error that an overlay is left out, and why."""

    def __init__(self, language: str, messages: cli.Words) -> None:
        self.language, self._messages = language, messages

    def missing(self, fault: UserError) -> None:
        self._left_out(str(fault.values["name"]))
        print(f"kb: {cli.worded(fault, self.language)}", file=sys.stderr)

    def broken(self, overlay: Overlay, healthy: Overlay | None) -> None:
        """An overlay is left out; or, where ``healthy`` is what is left of it, some of its files."""
        if healthy is None:
            self._left_out(overlay.name)
            return
        files = ", ".join(name for name in healthy.without if name not in overlay.without)
        said = cli.said(self._messages, "overlay.files_left_out", name=overlay.name, files=files)
        print(f"kb: {printable(said)}", file=sys.stderr)

    def faults(self, problems: list[str]) -> None:
        for problem in problems:
            for line in problem.split("\n"):
                print(printable(line), file=sys.stderr)

    def _left_out(self, name: str) -> None:
        print(f"kb: {printable(cli.said(self._messages, 'overlay.left_out', name=name))}", file=sys.stderr)


def rules_of(project: Project, rules: Rules = None, skip: Teller | None = None) -> Rules:
    """The place of a project's rules: ``rules`` itself where nothing is laid over them.

    Args:
        rules: a folder instead of the shipped rules.
        skip: hears which overlays are left out because they are missing or have faults; None raises instead.

    Raises:
        UserError: an overlay is missing.
    """
    found = overlays_of(project, None if skip is None else skip.missing)
    if not found:
        return rules
    location = located(rules)._replace(overlays=found, cache=cache_folder())
    return location if skip is None else _without_broken(location, skip)


def catalog_of(project: Project | None) -> Catalog:
    """The rules that count for a project, kept while their files stay as they are.

    Args:
        project: None where there is no file: a dict lies in no folder. Of the settings of the working folder, what
            they lay over the rules counts then, and nothing else.

    Raises:
        UserError: the settings cannot be used, or an overlay that they name is not there.
        KnowledgeError: what is laid over has faults.
    """
    if project is None:
        here = find_project(os.getcwd())
        project = Project(path=here.path, knowledge=here.knowledge)
    rules = rules_of(project)
    if not isinstance(rules, Location):
        return _loaded(rules, "")
    from kb.knowledge.overlay import state_of  # few projects have rules of their own

    return _loaded(rules, state_of(rules))


@cache
def _loaded(rules: Rules, state: str) -> Catalog:
    """``state``: of the overlays' files, which may change while a program runs."""
    return load_catalog(rules)


def overlays_of(project: Project, missing: Callable[[UserError], None] | None = None) -> tuple[Overlay, ...]:
    """What installed packages and the settings of a project lay over the rules.

    Args:
        missing: hears which are not there; None raises instead.

    Raises:
        UserError: an overlay that the settings name is not there.
    """
    found = list(installed())
    for name in project.knowledge:
        try:
            found.append(_named(name, project))
        except UserError as fault:
            project.answers_for(fault)
            if missing is None:
                raise
            missing(fault)
    return tuple(found)


def _without_broken(location: Location, skip: Teller) -> Location:
    from kb.knowledge.overlay import OverlayError, healthy_part, laid_entries  # of an overlay that is broken

    while location.overlays:
        try:
            laid_entries(location)
            break
        except OverlayError as error:
            kept: list[Overlay] = []
            for overlay in location.overlays:
                healthy = healthy_part(overlay, error.problems) if overlay in error.overlays else overlay
                if healthy is not overlay:
                    skip.broken(overlay, healthy)
                if healthy is not None:
                    kept.append(healthy)
            skip.faults([problem.in_language(skip.language) for problem in error.problems])
            location = location._replace(overlays=tuple(kept))
    return location


def _named(name: str, project: Project) -> Overlay:
    """An overlay of ``kb.toml``: a folder beside the settings, or ``pkg:`` and the name of an installed package."""
    if name.startswith(PACKAGE):
        package = name.removeprefix(PACKAGE)
        folder = _folder_of(package.replace("-", "_"))
        if folder is None:
            raise UserError("overlay.not_installed", name=package)
    else:
        folder = os.path.join(project.folder(), os.path.expanduser(name))
        if not os.path.isdir(folder):
            raise UserError("overlay.no_folder", name=name, folder=folder)
    return Overlay(name.rstrip("/\\") or name, folder)


@cache
def installed() -> tuple[Overlay, ...]:
    """What installed packages lay over the rules of every project: the folders that their entry points name."""
    declared = (
        (name, _folder_of(value.partition(":")[0].strip())) for name, value in entry_points(GROUP, cache_folder())
    )
    return tuple(Overlay(name, folder) for name, folder in declared if folder is not None)


def _folder_of(package: str) -> str | None:
    """The folder of an installed package, or of a folder in it (``package.part``); its code is not run."""
    from importlib.util import find_spec

    top, _, rest = package.partition(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    folder = os.path.join(places[0], *rest.split(".")) if places and rest else next(iter(places), None)
    return folder if folder is not None and os.path.isdir(folder) else None
