"""Facts: their types, where each value comes from, how certain it is, and values that wait for a fact."""

from collections.abc import Callable, Iterable, Mapping

from kb.core.expression import LARGEST_NUMBER, Unknown
from kb.core.record import NamedTuple
from kb.core.text import Text
from kb.core.typed import Any, Literal

Origin = Literal["written", "joined", "given", "pinned", "ranged", "detected", "library", "assumed"]
"""How a fact is known.

``written``: the config or the command line says it. ``joined``: a file that the config names says it. ``given``: an
option of the command, or ``kb.toml``. ``pinned``: one release of a library, by a lock file or ``==``. ``ranged``:
several releases, by a range. ``detected``: this machine. ``library``: the default of a library whose release does not
matter or is certain. ``assumed``: nothing says it.
"""
Certainty = Literal["certain", "likely", "assumed"]
CERTAINTIES: tuple[Certainty, ...] = ("certain", "likely", "assumed")  # the surest first

_CERTAINTY: dict[Origin, Certainty] = {"ranged": "likely", "assumed": "assumed"}


def certainty_of(origin: Origin) -> Certainty:
    """What a fact of this origin counts as."""
    return _CERTAINTY.get(origin, "certain")


def weakest(certainties: Iterable[Certainty]) -> Certainty:
    """The least certain of them; of none, ``certain``."""
    return max(certainties, key=CERTAINTIES.index, default="certain")


FACT = "gpu.native_bf16"
NATIVE_BF16 = Unknown(frozenset((FACT,)), "as the fact")
NATIVE_BF16_IF_TRUE = Unknown(frozenset((FACT,)), "as the fact, where that is true")
_NOT_NATIVE_BF16 = Unknown(frozenset((FACT,)), "not the fact")
_NOT_NATIVE_BF16_IF_TRUE = Unknown(frozenset((FACT,)), "not the fact, where that is true")
_PAIRS = ((NATIVE_BF16, _NOT_NATIVE_BF16), (NATIVE_BF16_IF_TRUE, _NOT_NATIVE_BF16_IF_TRUE))


def negated(value: Unknown) -> Unknown:
    """The contrary of a value that waits for a fact; of any other unknown one, unknown."""
    for one, other in _PAIRS:
        if value is one or value is other:
            return other if value is one else one
    return Unknown(value.needs, value.reason)


_BETWEEN = " | "


def either(test: Unknown, yes: str, no: str) -> Unknown:
    """One of two texts, by an answer that waits for a fact: ``"bfloat16" if is_bf16_supported() else "float16"``."""
    return Unknown(test.needs, f"{test.reason}: {yes}{_BETWEEN}{no}")


def settled(value: Unknown, native_bf16: bool) -> bool | str | None:
    """What the value is on a GPU with or without native bf16; None where that does not tell."""
    reason, _, texts = value.reason.partition(": ")
    if texts:
        answer = settled(Unknown(value.needs, reason), native_bf16)
        yes, _, no = texts.partition(_BETWEEN)
        return None if answer is None else yes if answer else no
    if value.needs != NATIVE_BF16.needs:
        return None
    if value.reason.endswith("where that is true") and not native_bf16:
        return None
    if value.reason.startswith("as the fact"):
        return native_bf16
    return not native_bf16 if value.reason.startswith("not the fact") else None


MAX_TEXT, MAX_ITEMS = 4000, 1000


VersionOf = Callable[..., tuple[int, ...] | None]
"""The release of a library by name; of a range, one that stands for it where all of it lies on one side of each of the
releases named after the library. None where it is not known.
"""


class MovedDefault(NamedTuple):
    """What a default was before a release of ``library``; a ``value`` of None is not known."""

    library: str
    below: tuple[int, ...]
    value: Any


