"""Whether the names in a config are a library's: who reads it decides if a finding about a name holds. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from kb.core.document import Setting, Unit
from kb.core.facts import Certainty
from kb.core.finding import Edit, Finding, Fix
from kb.core.program import Program
from kb.core.typed import Any

OF_OMEGACONF = ("hydra",)  # formats that OmegaConf reads as often as not
RUN_CONFIG = "launch.run_config"
HANDS_ON = "script.passes_training_arguments"
"""The fact by which a project says that its program hands every name on."""
_WRITTEN = "written."
_SET_BY_PROGRAMS = ("training.", "data.", "generation.", "lora.", "quantization.")
# OmegaConf and Dynaconf (YAML 1.2) read 5e-5 as a number, PyYAML as text.
_BY_OMEGACONF = r"\bOmegaConf\b|\bDynaconf\b|\bhydra\.main\b|\bHydraConfig\b"
_BY_PYYAML = r"\byaml\.(?:safe_load|load|full_load)\b|\bparse_yaml_file\b|\bH4ArgumentParser\b"
_BY_YAML = r"(?i)yaml|OmegaConf|Dynaconf|hydra|HfArgumentParser|H4ArgumentParser|TrlParser|\baccelerate\b"
_TREES = r"""\bconfig_path\s*=\s*["']([^"'\n]*\w)/?["']"""
# Classes of these libraries make a number of a text where a field is one (pydantic by default, the others always).
_CONVERTS = r"(?m)^[ \t]*(?:from|import)[ \t]+(?:pydantic|pydantic_settings|draccus|pyrallis|jsonargparse)\b"
_PACKAGES = {"axolotl": "axolotl", "llamafactory": "llamafactory"}  # formats, and the package that reads them
_OF_LIBRARY = r"(?m)^[ \t]*from[ \t]+(?:transformers|trl)\b"
_ASKS_AUTO = '"auto"'
_PAST_MARK = "utf-8-sig"
_ABOUT_VALUES = ("text",)  # types of which a wrong value is wrong for any program


class Names:
    """What is known of the names in one unit.

    Args:
        find: looks for the sources of what reads it; asked at most once, and only where it matters.
        given: what the project says of itself.
    """

    def __init__(self, unit: Unit, find: Callable[[Unit], Sequence[Program]], given: Mapping[str, Any] = {}) -> None:
        self._unit, self._find = unit, find
        self._given = given.get(HANDS_ON)

    @cached_property
    def _programs(self) -> Sequence[Program]:
        return self._find(self._unit)

    @property
    def _programs_in_the_way(self) -> Sequence[Program]:
        """Those that may have arguments of their own under a library's names. A source or a notebook writes what it
        calls: what other programs of the project declare is nothing to it.
        """
        path = self._unit.path
        if path.endswith(".ipynb"):
            return ()
        if not path.endswith(".py"):
            return self._programs
        own = [each for each in self._programs if _same_file(each.path, path)]
        # what its modules declare is nothing to a class that it takes from the library itself
        return [
            each._replace(text=each.own, own_length=None) if re.search(_OF_LIBRARY, each.own) else each for each in own
        ]

    def certainty(self, key: str, meant: str = "") -> Certainty | None:
        """How certainly ``key`` is read as a library reads it; None where nothing says so, or a program has it itself.

        Args:
            meant: the name that the finding would have in its place: a program that has that one lacks the other.
        """
        reader = self._unit.reader
        if reader != "script":
            if reader != "library" or any(self._has(program, key) for program in self._programs_in_the_way):
                return None  # a project made after the library's pattern has arguments of its own
            return "certain"
        if any(program.has_own(key) for program in self._programs):
            return None
        if isinstance(self._given, bool):
            return "certain" if self._given else None
        handing = sum(program.hands_on for program in self._programs)
        if handing:
            return "certain" if handing == len(self._programs) else "likely"
        if meant and any(program.has_own(meant) for program in self._programs):
            return "certain" if len(self._programs) == 1 else "likely"
        return "likely" if self._unit.typical and not self._programs else None

    def _has(self, program: Program, key: str) -> bool:
        """Whether a program has a name of a library's config for itself: declared, or, in one that starts the library
        from within, anywhere."""
        return program.declares(key) or (self._starts_library(program) and program.speaks_of(key))

    def _starts_library(self, program: Program) -> bool:
        package = _PACKAGES.get(self._unit.dialect or "")
        return (
            package is not None and re.search(rf"(?m)^[ \t]*(?:from|import)[ \t]+{package}\b", program.text) is not None
        )

    def fills_in(self, finding: Finding) -> bool:
        """Whether a finding is about ``auto`` in a config that a program of the project fills in before it starts the
        library."""
        if self._unit.dialect not in _PACKAGES:
            return False
        said = any(re.search(r"\bauto\b", str(value)) for value in finding.facts.values())
        return said and any(self._starts_library(each) and _ASKS_AUTO in each.text for each in self._programs)

    def of(self, finding: Finding, at: Sequence[str]) -> Certainty | None:
        """As :meth:`certainty`, of the name that a finding is about; ``at`` are the settings that its rule looks at."""
        if finding.facts.get("want") in _ABOUT_VALUES:
            bare = finding.facts.get("raw") == ""
            return None if bare and self._is_switch(str(finding.facts.get("key"))) else "certain"
        if "entry" in finding.facts:  # of a defaults list: a program may store configs of its own under such names
            return None if any("ConfigStore" in each.text for each in self._programs) else "certain"
        key, meant = finding.facts.get("key"), finding.facts.get("meant")
        written = self._written(at)
        if written is not None and written.declared:
            return None
        if "class" in finding.facts and not self._may_make(str(finding.facts["class"])):
            return None
        if isinstance(key, str):  # an event's
            return self.certainty(_plain(key), _plain(meant) if isinstance(meant, str) else "")
        renamed = [str(edit.value) for fix in finding.fixes for edit in fix.edits if edit.op == "rename"]
        return self.of_rule(at, *renamed[:1])

    def _written(self, at: Sequence[str]) -> Setting | None:
        """The first of the settings that a rule looks at that is written."""
        return next((each for name in at if (each := self._unit.setting(name)) is not None), None)

    def _may_make(self, name: str) -> bool:
        """Whether a class of arguments may be the one that a file's names go to: where its programs hand names on, one
        of them names it.
        """
        if self._unit.reader != "script":
            return True
        handing = [each for each in self._programs if each.hands_on]
        return not handing or any(each.speaks_of(name) for each in handing)

    def _is_switch(self, flag: str) -> bool:
        """Whether a program takes this flag without a value."""
        name = re.escape(flag.lstrip("-"))
        made = re.compile(
            rf"""["']--{name}["'][^()]*?(?:store_true|nargs\s*=\s*["'][?*])|^[ \t]+{name}[ \t]*:[ \t]*bool\b""", re.M
        )
        return any(made.search(program.text) for program in self._programs)

    def with_known_flags(self, finding: Finding) -> Finding:
        """The finding without the fixes that give a command a flag which its program, a parser of its own, lacks."""
        unit = self._unit
        if unit.reader != "script" or not unit.program or self._given is True or not finding.fixes:
            return finding
        fixes = tuple(fix for fix in finding.fixes if all(map(self._takes, fix.edits)))
        return finding if len(fixes) == len(finding.fixes) else finding._replace(fixes=fixes)

    def with_sure_removals(self, finding: Finding) -> Finding:
        """The finding, its fixes that remove a setting safe only where the config's names are certainly handed on: a
        program that works with the setting itself would run otherwise without it.
        """
        if self._unit.reader != "script" or all(each.safety == "unsafe" for each in finding.fixes):
            return finding
        fixes = tuple(fix if self._may_lose(fix) else fix._replace(safety="unsafe") for fix in finding.fixes)
        return finding._replace(fixes=fixes)

    def _may_lose(self, fix: Fix) -> bool:
        removed = (edit.name for edit in fix.edits if edit.op == "remove")
        return fix.safety == "unsafe" or all(self.of_rule((name,)) == "certain" for name in removed)

    def _takes(self, edit: Edit) -> bool:
        setting = self._unit.settings.get(edit.name)
        if edit.op != "set" or (setting is not None and not setting.joined):
            return True
        if len(self._programs) != 1 or self._programs[0].hands_on:
            return True
        return self._programs[0].has_own(edit.name.rpartition(".")[2])

    def may_be_set_there(self, finding: Finding) -> bool:
        """Whether a finding rests on a setting that the file leaves out and its program may set: one that has names of
        its own for settings fills in the library's arguments by itself.
        """
        unit = self._unit
        if unit.reader != "script" or not any(each.own_name for each in unit.settings.values()):
            return False
        if self._given is True or any(program.hands_on for program in self._programs):
            return False
        unsaid = (each for each in finding.because if each.origin == "library")
        return any(
            each.value is False if each.name.startswith(_WRITTEN) else each.name.startswith(_SET_BY_PROGRAMS)
            for each in unsaid
            if each.name.removeprefix(_WRITTEN) not in unit.settings
        )

    def is_passed_over(self, at: Sequence[str]) -> bool:
        """Whether one of several programs that train by a config has most of its keys, and not that of a setting that
        a rule looks at: started by that one, the run is without it.
        """
        unit = self._unit
        if unit.reader != "script" or unit.program or len(self._programs) < 2:
            return False
        written = [each for name in at if (each := unit.setting(name)) is not None and each.path and not each.joined]
        own_way = [each for each in self._programs if each.trains and not each.hands_on and not each.spreads]
        reading = readers_of(unit, own_way)
        lacks = [[each.speaks_of(str(setting.path[-1])) for each in reading] for setting in written]
        return any(any(has) and not all(has) for has in lacks)

    @property
    def reads_past_mark(self) -> bool:
        """Whether a program of the project opens its files as text that may begin with a byte order mark."""
        return self._unit.reader == "script" and any(_PAST_MARK in each.text for each in self._programs)

    def text_of_numbers(self, key: str) -> Certainty | None:
        """How certainly ``5e-5`` stays text where the file is read; None where what reads it makes a number of it."""
        by = self._unit.read_by
        if self._unit.reader != "script" and not by:
            return "certain"
        texts = [program.text for program in self._programs if not by or _same_file(program.path, by)]
        if texts and not any(re.search(_BY_YAML, text) for text in texts):
            return None  # nothing here reads YAML
        if any(self._in_tree_of(text) for text in texts) or is_unread(self._unit, self._programs, key, by_name=True):
            return None
        if any(_makes_number(text, key) for text in texts):
            return None
        if any(re.search(_BY_PYYAML, text) for text in texts):
            return "certain"
        if any(re.search(_BY_OMEGACONF, text) for text in texts):
            return None
        return "likely" if self._unit.dialect in OF_OMEGACONF else "certain"

    def _in_tree_of(self, text: str) -> bool:
        """Whether the file lies below the folder of configs that a program hands to Hydra."""
        folders = re.findall(_TREES, text) if "hydra" in text else []
        within = self._unit.path.replace("\\", "/").split("/")[:-1]
        return any(each.rpartition("/")[2] in within for each in folders)

    def of_rule(self, at: Sequence[str], meant: str = "") -> Certainty | None:
        """As :meth:`certainty`, of the first setting that a rule looks at, as it is written here."""
        setting = self._written(at)
        if setting is not None and setting.declared:
            return None
        if setting is not None and setting.joined and not self._of_run_config(setting):
            return "certain"  # a file of the library's own
        path = setting.path if setting is not None else at[:1]
        return self.certainty(_plain(str(path[-1]).rpartition(".")[2]) if path else "", meant)

    def _of_run_config(self, setting: Setting) -> bool:
        """Whether a setting stands in the config that a command's program reads: its names are that program's."""
        named = self._unit.settings.get(RUN_CONFIG)
        return named is not None and setting.joined == named.value


def readers_of(unit: Unit, programs: Iterable[Program]) -> list[Program]:
    """The programs that have most of a config's keys: one of them may be what reads it."""
    keys = [str(each.path[-1]) for each in unit.settings.values() if each.path and not each.joined]
    return [each for each in programs if 2 * sum(map(each.speaks_of, keys)) >= len(keys)]


