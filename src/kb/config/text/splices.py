"""Replacing pieces of a text by offset, and nothing else."""

from collections.abc import Iterable, Sequence

from kb.core.record import NamedTuple


class Splice(NamedTuple):
    """``text`` in place of what stands from ``start`` to ``end`` (exclusive)."""

    start: int
    end: int
    text: str


def overlaps(new: Iterable[Splice], accepted: Iterable[Splice]) -> bool:
    """Whether any of ``new`` touches text that an accepted one replaces. Two insertions at one place do not clash."""
    taken = list(accepted)
    return any(_clash(splice, other) for splice in new for other in taken)


def _clash(one: Splice, other: Splice) -> bool:
    if one.start == one.end or other.start == other.end:
        inner, outer = (one, other) if one.start == one.end else (other, one)
        return outer.start < inner.start < outer.end
    return one.start < other.end and other.start < one.end


def splice(text: str, splices: Sequence[Splice]) -> tuple[str, list[tuple[int, int]]]:
    """The text with all splices made, and where each new piece then stands. Those at one place keep their order."""
    pieces: list[str] = []
    regions: list[tuple[int, int]] = []
    done = length = 0
    for one in sorted(splices, key=lambda one: (one.start, one.end)):
        pieces += [text[done : one.start], one.text]
        length += one.start - done
        regions.append((length, length + len(one.text)))
        length += len(one.text)
        done = one.end
    pieces.append(text[done:])
    return "".join(pieces), regions
