"""Where a fact comes from, and how certain that makes what rests on it. Pure."""

from collections.abc import Iterable
from typing import Literal

Origin = Literal["written", "joined", "given", "pinned", "ranged", "detected", "library", "assumed"]
"""How a fact is known.

``written``: the config or the command line says it. ``joined``: a file that the config names says it. ``given``: an
option of the command, or ``kb.toml``. ``pinned``: one release of a library, by a lock file or ``==``. ``ranged``:
several releases, by a range. ``detected``: this machine. ``library``: the default of a library whose release does not
matter or is certain. ``assumed``: nothing says it.
"""
Certainty = Literal["certain", "likely", "assumed"]
CERTAINTIES: tuple[Certainty, ...] = ("certain", "likely", "assumed")  # the surest first

_CERTAINTY: dict[Origin, Certainty] = {"ranged": "likely", "assumed": "assumed"}


def certainty_of(origin: Origin) -> Certainty:
    """What a fact of this origin counts as."""
    return _CERTAINTY.get(origin, "certain")


def weakest(certainties: Iterable[Certainty]) -> Certainty:
    """The least certain of them; of none, ``certain``."""
    return max(certainties, key=CERTAINTIES.index, default="certain")
