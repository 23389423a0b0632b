"""What tensor parallelism leaves on one GPU, as an architecture: fewer heads and a narrower feed-forward.

transformers splits q, k, v and the feed-forward's first layers by columns, their last ones by rows
(``base_model_tp_plan`` of configuration_llama.py and its kin, 5.23.0); embeddings and norms are whole on every GPU.
Sums between GPUs are made in place, of an activation that is there already.
"""

from kb.core.model import Architecture
from kb.memory.engine.families.decoder_experts import STEP

APART = ("t5", "decoder")  # families whose heads are as wide as d_kv says, however many there are


def one_share(architecture: Architecture, size: int) -> Architecture:
    """The architecture whose parameters and activations are those of one of ``size`` GPUs.

    What does not divide evenly is rounded up. The output layer is counted whole. Heads of BART and of encoders are as
    wide as the model's width has it, and stay: their feed-forwards alone are split.
    """
    a = architecture
    narrower = a._replace(d_ff=_part(a.d_ff, size), shared_ff=_part(a.shared_ff, size))
    if a.expert_ff:
        narrower = narrower._replace(expert_ff=_part(_part(a.expert_ff, size), STEP) * STEP)
    if a.family not in APART:
        return narrower
    keys = max(_part(a.kv_heads or a.num_heads, size), 1)
    queries = _part(_part(a.num_heads, size), keys) * keys  # as many for each key
    return narrower._replace(num_heads=queries, kv_heads=None if a.kv_heads is None else keys)


def _part(amount: int, size: int) -> int:
    return -(-amount // size)
