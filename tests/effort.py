"""How much the tests look at: what tells a change, or everything (``pytest --exhaustive``, which a schedule runs)."""

import os

# conftest.py sets it of the option, so that it is there where modules are imported.
EXHAUSTIVE = bool(os.environ.get("KB_EXHAUSTIVE"))


def examples(usual: int, exhaustive: int) -> int:
    """How many examples Hypothesis draws."""
    return exhaustive if EXHAUSTIVE else usual
