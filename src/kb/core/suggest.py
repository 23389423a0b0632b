"""Did you mean: the known names nearest to one that is not known."""

from collections.abc import Iterable

ENOUGH = 4  # characters that a name must begin with alike


def nearest(name: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Up to ``count`` known names most like ``name``, best first; names of over 100 characters have none.

    One that begins with ``name`` comes first. Case, ``-``, ``_`` and spaces do not count.
    """
    import difflib  # only when something is misspelt: it costs 2 ms

    if len(name) > 100:
        return []
    folded: dict[str, str] = {}
    for candidate in known:
        folded.setdefault(_fold(candidate), candidate)
    wanted = _fold(name)
    begun = [each for each in folded if len(wanted) >= ENOUGH and each.startswith(wanted)]  # half typed
    like = [each for each in difflib.get_close_matches(wanted, folded, count, cutoff) if each not in begun]
    return [folded[match] for match in [*begun, *like][:count]]


def _fold(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "").replace(" ", "")
