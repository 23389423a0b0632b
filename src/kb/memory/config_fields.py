"""Fields of a ``config.json``, with faults that name the field."""

from collections.abc import Mapping

from kb.core.typed import Any


class UnsupportedArchitectureError(ValueError):
    """A config.json whose model is not known, or whose dimensions are missing or contradictory.

    ``fault`` names the sentence in i18n that says it (of a file under ``model_config.``, of a run that is not predicted
    under ``note.``), ``values`` fill its placeholders; "" where there is none.
    """

    def __init__(self, message: str, fault: str = "", **values: Any) -> None:
        super().__init__(message)
        self.fault = fault
        self.values = values


def unpredicted(what: str) -> UnsupportedArchitectureError:
    """Something of a config.json that the memory engine does not follow."""
    return UnsupportedArchitectureError(f"config.json: {what}: no prediction for that")


def _wrong(kind: str, name: str, value: object, meant: str) -> UnsupportedArchitectureError:
    text = f"config.json: {name} must be {meant}, not {value!r}"
    return UnsupportedArchitectureError(text, f"not_{kind}", name=name, value=repr(value)[:100])


def number(config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    """The first of the named fields that is there: a positive whole number."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**8:
            raise _wrong("number", name, value, "a positive whole number")
        return value
    if default is None:
        wanted = " or ".join(names)
        raise UnsupportedArchitectureError(f"config.json: {wanted} is missing", "missing", name=" / ".join(names))
    return default


def equal(config: Mapping[str, Any], first: str, second: str) -> int:
    """Two fields that are taken as one."""
    one, other = number(config, first), number(config, second)
    if one != other:
        raise UnsupportedArchitectureError(
            f"config.json: {first} {one} and {second} {other} differ; kb does not know that",
            "differ",
            first=first,
            one=one,
            second=second,
            other=other,
        )
    return one


def flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong("flag", name, value, "true or false")
    return value


def refuse(config: Mapping[str, Any], name: str, default: bool = False) -> None:
    """Refuse a flag that is set.

    Raises:
        UnsupportedArchitectureError: it is.
    """
    if flag(config, name, default):
        raise unpredicted(name)


def rate(config: Mapping[str, Any], *names: str, default: float = 0.0) -> float:
    """The first of the named fields that is there: a number from 0 to 1."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise _wrong("rate", name, value, "between 0 and 1")
        return float(value)
    return default


def word(config: Mapping[str, Any], *names: str, default: str) -> str:
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, str):
            raise _wrong("word", name, value, "a name")
        return value
    return default


def head_size(d_model: int, heads: int, name: str) -> int:
    """The size of one head where the model's width is split among them."""
    if d_model % heads:
        raise UnsupportedArchitectureError(
            f"config.json: d_model {d_model} is not a multiple of {name} {heads}",
            "not_multiple",
            width=d_model,
            name=name,
            heads=heads,
        )
    return d_model // heads


def windows_of(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Tokens that each layer's attention sees around one, in even numbers."""
    given = config.get("attention_window", 512)
    each = tuple(given) if isinstance(given, list | tuple) else (given,) * layers
    if len(each) != layers or not all(isinstance(size, int) and size > 2 and size % 2 == 0 for size in each):
        raise UnsupportedArchitectureError("config.json: attention_window is an even number, or one for each layer")
    if any(max(each) % size for size in each):
        raise UnsupportedArchitectureError("config.json: attention_window: the largest is no multiple of the others")
    return each
