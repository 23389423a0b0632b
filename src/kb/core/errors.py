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


def described(error: BaseException) -> dict[str, str]:
    """A fault of kb itself: the error, and the file and line of kb that raised it."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    file = where.tb_frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2] if where else ""
    place = f"{file}:{where.tb_lineno}" if where else "?"
    return {"error": f"{type(error).__name__}: {error}"[:300], "place": place}
