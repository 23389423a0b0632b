"""The caching allocator with ``expandable_segments:True``: few large ranges of addresses, backed page by page.

Source: ``find_expandable_block``, ``map_block``, ``try_allocate_expandable_block``, ``unmap_block`` and the expandable
part of ``get_free_block`` in ``c10/cuda/CUDACachingAllocator.cpp``. 42 runs on an H100 with
batches of varied lengths reserved what it says (1.2 % off on average; rules/measurements/gpu-h100-2026-11-26).
"""

from bisect import bisect_left
from collections.abc import Sequence

from kb.memory.engine.allocator import (
    ADDRESS_BITS,
    LARGE_SEGMENT,
    SMALL_REQUEST,
    SMALL_SEGMENT,
    SMALLEST_BLOCK,
    Block,
    Blocks,
    Cache,
    CachingAllocator,
    OutOfMemory,
    Record,
    rounded,
)

# The source takes 9/8 of the GPU's memory for each range; here only that it never ends and starts at a page matters.
RANGE_BYTES = LARGE_SEGMENT << 18
TOP_ADDRESS = RANGE_BYTES << 4


class Part(Block):
    """A part of a range of addresses; one that is not ``mapped`` has no memory behind it."""

    __slots__ = ("free", "mapped")

    before: "Part | None"
    after: "Part | None"

    def __init__(self, address: int, size: int, cache: Cache, *, mapped: bool) -> None:
        self.address, self.size, self.cache, self.mapped = address, size, cache, mapped
        self.free = True
        self.before = self.after = None


