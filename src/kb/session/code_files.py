"""Python files, notebooks and shell scripts on their way through a check: decoding, units, suppression comments."""

import datetime
import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from kb.advice.facts.unit_facts import RENTED, SERVERS
from kb.config.files import MAX_BYTES, ConfigError
from kb.config.marks import is_assigned
from kb.config.notebook.reader import read_cells, suppress_in_cells
from kb.config.program_files import shell_alone, task_alone, variables_of_task
from kb.config.python.reader import DIALECT, PythonReader
from kb.config.python.servers import servers_started
from kb.config.python.syntax import declared_encoding, string_extents
from kb.config.reader import ConfigReader
from kb.config.shell.command import CommandReader, read_shell
from kb.config.shell.flags import known_when_run
from kb.config.shell.processes import CHOSEN, gpus_named
from kb.config.shell.serving import OTHER_DEVICES, SPREAD, VLLM_VARIABLES
from kb.config.suppressions import Suppressed, read_suppressions, suppress
from kb.config.text.encoding import MARK, Decoded, decode
from kb.core.catalog import Catalog
from kb.core.document import Setting, Unit
from kb.core.expression import is_unknown
from kb.core.finding import Finding
from kb.core.program import Program
from kb.session.by_program import OF_THE_CALL, as_its_program_reads, run_of
from kb.session.lookups import from_here

if TYPE_CHECKING:
    from kb.session.lookups import ProjectPrograms

SAID_BY_ANY = (
    "training.output_dir", "training.seed", "training.run_name", "training.debug", "training.log_level",
    "inference.batch_size",
)  # fmt: skip
SERVED_ELSEWHERE = r"(?:claude|gemini|chatgpt)-[\w.-]+\Z|gpt-(?:3\.5|[45])[\w.-]*\Z|o[134](?:-[\w.-]+)?\Z"
"""Names of models that only a service has: a program that is told one asks that service."""
_GPUS_OF_MODAL = r"""\bgpu[ \t]*=[ \t]*(?:["'][\w-]+!?(?::(\d+))?["'][ \t]*(?=[,)#\n])|(.))"""
_CHOOSES = r"""(?m)^os\.environ\[["']CUDA_VISIBLE_DEVICES["']\][ \t]*=[ \t]*(["'])([^"'\n]*)\1[ \t]*(?:#|$)"""
_RENTS = r"(?m)^[ \t]*(?:import|from)[ \t]+modal\b"
ASKS_AT = r"url\Z|(?:\w+_)?(?:endpoint|base_url|api_base|api_url|server_url)\Z"
"""Names of flags with the address of a server that a program asks: it does not run the model itself."""
_MEASURES_A_SERVER = re.compile(r"bench(?:mark)?_serving")
"""In the names of programs that measure a server: vLLM's and SGLang's own, and what is made after them."""
OF_A_HARNESS = "model_args"
"""The flag of a harness that runs others' engines: ``--model hf --model_args pretrained=gpt2``. What ``--model`` names
is the engine then, which evaluates as it pleases."""


def decode_code(raw: bytes, kind: str) -> Decoded:
    """The text of a Python file, in the encoding that its first lines declare, or of a notebook.

    Raises:
        ConfigError: the bytes are binary data.
    """
    if kind == "notebook":
        return _decode_notebook(raw)
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
    if kind == "text":  # Markdown; what its code blocks hold may be for no shell
        try:
            return code_units(shell_alone(text), path, "shell", catalog, commands, programs)
        except ConfigError:
            return []
    if kind == "shell":
        found = [unit for unit in read_shell(text, path, commands) if tells_of_a_run(unit)]
        return found or _runs_by_programs(text, path, catalog, commands, programs)
    files = programs.files() if programs is not None else None
    if kind == "config":
        trains = [each for each in programs(units[0]) if each.trains] if programs is not None else []
        return as_its_program_reads(units, text, trains, catalog, files) if files is not None else list(units)
    python = PythonReader(catalog.dialects, catalog.facts)
    if kind == "python":
        found = ConfigReader(catalog.dialects, catalog.facts).read_assigned(text, path) if is_assigned(text) else []
        found = found or python.read(text, path, files)
        found = found + servers_started(text, path, commands, catalog.dialects[DIALECT].constants, files)
        found = [_on_chosen_gpus(unit, text) for unit in _with_variables(found, text, catalog)]
        return [_on_rented_gpu(unit, _GPUS_OF_MODAL, text) for unit in found] if re.search(_RENTS, text) else found
    return _with_variables(read_cells(text, path, python, commands, files), text, catalog)


def task_units(text: str, path: str, commands: CommandReader) -> list[Unit]:
    """The runs of a task of SkyPilot's, which rents the GPUs that it names; none of any other config."""
    found = read_shell(task_alone(text), path, commands, given=variables_of_task(text))
    return [_on_rented_gpu(unit) for unit in found if tells_of_a_run(unit)]


