"""Python files, notebooks and scripts on their way through a check: decoding, units, suppression comments."""

import datetime
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from kb.config.discovery import is_assigned
from kb.config.files import MAX_BYTES
from kb.config.notebook.reader import read_cells, suppress_in_cells
from kb.config.python.reader import PythonReader
from kb.config.python.syntax import declared_encoding, string_extents
from kb.config.reader import ConfigReader
from kb.config.shell.command import CommandReader
from kb.config.shell.script import read_shell
from kb.config.suppressions import Suppressed, read_suppressions, suppress
from kb.config.text.encoding import MARK, Decoded, decode
from kb.core.catalog import Catalog
from kb.core.document import Unit
from kb.core.finding import Finding
from kb.session.read_by_program import as_its_program_reads

if TYPE_CHECKING:
    from kb.session.seen import ProjectPrograms


def decode_code(raw: bytes, kind: str) -> Decoded:
    """The text of a Python file, in the encoding that its first lines declare, or of a notebook.

    Raises:
        ConfigError: the bytes are binary data.
    """
    return _decode_notebook(raw) if kind == "notebook" else _decode_python(raw)


def _decode_python(raw: bytes) -> Decoded:
    decoded = decode(raw)
    harmless = tuple(event for event in decoded.events if event.kind != MARK)  # Python reads past it
    decoded = decoded._replace(events=harmless)
    name = declared_encoding(raw) if decoded.text is None or b"coding" in raw[:200] else None
    if name is None or name.startswith("utf-8") or raw.isascii():
        return decoded
    try:
        return Decoded(text=raw.decode(name), encoding=name)
    except (UnicodeDecodeError, LookupError):
        return decoded


def _decode_notebook(raw: bytes) -> Decoded:
    """A large one without the search for damage: most of it are outputs, in which no damage matters."""
    if len(raw) <= MAX_BYTES or raw.startswith((b"\xef\xbb\xbf", b"\xff", b"\xfe")):
        return decode(raw)
    try:
        return Decoded(text=raw.decode("utf-8"), encoding="utf-8")
    except UnicodeDecodeError:
        return decode(raw)


def code_units(
    text: str,
    path: str,
    kind: str,
    catalog: Catalog,
    commands: CommandReader,
    programs: "ProjectPrograms | None" = None,
    units: Sequence[Unit] = (),
) -> list[Unit]:
    """The runs of a Python file, a notebook or a script; of a config, its units as its program reads them.

    Args:
        programs: those of the project around it.
        units: of a config, as its names alone would have it.

    Raises:
        ConfigError: it cannot be read.
    """
    if kind == "shell":
        return runs_of_shell(text, path, commands)
    files = programs.files() if programs is not None else None
    if kind == "config":
        trains = [each for each in programs(units[0]) if each.trains] if programs is not None else []
        return as_its_program_reads(units, text, trains, catalog, files) if files is not None else list(units)
    python = PythonReader(catalog.dialects, catalog.facts)
    if kind == "python":
        found = ConfigReader(catalog.dialects, catalog.facts).read_assigned(text, path) if is_assigned(text) else []
        return found or python.read(text, path, files)
    return read_cells(text, path, python, CommandReader(catalog.dialects, catalog.facts), files)


def suppressed_in_code(
    findings: Sequence[Finding],
    text: str,
    kind: str,
    *,
    today: datetime.date,
    known: Collection[str],
    decided: Collection[str],
) -> Suppressed:
    """The findings of one file with its suppression comments applied; a notebook's are read cell by cell."""
    if kind == "notebook":
        return suppress_in_cells(findings, text, today=today, known=known, decided=decided)
    directives = read_suppressions(text, string_extents(text))
    return suppress(findings, directives, today=today, known=known, decided=decided)


SAID_BY_ANY = ("training.output_dir", "training.seed", "training.run_name", "inference.batch_size")


def runs_of_shell(text: str, path: str, commands: CommandReader) -> list[Unit]:
    """The commands of a shell script that may be runs."""
    return [unit for unit in read_shell(text, path, commands) if tells_of_a_run(unit)]


def tells_of_a_run(unit: Unit) -> bool:
    """Whether a command of a script says anything of training or inference: an output folder, a seed and a batch are
    what any program may take.
    """
    said = (name for name in unit.settings if name not in SAID_BY_ANY)
    told = any(name == "launch.run_config" or not name.startswith("launch.") for name in said)
    return told or bool(unit.events) or unit.reader != "script"