class ExpandableAllocator(CachingAllocator):
    """Blocks of the small pool come in pages of 2 MiB, of the large pool in pages of 20 MiB."""

    def __init__(self, limit: int | None = None, record: Record | None = None) -> None:
        super().__init__(limit, record)
        self._next_segment = TOP_ADDRESS
        self._ranges: list[Part] = []  # the first block of each range of addresses

    def serve(self, log: Sequence[int], blocks: Blocks, start: int, stop: int) -> None:
        """As the default backend's, by its own choice of a block."""
        for number in range(start, stop):
            asked = log[number]
            if asked >= 0:
                blocks[number] = self._given(asked)
                if self.allocated > self.peak_allocated:
                    self.peak_allocated, self.peak_at = self.allocated, number
            else:
                self._take_back(blocks[~asked])

    def _given(self, requested: int) -> Part:
        size = rounded(requested)
        small = size <= SMALL_REQUEST
        block = self._best_fit(size, small) or self._new_block(size, small)
        block.free = False
        if block.size - size >= SMALLEST_BLOCK:
            self._cut(block, size)
            assert block.after is not None
            block.cache.put(block.after)
        self.allocated += block.size
        if self._record is not None:
            self._record("alloc", block.address, block.size)
        return block

    def _take_back(self, block: Block | None) -> None:
        assert isinstance(block, Part)
        self.allocated -= block.size
        if self._record is not None:
            self._record("free", block.address, block.size)
        block.free = True
        block = self._merged(block)
        block.cache.put(block)

    def _page(self, small: bool) -> int:
        return SMALL_SEGMENT if small else LARGE_SEGMENT

    def _best_fit(self, size: int, small: bool) -> Part | None:
        """The free block whose growth would be least, among those large enough today."""
        cache = self._free.small if small else self._free.large
        at = bisect_left(cache.keys, size << ADDRESS_BITS)
        if at == len(cache.keys):
            return None
        while at + 1 < len(cache.keys) and self._could_grow_to(cache, at + 1) < self._could_grow_to(cache, at):
            at += 1
        found = cache.blocks[at]
        cache.take(found)
        assert isinstance(found, Part)
        return found

    def _could_grow_to(self, cache: Cache, at: int) -> int:
        block = cache.blocks[at]
        assert isinstance(block, Part)
        after = block.after
        return block.size + (after.size if after is not None and not after.mapped else 0)

    def _new_block(self, size: int, small: bool) -> Part:
        start = self._start(size, small)
        missing = self._missing(start, size)
        if not self._has_room(missing):
            self.retries += 1
            self.empty_cache()
            start = self._start(size, small)
            if not self._has_room(self._missing(start, size)):
                raise OutOfMemory(size, self.allocated, self.reserved)
        block = start if start.mapped else self._map(start, min(start.size, size))
        while block.size < size:
            assert block.after is not None
            block = self._map(block.after, min(size - block.size, block.after.size))
        block.cache.take(block)
        return block

    def _start(self, size: int, small: bool) -> Part:
        """The lowest free or unmapped block from which ``size`` bytes of addresses are unused."""
        pool = self._free.small if small else self._free.large
        for first in reversed(self._ranges):  # they are made from the top down
            block: Part | None = first if first.cache is pool else None
            while block is not None:
                if not block.mapped:
                    start = block.before if block.before is not None and block.before.free else block
                    if self._unused_from(start, size) >= size:
                        return start
                block = block.after
        self._next_segment -= RANGE_BYTES
        block = Part(self._next_segment, RANGE_BYTES, pool, mapped=False)
        self._ranges.append(block)
        return block

    def _unused_from(self, block: Part | None, size: int) -> int:
        found = 0
        while found < size and block is not None and block.free:
            found += block.size
            block = block.after
        return found

    def _missing(self, start: Part, size: int) -> int:
        """Bytes of pages that must be mapped for ``size`` bytes from ``start``."""
        pages = 0
        block: Part | None = start
        while size > 0:
            assert block is not None
            if not block.mapped:
                page = self._page(block.cache.small)
                pages += min(block.size, -(-min(size, block.size) // page) * page)
            size -= block.size
            block = block.after
        return pages

    def _map(self, block: Part, size: int) -> Part:
        """Back the first ``size`` bytes of ``block`` with whole pages; cached, merged with its neighbours."""
        page = self._page(block.cache.small)
        mapped = min(block.size, -(-size // page) * page)
        if mapped < block.size:
            self._cut(block, mapped)
        block.mapped = True
        self._grow_reserved(block.address, mapped)
        block = self._merged(block)
        block.cache.put(block)
        return block

    def empty_cache(self) -> None:
        """Unmap every page without a tensor on it."""
        for cache in self._caches():
            for block in cache.blocks[:]:
                assert isinstance(block, Part)
                self._unmap(block)

    def _unmap(self, block: Part) -> None:
        page = self._page(block.cache.small)
        start = -(-block.address // page) * page
        end = (block.address + block.size) // page * page
        if start >= end:
            return
        block.cache.take(block)
        if block.address < start:
            self._cut(block, start - block.address)
            block.cache.put(block)
            assert block.after is not None
            block = block.after
        if block.address + block.size > end:
            self._cut(block, end - block.address)
            assert block.after is not None
            block.cache.put(block.after)
        block.mapped = False
        self._grow_reserved(block.address, -block.size)
        for neighbour in (block.before, block.after):
            if neighbour is not None and not neighbour.mapped:
                first, second = (neighbour, block) if neighbour is block.before else (block, neighbour)
                block = self._joined(first, second)

    def _cut(self, block: Part, size: int) -> None:
        """Leave ``size`` bytes to ``block``; the rest becomes its neighbour, which is not yet cached."""
        rest = Part(block.address + size, block.size - size, block.cache, mapped=block.mapped)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        block.size = size

    def _merged(self, block: Part) -> Part:
        """``block`` grown by its free neighbours, which leave the cache; the result is not yet cached."""
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free and neighbour.mapped:
                neighbour.cache.take(neighbour)
                first, second = (neighbour, block) if neighbour is block.before else (block, neighbour)
                block = self._joined(first, second)
        return block

    def _joined(self, first: Part, second: Part) -> Part:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first
