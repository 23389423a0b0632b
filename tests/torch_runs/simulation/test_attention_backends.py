"""Which kernel scaled_dot_product_attention takes on which GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from simulation_needs import require_simulator
from torch_later import imported_where_run

if TYPE_CHECKING:
    from kb.torch_runs.simulation.attention import Attention
    from kb.torch_runs.simulation.torch_modules import torch
imported = imported_where_run(globals(), require_simulator)

TURING, AMPERE, CONSUMER = (7, 5), (8, 0), (8, 6)
HALF, BRAIN, FULL = "float16", "bfloat16", "float32"


def meta(*shape: int, dtype: str, requires_grad: bool = False) -> torch.Tensor:
    return torch.empty(*shape, dtype=getattr(torch, dtype), device="meta", requires_grad=requires_grad)


@pytest.mark.parametrize(
    ("capability", "dtype", "head", "masked", "expected"),
    [
        (AMPERE, HALF, 64, False, "flash"),
        (AMPERE, BRAIN, 64, True, "efficient"),
        (AMPERE, FULL, 64, False, "efficient"),
        (AMPERE, HALF, 320, False, "efficient"),
        (AMPERE, FULL, 6, False, "math"),
        (TURING, HALF, 64, False, "efficient"),
        (TURING, BRAIN, 64, False, "math"),
        (TURING, HALF, 20, False, "math"),
        ((9, 0), BRAIN, 128, False, "flash"),
    ],
)
def test_the_kernel_follows_the_gpu(
    capability: tuple[int, int], dtype: str, head: int, masked: bool, expected: str
) -> None:
    part = meta(2, 4, 32, head, dtype=dtype)
    mask = meta(2, 1, 32, 32, dtype=dtype) if masked else None
    assert Attention(capability).backend(part, part, part, mask, 0.0, False) == expected


def test_grouped_heads_without_flash_fall_back_to_math() -> None:
    query = meta(2, 4, 32, 64, dtype=HALF)
    key = meta(2, 2, 32, 64, dtype=HALF)
    assert Attention(TURING).backend(query, key, key, None, 0.0, True) == "math"
    assert Attention(AMPERE).backend(query, key, key, None, 0.0, True) == "flash"


def test_a_wide_head_trains_without_flash_on_consumer_ampere() -> None:
    part = meta(2, 4, 32, 224, dtype=HALF, requires_grad=True)
    assert Attention(CONSUMER).backend(part, part, part, None, 0.0, False) == "efficient"
    assert Attention(AMPERE).backend(part, part, part, None, 0.0, False) == "flash"
