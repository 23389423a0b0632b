"""Terms in bytes at a moment, and the moment at which their sum is largest."""

from collections.abc import Mapping

from kb.core.record import NamedTuple

Terms = dict[str, int]


class Peak(NamedTuple):
    """A moment (a key of i18n under ``moment.``) and its terms; terms of 0 bytes are left out.

    ``use`` and ``batch`` as in :class:`~kb.core.memory_report.Phase`.
    """

    moment: str
    terms: Terms
    allocated: int
    use: str = ""
    batch: int | None = None


def largest(moments: Mapping[str, Terms]) -> Peak:
    name, terms = max(moments.items(), key=lambda item: sum(item[1].values()))
    kept = {term: size for term, size in terms.items() if size > 0}
    return Peak(name, kept, sum(kept.values()))
