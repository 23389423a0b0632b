"""One test for all rows of a table: thousands of tests, one for each row, took longer to be told of than to be run."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any


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
