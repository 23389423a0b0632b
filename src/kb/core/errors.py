"""Something the user gave that cannot be used: said in their language, with what to do next; exit code 2."""

from typing import Any


class UserError(ValueError):
    """The base of every user-facing error. ``key`` is its sentence in i18n, ``values`` fill the placeholders."""

    def __init__(self, key: str, **values: Any) -> None:
        super().__init__(key, values)
        self.key = key
        self.values: dict[str, Any] = values

    def __str__(self) -> str:
        return ": ".join([self.key, ", ".join(f"{name} {value}" for name, value in self.values.items())])
