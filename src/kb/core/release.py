"""Which release of a library a project uses, as far as its files say. Pure."""

from typing import NamedTuple

from kb.core.certainty import Origin
from kb.core.version import parse_version

Bound = tuple[int, ...]


class Source(NamedTuple):
    """Where a requirement is written. ``line`` counts from 1; None where the file has no lines to name."""

    path: str
    line: int | None = None


class ProjectRelease(NamedTuple):
    """What is known of one library's release.

    ``specifier`` is as PEP 440 writes it (``==4.54.0``, ``>=4.40,<5.3``); empty where any release is allowed. ``exact``
    is the one release that is meant, None of a range. ``place`` is where it is written, None where no file says it.
    ``others`` are places that say something else of the same library, farther away, each with its specifier.
    """

    library: str
    specifier: str
    exact: Bound | None
    origin: Origin
    place: Source | None = None
    others: tuple[tuple[Source, str], ...] = ()

    def allows(self, version: Bound) -> bool:
        """Whether the specifier admits this release (final releases only)."""
        if self.exact is not None:
            return _padded(self.exact, len(version)) == _padded(version, len(self.exact))
        if not self.specifier:
            return True
        from packaging.specifiers import SpecifierSet  # 8 ms; few projects leave a range

        return SpecifierSet(self.specifier).contains(".".join(map(str, version)), prereleases=True)


def _padded(version: Bound, length: int) -> Bound:
    return version + (0,) * (length - len(version))


def exact_release(library: str, version: str, origin: Origin, place: Source | None = None) -> ProjectRelease:
    """The record of one release.

    Raises:
        ValueError: ``version`` does not begin with numbers and dots.
    """
    return ProjectRelease(library, f"=={version}", parse_version(version), origin, place)
