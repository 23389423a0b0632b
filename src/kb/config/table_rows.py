"""Rows of what pyarrow reads: parquet files, arrow files, and folders that ``save_to_disk`` of ``datasets`` wrote."""

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from kb.config.data_rows import Row
from kb.core.text import UserError

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
