"""How much the tests look at: what tells a change, or everything (``pytest --exhaustive``, which a schedule runs)."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

# conftest.py sets it of the option, so that it is there where modules are imported.
EXHAUSTIVE = bool(os.environ.get("KB_EXHAUSTIVE"))


def examples(usual: int, exhaustive: int) -> int:
    """How many examples Hypothesis draws."""
    return exhaustive if EXHAUSTIVE else usual


def few(cases: Iterable[Any], number: int = 1) -> list[Any]:
    """Cases of one kind, for ``parametrize``: so many, spread evenly from the first on; the rest ``exhaustive``.

    A case of several arguments is a tuple or a ``pytest.param``, one of a single argument is no tuple.
    """
    every = list(cases)
    kept = {position * len(every) // number for position in range(number)}
    return [case if position in kept else _exhaustive(case) for position, case in enumerate(every)]


def _exhaustive(case: Any) -> Any:
    if hasattr(case, "marks"):  # a pytest.param
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.exhaustive])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.exhaustive)
