"""T5, mT5 and UMT5: bytes saved for backward, by stack (04-memory, "Closed forms", T5/mT5)."""

from kb.memory.saved import Saved
from kb.memory.shape import Shape


def saved(s: Shape) -> Saved:
    """Bytes alive at the end of the forward pass of full fine-tuning, by stack."""
    a, ac, arch = s.compute_bytes, s.autocast, s.arch
    d, f, inner, vocab = arch.d_model, arch.d_ff, s.inner, arch.vocab_size
    te, td = s.source_tokens, s.target_tokens
    gates = 2 if arch.gated else 1
    per_ff = (
        ((23 if ac else 29) if arch.gated else (5 if ac else 9)) if s.weight_bytes == 4 else (16 if arch.gated else 5)
    )

    def copies(n: int) -> int:
        return 2 * n if ac else s.weight_bytes

    encoder = te * (d * (18 + copies(3) + copies(gates)) + 8) + 4 * te * inner * a
    encoder += _attention(s, s.source, s.source, s.padded) + te * f * per_ff
    decoder = td * (d * (27 + copies(3) + copies(1) + copies(gates)) + 12) + 6 * td * inner * a + 2 * te * inner * a
    decoder += _attention(s, s.target, s.target, False) + _attention(s, s.target, s.source, s.padded)
    decoder += td * f * per_ff + (4 * te * d if ac else 0)
    tail = 10 * (te + td) * d + te * d * (0 if ac else 4) + td * d * (2 if ac else 4)
    linear = (4 * arch.encoder_layers + 8 * arch.decoder_layers) * d * inner
    linear += (gates + 1) * d * f * (arch.encoder_layers + arch.decoder_layers) + vocab * d
    return Saved(
        encoder=arch.encoder_layers * encoder,
        decoder=arch.decoder_layers * decoder,
        tail=tail,
        head=td * vocab * (6 if ac else 4),
        weight_copies=2 * linear if ac else 0,
    )


def _attention(s: Shape, queries: int, keys: int, masked: bool) -> int:
    a, b, h = s.compute_bytes, s.batch, s.arch.num_heads
    if s.eager:
        return b * h * queries * keys * (5 + a)
    return (b if masked else 1) * h * queries * keys * a + 4 * b * h * (-(-queries // 32) * 32)
