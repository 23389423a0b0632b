"""Rows of a data set, one at a time, no file held whole: JSON lines, a JSON array, CSV and TSV, plain or gzipped; and
what pyarrow reads: parquet and arrow files, and folders that ``save_to_disk`` of ``datasets`` wrote.
"""

import csv
import gzip
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any, cast

from kb.core.record import NamedTuple
from kb.core.text import UserError

CHUNK = 1 << 20  # characters
LONGEST_ROW = 64 << 20  # characters: what is longer is no row of text
_BETWEEN = re.compile(r"[\s,]*")


class Row(NamedTuple):
    """``line`` is where it begins (of a table, its number); ``read`` gives its columns, or raises a UserError."""

    line: int
    read: Callable[[], Mapping[str, Any]]


def text_rows(path: str) -> Iterator[Row]:
    """The rows of a file of text; each is read only when asked for.

    Raises:
        UserError: it is of another kind, or broken.
        OSError, EOFError: it cannot be read.
    """
    opened: IO[bytes]
    name = path.lower()
    if name.endswith(".gz"):
        opened, name = cast(IO[bytes], gzip.open(path)), name.removesuffix(".gz")  # noqa: SIM115 - closed below
    else:
        opened = open(path, "rb")  # noqa: SIM115 - closed below
    with opened:
        if name.endswith((".csv", ".tsv")):
            yield from _csv_rows(opened, path, "\t" if name.endswith(".tsv") else ",")
            return
        first = _first_character(opened)
        if first == b"[":
            yield from _array_rows(opened, path)
        elif first in (b"{", b"") or name.endswith((".json", ".jsonl", ".ndjson")):
            yield from _line_rows(opened, path)
        else:
            raise UserError("lengths.unknown_kind", path=path)


def _first_character(stream: IO[bytes]) -> bytes:
    """The first that is no blank nor byte order mark; the stream stands at its beginning again."""
    begun = stream.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    stream.seek(0)
    return begun[:1]


def _broken(path: str, line: int, reason: object) -> UserError:
    return UserError("lengths.broken_row", path=path, at=str(line), reason=str(reason))


def _line_rows(stream: IO[bytes], path: str) -> Iterator[Row]:
    line = 0
    while raw := stream.readline(LONGEST_ROW + 1):
        line += 1
        if len(raw) > LONGEST_ROW:
            raise UserError("lengths.row_too_long", path=path, at=str(line), most=LONGEST_ROW >> 20)
        if raw.strip():
            yield Row(line, partial(_parsed, raw, path, line))


def _parsed(raw: bytes, path: str, line: int) -> Mapping[str, Any]:
    try:
        return _object(json.loads(raw), path, line)
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise _broken(path, line, getattr(error, "msg", error)) from None


def _object(value: Any, path: str, line: int) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError("lengths.no_object", path=path, at=str(line), kind=type(value).__name__)
    return value


def _array_rows(stream: IO[bytes], path: str) -> Iterator[Row]:
    """The objects of an array, decoded one after another from a window of the file."""
    text, decode = io.TextIOWrapper(stream, encoding="utf-8-sig"), json.JSONDecoder().raw_decode
    held, at, line, wanted = _read(text, CHUNK, path, 1), 0, 1, CHUNK
    opening = held.index("[") + 1
    line, at = line + held.count("\n", 0, opening), opening
    while True:
        begin = _BETWEEN.match(held, at).end()  # type: ignore[union-attr]  # it matches nothing too
        line, at = line + held.count("\n", at, begin), begin
        if held.startswith("]", at):
            return
        try:
            value, end = decode(held, at)
        except (ValueError, RecursionError) as error:
            more = _read(text, wanted, path, line)
            if not more or len(held) - at > LONGEST_ROW:
                raise _broken(path, line, getattr(error, "msg", error)) from None
            held, at, wanted = held[at:] + more, 0, wanted * 2
            continue
        yield Row(line, partial(_object, value, path, line))
        line, at, wanted = line + held.count("\n", at, end), end, CHUNK


def _read(text: io.TextIOWrapper, count: int, path: str, line: int) -> str:
    try:
        return text.read(count)
    except UnicodeDecodeError as error:
        raise _broken(path, line, error.reason) from None


def _csv_rows(stream: IO[bytes], path: str, delimiter: str) -> Iterator[Row]:
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    csv.field_size_limit(LONGEST_ROW)
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    header: Sequence[str] | None = None
    line = 1
    while True:
        try:
            values = next(reader, None)
        except (csv.Error, UnicodeDecodeError) as error:
            raise _broken(path, line, error) from None
        if values is None:
            return
        if values and header is None:
            header = values
        elif values and header:
            yield Row(line, partial(_fields, header, values, path, line))
        line = reader.line_num + 1


def _fields(header: Sequence[str], values: Sequence[str], path: str, line: int) -> Mapping[str, Any]:
    if len(values) != len(header):
        raise UserError("lengths.other_columns", path=path, at=str(line), found=len(values), header=len(header))
    return dict(zip(header, values, strict=True))


ROWS = 64  # held at once; a row may hold an image


def table_rows(path: str) -> Iterator[Row]:
    """The rows in the order of the files, numbered from 1.

    Raises:
        UserError: pyarrow is not installed, the folder is no data set, or a file is broken.
        OSError: a file cannot be read.
    """
    files = _files_of(path) if os.path.isdir(path) else [path]
    try:
        import pyarrow  # noqa: F401 - optional: most data sets are text
    except ImportError:
        raise UserError("lengths.needs", path=path, library="pyarrow") from None
    number = 0
    for file in files:
        try:
            for batch in _batches(file):
                for at in range(batch.num_rows):
                    number += 1
                    yield Row(number, partial(_row, batch, at))
        except ValueError as error:  # what pyarrow raises of a file that is none of its own
            if isinstance(error, UserError):
                raise
            raise UserError("lengths.unreadable", path=file, reason=str(error).partition("\n")[0]) from None


def _row(batch: Any, at: int) -> Mapping[str, Any]:
    return {name: batch.column(name)[at].as_py() for name in dict.fromkeys(batch.schema.names)}


def _batches(file: str) -> Iterator[Any]:
    if file.lower().endswith(".parquet"):
        from pyarrow import parquet

        with parquet.ParquetFile(file, pre_buffer=False) as opened:
            yield from opened.iter_batches(batch_size=ROWS)
        return
    import pyarrow

    with pyarrow.memory_map(file) as source, pyarrow.ipc.open_stream(source) as stream:
        yield from stream


def _files_of(folder: str) -> list[str]:
    """The files of a saved data set; of one with several splits, those of ``train`` or of the only one."""
    splits = _json(os.path.join(folder, "dataset_dict.json")).get("splits")
    if isinstance(splits, list) and splits:
        if "train" not in splits and len(splits) > 1:
            raise UserError("lengths.which_split", path=folder, known=", ".join(map(str, splits)))
        return _files_of(os.path.join(folder, "train" if "train" in splits else str(splits[0])))
    named = _json(os.path.join(folder, "state.json")).get("_data_files")
    if not isinstance(named, list) or not all(isinstance(each, dict) and "filename" in each for each in named):
        within = sorted(os.listdir(folder))[:5]
        raise UserError("lengths.no_dataset", path=folder, within=", ".join(within) or "–")
    return [os.path.join(folder, str(each["filename"])) for each in named]


def _json(path: str) -> Mapping[str, Any]:
    """An object of a file; empty where there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError as error:
        raise UserError("lengths.unreadable", path=path, reason=str(error)) from None
    return found if isinstance(found, Mapping) else {}
