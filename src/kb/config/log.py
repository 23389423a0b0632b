"""A log as numbered lines, from a file or from standard input, in bounded memory and whatever encoding."""

import codecs
import io
import sys
from collections.abc import Iterator
from typing import BinaryIO

from kb.config.files import ConfigError, is_device, unreadable
from kb.config.text.encoding import MARKS

CHUNK = 1 << 16
LONGEST = 1 << 16  # characters of one stretch; of a longer one the end is kept, where a progress bar has its speed


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
    for mark, _, encoding in MARKS:
        if start.startswith(mark):
            return encoding, len(mark)
    evens, odds = start[0::2].count(0), start[1::2].count(0)
    if max(evens, odds) > 0.4 * len(start) / 2 and min(evens, odds) < 0.02 * len(start):
        return ("utf-16-be" if evens > odds else "utf-16-le"), 0
    return "utf-8", 0


STDIN = "-"
START = 4096
_COMPRESSED = ((b"\x1f\x8b", "zcat"), (b"\x28\xb5\x2f\xfd", "zstdcat"), (b"BZh", "bzcat"), (b"\xfd7zXZ\x00", "xzcat"))
_CONTROLS = frozenset(range(0x09)) | frozenset(range(0x0E, 0x1B)) | frozenset(range(0x1C, 0x20))
_MOST_CONTROLS = 0.1  # of the characters at the start; more are no text in any encoding


def log_lines(path: str) -> Iterator[tuple[int, str]]:
    """``(line number from 1, text)`` of each line, and of each drawing of a progress bar.

    Raises:
        ConfigError: it is missing, cannot be read, is compressed or is no text.
    """
    if path != STDIN and is_device(path):
        raise ConfigError("config.not-a-file", path=path)
    try:
        if path == STDIN:
            assert isinstance(sys.stdin.buffer, io.BufferedReader)
            yield from read_lines(sys.stdin.buffer, path)
        else:
            with open(path, "rb") as stream:
                yield from read_lines(stream, path)
    except OSError as error:
        raise unreadable(path, error) from None


def read_lines(stream: io.BufferedReader, path: str) -> Iterator[tuple[int, str]]:
    """The lines of an open log.

    Raises:
        ConfigError: it is compressed or is no text.
    """
    start = stream.peek(START)
    for mark, command in _COMPRESSED:
        if start.startswith(mark):
            raise ConfigError("diagnose.compressed", path=path, command=command)
    rows = pieces(stream)
    held, characters, controls = [], 0, 0
    for row in rows:
        held.append(row)
        characters += len(row[1]) + 1
        controls += sum(ord(character) in _CONTROLS for character in row[1][:START])
        if characters >= START // 4:
            break
    if controls > _MOST_CONTROLS * characters:
        raise ConfigError("diagnose.binary", path=path)
    yield from held
    yield from rows
