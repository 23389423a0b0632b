"""What one pass keeps for its backward, and what the backward needs on top, by stack."""

from kb.core.record import NamedTuple


class Layer(NamedTuple):
    """One layer of a stack, in bytes.

    ``kept`` stays from forward to backward; ``backward`` is the largest transient of the layer's own backward, above
    ``kept``; ``entry`` is the layer's input, all that gradient checkpointing keeps; ``copies`` are autocast's half
    copies of its weights; ``tensors`` counts what is kept (each may hold the remainder of a block); ``forward`` is the
    largest transient of its forward pass, above what the layer has kept by then.
    """

    kept: int
    backward: int
    entry: int
    copies: int
    tensors: int
    forward: int = 0


class Loss(NamedTuple):
    """Output layer and loss, in bytes: ``kept`` for backward; above it, ``inside`` is held at the loss (under autocast,
    while its cache of weights lives), ``forward`` when the logits are handed over, ``backward`` at the loss's
    backward; ``gradient`` is the logits' gradient as it enters the output layer."""

    kept: int
    inside: int
    forward: int
    backward: int
    gradient: int


class Saved(NamedTuple):
    """A pass of an encoder-decoder. The tails are what a stack keeps outside its layers (final norms, dropouts), of
    which ``mask`` (the embedding's dropout) stays to the end of its backward; ``encoder_output`` is kept where the
    decoder's layers keep it as it is, or as the input of checkpointed layers; ``bias`` is the position bias that
    checkpointed layers share. ``unneeded`` is what the first layers leave out when their input needs no gradient."""

    encoder: Layer
    decoder: Layer
    encoder_tail: int
    decoder_tail: int
    encoder_mask: int
    decoder_mask: int
    encoder_output: int
    unneeded: int
    bias: int
    head_copies: int
    loss: Loss


class StackSaved(NamedTuple):
    """A pass of a model of one stack.

    ``kept`` is what all layers keep; ``layer`` the one whose backward needs most. ``first`` is kept outside the layers
    until the end of backward (embeddings: a dropout's mask, the norm's input), ``last`` is what lies above the layers
    (final norm, pooler, the head's inner layers), gone when their backward starts; ``shared`` is alive as long as any
    layer's backward needs it (rotary tables), ``arguments`` what checkpointed layers hold beside their inputs (the
    mask). ``head`` counts the parameters whose gradients exist when the layers' backward starts.
    """

    layers: int
    layer: Layer
    kept: int
    first: int
    last: int
    shared: int
    arguments: int
    head: int
    head_copies: int
    loss: Loss
