"""What depends on how many multiprocessors a GPU has: bitsandbytes' kernel for a 4-bit product, and what a sum holds.

A product takes one that reads packed weights, or a 16-bit copy and cuBLAS. Source: ``_gemm_4bit_use_custom_cuda``
(bitsandbytes/backends/cuda/ops.py, 0.50): ladders measured on each generation of GPUs. m are the rows of the input, n
the outputs, k the inputs of the layer; a wave is a block for every multiprocessor.

A sum over many rows holds a number for each block that adds up a part, of each column, while it runs. A bias's gradient
is such a sum over a batch's tokens: of 8,192 × 3,072 it holds 132 MiB on an H100. Source: ``setReduceConfig`` and
``ReduceConfig::global_memory_size`` (aten/src/ATen/native/cuda/Reduce.cuh).
"""

from functools import lru_cache

from kb.memory.engine.tensor import F16, F32, SHAPES, Shape

FLOOR_ROWS = 4
MOST_ROWS = 1536
SMALL_WEIGHT = 4 << 20  # elements
# Multiprocessors of the usual GPU of a compute capability.
MULTIPROCESSORS = {
    (7, 0): 80, (7, 5): 40, (8, 0): 108, (8, 6): 82, (8, 9): 128, (9, 0): 132, (10, 0): 148, (12, 0): 170,
}  # fmt: skip
UNKNOWN = ((8, 7), (11, 0))  # not measured there
MOST_THREADS, WARP, VECTOR, ACCUMULATED = 512, 32, 4, 4  # ACCUMULATED: bytes of fp32, in which any type is added up
LEAST_VALUES, MOST_VALUES = 16, 256  # of a thread, before blocks share a column
FEWEST_SHARED = 1024  # inputs of a sum that blocks share: MOST_VALUES for each of a block's four rows of threads
# Threads of a multiprocessor by compute capability.
NARROW, MIDDLE, WIDE = 1024, 1536, 2048
THREADS = {(7, 5): NARROW, (8, 6): MIDDLE, (8, 9): MIDDLE, (12, 0): MIDDLE}


def takes_one_kernel(capability: tuple[int, int], dtype: str, m: int, n: int, k: int) -> bool:
    """Whether no 16-bit copy of the weight is made."""
    if m > MOST_ROWS:
        return False
    if m <= FLOOR_ROWS:
        return True
    processors = MULTIPROCESSORS.get(capability, MULTIPROCESSORS[(8, 0)])
    blocks = -(-n // 64)
    if dtype == F32 or capability < (7, 5) or (capability[0] == 7 and dtype != F16):
        return m < 8
    if capability in UNKNOWN:
        return False
    if capability[0] == 10:
        return m <= 32 if blocks >= processors * 3 else blocks >= processors and k < n and m <= 8
    if n * k < SMALL_WEIGHT:
        return _small_weight(capability, processors, blocks, m, n, k)
    if m > 512:
        return False
    if m < 8:
        return _few_rows(capability, processors, blocks, m, n, k)
    if capability == (7, 5):
        if blocks >= processors * 3:
            return m <= (128 if k < n else 64)
        return m <= (64 if blocks >= processors // 2 else 32)
    if capability == (8, 0):
        return _ampere(processors, blocks, m, n, k)
    if capability == (8, 6):
        return m <= (128 if blocks >= processors else 64 if blocks >= processors // 2 else 16)
    if capability[0] == 9:
        return _hopper(processors, blocks, m, n, k)
    if capability == (12, 0):
        return _blackwell(processors, blocks, m, n, k)
    return _ada(processors, blocks, m, n, k)


def _small_weight(capability: tuple[int, int], processors: int, blocks: int, m: int, n: int, k: int) -> bool:
    stacked = capability == (8, 0) or capability[0] == 9  # memory in stacks: A100, H100
    if k * 2 < n:
        if stacked:
            low = blocks * 3 < processors
            return m <= ((1536 if low else 512) if capability == (8, 0) else (512 if low else 320))
        if capability == (7, 5):
            if blocks >= processors * 3:
                return m <= 320
            return m <= (64 if k >= 1024 else 96 if k >= 704 else 320)
        return m <= (192 if blocks < processors and blocks * k > processors * 320 else 320)
    quarter = blocks * 4 <= processors
    if capability == (8, 0) and quarter:
        return m <= ((32 if blocks * 8 <= processors else 128) if k >= n else 384)
    if capability == (7, 5) and blocks < processors and m > 8:
        return m <= 64
    if quarter:
        return m <= (32 if (k < n or stacked) else 23)
    return blocks * 2 <= processors and m <= 16


def _few_rows(capability: tuple[int, int], processors: int, blocks: int, m: int, n: int, k: int) -> bool:
    """Five to seven rows: one kernel, but for some shapes on A100 and H100."""
    hopper = capability[0] == 9
    if not (capability == (8, 0) or hopper) or m < 6 or blocks < (36 if hopper else 48):
        return True
    under, far_under = blocks * 4 < processors * 3, blocks * 5 < processors * 3
    if k > n and under:
        return False
    return not (k == n and ((far_under and not hopper) or (hopper and under and not far_under)))


def _ampere(processors: int, blocks: int, m: int, n: int, k: int) -> bool:
    if blocks >= processors * 3:
        return m <= 128
    if blocks >= processors:
        return m <= (64 if k < n else 32)
    if (k >= n * 3 and blocks * 4 > processors) or (k == n and blocks >= 48 and blocks * 5 < processors * 3):
        return False
    if blocks * 2 < processors:
        if k <= n:
            return m <= 128
        if blocks * 3 >= processors:
            return False
    return m <= (128 if blocks >= processors // 2 and k < n else 16)


def _hopper(processors: int, blocks: int, m: int, n: int, k: int) -> bool:
    if blocks >= processors:
        return m <= (64 if blocks >= processors * 3 else 48 if blocks >= processors * 2 else 32)
    if blocks < processors // 2 or (k >= n and blocks * 4 < processors * 3):
        return False
    return m <= 16


def _blackwell(processors: int, blocks: int, m: int, n: int, k: int) -> bool:
    if blocks >= processors * 2:
        return m <= (256 if blocks >= processors * 3 else 128)
    if blocks * 5 >= processors * 4:
        return m <= (96 if k >= n else 64)
    if blocks >= processors // 2:
        return m <= (64 if k * 2 >= n and blocks >= 128 else 8)
    return m <= (16 if k > n * 2 and blocks > 64 else 8)


def _ada(processors: int, blocks: int, m: int, n: int, k: int) -> bool:
    """8.9, and what has no ladder of its own."""
    tall = k > n * 2
    if blocks >= processors * 2:
        return m <= (256 if blocks >= processors * 3 else 128)
    if blocks * 5 >= processors * 4:
        if tall or blocks >= 200:
            return m <= 128
        return m <= ((128 if processors >= 60 else 32) if k >= n else 64)
    if blocks >= processors // 2:
        return m <= (64 if tall else 8 if blocks >= 64 else 32)
    if k > n and blocks <= 48:
        return m <= (12 if k >= n * 3 else 10)
    return m <= (16 if (tall or blocks < 48) else 8)


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
