"""PyTorch's caching allocator as bookkeeping: what it would hold on the GPU, byte for byte, with no memory behind it.

Reserved memory is not the sum of the tensors: blocks are rounded, cut from segments and merged again, and what is cached
in pieces cannot serve a larger request. So the allocator is followed act by act. Source of every rule and constant:
``c10/cuda/CUDACachingAllocator.cpp`` of PyTorch (``malloc``, ``get_free_block``, ``alloc_block``, ``free_block``,
``release_cached_blocks``), with its default settings, one stream.
"""

from bisect import bisect_left, insort
from collections.abc import Callable

MIB = 1 << 20
SMALLEST_BLOCK = 512
SMALL_REQUEST = MIB  # up to here a block comes from the small pool
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT_REQUEST = 10 * MIB  # from here a request gets a segment of its own size
SEGMENT_ROUNDING = 2 * MIB
# cudaMalloc hands out addresses from the top down; equal free blocks are told apart by address, so the order counts.
# The gap keeps neighbouring segments from being mistaken for one.
TOP_ADDRESS = 1 << 46
SEGMENT_GAP = 1 << 36

Record = Callable[[str, int, int], None]


class OutOfMemory(Exception):  # noqa: N818 (PyTorch's own name for it)
    """The GPU would have run out: sizes in bytes."""

    def __init__(self, requested: int, allocated: int, reserved: int) -> None:
        super().__init__(f"requested {requested}, allocated {allocated}, reserved {reserved}")
        self.requested = requested
        self.allocated = allocated
        self.reserved = reserved


class Block:
    """A piece of a segment; ``before`` and ``after`` are its neighbours in the same segment."""

    __slots__ = ("address", "after", "before", "free", "mapped", "size", "small")

    def __init__(self, address: int, size: int, small: bool) -> None:
        self.address = address
        self.size = size
        self.small = small
        self.free = True
        self.mapped = True  # only expandable segments have parts that are address space without memory
        self.before: Block | None = None
        self.after: Block | None = None


def rounded(size: int) -> int:
    """The block that a request of ``size`` bytes gets."""
    return max(SMALLEST_BLOCK, -(-size // SMALLEST_BLOCK) * SMALLEST_BLOCK)


def segment_size(size: int) -> int:
    """The segment that is asked of the driver for a block of ``size`` bytes."""
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT_REQUEST:
        return LARGE_SEGMENT
    return -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING


class CachingAllocator:
    """The default backend. All figures are bytes.

    ``limit`` is what the driver can give; past it cached blocks are given back, and then :class:`OutOfMemory` is raised.
    ``record`` is called with ``alloc``, ``free``, ``segment_alloc`` or ``segment_free``, an address and a size.
    """

    def __init__(self, limit: int | None = None, record: Record | None = None) -> None:
        self.limit = limit
        self.allocated = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0
        self.retries = 0
        self._record: Record = record or (lambda action, address, size: None)
        self._blocks: dict[int, Block] = {}
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # small? → (size, address), sorted
        self._next_segment = TOP_ADDRESS

    def malloc(self, requested: int) -> int:
        """The address of a block for ``requested`` bytes.

        Raises:
            OutOfMemory: past the limit, even with every unused segment given back.
        """
        size = rounded(requested)
        small = size <= SMALL_REQUEST
        block = self._best_fit(size, small) or self._new_block(size, small)
        block.free = False
        if self._splits(block, size):
            self._cut(block, size)
            rest = block.after
            assert rest is not None
            self._cache(rest)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self._record("alloc", block.address, block.size)
        return block.address

    def free(self, address: int) -> None:
        """Return the block at ``address`` to the cache, merged with its free neighbours."""
        block = self._blocks[address]
        self.allocated -= block.size
        self._record("free", address, block.size)
        block.free = True
        self._cache(self._merged(block))

    def empty_cache(self) -> None:
        """Give every segment without a tensor back, as ``torch.cuda.empty_cache``."""
        for entries in self._free.values():
            for entry in [entry for entry in entries if self._is_whole_segment(self._blocks[entry[1]])]:
                entries.remove(entry)
                del self._blocks[entry[1]]
                self._grow_reserved(entry[1], -entry[0])

    def reset_peaks(self) -> None:
        """As ``torch.cuda.reset_peak_memory_stats``."""
        self.peak_allocated = self.allocated
        self.peak_reserved = self.reserved

    def _best_fit(self, size: int, small: bool) -> Block | None:
        entries = self._free[small]
        at = bisect_left(entries, (size, 0))
        return self._blocks[entries.pop(at)[1]] if at < len(entries) else None

    def _new_block(self, size: int, small: bool) -> Block:
        wanted = segment_size(size)
        if not self._has_room(wanted):
            self.retries += 1
            self.empty_cache()
            if not self._has_room(wanted):
                raise OutOfMemory(size, self.allocated, self.reserved)
        self._next_segment -= SEGMENT_GAP * -(-wanted // SEGMENT_GAP)
        block = self._blocks[self._next_segment] = Block(self._next_segment, wanted, small)
        self._grow_reserved(block.address, wanted)
        return block

    def _has_room(self, size: int) -> bool:
        return self.limit is None or self.reserved + size <= self.limit

    def _grow_reserved(self, address: int, size: int) -> None:
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self._record("segment_alloc" if size > 0 else "segment_free", address, abs(size))

    def _splits(self, block: Block, size: int) -> bool:
        rest = block.size - size
        return rest >= SMALLEST_BLOCK if block.small else rest > SMALL_REQUEST

    def _cut(self, block: Block, size: int) -> None:
        """Leave ``size`` bytes to ``block``; the rest becomes its neighbour, which is not yet cached."""
        rest = self._blocks[block.address + size] = Block(block.address + size, block.size - size, block.small)
        rest.mapped = block.mapped
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        block.size = size

    def _cache(self, block: Block) -> None:
        insort(self._free[block.small], (block.size, block.address))

    def _uncache(self, block: Block) -> None:
        entries = self._free[block.small]
        entries.pop(bisect_left(entries, (block.size, block.address)))

    def _merged(self, block: Block) -> Block:
        """``block`` grown by its free neighbours, which leave the cache; the result is not yet cached."""
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free and neighbour.mapped:
                self._uncache(neighbour)
                first, second = (neighbour, block) if neighbour is block.before else (block, neighbour)
                block = self._joined(first, second)
        return block

    def _joined(self, first: Block, second: Block) -> Block:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        del self._blocks[second.address]
        return first

    def _is_whole_segment(self, block: Block) -> bool:
        return block.before is None and block.after is None
