"""What one pass keeps for its backward, and what the backward needs on top, by stack."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a stack, in bytes.

    ``kept`` stays from forward to backward; ``backward`` is the largest transient of the layer's own backward, above
    ``kept``; ``entry`` is the layer's input, all that gradient checkpointing keeps; ``copies`` are autocast's half
    copies of its weights; ``tensors`` counts what is kept (each may hold the remainder of a block).
    """

    kept: int
    backward: int
    entry: int
    copies: int
    tensors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Output layer and loss, in bytes: ``kept`` for backward; ``forward`` and ``backward`` are what the end of the
    forward pass and the start of the backward pass hold above ``kept``; ``gradient`` is the logits' gradient as it
    enters the output layer."""

    kept: int
    forward: int
    backward: int
    gradient: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A pass of an encoder-decoder. The tails are what a stack keeps outside its layers (final norms, dropouts);
    ``bias`` is the position bias that checkpointed layers share."""

    encoder: Layer
    decoder: Layer
    encoder_tail: int
    decoder_tail: int
    bias: int
    head_copies: int
    loss: Loss
