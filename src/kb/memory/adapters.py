"""What LoRA adapters keep for backward, from the modules they wrap."""

from functools import lru_cache
from typing import NamedTuple

from kb.memory.linear import LinearModule
from kb.memory.shape import Shape

CROSS = ("EncDecAttention.k", "EncDecAttention.v", "encoder_attn.k_proj", "encoder_attn.v_proj")
DROPOUT_MASK = 1


class Reach(NamedTuple):
    """Input features of the wrapped linear layers, added up, by stack and by whose tokens they read; and their number
    (each keeps a product of the rank's width). ``parameters`` by stack."""

    encoder_features: int
    encoder_modules: int
    decoder_features: int
    decoder_modules: int
    cross_features: int  # in the decoder, over source tokens
    cross_modules: int
    head_features: int
    embeddings: int
    encoder_weights: int  # in + out features of the wrapped layers
    decoder_weights: int
    head_weights: int
    embedding_weights: int
    widest_embedding: int


@lru_cache(maxsize=256)
def reach(targets: tuple[LinearModule, ...]) -> Reach:
    def over(chosen: list[LinearModule]) -> tuple[int, int]:
        return sum(m.in_features * m.number for m in chosen), sum(m.number for m in chosen)

    linear = [m for m in targets if m.kind == "linear"]
    encoder = [m for m in linear if m.stack == "encoder"]
    cross = [m for m in linear if m.stack == "decoder" and m.name.endswith(CROSS)]
    decoder = [m for m in linear if m.stack == "decoder" and not m.name.endswith(CROSS)]
    embeddings = [m for m in targets if m.kind == "embedding"]

    def weights(chosen: list[LinearModule]) -> int:
        return sum((m.in_features + m.out_features) * m.number for m in chosen)

    encoder_features, encoder_modules = over(encoder)
    decoder_features, decoder_modules = over(decoder)
    cross_features, cross_modules = over(cross)
    return Reach(
        encoder_features=encoder_features,
        encoder_modules=encoder_modules,
        decoder_features=decoder_features,
        decoder_modules=decoder_modules,
        cross_features=cross_features,
        cross_modules=cross_modules,
        head_features=over([m for m in linear if m.stack == "head"])[0],
        embeddings=len(embeddings),
        encoder_weights=weights(encoder),
        decoder_weights=weights(decoder + cross),
        head_weights=weights([m for m in linear if m.stack == "head"]),
        embedding_weights=weights(embeddings),
        widest_embedding=max((m.in_features for m in embeddings), default=0),
    )


class Kept(NamedTuple):
    """Bytes kept by the adapters of all layers of a stack, and outside the stacks."""

    encoder: int
    decoder: int
    outside: int


def kept(found: Reach, rank: int, s: Shape) -> Kept:
    """A wrapped linear layer keeps its dropped-out input, a mask, and the product of rank's width.

    Adapters are fp32 (peft's ``autocast_adapter_dtype``), so they keep 4 bytes an element, or 2 under autocast.
    Dropout is assumed: without it the mask goes, and wrapped layers that read one tensor share it.
    """
    width = 2 if s.autocast else 4
    te, td = s.source_tokens, s.target_tokens

    def over(tokens: int, features: int, modules: int) -> int:
        return tokens * (features * (width + DROPOUT_MASK) + modules * rank * width)

    return Kept(
        encoder=over(te, found.encoder_features, found.encoder_modules),
        decoder=over(td, found.decoder_features, found.decoder_modules)
        + over(te, found.cross_features, found.cross_modules),
        outside=over(td, found.head_features, 1 if found.head_features else 0)
        + found.embeddings * rank * 4 * max(te, td),
    )
