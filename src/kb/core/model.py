"""A model's architecture, as its ``config.json`` gives it, and its entry in ``rules/models``."""

from typing import Literal, NamedTuple

Family = Literal["t5", "bart", "decoder", "encoder"]


class Architecture(NamedTuple):
    """Dimensions, in the names of the closed forms (04-memory).

    ``family`` selects the closed form: T5, mT5 and UMT5 are all ``t5``. ``model_type`` is transformers' own name.
    """

    family: Family
    model_type: str
    d_model: int  # D
    d_ff: int  # F
    num_heads: int  # H
    d_kv: int  # d_kv; the inner size is H·d_kv
    encoder_layers: int
    decoder_layers: int
    vocab_size: int  # V
    gated: bool = False  # feed-forward of two input projections (wi_0, wi_1)
    tied: bool = True  # output layer shares the input embedding
    max_positions: int | None = None  # learned positions; None where they are relative
    relative_buckets: int = 0
    biases: bool = False  # linear layers have bias vectors (BART: yes, T5: no)
    attention_dropout: bool = False  # BART: dropout on the attention probabilities (T5's is always there)
    activation_dropout: bool = False  # BART: dropout between the feed-forward's layers


class Model(NamedTuple):
    """One row of ``rules/models``."""

    id: str
    name: str  # hub name
    architecture: Architecture
    parameters: int
    aliases: tuple[str, ...] = ()
    max_length: int | None = None  # tokens: what the card or the tokenizer names, where known
