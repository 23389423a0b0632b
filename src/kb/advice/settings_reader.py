"""What a unit's settings say, by canonical name; what the config leaves open, and what it says beyond use."""

from collections.abc import Mapping
from typing import Any

from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.core.facts import FactType, VersionOf, coerce, default_is_open, default_of
from kb.core.setup import Assumption


class SettingsReader:
    """Settings by name, with the library's default behind them; remembers what was assumed.

    ``unresolved`` are the settings asked for whose value is unknown (``${BATCH}``, ``auto``) or beyond use (a batch of
    -5): a default in their place would be a guess. ``unread`` are those that name a file which could not be read.
    ``given`` is what the project says where the config says nothing; ``versions`` decides between defaults that moved.
    """

    def __init__(
        self,
        unit: Unit,
        facts: Mapping[str, FactType],
        given: Mapping[str, Any] = {},
        versions: VersionOf = lambda library: None,
    ) -> None:
        self._unit = unit
        self._facts = facts
        self._versions = versions
        self._given = given
        self.unread = unit.unread
        self.assumed: list[Assumption] = []
        self.unresolved: dict[str, None] = {}

    def written(self, name: str) -> bool:
        return name in self._unit.settings

    def as_written(self, name: str) -> Any:
        """The config's value as it stands there; None where it says none."""
        setting = self._unit.settings.get(name)
        return None if setting is None else setting.value

    def key(self, name: str) -> str:
        """The key that a setting is written under; its own name where the project says it."""
        setting = self._unit.settings.get(name)
        return str(setting.path[-1]) if setting is not None and setting.path else name

    def value(self, *names: str) -> Any:
        """The first of ``names`` that the config says; None where it says none, or its value is unresolved."""
        for name in names:
            setting = self._unit.settings.get(name)
            value = self._given.get(name) if setting is None or setting.value is None else setting.value
            if value is None and setting is None and self._unit.hidden and name.startswith(self._unit.hidden):
                self.unresolved[name] = None
                return None
            if value is None:
                continue
            kind = self._facts[name].type
            if kind == "text" and isinstance(value, bool):  # `fsdp: true`; `false` says that there is none
                if not value:
                    continue
                value = "true"
            if kind == "list" and value == "all-linear":
                value = (value,)
            value = coerce(value, kind, name)
            if is_unknown(value):
                self.unresolved[name] = None
                return None
            return value
        return None

    def number(self, *names: str, least: int = 1) -> int | None:
        """As :meth:`value`, of a whole number; one below ``least`` cannot run and is unresolved."""
        for name in names:
            value = self.value(name)
            if value is not None and value < least:
                self.unresolved[name] = None
            if name in self.unresolved:
                return None
            if value is not None:
                return int(value)
        return None

    def or_default(self, name: str) -> Any:
        """The config's value, or the library's default."""
        value = self.value(name)
        return self.default(name) if value is None else value

    def default(self, name: str) -> Any:
        """The library's default, in the release at hand or the newest."""
        return default_of(self._facts[name], self._versions)

    def default_is_open(self, name: str) -> bool:
        """Whether the default moved between releases, or is none that is known, and the release is not known."""
        fact = self._facts[name]
        return default_is_open(fact, self._versions) or default_of(fact, self._versions) is None

    def number_or_default(self, name: str, least: int = 1) -> int:
        """As :meth:`or_default`, of a whole number that has a default."""
        value = self.number(name, least=least)
        return int(self.default(name)) if value is None else value

    def or_assume(self, name: str, value: Any, fallback: Any, reason: str) -> Any:
        """``value``, or ``fallback``, which is then listed as assumed."""
        if value is not None:
            return value
        self.assumed.append(Assumption(name=name, value=fallback, reason=reason))
        return fallback
