"""Texts with placeholders, the name that was probably meant, and the error that a person reads."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from kb.core.record import NamedTuple
from kb.core.typed import Any


class UserError(ValueError):
    """The base of every user-facing error. ``key`` is its sentence in i18n, ``values`` fill the placeholders."""

    def __init__(self, key: str, **values: Any) -> None:
        super().__init__(key, values)
        self.key = key
        self.values: dict[str, Any] = values
        self.sentence: str | None = None  # in one language, where somebody who can word it has

    def __str__(self) -> str:
        if self.sentence is not None:
            return self.sentence
        return ": ".join([self.key, ", ".join(f"{name} {value}" for name, value in self.values.items())])


def os_reasons(values: dict[str, Any], messages: Mapping[str, str]) -> dict[str, Any]:
    """``values`` with the operating system's reason, which it says in English, in the words of ``messages``."""
    said = values.get("reason")
    told = messages.get(f"os.{said}") if isinstance(said, str) else None
    return values if told is None else {**values, "reason": told}


def described(error: BaseException) -> dict[str, str]:
    """A fault of kb itself: the error, and the file and line of kb that raised it."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    file = where.tb_frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2] if where else ""
    place = f"{file}:{where.tb_lineno}" if where else "?"
    return {"error": f"{type(error).__name__}: {error}"[:300], "place": place}


LANGUAGES = ("ko", "en")
_OF_FORMATS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.,%")


class Text(NamedTuple):
    """The same sentence in Korean and English. Placeholders are fact names: ``{memory.train.peak:GiB}``."""

    ko: str
    en: str

    def in_language(self, language: str) -> str:
        return self.ko if language == "ko" else self.en

    def placeholders(self) -> frozenset[str]:
        """Names of the facts that either language mentions."""
        return frozenset(name for part in (self.ko, self.en) for name, _, _ in placeholders_in(part))


def fill(template: str, lookup: Callable[[str, str], str]) -> str:
    """``template`` with each ``{name:format}`` replaced by ``lookup(name, format)``; the format may be empty."""
    if "{" not in template:
        return template
    first, *parts = template.split("{")
    for part in parts:
        inside, close, rest = part.partition("}")
        name, form = _placeholder(inside) if close else ("", "")
        first += lookup(name, form) + rest if name else "{" + part
    return first


def placeholders_in(template: str) -> Iterator[tuple[str, str, str]]:
    """The name, the format and the whole text of each ``{name:format}``. To compile a pattern takes longer than a short
    check has."""
    for part in template.split("{")[1:]:
        inside, close, _ = part.partition("}")
        name, form = _placeholder(inside) if close else ("", "")
        if name:
            yield name, form, f"{{{inside}}}"


def _placeholder(inside: str) -> tuple[str, str]:
    """Name and format of what stands in braces; an empty name where it is none: names are of small letters."""
    name, colon, form = inside.partition(":")
    plain = name.replace(".", "_")
    if not (plain.isascii() and plain.isidentifier() and plain == plain.lower()) or name[0] == ".":
        return "", ""
    return ("", "") if colon and not (form and _OF_FORMATS.issuperset(form)) else (name, form)


def text_of(data: Mapping[str, str]) -> Text:
    """A :class:`Text` from the ``{ko: …, en: …}`` of a rule file."""
    return Text(data["ko"], data["en"])


ENOUGH = 4  # characters that a name must begin with alike


def nearest(name: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Up to ``count`` known names most like ``name``, best first; names of over 100 characters have none.

    One that begins with ``name`` comes first. Case, ``-``, ``_`` and spaces do not count.
    """
    import difflib  # only when something is misspelt: it costs 2 ms

    if len(name) > 100:
        return []
    folded: dict[str, str] = {}
    for candidate in known:
        folded.setdefault(fold(candidate), candidate)
    wanted = fold(name)
    begun = [each for each in folded if len(wanted) >= ENOUGH and each.startswith(wanted)]  # half typed
    like = [each for each in difflib.get_close_matches(wanted, folded, count, cutoff) if each not in begun]
    return [folded[match] for match in [*begun, *like][:count]]


def did_you_mean(name: str, known: Iterable[str]) -> tuple[str, str]:
    """What to put behind a fault's sentence, in English and in Korean, where a known name was probably meant."""
    meant = nearest(name, known)
    return (f"; did you mean {meant[0]!r}?", f". {meant[0]!r} 아닙니까?") if meant else ("", "")


def fold(name: str) -> str:
    """``name`` as it looks without case and separators."""
    return name.casefold().replace("-", "").replace("_", "").replace(" ", "")
