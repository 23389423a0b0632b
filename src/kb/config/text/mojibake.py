"""UTF-8 that somebody read in a single-byte code page and saved again: named, counted, and undone where that is exact.

Each page has two readings. The plain one stops at the bytes that the page leaves undefined; the forgiving one (as in
browsers) lets them through as C1 control characters, and then nothing is lost. Where a program dropped those
characters, bytes are missing from the text, and no reading brings them back: such text is reported and never mended.
"""

import re

from kb.config.text.source import Places
from kb.core.document import Event
from kb.core.finding import Edit, Span
from kb.core.record import NamedTuple

PAGES = {"windows-1252": "cp1252", "windows-1254": "cp1254", "latin-1": "latin-1"}
SHOWN_PLACES, RELATED_PLACES = 3, 20
LONGEST_LINE, EXCERPT = 400, 60
LEAST_SHARE = 0.5  # of the non-ASCII characters, in runs that read as UTF-8

_HANGUL = re.compile("[가-힣]")
_RUN = re.compile(r"[^\x00-\x7f]+")
_CONTINUATION = range(0x80, 0xC0)


class _Sequence(NamedTuple):
    """One UTF-8 sequence in the damaged text: its offset in characters, its bytes, and those its lead promises."""

    start: int
    present: int
    promised: int


def find_mojibake(text: str) -> Event | None:
    """The event ``mojibake``, where most of what is not ASCII in ``text`` is UTF-8 read as another page; else None.

    Its values: ``page``; ``places``, runs of damaged characters; ``lossless``; ``broken``, characters that cannot be
    restored, and ``lost``, the bytes missing from them; ``first``, the first positions, of the broken ones where there
    are any. A lossless event carries the edit that restores the text.
    """
    if text.isascii() or _HANGUL.search(text):
        return None
    runs = [(match.start(), match[0]) for match in _RUN.finditer(text)]
    page = _likeliest_page(runs)
    if page is None:
        return None
    damaged, sequences = _read_runs(runs, _table(page))
    broken = [sequence for sequence in sequences if sequence.present < sequence.promised]
    restored = None if broken else _restore(text, page)
    places = Places(text)
    first = [sequence.start for sequence in broken] or [start for start, _ in damaged]
    end = damaged[0][0] + len(damaged[0][1])
    values = {
        "page": page,
        "places": len(damaged),
        "first": ", ".join("{}:{}".format(*places.at(offset)) for offset in first[:SHOWN_PLACES]),
        "lossless": restored is not None,
        "broken": len(broken),
        "lost": sum(sequence.promised - sequence.present for sequence in broken),
    }
    edits = () if restored is None else (Edit("replace", "", restored, places.span(0, len(text))),)
    return Event(
        kind="mojibake",
        span=places.span(first[0], first[0] + broken[0].present if broken else end),
        values=values,
        edits=edits,
        related=_partly_read(text, page, broken, places),
    )


def _likeliest_page(runs: list[tuple[int, str]]) -> str | None:
    """The page under which enough of the runs read as UTF-8; of several, the one that takes most of them."""
    total = sum(len(run) for _, run in runs)
    best, most = None, 0
    for page in PAGES:
        damaged, sequences = _read_runs(runs, _table(page))
        covered = sum(len(run) for _, run in damaged)
        if covered > most and covered >= LEAST_SHARE * total and _convincing(sequences):
            best, most = page, covered
    return best


def _convincing(sequences: list[_Sequence]) -> bool:
    """Whether this can hardly be a text in accented letters: `Ç…` alone is two bytes of UTF-8 by chance."""
    whole = [sequence for sequence in sequences if sequence.present == sequence.promised]
    return len(whole) >= 3 or any(sequence.promised > 2 for sequence in whole)


def _read_runs(runs: list[tuple[int, str]], table: dict[str, int]) -> tuple[list[tuple[int, str]], list[_Sequence]]:
    """The runs that begin with a UTF-8 lead byte and hold continuation bytes, and the sequences in them."""
    damaged: list[tuple[int, str]] = []
    sequences: list[_Sequence] = []
    for start, run in runs:
        codes = [table.get(character, -1) for character in run]
        if _promised(codes[0]) and not any(code < 0 for code in codes) and any(c in _CONTINUATION for c in codes):
            damaged.append((start, run))
            sequences += _sequences(start, codes)
    return damaged, sequences


def _sequences(start: int, codes: list[int]) -> list[_Sequence]:
    found: list[_Sequence] = []
    at = 0
    while at < len(codes):
        promised = _promised(codes[at]) or 1
        end = at + 1
        while end < min(at + promised, len(codes)) and codes[end] in _CONTINUATION:
            end += 1
        found.append(_Sequence(start + at, end - at, promised))
        at = end
    return found


def _promised(lead: int) -> int:
    """The length of the UTF-8 sequence that this byte begins; 0 where it begins none."""
    return 2 if 0xC2 <= lead <= 0xDF else 3 if 0xE0 <= lead <= 0xEF else 4 if 0xF0 <= lead <= 0xF4 else 0


def _table(page: str) -> dict[str, int]:
    """Character → byte for 0x80 to 0xFF of the page's forgiving reading."""
    table: dict[str, int] = {}
    for byte in range(0x80, 0x100):
        character = bytes((byte,)).decode(PAGES[page], errors="replace")
        table[chr(byte) if character == "�" else character] = byte
    return table


def _restore(text: str, page: str) -> str | None:
    """The text as it was, only if all of it reads back exactly and damaging it again gives the same text."""
    table = _table(page)
    codes = bytearray()
    for character in text:
        code = ord(character) if character < "\x80" else table.get(character)
        if code is None:
            return None
        codes.append(code)
    try:
        restored = codes.decode("utf-8")
    except UnicodeDecodeError:
        return None
    damage = {byte: character for character, byte in table.items()}
    again = "".join(chr(byte) if byte < 0x80 else damage[byte] for byte in restored.encode("utf-8"))
    return restored if again == text and _readable(restored) else None


def _readable(text: str) -> bool:
    """A repair must end in text: control characters and unassigned ones mean that it was something else."""
    import unicodedata

    rare = [c for c in text if c >= "\x80" and unicodedata.category(c) in ("Cc", "Cn", "Co")]
    return not rare


def _partly_read(text: str, page: str, broken: list[_Sequence], places: Places) -> tuple[tuple[str, Span], ...]:
    """The first broken place of each line, with the line as far as it reads and U+FFFD for what is lost."""
    table = _table(page)
    found: list[tuple[str, Span]] = []
    for sequence in broken:
        if found and places.at(sequence.start)[0] == found[-1][1].line:
            continue
        if len(found) == RELATED_PLACES:
            break
        start = text.rfind("\n", 0, sequence.start) + 1
        end = text.find("\n", start) if text.find("\n", start) >= 0 else len(text)
        if end - start > LONGEST_LINE:
            start, end = max(start, sequence.start - EXCERPT), min(end, sequence.start + EXCERPT)
        line = text[start:end]
        codes = bytes(ord(c) if c < "\x80" else table.get(c, 0xFF) for c in line)
        found.append(
            (codes.decode("utf-8", errors="replace"), places.span(sequence.start, sequence.start + sequence.present))
        )
    return tuple(found)
