"""What autograd keeps of a forward pass, by stack."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Bytes kept from forward to backward. ``tail`` is what the stacks keep outside their blocks (final norms and
    dropouts), ``head`` the logits and what the loss keeps, ``weight_copies`` autocast's half copies of the weights."""

    encoder: int
    decoder: int
    tail: int
    head: int
    weight_copies: int

    @property
    def total(self) -> int:
        return self.encoder + self.decoder + self.tail + self.head + self.weight_copies
