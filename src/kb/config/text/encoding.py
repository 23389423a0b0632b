"""From the bytes of a file to its text. Strict UTF-8, or the reason why not; a code page is named, never assumed."""

import re

from kb.config.files import ConfigError
from kb.core.document import Event
from kb.core.finding import Edit, Span
from kb.core.record import NamedTuple

MARKS = (
    (b"\xef\xbb\xbf", "utf-8-sig", "utf-8"),
    (b"\xff\xfe\x00\x00", "utf-32-le", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be", "utf-16-be"),
)
UNKNOWN_PAGE = "unknown"
MARK = "byte-order-mark"  # the event of one in UTF-8
TO_UTF8 = "encoding"  # the name of an edit that leaves the text alone and has the file written as plain UTF-8

_CONTROLS = bytes({*range(0x09), *range(0x0E, 0x1B), *range(0x1C, 0x20), 0x7F})
_LONG_FOREIGN_RUN = rb"[\x80-\xff]{3}"
_TURKISH = frozenset("çğıöşüâîûÇĞİÖŞÜÂÎÛ")
_TURKISH_ONLY = frozenset("ğışĞİŞ")
_TYPOGRAPHIC = frozenset("\u00a0€…–—‘’‚“”„‹›«»•·°±×÷²³µ¼½¾§©®™¿¡ªº´¨¸")


class Decoded(NamedTuple):
    """A file's text, and how to write it back.

    ``text`` is None where the file is in no Unicode encoding: its event ``not-utf8`` says where and in which page it
    seems to be. A byte order mark is not part of the text; offsets and columns count without it.
    """

    text: str | None
    encoding: str  # for `encode`; meaningless where text is None
    events: tuple[Event, ...] = ()


def decode(raw: bytes) -> Decoded:
    """The text of ``raw``, with the events byte-order-mark, not-utf8 and mojibake.

    Raises:
        ConfigError: the bytes are binary data.
    """
    if raw.isascii() and b"\x00" not in raw:
        return Decoded(text=raw.decode("ascii"), encoding="utf-8")
    for mark, encoding, page in MARKS:
        if raw.startswith(mark):
            return _decode_marked(raw, mark, encoding, page)
    if b"\x00" in raw:
        return _wide_without_mark(raw)
    try:
        return _decoded(raw.decode("utf-8"), "utf-8", ())
    except UnicodeDecodeError as error:
        return _not_utf8(raw, error.start)


def stops_at_mark(body: str, path: str) -> bool:
    """Whether what reads a config of this name and text stops at a byte order mark before it: Python's json and tomllib
    do, PyYAML reads past it."""
    name = path.lower()
    return name.endswith((".json", ".toml")) or (not name.endswith((".yaml", ".yml")) and body.lstrip()[:1] == "{")


def encode(text: str, encoding: str) -> bytes:
    """``text`` as bytes in the encoding that :func:`decode` named, with its byte order mark."""
    for mark, name, _ in MARKS:
        if name == encoding and name != "utf-8-sig":
            return mark + text.encode(name)
    return text.encode(encoding)


def _decoded(text: str, encoding: str, events: tuple[Event, ...]) -> Decoded:
    # most texts are ASCII or have Hangul in them, and neither is damaged
    if text.isascii() or any("\uac00" <= character <= "\ud7a3" for character in text):
        return Decoded(text=text, encoding=encoding, events=events)
    from kb.config.text.mojibake import find_mojibake  # few files may hold such

    damage = find_mojibake(text)
    return Decoded(text=text, encoding=encoding, events=(*events, damage) if damage else events)


def _decode_marked(raw: bytes, mark: bytes, encoding: str, page: str) -> Decoded:
    start = Span(1, 1, 1, 1, 0, 0)
    edit = Edit("replace", TO_UTF8, "", start)
    try:
        text = raw[len(mark) :].decode(page)
    except UnicodeDecodeError as error:
        if page == "utf-8":
            return _not_utf8(raw, error.start + len(mark))
        event = _event(raw, error.start + len(mark), UNKNOWN_PAGE, start)
        return Decoded(text=None, encoding=encoding, events=(event,))
    if "\x00" in text:
        raise ConfigError("config.binary", 1, 1, offset=_offset_of_nul(raw))
    if page == "utf-8":
        return _decoded(text, encoding, (Event(kind=MARK, span=start, edits=(edit,)),))
    values = {"offset": 0, "byte": f"0x{raw[0]:02X}", "page": page}
    return _decoded(text, encoding, (Event(kind="not-utf8", span=start, values=values, edits=(edit,)),))


def _wide_without_mark(raw: bytes) -> Decoded:
    """Zero bytes: UTF-16 without its mark, if they stand on one side of nearly every pair; else binary data.

    Such text is named and not read: without the mark the order of the bytes is an inference.
    """
    zeros = (raw[0::2].count(0), raw[1::2].count(0))
    page = "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"
    one_sided = max(zeros) >= 0.2 * len(raw) / 2 and min(zeros) <= 0.02 * max(zeros)
    start = Span(1, 1, 1, 1, 0, 0)
    if one_sided and len(raw) % 2 == 0 and _reads_as(raw, page):
        return Decoded(text=None, encoding=page, events=(_event(raw, raw.index(0), page, start),))
    raise ConfigError("config.binary", 1, 1, offset=_offset_of_nul(raw))


def _offset_of_nul(raw: bytes) -> int:
    return max(raw.find(0), 0)


def _not_utf8(raw: bytes, offset: int) -> Decoded:
    controls = len(raw) - len(raw.translate(None, _CONTROLS))
    line = raw.count(b"\n", 0, offset) + 1
    before = raw[raw.rfind(b"\n", 0, offset) + 1 : offset]
    column = len(before.decode("utf-8", errors="replace").removeprefix("\ufeff")) + 1
    span = Span(line, column, line, column + 1)
    if controls > 0.02 * len(raw):
        raise ConfigError("config.binary", line, column, offset=offset)
    return Decoded(text=None, encoding="utf-8", events=(_event(raw, offset, name_page(raw), span),))


def _event(raw: bytes, offset: int, page: str, span: Span) -> Event:
    return Event(kind="not-utf8", span=span, values={"offset": offset, "byte": f"0x{raw[offset]:02X}", "page": page})


def name_page(raw: bytes) -> str:
    """The legacy code page that ``raw`` reads as text in, or ``unknown``: a label for a message only."""
    if _reads_as(raw, "cp949"):
        foreign = [c for c in raw.decode("cp949") if c > "\x7f" and c.isalpha()]
        # The Hangul of KS X 1001 are the ones in use; text in another page seldom falls on them alone.
        korean = sum("가" <= c <= "힣" and len(c.encode("euc_kr", errors="ignore")) == 2 for c in foreign)
        if korean >= 2 and korean >= 0.9 * len(foreign):
            return "euc-kr" if _reads_as(raw, "euc_kr") else "cp949"
    high = bytes({byte for byte in raw if byte > 0x7F})
    if _reads_as(high, "cp1254"):
        letters = {c for c in high.decode("cp1254") if c not in _TYPOGRAPHIC}
        if letters <= _TURKISH and letters & _TURKISH_ONLY:
            return "windows-1254"
    if re.search(_LONG_FOREIGN_RUN, raw):
        return UNKNOWN_PAGE  # accented letters stand among plain ones; a longer run is another script
    if _reads_as(high, "cp1252"):
        letters = {c for c in high.decode("cp1252") if c not in _TYPOGRAPHIC}
        if letters and all(c.isalpha() for c in letters):
            return "windows-1252" if any(byte < 0xA0 for byte in high) else "latin-1"
    return UNKNOWN_PAGE


def _reads_as(raw: bytes, page: str) -> bool:
    try:
        raw.decode(page)
    except UnicodeDecodeError:
        return False
    return True
