"""Two runs of one model, of which one has a layer more: which of their allocations are each other's like."""

from collections.abc import Callable, Sequence

from kb.memory.engine.placed import Place, PlacedRecording

AGREEING = 4  # requests in a row that must be alike where two logs come together again


def paired(
    shallow: PlacedRecording, deep: PlacedRecording, like: Callable[[Place], Place | None]
) -> dict[int, list[int]]:
    """Each allocation of a log → its likes in that of a deeper run.

    What the added layer asks for is left out, and what is asked for again is looked at once. What no layer asks for
    (weights that are loaded, a step over all parameters) is found by what comes before and behind, and has two likes
    where it could be either layer's.

    Args:
        like: the shallow run's layer that a layer of the deeper run is like; None of the added one.
    """
    one, ones = _asked(shallow, None)
    other, others = _asked(deep, like)
    found: dict[int, list[int]] = {at: [] for at in one}
    here = there = 0
    end, last = len(ones), len(others)
    while here < end and there < last:
        if ones[here] == others[there]:
            found[one[here]].append(other[there])
            here += 1
            there += 1
            continue
        more = _more(ones, others, here, there)
        if more is None:
            here += 1  # asked for in the shallow run alone: sizes that depend on all layers
            continue
        for back in range(1, min(more, here) + 1):
            if ones[here - back] == others[there + more - back] and ones[here - back][1] is None:
                found[one[here - back]].append(other[there + more - back])
        there += more
    return found


def inserted(shallow: Sequence[int], deep: Sequence[int]) -> list[tuple[int, list[int]]]:
    """What a deeper run has more in a list of sizes: before which number of the shallow one's, and the sizes."""
    found = []
    here = there = 0
    while here < len(shallow) and there < len(deep):
        if shallow[here] != deep[there]:
            more = _more(shallow, deep, here, there)
            if more is not None:
                found.append((here, list(deep[there : there + more])))
                there += more
        here, there = here + 1, there + 1
    if there < len(deep):
        found.append((len(shallow), list(deep[there:])))
    return found


def _asked(
    recording: PlacedRecording, like: Callable[[Place], Place | None] | None
) -> tuple[list[int], list[tuple[object, Place | None]]]:
    """The entries that ask for a block, and what tells one from another: size, moment, term and layer."""
    turns = recording.turns_of_entries()
    known = {place: like(place) if like is not None and place is not None else place for place in set(turns)}
    added = {place for place, found in known.items() if found is None and place is not None}
    log, labels, first = recording.log, recording.labels(), recording.first
    looked_at = (*range(first.start), *range(first.stop, len(log)))
    ats = [at for at in looked_at if log[at] >= 0 and turns[at] not in added]
    return ats, [((log[at], labels[at]), known[turns[at]]) for at in ats]


def _more(ones: Sequence[object], others: Sequence[object], here: int, there: int) -> int | None:
    """How many requests the deeper run has more from here on before it goes on like the shallower one."""
    least = min(AGREEING, len(ones) - here)
    ahead = ones[here : here + least]
    for at in range(there + 1, len(others) - least + 1):
        if others[at] == ahead[0] and others[at : at + least] == ahead:
            return at - there
    return None
