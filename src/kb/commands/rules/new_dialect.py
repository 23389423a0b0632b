"""``kb rules new-dialect``: a config format drafted from a program's own list of arguments, by release."""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from kb import __version__
from kb.commands.rules.argument_names import arguments_in
from kb.commands.rules.new_entry import Draft, free_id, write_draft
from kb.core.catalog import Catalog
from kb.core.release import parse_version
from kb.core.text import UserError
from kb.knowledge import load_catalog
from kb.knowledge.locations import Location
from kb.session import cli

RELEASE = re.compile(r"v?(\d+(?:\.\d+)+)=(.+)")
# Formats whose plain names of arguments are taken for what other programs mean by them.
LIKELY = ("hf", "trl", "llamafactory", "axolotl", "command-training")
MARKS, WIDTH = 12, 118


def new_dialect(options: argparse.Namespace, location: Location, words: cli.Words) -> int:
    """A format whose keys mean what the same names mean in the formats that are known; a person checks each line."""
    catalog = load_catalog(options.rules)
    entry = free_id(options.project, [], {})
    if entry in catalog.dialects:
        raise UserError("rules.new_known", name=entry, known=entry)
    releases = _by_release(options.paths)
    names = list(dict.fromkeys(name for _, found in releases for name in found))
    meant = {name: setting for name in names if (setting := meaning_of(name, catalog)) is not None}
    dotted = sum("." in name for name in names) * 2 > len(names)
    marks = _marks(names, catalog)
    shown = json.dumps(options.project, ensure_ascii=False)
    source = f"{entry}-arguments"
    lines = [
        "# yaml-language-server: $schema=../schema/dialect.json",
        f"# Drafted by kb rules new-dialect from the arguments of {options.project}. What a key means was guessed",
        "# from its name: check each, with its default, and try the format on the project's own examples.",
        f"id: {entry}",
        "version: 1",
        f'since: "{__version__}"',
        f"title: {{ko: {shown}, en: {shown}}}",
        f"layout: {'grouped' if dotted else 'flat'}",
        "reader: library",
        "recognise:",
        "  least: 4",
        "  marks:",
        *(f"    {name}: 2" for name in marks),
        "keys:",
        *(f"  {name}: {setting}" for name, setting in meant.items()),
        *_known([(release, [name for name in found if name not in meant]) for release, found in releases]),
        f"sources: [{source}]",
    ]
    read = ", ".join(f"{'.'.join(map(str, release))}" for release, _ in releases if release)
    about = {
        "title": f"{options.project}, its own list of arguments",
        "kind": "source code",
        "note": f"Releases {read}." if read else "One release, read by kb rules new-dialect.",
    }
    text = "\n".join([*(lines if options.into is None else lines[1:]), ""])
    return write_draft(Draft("dialects", entry, text, source, about), options, location, words)


def meaning_of(name: str, catalog: Catalog) -> str | None:
    """The setting that most formats mean by a name; of a dotted path its last part counts. None where none knows it."""
    last = name.rpartition(".")[2]
    found = Counter(
        meant
        for known in LIKELY
        if (dialect := catalog.dialects.get(known)) is not None
        and isinstance(meant := dialect.keys.get(last), str)
        and not meant.endswith("*")
    )
    if found:
        return found.most_common(1)[0][0]
    setting = catalog.facts.get(f"training.{last}")
    return setting.name if setting is not None and setting.setting else None


def _by_release(paths: Sequence[str]) -> list[tuple[tuple[int, ...], dict[str, None]]]:
    """Each release with its arguments, the oldest first; a path without one is of no release."""
    found: dict[tuple[int, ...], dict[str, None]] = {}
    for path in paths:
        match = RELEASE.fullmatch(path)
        release = parse_version(match[1]) if match is not None else ()
        found.setdefault(release, {}).update(arguments_in(match[2] if match is not None else path))
    if () in found and len(found) > 1:
        raise UserError("rules.new_dialect_releases")
    return sorted(found.items())


def _marks(names: Iterable[str], catalog: Catalog) -> list[str]:
    """Names that no other format has a key or an argument for; all of them where there are none."""
    taken: set[str] = set()
    for dialect in catalog.dialects.values():
        taken |= dialect.keys.keys() | dialect.recognise["marks"].keys() | set(dialect.ignore)
        taken |= {name for listed in dialect.known.values() for name in listed}
    names = list(names)
    own = [name for name in names if name not in taken and f"training.{name}" not in catalog.facts]
    return (own or names)[:MARKS]


def _known(releases: Sequence[tuple[tuple[int, ...], list[str]]]) -> list[str]:
    """``known:`` of the draft: the arguments that mean no setting, by the releases that have them."""
    if not any(found for _, found in releases):
        return []
    spans: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for _, found in releases for name in found):
        having = [release for release, found in releases if name in found]
        since = "" if having[0] == releases[0][0] else ".".join(map(str, having[0]))
        until = "" if having[-1] == releases[-1][0] else ".".join(map(str, having[-1]))
        spans.setdefault(f"{since}..{until}", []).append(name)
    lines = ["known:"]
    for span, names in sorted(spans.items()):
        lines += [f'  "{span}":', "    [", *_wrapped(sorted(names)), "    ]"]
    return lines


def _wrapped(names: Sequence[str]) -> list[str]:
    lines, line = [], "     "
    for name in names:
        if len(line) + len(name) + 2 > WIDTH:
            lines.append(line)
            line = "     "
        line += f" {name},"
    return [*lines, line]
