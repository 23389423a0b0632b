"""Which kernel scaled_dot_product_attention takes on which GPU."""

import pytest

from simulation_needs import require_simulator

require_simulator()

from kb.torch_runs.simulation.attention import Attention  # noqa: E402
from kb.torch_runs.simulation.torch_modules import torch  # noqa: E402

TURING, AMPERE, CONSUMER = (7, 5), (8, 0), (8, 6)
HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32


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
    capability: tuple[int, int], dtype: torch.dtype, head: int, masked: bool, expected: str
) -> None:
    part = torch.empty(2, 4, 32, head, dtype=dtype, device="meta")
    mask = torch.empty(2, 1, 32, 32, dtype=dtype, device="meta") if masked else None
    assert Attention(capability).backend(part, part, part, mask, 0.0, False, False) == expected


def test_grouped_heads_without_flash_fall_back_to_math() -> None:
    query = torch.empty(2, 4, 32, 64, dtype=HALF, device="meta")
    key = torch.empty(2, 2, 32, 64, dtype=HALF, device="meta")
    assert Attention(TURING).backend(query, key, key, None, 0.0, True, True) == "math"
    assert Attention(AMPERE).backend(query, key, key, None, 0.0, True, True) == "flash"


def test_a_wide_head_trains_without_flash_on_consumer_ampere() -> None:
    part = torch.empty(2, 4, 32, 224, dtype=HALF, device="meta", requires_grad=True)
    assert Attention(CONSUMER).backend(part, part, part, None, 0.0, False, False) == "efficient"
    assert Attention(AMPERE).backend(part, part, part, None, 0.0, False, False) == "flash"
