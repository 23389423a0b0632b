"""Did you mean: the known names nearest to one that is not known."""

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Up to ``count`` known names most like ``name``, best first; names of over 100 characters have none.

    Case, ``-``, ``_`` and spaces do not count.
    """
    import difflib  # only when something is misspelt: it costs 2 ms

    if len(name) > 100:
        return []
    folded: dict[str, str] = {}
    for candidate in known:
        folded.setdefault(_fold(candidate), candidate)
    return [folded[match] for match in difflib.get_close_matches(_fold(name), folded, count, cutoff)]


def _fold(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "").replace(" ", "")
