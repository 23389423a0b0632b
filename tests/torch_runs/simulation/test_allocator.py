"""The caching allocator's model: PyTorch's rounding, segments, best fit, merging, and what happens at the limit."""

import random

import pytest

from kb.memory.engine.allocator import MIB, CachingAllocator, OutOfMemory, rounded, segment_size
from kb.memory.engine.expandable import ExpandableAllocator

KINDS = (CachingAllocator, ExpandableAllocator)


@pytest.mark.parametrize(
    ("requested", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB + 1, 11 * MIB + 512, 12 * MIB),
    ],
)
def test_blocks_and_segments_are_rounded_as_in_pytorch(requested: int, block: int, segment: int) -> None:
    assert rounded(requested) == block
    assert segment_size(block) == segment


def test_a_rest_of_up_to_one_mebibyte_stays_with_a_large_block() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(19 * MIB)
    assert allocator.allocated == 20 * MIB


def test_freed_neighbours_become_one_block_again() -> None:
    allocator = CachingAllocator()
    first, second = allocator.malloc(6 * MIB), allocator.malloc(6 * MIB)
    assert allocator.reserved == 20 * MIB
    allocator.free(first)
    allocator.free(second)
    allocator.malloc(19 * MIB + 1)
    assert allocator.reserved == 20 * MIB


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    wide, narrow = allocator.malloc(40 * MIB), allocator.malloc(30 * MIB)
    allocator.free(wide)
    allocator.free(narrow)
    assert allocator.malloc(29 * MIB + 1) == narrow


def test_new_segments_lie_below_older_ones() -> None:
    allocator = CachingAllocator()
    assert allocator.malloc(30 * MIB) > allocator.malloc(30 * MIB)


def test_small_and_large_requests_share_no_segment() -> None:
    allocator = CachingAllocator()
    allocator.malloc(512)
    allocator.malloc(2 * MIB)
    assert allocator.reserved == 22 * MIB


@pytest.mark.parametrize("kind", KINDS)
def test_cached_blocks_are_given_back_before_running_out(kind: type[CachingAllocator]) -> None:
    allocator = kind(limit=100 * MIB)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB)
    assert allocator.reserved == 80 * MIB
    with pytest.raises(OutOfMemory) as raised:
        allocator.malloc(40 * MIB)
    assert (raised.value.requested, raised.value.allocated) == (40 * MIB, 80 * MIB)


def test_empty_cache_keeps_a_segment_that_is_in_use() -> None:
    allocator = CachingAllocator()
    kept, dropped = allocator.malloc(2 * MIB), allocator.malloc(30 * MIB)
    allocator.free(dropped)
    allocator.empty_cache()
    assert allocator.reserved == 20 * MIB
    allocator.free(kept)


def test_expandable_segments_serve_what_holes_cannot() -> None:
    usual, expandable = CachingAllocator(), ExpandableAllocator()
    for allocator in (usual, expandable):
        for address in [allocator.malloc(30 * MIB) for _ in range(4)]:
            allocator.free(address)
        allocator.malloc(110 * MIB)
    assert usual.reserved == 230 * MIB
    assert expandable.reserved == 120 * MIB


@pytest.mark.parametrize("kind", KINDS)
def test_any_order_of_requests_keeps_the_books(kind: type[CachingAllocator]) -> None:
    seed = random.Random(20261121)
    log: list[tuple[str, int, int]] = []
    allocator = kind(record=lambda *act: log.append(act))
    held: dict[int, int] = {}
    for _ in range(4000):
        if held and seed.random() < 0.5:
            address = seed.choice(list(held))
            allocator.free(address)
            del held[address]
        elif seed.random() < 0.01:
            allocator.empty_cache()
        else:
            size = int(2 ** seed.uniform(0, 26))
            address = allocator.malloc(size)
            overlaps = [a for a, n in held.items() if a < address + size and address < a + n]
            assert not overlaps
            held[address] = size
        assert sum(held.values()) <= allocator.allocated <= allocator.reserved <= allocator.peak_reserved
    for address in held:
        allocator.free(address)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved) == (0, 0)
    balance = {"alloc": 0, "free": 0, "segment_alloc": 0, "segment_free": 0}
    for action, _, size in log:
        balance[action] += size
    assert balance["alloc"] == balance["free"]
    assert balance["segment_alloc"] == balance["segment_free"]


@pytest.mark.parametrize("segments", [1000, 1100, 3000])
def test_a_block_is_found_again_however_many_segments_there_are(segments: int) -> None:
    """Addresses go down with each segment: below zero they are addresses all the same."""
    allocator = CachingAllocator()
    addresses = [allocator.malloc(12 * MIB) for _ in range(segments)]
    for address in addresses:
        allocator.free(address)
    reserved = allocator.reserved
    for _ in range(segments):
        allocator.malloc(12 * MIB)
    assert allocator.reserved == reserved