def _with_variables(units: list[Unit], text: str, catalog: Catalog) -> list[Unit]:
    """The units of a program, without ``LLM(…)`` on another device than a GPU. Where it names variables of vLLM's,
    what it sets them to is not followed.
    """
    units = [unit for unit in units if not (unit.dialect == "vllm" and _device(unit) in OTHER_DEVICES)]
    named = [catalog.dialects["vllm"].keys[each] for each in VLLM_VARIABLES if each in text]

    def opened(unit: Unit) -> Unit:
        start = unit.span.beginning()
        unknown = {name: Setting(known_when_run(name), start, start, (name,), alias=True) for name in named}
        return unit._replace(settings={**unknown, **unit.settings})

    return [opened(unit) if unit.dialect == "vllm" else unit for unit in units] if named else units


def _device(unit: Unit) -> str:
    """What ``LLM(device=…)`` computes on."""
    said = unit.keys.get("device")
    return str(said.value).partition(":")[0] if said is not None else ""


def _on_chosen_gpus(unit: Unit, text: str) -> Unit:
    """A unit of ``LLM(…)`` in a program that first says, once and for every way through it, which GPUs it sees."""
    said = re.search(_CHOOSES, text)
    gpus = gpus_named(said[2]) if said is not None and text.count(CHOSEN) == 1 and not SPREAD.search(text) else None
    if said is None or not gpus or any(start < said.start() < end for start, end in string_extents(text)):
        return unit
    if "serving.called" not in unit.settings or unit.span.start < said.end():
        return unit
    setting = Setting(gpus, unit.span.beginning(), unit.span.beginning(), (CHOSEN,), alias=True)
    return unit._replace(settings={**unit.settings, "serving.gpus_given": setting})


def _on_rented_gpu(unit: Unit, counted: str = "", text: str = "") -> Unit:
    """A unit of a program whose functions each name the GPU that they are to run on: no other is theirs; ``counted`` is
    how its ``text`` says how many there are, where all have as many."""
    if unit.dialect not in SERVERS:
        return unit
    start = unit.span.beginning()
    setting = Setting(True, start, start, ("gpu",), alias=True)
    settings = {**unit.settings, RENTED: setting}
    elsewhere = not counted or SPREAD.search(text) or re.search(r"""["']gpu["']\s*:|\bclustered\(""", text)
    gpus = set[str]() if elsewhere else {"" if each[2] else each[1] or "1" for each in re.finditer(counted, text)}
    if len(gpus) == 1 and all(gpus):
        settings["serving.gpus_given"] = setting._replace(value=int(gpus.pop()))
    return unit._replace(settings=settings)


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


def _runs_by_programs(
    text: str, path: str, catalog: Catalog, commands: CommandReader, programs: "ProjectPrograms | None"
) -> list[Unit]:
    """The commands of a script none of whose flags has a name that kb knows, where the program makes a run of them."""
    if programs is None:
        return []
    started = _starts_of_python(text, path, commands)
    return [unit for unit in started if run_of(unit, programs(unit), catalog, programs.files()) is not None]


def _starts_of_python(text: str, path: str, commands: CommandReader) -> list[Unit]:
    started = read_shell(text, path, commands, wanted=lambda program: program.endswith(".py"))
    return [unit for unit in started if unit.program]


def trainer_started(
    text: str, path: str, commands: CommandReader, find: Callable[[Unit], Sequence[Program]]
) -> str | None:
    """The path of the first program that trains and that a script starts, whatever flags it is given."""
    programs = (each for unit in _starts_of_python(text, path, commands) for each in find(unit))
    return next((from_here(each.path) for each in programs if each.trains), None)


def _runs_no_model(unit: Unit) -> bool:
    """Whether a command that trains nothing is told where the server is that it asks, is there to measure one, or
    names an engine where others name a model.
    """
    if any(name.startswith(OF_THE_CALL) and name not in SAID_BY_ANY for name in unit.settings):
        return False
    if _MEASURES_A_SERVER.match(unit.script or "") is not None or OF_A_HARNESS in unit.keys:
        return True
    asked = (each.value for name, each in unit.keys.items() if re.match(ASKS_AT, name) is not None)
    return any(is_unknown(each) or str(each).startswith(("http://", "https://")) for each in asked)


def tells_of_a_run(unit: Unit) -> bool:
    """Whether a command of a script says anything of training or inference: an output folder, a seed and a batch are
    what any program may take.
    """
    model = unit.settings.get("model.name")
    if model is not None and unit.reader == "script" and re.match(SERVED_ELSEWHERE, str(model.value)):
        return False
    if unit.reader == "script" and _runs_no_model(unit):
        return False
    said = (name for name in unit.settings if name not in SAID_BY_ANY)
    told = any(name == "launch.run_config" or not name.startswith("launch.") for name in said)
    return told or bool(unit.events) or unit.reader != "script"
