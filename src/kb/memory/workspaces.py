"""What cuBLAS and cuBLASLt keep for each thread that multiplies: the forward pass's and autograd's."""

from kb.core.model import Architecture
from kb.core.units import MIB
from kb.memory.counts import count

BIAS_WORKSPACE = MIB  # cuBLASLt's, which a product with a bias goes through (CUDABlas.cpp; seen in runs on a T4)


def kept_workspace(arch: Architecture, workspace: int, *, quantized: bool, trained: bool, checkpointed: bool) -> int:
    """Bytes that stay once a forward pass, and where ``trained`` a backward pass, has run.

    cuBLASLt's comes with the first linear layer that has a bias; autograd's thread meets one only where checkpointing
    makes layers again. 4-bit layers add their biases themselves, so that only heads over classes are left.

    Args:
        workspace: bytes of one thread's cuBLAS workspace.
    """
    blocks = count(arch).biases > 0 and not quantized
    forward = BIAS_WORKSPACE if blocks or arch.family == "encoder" else 0
    if not trained:
        return workspace + forward
    return 2 * workspace + forward + (BIAS_WORKSPACE if blocks and checkpointed else 0)
