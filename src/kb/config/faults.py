"""A fault of the user's file or path, said where it is; worded by i18n under ``config.``."""

from collections.abc import Iterable
from typing import Any

from kb.core.errors import UserError


class ConfigError(UserError):
    """A text that cannot be read as a config, or a path that leads to none.

    ``key`` is the message's key in i18n (``config.…``) and ``values`` fills its placeholders. ``line`` and ``column``
    count from 1, in characters; None where the fault has no place in a text.
    """

    def __init__(self, key: str, line: int | None = None, column: int | None = None, **values: Any) -> None:
        super().__init__(key, **values)
        self.line, self.column = line, column

    def __str__(self) -> str:
        place = "" if self.line is None else f"{self.line}:{self.column}: "
        told = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"{place}{self.key}{' (' + told + ')' if told else ''}"


def unknown_dialect(name: str, known: Iterable[str]) -> ConfigError:
    """The fault of a ``--dialect`` that there is none of, with the nearest that there is."""
    from kb.core.suggest import nearest

    names = sorted(known)
    meant = nearest(name, names)
    if meant:
        return ConfigError("config.unknown-dialect-meant", name=name[:100], meant=meant[0], known=", ".join(names))
    return ConfigError("config.unknown-dialect-id", name=name[:100], known=", ".join(names))
