"""A key that no one knows beside one that is known: ``per_device_train_batchsize``."""

from collections.abc import Collection

MIN_LENGTH, MAX_LENGTH = 5, 100
LIKENESS = 0.85  # a name of 20 letters may differ in 3


class Neighbours:
    """The known names of one group, ready to be asked which one a misspelt name means."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = {name: _letters(name) for name in sorted(names) if MIN_LENGTH <= len(name) <= MAX_LENGTH}
        self._folded = {fold(name): name for name in sorted(names)}
        self._words = {word for name in names for word in name.split("_")}

    def meant_by(self, name: str) -> str | None:
        """The known name that ``name`` differs from by a slip; None where it may well be a name of its own."""
        if len(name) > MAX_LENGTH:
            return None
        same = self._folded.get(fold(name))
        if same is not None or len(name) < MIN_LENGTH:
            return same
        letters, best = _letters(name), None
        for known, known_letters in self._names.items():
            allowed = int(max(len(name), len(known)) * (1 - LIKENESS) + 0.5)
            if abs(len(known) - len(name)) > allowed or (letters ^ known_letters).bit_count() > 2 * allowed:
                continue
            distance = slips(name, known, allowed)
            if distance <= allowed and not self._own_name(name, known) and (best is None or distance < best[0]):
                best = (distance, known)
        return best[1] if best else None

    def _own_name(self, name: str, known: str) -> bool:
        """Whether the two differ by words that each mean something: ``min_length`` is no slip for ``max_length``."""
        if name.translate(_NO_DIGITS) == known.translate(_NO_DIGITS):
            return True
        mine, theirs = name.split("_"), known.split("_")
        if len(mine) != len(theirs):
            return all(word in self._words for word in mine)
        differing = [(a, b) for a, b in zip(mine, theirs, strict=True) if a != b]
        return any(a in self._words and a.rstrip("s") != b.rstrip("s") for a, b in differing)


_NO_DIGITS = str.maketrans("", "", "0123456789")


def fold(name: str) -> str:
    """``name`` as it looks without case and separators."""
    return name.casefold().replace("-", "").replace("_", "").replace(" ", "")


def _letters(name: str) -> int:
    """The set of characters in a name, as bits."""
    bits = 0
    for character in name:
        bits |= 1 << (ord(character) & 63)
    return bits


def slips(left: str, right: str, limit: int) -> int:
    """Letters added, dropped, changed or swapped between two names (optimal string alignment); over ``limit``: more."""
    beyond = limit + 1
    width = len(right)
    before: list[int] = []
    row = [min(j, beyond) for j in range(width + 1)]
    for i, a in enumerate(left, 1):
        previous, row = row, [beyond] * (width + 1)
        row[0] = min(i, beyond)
        # Cells further than `limit` from the diagonal cannot end within it.
        for j in range(max(1, i - limit), min(width, i + limit) + 1):
            b = right[j - 1]
            cost = min(previous[j - 1] + (a != b), previous[j] + 1, row[j - 1] + 1)
            if before and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            row[j] = cost
        if min(row) > limit:
            return beyond
        before = previous
    return min(row[-1], beyond)
