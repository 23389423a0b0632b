"""A log file as it grew on a terminal: stretches between line feeds and carriage returns, in bounded memory."""

import codecs
from collections.abc import Iterator
from typing import BinaryIO

CHUNK = 1 << 16
LONGEST = 1 << 16  # characters of one stretch; of a longer one the end is kept, where a progress bar has its speed

_MARKS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)


def pieces(stream: BinaryIO) -> Iterator[tuple[int, str]]:
    """``(line number from 1, text)`` of every stretch that is not empty.

    A progress bar redraws itself with carriage returns, so that its whole life is one line. UTF-8 unless a byte order
    mark, or zero bytes in every other place, say UTF-16 (what PowerShell's ``>`` writes); what is no text is replaced.
    """
    chunk = stream.read(CHUNK)
    encoding, skip = _encoding(chunk)
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    chunk = chunk[skip:]
    line, pending = 1, ""
    while True:
        last = not chunk
        *whole, rest = (pending + decoder.decode(chunk, final=last)).split("\n")
        for row in whole:
            for part in row.split("\r"):
                if part:
                    yield line, part[-LONGEST:]
            line += 1
        *drawn, pending = rest.split("\r")
        for part in [*drawn, pending] if last else drawn:
            if part:
                yield line, part[-LONGEST:]
        if last:
            return
        pending = pending[-LONGEST:]
        chunk = stream.read(CHUNK)


def _encoding(start: bytes) -> tuple[str, int]:
    """The encoding of a text that starts so, and how many bytes its mark takes."""
    for mark, encoding in _MARKS:
        if start.startswith(mark):
            return encoding, len(mark)
    evens, odds = start[0::2].count(0), start[1::2].count(0)
    if max(evens, odds) > 0.4 * len(start) / 2 and min(evens, odds) < 0.02 * len(start):
        return ("utf-16-be" if evens > odds else "utf-16-le"), 0
    return "utf-8", 0
