"""JSON to read and to write in small: what a check keeps for the next one, and its compiled rules.

``import json`` compiles six patterns, which takes a hundredth of a short check; the same C code is asked here without
them. A Python that has none of it goes by the standard library's module.
"""

from collections.abc import Callable, Iterable
from types import SimpleNamespace

from kb.core.typed import Any

try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner
except ImportError:  # a Python without CPython's C code
    import json

    scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().raw_decode

    def _chunks(value: Any, indent: int) -> Iterable[str]:
        return json.JSONEncoder().iterencode(value)
else:
    _READING = SimpleNamespace(  # as json.JSONDecoder() has it
        strict=True,
        object_hook=None,
        object_pairs_hook=None,
        parse_float=float,
        parse_int=int,
        parse_constant={"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__,
    )

    def _refuse(value: object) -> None:
        raise TypeError(f"no JSON: {type(value).__name__}")

    _scan = make_scanner(_READING)  # type: ignore[arg-type]

    def scan(text: str, at: int) -> tuple[Any, int]:
        try:
            return _scan(text, at)
        except StopIteration:  # as the C code says that no value begins there
            raise ValueError("no JSON") from None

    _chunks = make_encoder(None, _refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True)  # type: ignore[assignment]


def read(text: str) -> Any:
    """The value that a text is.

    Raises:
        ValueError: it is no JSON.
    """
    text = text.strip(" \t\n\r")
    value, end = scan(text, 0)
    if end != len(text):
        raise ValueError("more than one value")
    return value


def written(value: Any) -> str:
    """A value as text, as ``json.dumps`` writes it."""
    return "".join(_chunks(value, 0))
