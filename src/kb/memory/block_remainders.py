"""What PyTorch's allocator leaves unsplit in the blocks of freshly loaded weights, from the matrices' sizes alone.

A request over 1 MiB is cut from a segment of 20 MiB, or takes one of its own from 10 MiB on, rounded up to 2 MiB; what
is left of a block is split off only when it is over 1 MiB (c10/cuda/CUDACachingAllocator). The memory engine finds this
by asking its allocator; the states here are counted without one. Types that the engine alone knows have none here, as
their states were never counted so.
"""

from functools import lru_cache

from kb.core.model import Architecture
from kb.core.units import MIB
from kb.memory.linear import modules

SEGMENT, OWN_SEGMENT, STEP, UNSPLIT = 20 * MIB, 10 * MIB, 2 * MIB, MIB


@lru_cache(maxsize=256)
def _matrices(arch: Architecture) -> tuple[tuple[int, int, bool], ...]:
    """Elements, count of each shape of the blocks' linear layers, and whether quantization leaves it alone."""
    if arch.family in ("decoder", "encoder"):
        return tuple(
            (module.in_features * module.out_features, module.number, False)
            for module in modules(arch)
            if module.kind == "linear" and module.stack != "head"
        )
    attentions = arch.encoder_layers + 2 * arch.decoder_layers
    layers = arch.encoder_layers + arch.decoder_layers
    kept = arch.family == "t5"
    return (
        (arch.d_model * arch.num_heads * arch.d_kv, 4 * attentions, False),
        (arch.d_model * arch.d_ff, layers * (2 if arch.gated else 1), False),
        (arch.d_model * arch.d_ff, layers, kept),
    )


@lru_cache(maxsize=256)
def own_segments_remainder(arch: Architecture, width: int) -> int:
    """Bytes left over in tensors of the weights' shapes that take segments of their own: the weights, each of the
    optimizer's moments, and the gradients. ``width`` is that of an element, in bytes."""
    if arch.engine:
        return 0
    rests = [
        (number, -width * elements % STEP) for elements, number, _ in _matrices(arch) if width * elements >= OWN_SEGMENT
    ]
    if arch.family == "encoder":  # small models, whose table of tokens is most of them
        table = width * arch.vocab_size * (arch.embedding_size or arch.d_model)
        rests.append((1, -table % STEP if table >= OWN_SEGMENT else 0))
    return sum(number * rest for number, rest in rests if rest <= UNSPLIT)


@lru_cache(maxsize=256)
def weights_remainder(arch: Architecture, width: int, packed: bool) -> int:
    """Bytes left over in the blocks of freshly loaded weights: segments filled with the larger ones first."""
    if arch.engine:
        return 0
    lost = 0 if packed else own_segments_remainder(arch, width)
    return lost + sum(segments * room for segments, room in _rooms(arch, width, packed) if room <= UNSPLIT)


def _rooms(arch: Architecture, width: int, packed: bool) -> list[tuple[int, int]]:
    """The ends of segments that hold the blocks' weights: how many, and the bytes free in each."""
    sizes: dict[int, int] = {}
    for elements, number, kept in _matrices(arch):
        size = elements // 2 if packed and not kept else width * elements
        if UNSPLIT < size < OWN_SEGMENT:
            sizes[size] = sizes.get(size, 0) + number
    rooms = []
    while sizes:
        largest = max(sizes)
        each = SEGMENT // largest
        segments = max(sizes.pop(largest) // each, 1)
        room = SEGMENT - each * largest
        smaller = max((size for size in sizes if size <= room), default=0)
        while smaller and room > UNSPLIT and sizes.get(smaller, 0) >= segments:
            sizes[smaller] -= segments
            room -= smaller
            smaller = smaller if smaller <= room else max((size for size in sizes if size <= room), default=0)
        rooms.append((segments, room))
    return rooms