class FactType(NamedTuple):
    """One name of ``vocabulary.yaml``: its type and unit, the library's default, and what it means.

    ``default`` is that of the newest releases, ``moved`` says what it was before, the oldest release first.
    ``at`` names the settings whose place in a file a finding about this fact should show.
    """

    name: str
    type: str
    meaning: Text
    unit: str | None = None
    default: Any = None
    setting: bool = False  # a config can say it
    renamed: str | None = None  # an old name: the setting it became
    at: tuple[str, ...] = ()
    given: bool = False  # a project can say it, where no config does
    moved: tuple[MovedDefault, ...] = ()
    model_types: tuple[str, ...] = ()  # of a fact about the model: it holds for these types and for no others


def default_of(fact: FactType, version_of: VersionOf) -> Any:
    """The default in the releases at hand; of a library whose release is not known, the newest's."""
    for library, below, value in fact.moved:
        version = version_of(library, below)
        if version is not None and version < below:
            return value
    return fact.default


def default_is_open(fact: FactType, version_of: VersionOf) -> bool:
    """Whether :func:`default_of` took the newest releases' default only because a release is not known."""
    versions = [(version_of(library, below), below) for library, below, _ in fact.moved]
    return None in (version for version, _ in versions) and not any(
        version is not None and version < below for version, below in versions
    )


class Ground(NamedTuple):
    """How one fact is known. ``place`` is where it is said (``12:5``, ``requirements.txt:3``, ``--gpu``), or empty."""

    origin: Origin
    place: str = ""


NOT_SAID = Ground("library")


class Facts:
    """A lookup of facts by vocabulary name, each computed at most once, when first asked for.

    Args:
        types: the type of every fact that may be asked for.
        providers: the value of a fact, or of every fact of a group, by its first part and a dot (``gpu.``).
            ``None`` means unknown; an :class:`Unknown` passes through with its own reason.
        ground: how a fact is known, asked only of those that decided something.
    """

    def __init__(
        self,
        types: Mapping[str, str],
        providers: Mapping[str, Callable[[str], Any]],
        ground: Callable[[str], Ground] = lambda name: NOT_SAID,
    ) -> None:
        self._types = types
        self._providers = providers
        self.ground = ground
        self._known: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """The fact's value, coerced to its type, or :class:`Unknown` naming it."""
        try:
            return self._known[name]
        except KeyError:
            value = self._known[name] = self._find(name)
            return value

    def assuming(self, values: Mapping[str, Any]) -> Callable[[str], Any]:
        """A lookup in which some facts are as ``values`` has them."""
        return lambda name: values[name] if name in values else self.get(name)

    def _find(self, name: str) -> Any:
        provider = self._providers.get(name) or self._providers.get(name.partition(".")[0] + ".")
        value = None if provider is None else provider(name)
        if isinstance(value, Unknown):
            return value if value.needs else Unknown(frozenset((name,)), value.reason)
        if value is None:
            return Unknown(frozenset((name,)))
        return coerce(value, self._types[name], name)


def coerce(value: Any, kind: str, name: str) -> Any:
    """``value`` as the fact's type, bounded; a value of another type is unknown, never guessed."""
    wrong = Unknown(frozenset((name,)), f"{type(value).__name__} where {kind} is meant")
    if kind == "bool":
        return value if isinstance(value, bool) else wrong
    if kind in ("integer", "number", "bytes"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return wrong
        if kind == "bytes" and value > LARGEST_NUMBER:
            return LARGEST_NUMBER  # an absurd batch: more than any machine has, which is all that matters of it
        if value != value or abs(value) > LARGEST_NUMBER:
            return Unknown(frozenset((name,)), "number out of range")
        return wrong if kind == "integer" and isinstance(value, float) and not value.is_integer() else value
    if kind == "text":
        return value[:MAX_TEXT] if isinstance(value, str) else wrong
    if kind == "list":
        # What is not text could be anything, a mapping too: rules and the memory model look items up by their names.
        texts = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        return tuple(value[:MAX_ITEMS]) if texts else wrong
    return tuple(value) if isinstance(value, tuple) else wrong
