"""What the tests' own processes, and the warm ones (`warm_process.py`), take as known of this checkout once they have
imported this module, which they do before other modules of kb.

It does not change while its tests run: each of the thousands of starts would look at a thousand files of it, and read
what they are compiled to. Of other rules, which tests write, nothing is kept. And tests ask for the same runs again and
again: what the memory engine found is kept for all of them, apart from what a user of this machine has kept.
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from kb.core.text import LANGUAGES
from kb.knowledge import bundle
from kb.knowledge.locations import Location, current
from kb.memory import answers
from kb.session.cache import Predictions

KEPT = Path(__file__).parents[1] / "build" / "tests"
FOUND = Predictions(str(KEPT / "kb"))  # where commands look too: `warm_runs.ENVIRON`
CHECKOUT, _is_fresh, _keep_in = current(), bundle._is_fresh, answers.keep_in
_read = bundle.read_data
_read_once = cache(_read)
_fresh: set[Location] = set()
_as_told: list[bool] = []


def _is_fresh_still(location: Location) -> bool:
    fresh = location in _fresh or _is_fresh(location)
    if fresh and location._replace(overlays=(), cache=None) == CHECKOUT:  # what is laid over it lies elsewhere
        _fresh.add(location)
    return fresh


def _read_data(path: str, part: str = "", again: Callable[[], Any] | None = None) -> Any:
    own = part and os.path.dirname(path) == CHECKOUT.bundle
    return _read_once(path, part) if own else _read(path, part, again)


def _keep_in_found(store: answers.Store | None) -> None:
    if _as_told:
        _keep_in(store)


def keep_as_told() -> None:
    """From here on a command keeps what the engine finds where it is told to: nowhere with ``--no-cache``."""
    _as_told.append(True)


def keep_nowhere() -> None:
    """From here on a command follows each of its runs anew, though it is told of what other tests keep."""
    answers._Kept.store = None


def look() -> None:
    """Look at the rules and at the engine's code now: what is forked from this process need not."""
    for part in ("hot", "guide", *LANGUAGES):
        bundle.load_part(CHECKOUT, part)
    FOUND.get("")


bundle._is_fresh, bundle.read_data = _is_fresh_still, _read_data
answers.keep_in, answers._Kept.store = _keep_in_found, FOUND
