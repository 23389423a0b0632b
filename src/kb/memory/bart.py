"""BART, mBART and Pegasus: bytes saved for backward, by stack (04-memory, "Closed forms", BART)."""

from kb.memory.saved import Saved
from kb.memory.shape import Shape


def saved(s: Shape) -> Saved:
    """Bytes alive at the end of the forward pass of full fine-tuning, by stack."""
    a, ac, arch = s.compute_bytes, s.autocast, s.arch
    d, f, vocab = arch.d_model, arch.d_ff, arch.vocab_size
    te, td = s.source_tokens, s.target_tokens
    k = 5 if ac else 9
    encoder = 2 * te * (k * d + 8) + 4 * te * d * a + _attention(s, s.source, s.source, s.padded) + 2 * te * f * a
    decoder = 3 * td * (k * d + 8) + 6 * td * d * a + 2 * te * d * a + 2 * td * f * a
    decoder += _attention(s, s.target, s.target, False) + _attention(s, s.target, s.source, s.padded)
    if ac:
        encoder += 8 * te * d
        decoder += 10 * td * d + 4 * te * d
    linear = 4 * d * d * (arch.encoder_layers + 2 * arch.decoder_layers)
    linear += 2 * d * f * (arch.encoder_layers + arch.decoder_layers) + vocab * d
    return Saved(
        encoder=arch.encoder_layers * encoder,
        decoder=arch.decoder_layers * decoder,
        tail=k * (te + td) * d + (2 * td * d if ac else 0),
        head=4 * td * vocab,
        weight_copies=2 * linear if ac else 0,
    )


def _attention(s: Shape, queries: int, keys: int, masked: bool) -> int:
    b, h = s.batch, s.arch.num_heads
    if s.eager:
        return b * h * queries * keys * (6 if s.autocast else s.compute_bytes)
    mask = b * queries * keys * s.compute_bytes if masked else 0
    return mask + 4 * b * h * (-(-queries // 32) * 32)
