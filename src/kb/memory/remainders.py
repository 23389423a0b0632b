"""What PyTorch's allocator counts as allocated beyond what was asked for: remainders of blocks that it does not split.

A request over 1 MiB is cut from a segment of 20 MiB, or takes one of its own from 10 MiB on, rounded up to 2 MiB; what
is left of a block is split off only when it is over 1 MiB (c10/cuda/CUDACachingAllocator).
"""

from collections.abc import Mapping
from functools import lru_cache

from kb.core.model import Architecture
from kb.core.units import MIB
from kb.memory.linear import modules

SEGMENT, OWN_SEGMENT, STEP, UNSPLIT = 20 * MIB, 10 * MIB, 2 * MIB, MIB
HALF = 2
KEPT_ROWS = 8  # norms' inputs and outputs, queries, keys, values and what attention gives


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


def segment_remainder(size: int) -> int:
    """Bytes left over in the segment of one tensor of ``size`` bytes, where it has its own."""
    rest = -size % STEP
    return rest if size >= OWN_SEGMENT and rest <= UNSPLIT else 0


def copies_remainder(arch: Architecture, remainder: float, *, quantized: bool = False) -> int:
    """Bytes left over in the blocks of autocast's weight copies, whose sizes the free blocks seldom match."""
    blocks = sum(
        number
        for elements, number, kept in _matrices(arch)
        if (kept or not quantized) and 2 * elements > UNSPLIT and 2 * elements % STEP
    )
    return round(blocks * remainder)


@lru_cache(maxsize=256)
def own_segments_remainder(arch: Architecture, width: int) -> int:
    """Bytes left over in tensors of the weights' shapes that take segments of their own: the weights, each of the
    optimizer's moments, and the gradients."""
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
    lost = 0 if packed else own_segments_remainder(arch, width)
    return lost + sum(segments * room for segments, room in _rooms(arch, width, packed) if room <= UNSPLIT)


def kept_states(resident: Mapping[str, int]) -> int:
    """Tensors of each weight's shape and type that stay on the GPU: the weight, and each of the optimizer's moments."""
    return 1 + round(resident.get("optimizer", 0) / max(resident["parameters"], 1))


@lru_cache(maxsize=256)
def copies_of(arch: Architecture, *, encoder: bool = False) -> tuple[tuple[int, int], ...]:
    """Bytes and number of autocast's copies of the blocks' weights, small ones first; ``encoder``: of its own alone."""
    found = _matrices(arch._replace(decoder_layers=0) if encoder else arch)
    return tuple(sorted((HALF * elements, number) for elements, number, _ in found))


@lru_cache(maxsize=256)
def reused_remainder(arch: Architecture, width: int, states: int, tensors: tuple[tuple[int, int], ...]) -> int:
    """Bytes left over in tensors that take the free ends of the segments of weights and of the optimizer's moments, as
    the smallest free blocks that there are. Others are cut evenly from larger ones.

    Args:
        width: bytes of a weight.
        states: tensors of each weight's shape that stay: the weight, and each moment of its size.
        tensors: the bytes of each, and how many there are.
    """
    rooms = [[states * segments, room] for segments, room in sorted(_rooms(arch, width, False), key=lambda end: end[1])]
    lost = 0
    for size, number in tensors:
        left = number if size > UNSPLIT else 0
        for end in rooms:
            if size <= end[1] <= size + UNSPLIT:
                taken = min(left, end[0])
                end[0] -= taken
                left -= taken
                lost += taken * (end[1] - size)
    return lost


@lru_cache(maxsize=256)
def moments_remainder(arch: Architecture, width: int, activation: int) -> int | None:
    """Bytes left over in AdamW's moments, which the first step cuts from the segments that activations leave; None
    where these have no segments of their own, or too few.

    Args:
        width: bytes of a moment's element.
        activation: bytes of the activation of which a layer keeps most tensors: ``KEPT_ROWS`` at least.
    """
    segment = -(-activation // STEP) * STEP
    layers = arch.encoder_layers + arch.decoder_layers
    moments = 2 * width * sum(elements * number for elements, number, _ in _matrices(arch))
    if activation < OWN_SEGMENT or segment * KEPT_ROWS * layers < moments * 3 // 2:  # gradients take theirs before
        return None
    rooms = _rooms(arch, width, False, segment=segment, states=2)
    return 2 * own_segments_remainder(arch, width) + sum(number * room for number, room in rooms if room <= UNSPLIT)


def _rooms(
    arch: Architecture, width: int, packed: bool, *, segment: int = SEGMENT, states: int = 1
) -> list[tuple[int, int]]:
    """The ends of segments that hold the blocks' weights: how many, and the bytes free in each."""
    sizes: dict[int, int] = {}
    for elements, number, kept in _matrices(arch):
        size = elements // 2 if packed and not kept else width * elements
        if UNSPLIT < size < OWN_SEGMENT:
            sizes[size] = sizes.get(size, 0) + states * number
    rooms = []
    while sizes:
        largest = max(sizes)
        each = segment // largest
        segments = max(sizes.pop(largest) // each, 1)
        room = segment - each * largest
        smaller = max((size for size in sizes if size <= room), default=0)
        while smaller and room > UNSPLIT and sizes.get(smaller, 0) >= segments:
            sizes[smaller] -= segments
            room -= smaller
            smaller = smaller if smaller <= room else max((size for size in sizes if size <= room), default=0)
        rooms.append((segments, room))
    return rooms
