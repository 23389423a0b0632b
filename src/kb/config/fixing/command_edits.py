"""The edits of a fix → splices in a command line: values in their place, new flags beside the finding's."""

import re

from kb.config.dialect.dialects import CompiledDialect
from kb.config.fixing.changes import (
    GONE,
    CannotEditError,
    Change,
    Splice,
    in_words_of_key,
    refuse_unresolved,
    spellings,
)
from kb.config.fixing.written import as_words
from kb.core.document import KEY, Setting, Unit
from kb.core.finding import Edit, Span

_GAP_BEFORE = re.compile(r"(?:[ \t]|\\[ \t]*\r?\n)*\Z")  # a blank after the backslash is a fault, read as meant
_REST_OF_LINE = re.compile(r"[ \t]*\\?\r?\n")
NAMED_BY_EQUALS = ("llamafactory", "torchtune")  # whose command lines take name=value beside a config, and no flags


class CommandEdits:
    """Plans edits on one command of a text, the ``number``-th. Paths are that number and the flag."""

    def __init__(self, text: str, unit: Unit, number: int, dialect: CompiledDialect | None) -> None:
        self._text, self._unit, self._number, self._dialect = text, unit, number, dialect

    def plan(self, edits: tuple[Edit, ...], at: Span) -> Change:
        """The splices of all the edits. ``at`` is where the finding is: a new flag is put after it.

        Raises:
            CannotEditError: one of them cannot be made safely.
        """
        change = Change()
        for edit in edits:
            setting = self._unit.setting(edit.name)
            if edit.op == "replace":
                change.replace(edit)
            elif edit.op == "set" and (setting is None or self._elsewhere(setting)):
                self._insert(edit, setting, at, change)
            elif setting is None or self._elsewhere(setting):
                raise CannotEditError("config.fix.inherited" if setting else "config.fix.not-written", name=edit.name)
            elif edit.op == "set":
                self._set(edit, setting, change)
            elif edit.op == "remove":
                self._remove(setting, change)
            else:
                if not str(setting.path[0]).startswith("--"):
                    raise CannotEditError("config.fix.no-place")
                flag = self._flag(str(edit.value).rpartition(".")[2])
                change.splices.append(Splice(setting.key_span.start, setting.key_span.end, flag))
                old = self._path(setting.path[0])
                change.after[self._path(_plain(flag))] = change.after.get(old, setting.value)
                change.after[old] = GONE
        return change

    def _set(self, edit: Edit, setting: Setting, change: Change) -> None:
        refuse_unresolved(setting)
        path = self._path(setting.path[0])
        if setting.bare:
            self._set_switch(edit, setting, change)
            return
        old = self._text[setting.span.start : setting.span.end]
        value = in_words_of_key(self._dialect, tuple(str(setting.path[0]).lstrip("-").split(".")), edit)
        change.splices.append(Splice(setting.span.start, setting.span.end, as_words(value, old)))
        change.after[path] = value

    def _set_switch(self, edit: Edit, setting: Setting, change: Change) -> None:
        if not isinstance(edit.value, bool):
            change.splices.append(Splice(setting.span.end, setting.span.end, " " + as_words(edit.value)))
            change.after[self._path(setting.path[0])] = edit.value
            return
        if edit.value == setting.value:
            return
        if edit.value:
            flag = self._flag(str(setting.path[0]).removeprefix("--no_"))
            change.splices.append(Splice(setting.span.start, setting.span.end, flag))
            change.after[self._path(setting.path[0])] = GONE
            change.after[self._path(_plain(flag))] = True
        elif self._default(edit.name):
            change.splices.append(Splice(setting.span.end, setting.span.end, " False"))
            change.after[self._path(setting.path[0])] = False
        else:
            self._remove(setting, change)

    def _remove(self, setting: Setting, change: Change) -> None:
        change.after[self._path(setting.path[0])] = GONE
        gap = _GAP_BEFORE.search(self._text, 0, setting.key_span.start)
        start = gap.start() if gap else setting.key_span.start
        rest = _REST_OF_LINE.match(self._text, setting.span.end)
        if rest and start and self._text[start - 1] == "\n":  # no continuation before it to take away
            change.splices.append(Splice(start, rest.end(), ""))
        else:
            change.splices.append(Splice(start, setting.span.end, ""))

    def _insert(self, edit: Edit, shared: Setting | None, at: Span, change: Change) -> None:
        """A flag of its own; one that overrides a shared value stands last, where it wins."""
        if shared is None and edit.value is False and not self._default(edit.name):
            return  # it is off already
        name = self._spelling(edit.name)
        if self._unit.dialect in NAMED_BY_EQUALS:
            raise CannotEditError("config.fix.no-place")
        flag = self._flag(name)
        if edit.value is not True or self._spells_booleans():
            flag += " " + as_words(edit.value)
        beside = None if shared is not None else self._beside(at)
        place = self._unit.span.end if beside is None else beside.span.end
        change.splices.append(Splice(place, place, self._joint(beside) + flag))
        change.after[self._path("--" + name)] = edit.value

    def _beside(self, at: Span) -> Setting | None:
        own = [setting for setting in self._unit.settings.values() if not self._elsewhere(setting)]
        here = [setting for setting in own if setting.key_span.start <= at.start < setting.span.end]
        return here[0] if here else max(own, key=lambda setting: setting.span.end, default=None)

    def _joint(self, beside: Setting | None) -> str:
        """A blank, or a continued line where the flag beside it has a line of its own."""
        if beside is None:
            return " "
        start = self._text.rfind("\n", 0, beside.key_span.start) + 1
        indent = self._text[start : beside.key_span.start]
        if indent.strip(" \t") or start == 0:
            return " "
        newline = "\r\n" if self._text[start - 2 : start] == "\r\n" else "\n"
        return f" \\{newline}{indent}"

    def _elsewhere(self, setting: Setting) -> bool:
        """Whether a value stands in an assignment, which other commands may use too."""
        return not self._unit.span.start <= setting.span.start < self._unit.span.end

    def _flag(self, name: str) -> str:
        return "--" + (name.replace("_", "-") if self._dashes() else name)

    def _dashes(self) -> bool:
        """Whether the command writes its flags as ``--batch-size``."""
        keys = [self._text[s.key_span.start + 2 : s.key_span.end] for s in self._unit.settings.values()]
        return any("-" in key for key in keys) and not any("_" in key for key in keys)

    def _spells_booleans(self) -> bool:
        """Whether the command writes ``--fp16 True`` rather than ``--fp16``."""
        own = self._unit.settings.values()
        return any(isinstance(setting.value, bool) and setting.span != setting.key_span for setting in own)

    def _spelling(self, name: str) -> str:
        if name.startswith(KEY):
            return name.removeprefix(KEY)
        found = spellings(self._dialect, name, plain=False)
        if not found:
            raise CannotEditError("config.fix.no-place")
        return found[0]

    def _default(self, name: str) -> bool:
        """Whether the library switches this on by itself."""
        targets = self._dialect.targets.values() if self._dialect else ()
        return any(target.fact.default is True for listed in targets for target in listed if target.fact.name == name)

    def _path(self, flag: str | int) -> tuple[str | int, ...]:
        return (self._number, flag)


def _plain(flag: str) -> str:
    return "--" + flag[2:].replace("-", "_")
