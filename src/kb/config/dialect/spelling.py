"""How a config says a setting in its own format: the other way round from reading. ``load_in_4bit: true`` of the
vocabulary is ``quantization_bit: 4`` of LLaMA-Factory.
"""

from collections.abc import Mapping
from typing import Any

from kb.config.dialect.dialects import ANY, LAST, CompiledDialect, Target
from kb.core.catalog import Dialect
from kb.core.document import Unit
from kb.core.facts import FactType
from kb.core.record import NamedTuple

_READ_AS: Mapping[str, Any] = {"true": True, "false": False}


class Written(NamedTuple):
    """A key's path from the top of the document, and the value that it gets there."""

    path: tuple[str, ...]
    value: Any


class Speller:
    """Says settings in the format of a unit, ``dialect``."""

    def __init__(self, dialect: Dialect, facts: Mapping[str, FactType]) -> None:
        self._targets = CompiledDialect(dialect, facts).targets
        self._defaults = dialect.defaults

    def has_by_default(self, name: str, value: Any) -> bool:
        """Whether a config of the format has this value where it does not say the setting."""
        return name in self._defaults and self._defaults[name] == value

    def spell(self, unit: Unit, name: str, value: Any, preferred: str = "") -> Written | None:
        """The file's own key where it has the setting, else the format's first one; None where it has none for this
        value.

        Args:
            preferred: what to write where several texts mean the value (``qlora`` for an adapter that is enabled).
        """
        setting = unit.setting(name)
        prefix = self._prefix(unit)
        if setting is not None and setting.path and not setting.inherited and not setting.joined:
            steps = tuple(str(step) for step in setting.path)
            for target in self._targets.get(".".join(steps[len(prefix) :]), ()):
                if target.fact.name == name and (found := in_words_of(target, value, preferred)) is not None:
                    return Written(steps, found[0])
        ranked = sorted(
            (not target.plain, target.rank, path, target)
            for path, targets in self._targets.items()
            for target in targets
            if target.fact.name == name and target.rank < LAST
        )
        for _, _, path, target in ranked:
            found = in_words_of(target, value, preferred)
            if found is not None:
                return Written((*prefix, *path.split(".")), found[0])
        return None

    def _prefix(self, unit: Unit) -> tuple[str, ...]:
        """The path of the unit's section in its document."""
        for name, setting in unit.settings.items():
            steps = tuple(str(step) for step in setting.path)
            if setting.inherited or setting.joined or not steps:
                continue
            for start in range(len(steps)):
                targets = self._targets.get(".".join(steps[start:]), ())
                if any(target.fact.name == name for target in targets):
                    return steps[:start]
        return ()


def in_words_of(target: Target, value: Any, preferred: str = "") -> tuple[Any] | None:
    """What to write for a value, in a tuple of one; None where the key cannot say it, or not by itself."""
    if target.beside:
        return None
    if target.plain:
        return (list(value) if isinstance(value, tuple) else value,)
    if target.split:
        return (target.split.join(map(str, value)),) if isinstance(value, list | tuple) else None
    texts = [text for text, meant in target.values.items() if meant == value and type(meant) is type(value)]
    closed = bool(target.items or target.patterns) or ANY in target.values or None in (target.skip, target.unknown)
    taken = {*target.values, *(target.skip or ()), *(target.unknown or ())}
    if texts and (closed or not isinstance(value, bool) or {str(value), str(value).lower()} & taken):
        plain = [text for text in texts if text in _READ_AS]
        text = preferred if preferred in texts else (plain or texts)[0]
        return (_READ_AS[text] if text in _READ_AS else int(text) if text.isdigit() else text,)
    return None if closed or value in taken or str(value) in taken else (value,)
