"""What the tests' own processes, and the warm ones (`warm_process.py`), take as known of this checkout once they have
imported this module, which they do before other modules of kb.

It does not change while its tests run: each of the thousands of starts would look at a thousand files of it. Of other
rules, which tests write, nothing is kept. And tests ask for the same runs again and again: what the memory engine found
is kept for all of them, apart from what a user of this machine has kept.
"""

from pathlib import Path

from kb.knowledge import bundle
from kb.knowledge.locations import Location, current
from kb.memory import answers
from kb.session.cache import Predictions

KEPT = Path(__file__).parents[1] / "build" / "tests"
FOUND = Predictions(str(KEPT / "kb"))  # where commands look too: `warm_runs.ENVIRON`
CHECKOUT, _is_fresh, _keep_in = current(), bundle._is_fresh, answers.keep_in
_fresh: set[Location] = set()
_as_told: list[bool] = []


def _is_fresh_still(location: Location) -> bool:
    fresh = location in _fresh or _is_fresh(location)
    if fresh and location._replace(overlays=(), cache=None) == CHECKOUT:  # what is laid over it lies elsewhere
        _fresh.add(location)
    return fresh


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
    _is_fresh_still(CHECKOUT)
    FOUND.get("")


bundle._is_fresh, answers.keep_in, answers._Kept.store = _is_fresh_still, _keep_in_found, FOUND
