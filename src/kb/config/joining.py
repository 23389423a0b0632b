"""A config with the file that it names: ``deepspeed: ds.json`` brings in what that file says."""

from collections.abc import Callable, Mapping
from typing import Any

from kb.config.files import ConfigError
from kb.config.reader import ConfigReader
from kb.core.catalog import Dialect
from kb.core.document import Setting, Unit
from kb.core.expression import is_unknown
from kb.core.finding import Span

RUN_CONFIG = "launch.run_config"
FORCED = ("trl",)  # commands whose config is of their own format, whatever it looks like
# What the config of a run may say.
IN_A_RUN = ("training.", "trl.", "data.", "lora.", "quantization.", "model.", "deepspeed.", "generation.")
OF_JSON = "deepspeed"  # accelerate reads its file with ``json.load`` (utils/deepspeed.py), a YAML file too
NOT_JSON = "deepspeed.file_not_json"
PRECISION, DEEPSPEED, OF_ACCELERATE = "accelerate.mixed_precision", "training.deepspeed", "accelerate"
HALF = {"bf16": "training.bf16", "fp16": "training.fp16"}
ReadNamed = Callable[[str, str], str | None]
"""The config's own path, the path it names → the named file's text; None where there is none to read."""


class Joiner:
    """Joins units to the files that they name; a dialect says which settings name one of its files.

    Args:
        given: what the project says of its runs; it may name such a file, as ``launch.config_file``.
    """

    def __init__(
        self,
        reader: ConfigReader,
        dialects: Mapping[str, Dialect],
        read: ReadNamed,
        given: Mapping[str, Any] = {},
    ) -> None:
        self._reader, self._read, self._given = reader, read, given
        self._named_by = {name: dialect.id for dialect in dialects.values() for name in dialect.named_by}

    def join(self, unit: Unit) -> Unit:
        """The unit with the settings of the files that it names.

        A finding about one of them is shown where the file is named. What the config says itself wins; a file that
        is not there, or cannot be read, is listed as ``unread``.
        """
        unit = self._with_run_config(unit)
        for name, dialect in self._named_by.items():
            setting = unit.settings.get(name) or self._named_by_project(name, unit)
            if setting is not None and isinstance(setting.value, str) and setting.value:
                unit = self._with(unit, name, setting, setting.value, dialect)
        return in_its_launchers_precision(unit)

    def _with_run_config(self, unit: Unit) -> Unit:
        """A command with the config that its run reads, in the format of that; flags win over what it says.

        Where the file is not there nothing that it may say is known. One of no known format is none of ours.
        """
        setting = unit.settings.get(RUN_CONFIG)
        if setting is not None and is_unknown(setting.value):
            return unit._replace(hidden=IN_A_RUN)
        if setting is None or not isinstance(setting.value, str):
            return unit
        text = self._read(unit.path, setting.value)
        try:
            forced = unit.dialect if unit.dialect in FORCED else None
            read = [] if text is None else self._reader.read(text, setting.value, dialect=forced)
            file = next(iter(read), None)
        except ConfigError:
            text = file = None
        if text is None:
            return unit._replace(unread=(*unit.unread, RUN_CONFIG), hidden=IN_A_RUN)
        if file is None or file.dialect is None:
            return unit
        brought = {
            each: setting._replace(value=found.value, path=found.path, comment="", joined=setting.value)
            for each, found in file.settings.items()
        }
        return unit._replace(
            dialect=file.dialect,
            settings={**brought, **unit.settings},
            left_open=(*unit.left_open, *(name for name in file.left_open if name not in unit.settings)),
            joined=(*unit.joined, RUN_CONFIG),
        )

    def _named_by_project(self, name: str, unit: Unit) -> Setting | None:
        """The file that the project names for its runs, placed where the unit begins; other files are not runs."""
        if name not in self._given or not any(each.startswith("training.") for each in unit.settings):
            return None
        start = unit.span
        place = Span(start.line, start.column, start.line, start.column, start.start, start.start)
        return Setting(self._given[name], place, place, (name,))

    def _with(self, unit: Unit, name: str, naming: Setting, named: str, dialect: str) -> Unit:
        text = self._read(unit.path, named)
        begins = (text or "").lstrip("\ufeff \t\r\n")[:1]
        if dialect == OF_JSON and begins and begins not in "{[":
            said = {NOT_JSON: naming._replace(value=True, comment="", joined=named)}
            return unit._replace(settings={**said, **unit.settings}, unread=(*unit.unread, name))
        file = self._unit_of(text, named, dialect)
        if file is None:
            return unit._replace(unread=(*unit.unread, name))
        brought = {
            each: naming._replace(value=setting.value, comment="", joined=named)
            for each, setting in file.settings.items()
        }
        return unit._replace(
            settings={**brought, **unit.settings},
            left_open=(*unit.left_open, *file.left_open),
            joined=(*unit.joined, name),
        )

    def _unit_of(self, text: str | None, named: str, dialect: str) -> Unit | None:
        if text is None:
            return None
        try:
            return next(iter(self._reader.read(text, named, dialect=dialect)), None)
        except ConfigError:
            return None


def in_its_launchers_precision(unit: Unit) -> Unit:
    """The unit of a run that Accelerate starts, in the half precision that it is started in.

    It is handed on as ACCELERATE_MIXED_PRECISION, which the Trainer takes where its arguments ask for neither fp16 nor
    bf16 (transformers 4.30 to 5.23, training_args.py); with ``deepspeed`` among those DeepSpeed's file goes by them.
    """
    said = unit.settings.get(PRECISION)
    asked = [unit.settings[name].value for name in HALF.values() if name in unit.settings]
    if (
        said is None
        or said.value not in HALF
        or unit.dialect == OF_ACCELERATE
        or any(each is not False for each in asked)
    ):
        return unit
    if said.value == "fp16" and unit.dialect in FORCED and not asked:  # there bf16 is on by default
        return unit
    if DEEPSPEED in unit.settings or not any(name.startswith("training.") for name in unit.settings):
        return unit
    named = said._replace(value=True, alias=True, joined=said.joined or "accelerate launch")
    return unit._replace(settings={**unit.settings, HALF[said.value]: named})
