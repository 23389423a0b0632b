"""The caching allocator against the plainest reading of its rules: one list of blocks, searched from end to end."""

from hypothesis import given
from hypothesis import strategies as st

from kb.memory.engine.allocator import (
    SEGMENT_GAP,
    SMALL_REQUEST,
    TOP_ADDRESS,
    CachingAllocator,
    rounded,
    segment_size,
)

Block = list[int]  # address, size, its segment's address, 1 where free


class Plain:
    """No shortcut: neighbours are looked for by address, the best fit among all blocks."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.next = TOP_ADDRESS
        self.allocated = self.reserved = self.peak_allocated = 0
        self.small: dict[int, bool] = {}  # of a segment

    def malloc(self, requested: int) -> int:
        size, small = rounded(requested), rounded(requested) <= SMALL_REQUEST
        fits = [each for each in self.blocks if each[3] and each[1] >= size and self.small[each[2]] is small]
        block = min(fits, key=lambda each: (each[1], each[0]), default=None) or self._segment(size, small)
        block[3] = 0
        if block[1] - size > (0 if small else SMALL_REQUEST):
            self.blocks.append([block[0] + size, block[1] - size, block[2], 1])
            block[1] = size
        self.allocated += block[1]
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block[0]

    def _segment(self, size: int, small: bool) -> Block:
        self.next -= segment_size(size) + SEGMENT_GAP
        self.small[self.next] = small
        self.reserved += segment_size(size)
        self.blocks.append([self.next, segment_size(size), self.next, 1])
        return self.blocks[-1]

    def free(self, address: int) -> None:
        block = next(each for each in self.blocks if each[0] == address)
        self.allocated -= block[1]
        block[3] = 1
        for other in [each for each in self.blocks if each[3] and each[2] == block[2] and each is not block]:
            if other[0] + other[1] == block[0] or block[0] + block[1] == other[0]:
                block[0], block[1] = min(block[0], other[0]), block[1] + other[1]
                self.blocks.remove(other)

    def empty_cache(self) -> None:
        for block in [each for each in self.blocks if each[3] and each[0] == each[2]]:
            if not any(each[2] == block[2] for each in self.blocks if each is not block):
                self.blocks.remove(block)
                self.reserved -= block[1]


# Sizes about the borders of the rules: a block's rounding, the two pools, a segment of one's own.
SIZES = st.one_of(st.integers(1, 4096), st.integers(1 << 19, 3 << 20), st.integers(9 << 20, 45 << 20))
ACTS = st.lists(st.one_of(SIZES, st.floats(0, 0.999), st.none()), max_size=60)  # ask, give one back, empty the cache


@given(acts=ACTS)
def test_every_block_lies_where_the_plain_reading_puts_it(acts: list[int | float | None]) -> None:
    own, plain = CachingAllocator(), Plain()
    held: list[int] = []
    for act in acts:
        if act is None:
            own.empty_cache()
            plain.empty_cache()
        elif isinstance(act, int):
            held.append(own.malloc(act))
            assert held[-1] == plain.malloc(act)
        elif held:
            address = held.pop(int(act * len(held)))
            own.free(address)
            plain.free(address)
        assert (own.allocated, own.reserved) == (plain.allocated, plain.reserved)
    assert own.peak_allocated == plain.peak_allocated