def is_unread(unit: Unit, programs: Sequence[Program], key: str, *, by_name: bool = False) -> bool:
    """Whether no program has a key of a config, though one has most of its keys and none hands on what it does not
    name: then what the config says there comes to nothing.

    Args:
        by_name: whether one that names the file is enough, however few of the keys it has.
    """
    if unit.reader != "script" or unit.program or any(each.hands_on or each.spreads for each in programs):
        return False
    if any(each.speaks_of(key) for each in programs):
        return False
    file = re.escape(re.split(r"[/\\]", unit.path)[-1])
    named = by_name and any(re.search(rf"""["'/]{file}["']""", each.text) for each in programs)
    return named or bool(readers_of(unit, programs))


def _same_file(one: str, other: str) -> bool:
    return one.replace("\\", "/").endswith("/" + other.replace("\\", "/").lstrip("./")) or one == other


def _plain(key: str) -> str:
    return key.lstrip("-").replace("-", "_")


def _makes_number(text: str, key: str) -> bool:
    """Whether a source makes a number of what a config says as text: by ``float``, by a table of casts, by a flag of
    that type whose default the config becomes (argparse converts a default that is text), or by a class that converts.
    """
    if "TrlParser(" in text and re.search(_BY_PYYAML, text) is None:
        return True  # the library's arguments are flags there
    if key not in text or "float" not in text:
        return False
    name = re.escape(key)
    flag = "[-_]".join(re.escape(part) for part in re.split("[-_]", key))
    quoted = rf"""["']{name}["']"""
    ways = [rf"\bfloat\(\s*[^\n]{{0,80}}?\b{name}\b", rf"{quoted}\s*:\s*float\b"]  # {"learning_rate": float}
    # for key in ("learning_rate", "weight_decay"): config[key] = float(config[key])
    listed = rf"[(\[{{][^()\[\]{{}}]{{0,400}}?{quoted}[^()\[\]{{}}]{{0,400}}[)\]}}]"
    ways.append(rf"\bfor\s+\w+\s+in\s+{listed}:(?:[^\n]*\n){{0,3}}?[^\n]*\bfloat\(")
    if "set_defaults(**" in text:
        ways.append(rf"""["']--{flag}["'][^()]*?\btype\s*=\s*float\b""")
    if re.search(_CONVERTS, text):
        ways.append(rf"(?m)^[ \t]+{name}[ \t]*:[^=\n]*\bfloat\b")
    return any(re.search(way, text) for way in ways)
