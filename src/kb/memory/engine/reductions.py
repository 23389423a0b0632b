"""What a sum over many rows holds while it runs: a number for each block that adds up a part, of each column.

A bias's gradient is such a sum over a batch's tokens: of 8,192 × 3,072 it holds 132 MiB on an H100.
Source: ``setReduceConfig`` and ``ReduceConfig::global_memory_size`` (aten/src/ATen/native/cuda/Reduce.cuh).
"""

from functools import lru_cache

from kb.memory.engine.kernel_choice import MULTIPROCESSORS
from kb.memory.engine.tensor import SHAPES, Shape

MOST_THREADS, WARP, VECTOR, ACCUMULATED = 512, 32, 4, 4  # ACCUMULATED: bytes of fp32, in which any type is added up
LEAST_VALUES, MOST_VALUES = 16, 256  # of a thread, before blocks share a column
# Threads of a multiprocessor by compute capability.
NARROW, MIDDLE, WIDE = 1024, 1536, 2048
THREADS = {(7, 5): NARROW, (8, 6): MIDDLE, (8, 9): MIDDLE, (12, 0): MIDDLE}


@lru_cache(SHAPES)
def summed_buffers(shape: Shape, strides: Shape, kept: tuple[bool, ...], capability: tuple[int, int]) -> Shape:
    """Bytes of the buffer and of the counters of a sum over the dimensions that are not ``kept``; none of most sums.

    A sum over the fastest dimension holds a few KiB at most and is left out.
    """
    found = [(stride, length, keeps) for stride, length, keeps in zip(strides, shape, kept, strict=True) if length > 1]
    gone = sorted((stride, length) for stride, length, keeps in found if not keeps)
    left = sorted((stride, length) for stride, length, keeps in found if keeps)
    if not gone or not left or gone[0][0] < left[0][0]:
        return ()
    inputs = outputs = 1
    for _, length in gone:
        inputs *= length
    for _, length in left:
        outputs *= length
    vector = _vector(left, [stride for stride, _ in gone])
    return _buffers(inputs, outputs, vector, capability)


def _vector(left: list[tuple[int, int]], others: list[int]) -> int:
    """How many columns a thread loads at once."""
    (stride, length), *more = left
    if stride != 1:
        return 1
    while more and more[0][0] == length:  # dimensions that lie one behind another are one
        length *= more.pop(0)[1]
    vector = VECTOR
    for number in (length, *others, *(stride for stride, _ in more)):
        while number % vector:
            vector //= 2
    return vector


def _buffers(inputs: int, outputs: int, vector: int, capability: tuple[int, int]) -> Shape:
    most = MOST_THREADS // vector
    wide, high = _power(outputs // vector, most), _power(inputs, most)
    width = min(wide, WARP)
    height = min(high, most // width)
    width = min(wide, most // height)
    values = inputs
    if values < min(height * LEAST_VALUES, MOST_VALUES):
        return ()
    values = -(-inputs // height)
    blocks = -(-(outputs // vector) // width)
    processors = MULTIPROCESSORS.get(capability, MULTIPROCESSORS[(8, 0)])
    wanted = processors * (THREADS.get(capability, WIDE) // (width * height))
    if values < MOST_VALUES or blocks > wanted:
        return ()
    shares = max(min(-(-wanted // blocks), -(-values // LEAST_VALUES)), -(-values // MOST_VALUES))
    if shares < 2:
        return ()
    return ACCUMULATED * outputs * shares * width * vector, ACCUMULATED * blocks


def _power(number: int, most: int) -> int:
    """The largest power of two that is no larger than either."""
    return most if number >= most else 1 << max(0, number.bit_length() - 1)
