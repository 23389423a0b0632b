"""A log as numbered lines, from a file or from standard input, in bounded memory and whatever encoding."""

import io
import sys
from collections.abc import Iterator

from kb.config.files import ConfigError, is_device
from kb.config.log.pieces import pieces

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
    except FileNotFoundError:
        raise ConfigError("config.missing", path=path) from None
    except OSError as error:
        raise ConfigError("config.unreadable", path=path, reason=error.strerror or str(error)) from None


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
