"""One test for all rows of a table: thousands of tests, one for each row, took longer to be told of than to be run."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from yaml_file import read_yaml


class Rows(Mapping[str, dict[str, Any]]):
    """The files of a folder by their names, read where a test first asks: each worker of pytest that only collects the
    tests of hundreds of files reads none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _read(self) -> dict[str, dict[str, Any]]:
        return {path.stem: read_yaml(path) for path in sorted(self._folder.glob("*.yaml"))}

    def __getitem__(self, name: str) -> dict[str, Any]:
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)


def for_every(rows: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The test is run with each row as its first argument; those that fail are told together, by name."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        _, *fixtures = inspect.signature(test).parameters.values()

        def for_all(**given: Any) -> None:
            wrong = []
            for name, row in rows.items():
                try:
                    test(row, **given)
                except Exception as error:
                    wrong.append(f"{name}: {type(error).__name__}: {error}")
            assert rows and not wrong, "\n\n".join(wrong)

        for_all.__name__, for_all.__doc__ = test.__name__, test.__doc__
        for_all.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
        return for_all

    return decorate
