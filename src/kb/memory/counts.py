"""Parameter counts by part of the model, from the dimensions alone."""

from functools import lru_cache

from kb.core.model import Architecture
from kb.core.record import NamedTuple


class Counts(NamedTuple):
    """Parameters (not bytes) of one model. ``head`` is 0 where the output layer shares the input embedding."""

    embedding: int  # V·D, the input embedding
    head: int
    positions: int  # learned positions
    encoder_linear: int  # weights of the linear layers inside the encoder's blocks
    decoder_linear: int
    biases: int  # bias vectors of those linear layers
    kept_wide: int  # T5's second feed-forward projections: `_keep_in_fp32_modules`, never quantized
    norms: int  # layer norms and relative-position tables
    experts: int = 0  # experts and their routers: parameters, but no linear layers
    outside: int = 0  # of encoders' heads and embeddings: pooler, projections, classifiers

    @property
    def total(self) -> int:
        of_blocks = self.block_linear + self.biases + self.norms + self.experts
        return self.embedding + self.head + self.positions + of_blocks + self.outside

    @property
    def block_linear(self) -> int:
        return self.encoder_linear + self.decoder_linear

    @property
    def quantizable(self) -> int:
        """What 4-bit and 8-bit loading packs: the blocks' linear layers but T5's ``wo``, which transformers keeps."""
        return self.block_linear - self.kept_wide


@lru_cache(maxsize=256)
def count(architecture: Architecture) -> Counts:
    """Parameters of a model, as transformers 5 builds it from the same dimensions.

    Models of one stack are counted by their own modules. T5: four projections D·I a block of attention, two (three when
    gated) D·F of feed-forward; BART: the same with biases and learned positions (two rows more than ``max_positions``,
    kept for padding).
    """
    if architecture.engine:  # imported where used, as only these models need it
        from kb.memory.engine.inventory import inventory

        return inventory(architecture)[1]
    if architecture.family == "decoder":  # imported where used, as only these models need it
        from kb.memory import decoder_parts

        return decoder_parts.count_parts(architecture)
    if architecture.family == "encoder":
        from kb.memory import encoder_parts

        return encoder_parts.count_parts(architecture)
    a = architecture
    attention = 4 * a.d_model * a.num_heads * a.d_kv
    feed_forward = (3 if a.gated else 2) * a.d_model * a.d_ff
    encoder = a.encoder_layers * (attention + feed_forward)
    decoder = a.decoder_layers * (2 * attention + feed_forward)
    biases = norms = positions = 0
    if a.family == "t5":
        norms = (2 * a.encoder_layers + 3 * a.decoder_layers + 2) * a.d_model
        tables = a.encoder_layers + a.decoder_layers if a.model_type == "umt5" else 2
        norms += tables * a.relative_buckets * a.num_heads
    else:
        sublayers = 2 * a.encoder_layers + 3 * a.decoder_layers
        closing = {"mbart": 4, "pegasus": 2}.get(a.model_type, 2)  # layer norms outside the blocks
        norms = 2 * a.d_model * (sublayers + closing)
        if a.biases:
            attentions = a.encoder_layers + 2 * a.decoder_layers
            biases = attentions * 4 * a.d_model + (a.encoder_layers + a.decoder_layers) * (a.d_ff + a.d_model)
        extra_rows = 0 if a.model_type == "pegasus" else 2
        positions = 2 * ((a.max_positions or 0) + extra_rows) * a.d_model
    return Counts(
        embedding=a.vocab_size * a.d_model,
        head=0 if a.tied else a.vocab_size * a.d_model,
        positions=positions,
        encoder_linear=encoder,
        decoder_linear=decoder,
        biases=biases,
        norms=norms,
        kept_wide=(a.encoder_layers + a.decoder_layers) * a.d_model * a.d_ff if a.family == "t5" else 0,
    )


def parameter_count(architecture: Architecture) -> int:
    """All parameters of the model, shared ones once."""
    return count(architecture).total
