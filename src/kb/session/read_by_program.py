"""A config with names of its own, as the program of its project reads it."""

import os
import re
from collections.abc import Sequence

from kb.config.files import ConfigError
from kb.config.program_files import ProgramFiles
from kb.config.python.held import GivenConfig
from kb.config.python.reader import PythonReader
from kb.config.python.syntax import Module
from kb.config.text.nodes import MAPPING, Node
from kb.config.text.parsing import parse
from kb.config.text.source import Source
from kb.core.catalog import Catalog
from kb.core.document import Unit
from kb.core.naming import Program

BATCH = "training.per_device_train_batch_size"
NAMED = 0.5  # of a config's keys, those that a program which may read it names at least
MOST_PROGRAMS = 12  # that are gone through for one config


def as_its_program_reads(
    units: Sequence[Unit], text: str, programs: Sequence[Program], catalog: Catalog, files: ProgramFiles
) -> list[Unit]:
    """The run of the program that reads a config; the units as they are where it cannot be told which does.

    Args:
        units: the config as its names alone would have it.
        text: the config's.
        programs: the project's.
        files: what they import and load.
    """
    path = units[0].path
    parsed = parse(text, path)
    documents = [each for each in parsed.documents if each is not None]
    if len(documents) != 1 or documents[0].kind != MAPPING:
        return list(units)
    root = documents[0]
    named = [each for each in programs if _names_keys(each, root)]
    if len(named) > MOST_PROGRAMS:
        return list(units)
    python = PythonReader(catalog.dialects, catalog.facts)
    found: list[tuple[int, Unit]] = []
    for program in named:
        given = GivenConfig(path, root)
        try:
            runs = python.as_read(Module(Source(program.own)), program.path, files, given, parsed.source)
        except ConfigError:
            continue
        if runs and not given.found:  # how it comes by its values is not understood: it may be the one
            return list(units)
        if len(runs) == 1 and _says(runs[0], BATCH):
            found.append((len(given.found), runs[0]))
    found.sort(key=lambda each: -each[0])
    told = bool(found) and (len(found) == 1 or found[0][0] > found[1][0])
    return [found[0][1]._replace(read_by=_shown(found[0][1].read_by))] if told else list(units)


def _shown(path: str) -> str:
    """A program's path as the user would write it."""
    try:
        return os.path.relpath(path)
    except (OSError, ValueError):  # the working folder is gone, or another drive
        return path


def _says(unit: Unit, name: str) -> bool:
    """Whether the config itself says a setting, and not its program alone."""
    setting = unit.settings.get(name)
    return setting is not None and setting.span.end > 0


def _names_keys(program: Program, root: Node) -> bool:
    """Whether a program names enough of a config's keys to be the one that reads it."""
    keys = [key.value for key, _ in root.pairs()]
    keys += [key.value for _, group in root.pairs() if group.kind == MAPPING for key, _ in group.pairs()]
    words = set(re.findall(r"\w+", program.text))
    return bool(keys) and sum(key in words for key in keys) >= NAMED * len(keys)
